"""Metrics of translations as the metric of validation: text, direction and errors."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from fusetk.data.pipeline import Pipeline, Text
from fusetk.data.steps.lowercase import Lowercase
from fusetk.data.steps.tokenize import Tokenize
from fusetk.data.vocab import Vocabulary
from fusetk.errors import ConfigError, FusetkError, ImportFailed
from fusetk.evaluation.metrics import METRICS
from fusetk.processes import ALONE, World
from fusetk.recipe import load
from fusetk.runs import checkpoint_name
from fusetk.train import train
from fusetk.training.average import choose
from fusetk.training.distributed_validation import DistributedValidation
from fusetk.training.progress import Progress
from fusetk.training.signals import Stop
from fusetk.training.validation import LossSums, PartialResults, TranslationMetric
from fusetk.training.validation_config import BLEU, ranking_key
from tests.helpers.metrics import records

MODULE = """
import numpy as np

from fusetk.evaluation.metric import Metric, Score


class Errors(Metric):
    lower_is_better = True

    def __init__(self, references, options, source=None):
        self.references = references

    def statistics(self, hypotheses):
        return [(line != self.references[0][i], 1) for i, line in enumerate(hypotheses)]

    def value(self, totals):
        return 100 * totals[0] / totals[1]

    def score(self, rows):
        value = np.float32(self.value([sum(column) for column in zip(*rows)]))
        return Score(self.name, "errors", value, "", "", len(rows))


class WithSource(Errors):
    needs_source = True
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "validation_metrics.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize("name", [BLEU, *METRICS])
def test_each_metric_reads_the_text_that_it_expects(name: str, tmp_path: Path) -> None:
    """A translation that equals the prepared reference has the best score of each metric."""
    steps = [Tokenize(step="tokenize"), Lowercase(step="lowercase")]
    pipeline = Pipeline(Text(steps, "de", "en"), {}, (Vocabulary([]), Vocabulary([])))
    raw = ["It's the End of Paul's day, isn't it?", 'He said: "No, not (yet) today."']
    words = [pipeline.words("target", line) for line in raw]
    for number, lines in (("", ["x"] * 2), ("1", words)):
        (tmp_path / f"valid.en{number}.txt").write_text("".join(f"{line}\n" for line in lines))
    for number, lines in (("", ["x"] * 2), ("1", raw)):
        (tmp_path / f"valid.en{number}.raw").write_text("".join(f"{line}\n" for line in lines))
    score = TranslationMetric(name, tmp_path, pipeline).score(words)
    assert score == pytest.approx(0 if name == "ter" else 100)


@pytest.mark.parametrize("metric", ["ter", "validation_metrics:Errors"])
def test_the_lowest_error_rate_is_the_best(
    toy: Path, tmp_path: Path, module: None, metric: str
) -> None:
    """Early stopping, the best checkpoint and a resumed training use the direction."""
    overrides = [
        f"training.validation={{every_updates: 1, metric: {metric!r}, bleu: true}}",
        "training.stages.0.schedule={kind: constant, rate: 0.003}",
        "training.keep_last=1",
    ]
    runs = [tmp_path / name for name in ("whole", "resumed")]
    for run, ends in zip(runs, ([4], [2, 4]), strict=True):
        for updates in ends:
            settings = [*overrides, f"training.stages.0.end={{updates: {updates}, patience: 9}}"]
            train(load(toy, settings), run, "cpu", quiet=True)
    whole, resumed = (records(run, "valid") for run in runs)
    assert whole == resumed and len(whole) == 4 and "bleu" in whole[0]
    best = min(whole, key=lambda record: (record[metric], record["loss"]))
    assert (runs[0] / "checkpoints/best").resolve().name == checkpoint_name(best["update"])
    assert choose(runs[0], best=1, metric=metric) == [
        runs[0] / "checkpoints" / checkpoint_name(best["update"])
    ]
    progress = Progress()
    is_best = [progress.add_validation(metric, {"loss": 1, metric: value}) for value in (9, 8, 8.5)]
    assert is_best == [True, True, False] and (progress.best, progress.stalled) == (8, 1)


def test_a_metric_outside_fusetk_has_a_direction(module: None) -> None:
    name = "validation_metrics:Errors"
    assert ranking_key(name, {"loss": 2, name: 1.0}) < ranking_key(name, {"loss": 1, name: 2.0})


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("blue", "unknown metric 'blue'; did you mean 'bleu'? known: loss, ppl, accuracy, bleu, s"),
        (
            "comet",
            "the metric comet needs the source, which validation does not give to a metric: ",
        ),
        ("validation_metrics:WithSource", "needs the source"),
        ("validation_metrics:Metrics", "has no 'Metrics'; did you mean 'Metric'?"),
        ("validation_metrics:Score", "is not a subclass of fusetk.evaluation.metric.Metric"),
    ],
)
def test_a_metric_that_validation_cannot_compute_is_refused(
    toy: Path, module: None, metric: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(toy, [f"training.validation.metric={metric}"])
    text = str(caught.value)
    assert said in text and "training.validation.metric: " in text and "[--set training." in text


def test_a_metric_that_cannot_be_imported_is_named(toy: Path) -> None:
    with pytest.raises(ImportFailed, match="set PYTHONPATH to the folder of no_such_package"):
        load(toy, ["training.validation.metric=no_such_package:Metric"])


class OtherProcess(World):
    """Rank 1 of two processes; rank 0 has given metrics, None after an error."""

    def __init__(self, metrics: dict[str, float] | None):
        super().__init__(1, 2)
        self.metrics = metrics

    def all_gather(self, value: Any) -> list[Any]:
        return [value, value]

    def any(self, flag: bool) -> bool:
        return flag

    def broadcast(self, value: Any) -> Any:
        return self.metrics


@pytest.mark.parametrize(
    ("world", "error"),
    [
        (ALONE, "my metric"),
        (OtherProcess(None), "validation failed in another process; saved after update 7"),
        (OtherProcess({"loss": 1.0}), None),
    ],
)
def test_a_failing_metric_loses_no_updates(world: World, error: str | None) -> None:
    """All processes save, or all use the metrics of rank 0."""
    saved = []

    def fail(parts: object) -> None:
        raise ValueError("my metric")

    validator = SimpleNamespace(
        validate_part=lambda *arguments: PartialResults(LossSums(1.0, 1.0, 1), {}), combine=fail
    )
    checkpoints = SimpleNamespace(
        save=lambda progress, optimizer, interrupted: saved.append((progress.update, interrupted))
    )
    validation = DistributedValidation(
        validator,  # type: ignore[arg-type]
        nn.Module(),  # type: ignore[arg-type]
        None,
        "fp32",
        checkpoints,  # type: ignore[arg-type]
        world,
    )
    with Stop() as stop:
        if error is None:
            result = validation(Progress(update=7), None, stop, lambda: False)
            assert result.metrics == {"loss": 1.0} and not saved
        else:
            with pytest.raises((ValueError, FusetkError), match=error):
                validation(Progress(update=7), None, stop, lambda: False)
            assert saved == [(7, True)]
