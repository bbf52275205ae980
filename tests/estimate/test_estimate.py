"""`fusetk estimate`: multiply-adds against formulas by hand, memory, updates, hours and prices."""

import itertools
import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from fusetk import recipe as recipes
from fusetk.cli.estimate_options import HIGHEST_PRICE, LEAST_SHARE, MOST_PAIRS
from fusetk.cli.main import main
from fusetk.data import integrity, manifest
from fusetk.data.batch_config import MOST_IN_BATCH, BatchConfig
from fusetk.data.corpus import Corpus
from fusetk.data.sampler import batches
from fusetk.errors import ConfigError
from fusetk.estimate import measure
from fusetk.estimate.cost import (
    LENGTH,
    SAMPLES,
    StageCost,
    TextLengths,
    _updates,
    estimate,
    mean_batch,
    sample_batches,
    stage_hours,
    text_of,
    training_hours,
)
from fusetk.estimate.devices import DEVICES
from fusetk.estimate.operations import BatchShape, batch_cost, optimizer_bytes
from fusetk.system import build_shapes
from fusetk.training import optim
from fusetk.training.config import MOST_UPDATES
from tests.contracts.systems import TARGET_SIZE, build
from tests.helpers.refusals import refused

B, S, T = 3, 5, 4
SHAPE = BatchShape([S] * B, [T] * B)


def count(kind: str, shape: BatchShape = SHAPE, **options: Any) -> int:
    return batch_cost(build(kind, **options).to("meta").train(), shape, 0.1).multiply_adds


def transformer(d: int, f: int, layers: int, v: int, source: int, target: int) -> int:
    """The multiply-adds of the forward pass of a pair, written out."""
    encoder = source * (4 * d * d + 2 * d * f) + 2 * source * source * d
    self_attention = target * 4 * d * d + 2 * target * target * d
    cross_attention = target * 2 * d * d + source * 2 * d * d + 2 * target * source * d
    decoder = self_attention + cross_attention + target * 2 * d * f
    return layers * (encoder + decoder) + target * d * v


@pytest.mark.parametrize(("d", "f", "layers"), [(16, 24, 2), (32, 40, 1), (16, 24, 3)])
def test_a_transformer_has_the_multiply_adds_of_the_formula(d: int, f: int, layers: int) -> None:
    sides = {side: {"layers": layers} for side in ("encoder", "decoder")}
    forward = B * transformer(d, f, layers, TARGET_SIZE, S, T)
    # The backward pass has two products for each product of the forward pass. The products of the
    # loss with vectors are the rest.
    assert count("transformer", width=d, ffn=f, **sides) == pytest.approx(3 * forward, rel=0.01)


def test_padding_of_the_target_is_not_projected_to_the_vocabulary() -> None:
    short = BatchShape([S] * B, [T] * (B - 1) + [T - 1])
    difference = count("transformer") - count("transformer", short)
    assert difference == 3 * 16 * TARGET_SIZE


def test_a_recurrent_model_skips_finished_sentences() -> None:
    short = BatchShape([S] * B, [T] * (B - 1) + [1])
    assert count("recurrent", short) < 0.9 * count("recurrent")


@pytest.mark.parametrize("kind", ["conv", "coordinated", "recurrent"])
def test_multiply_adds_are_linear_in_the_number_of_pairs(kind: str) -> None:
    once, twice, four = (count(kind, BatchShape([S] * pairs, [T] * pairs)) for pairs in (2, 4, 8))
    assert four - twice == pytest.approx(2 * (twice - once), rel=0.02)


def test_activations_grow_with_the_batch_and_parameters_are_not_activations() -> None:
    def activations(pairs: int, **options: Any) -> int:
        model = build("transformer", **options).to("meta").train()
        return batch_cost(model, BatchShape([S] * pairs, [T] * pairs)).activations

    one, two, three = (activations(pairs) for pairs in (8, 16, 24))
    assert three - two == pytest.approx(two - one, rel=0.02) and one < 1.1 * (two - one)
    recomputed = {side: {"layers": 2, "checkpoint": True} for side in ("encoder", "decoder")}
    assert activations(16, **recomputed) < 0.7 * two
    # A layer that the backward pass recomputes needs its memory: the only layer, all of it.
    for layers, least in ((1, 1.0), (4, 0.25)):
        sides = {side: {"layers": layers} for side in ("encoder", "decoder")}
        plain = activations(16, **sides)
        again = activations(
            16, **{side: {**values, "checkpoint": True} for side, values in sides.items()}
        )
        assert 0.5 * least * plain < again < 1.1 * plain


def test_recomputed_layers_are_counted_once_more() -> None:
    plain = {"encoder": {"layers": 2}, "decoder": {"layers": 2}}
    recomputed = {side: {**values, "checkpoint": True} for side, values in plain.items()}
    assert 1.1 < count("transformer", **recomputed) / count("transformer", **plain) <= 4 / 3


@pytest.mark.parametrize(("kind", "copies"), [("adam", 2), ("sgd", 0), ("nag", 1)])
def test_the_state_of_an_optimiser_is_counted(kind: str, copies: int) -> None:
    model = build("conv").to("meta")
    path = {"kind": kind} | ({"momentum": 0.9} if kind == "nag" else {})
    config = recipes.load(RECIPE, [f"training.stages.0.optimizer={json.dumps(path)}"])
    optimizer = optim.build(config.training.stages[0].optimizer, model.parameters())
    expected = copies * sum(4 * p.numel() for p in model.parameters())
    steps = 4 * len(list(model.parameters()))  # Adam counts the steps of each parameter
    assert 0 <= optimizer_bytes(optimizer) - expected <= steps


RECIPE = Path(__file__).parents[2] / "fusetk" / "demo" / "transformer.yaml"


@pytest.mark.parametrize(
    ("batch", "pairs"),
    [
        ({"size": 1000, "unit": "tokens"}, 50),
        ({"size": 1000, "unit": "longest"}, 45),
        ({"size": 1000, "unit": "both"}, 23),
        ({"size": 32, "unit": "sentences"}, 32),
        ({"size": 32, "unit": "sentences", "token_limit": 200}, 8),
        ({"size": 5, "unit": "tokens"}, 1),
    ],
    ids=str,
)
def test_a_mean_batch_has_the_size_of_the_config(batch: dict[str, Any], pairs: int) -> None:
    shape = mean_batch(BatchConfig.model_validate(batch), TextLengths(None, 22, 20, None))
    assert (shape.source, shape.target) == ([22] * pairs, [20] * pairs)


def test_weights_need_the_prepared_text() -> None:
    config, text = BatchConfig(size=10), TextLengths(None, 5, 5, 8)
    assert sample_batches(config, text, 1, {"a": 1})[1] == 4
    with pytest.raises(ConfigError, match=r"stages\.0\.weights need the prepared text: prepare it"):
        sample_batches(config, text, 1, {"a": 10})


def test_batches_of_prepared_text_are_those_of_training() -> None:
    """The samples are the first batch, the last one, and some at equal distances between them."""
    source, target = np.random.default_rng(1).integers(1, 10, (2, 60)).astype(np.int32)
    corpus: Any = SimpleNamespace(
        source=SimpleNamespace(lengths=source), target=SimpleNamespace(lengths=target), parts=()
    )
    config = BatchConfig(size=10)
    shapes, number = sample_batches(config, TextLengths(corpus, 5, 5, 60), seed=3)
    order = batches(source, target, config, 3, 0)
    assert number == len(order) > 2 * SAMPLES
    places = [round(i * (len(order) - 1) / (SAMPLES - 1)) for i in range(SAMPLES)]
    assert shapes == [
        (source[pairs].tolist(), target[pairs].tolist()) for pairs in (order[i] for i in places)
    ]


def test_numbers_that_are_not_given_are_those_of_the_prepared_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sentences(lengths: list[int]) -> SimpleNamespace:
        return SimpleNamespace(lengths=np.array(lengths))

    class Pairs(SimpleNamespace):
        def __len__(self) -> int:
            return 2

        def of_epoch(self, epoch: int) -> "Pairs":
            return self

    corpus = Pairs(source=sentences([3, 5]), target=sentences([6, 8]))
    recipe = recipes.load(RECIPE, [f"data.folder={tmp_path}"])
    assert text_of(recipe, None, 9, 50) == (None, LENGTH, 9, 50)
    (tmp_path / manifest.NAME).touch()
    monkeypatch.setattr(manifest, "read", lambda folder: {})
    monkeypatch.setattr(integrity, "check_settings", lambda *arguments: None)
    monkeypatch.setattr(Corpus, "open", lambda folder, split: corpus)
    assert text_of(recipe, None, None, None) == (corpus, 4, 7, 2)
    assert text_of(recipe, None, 9, None) == (None, 4, 9, 2)
    assert text_of(recipe, None, None, 50) == (None, 4, 7, 50)


def test_text_that_was_prepared_with_other_settings_is_not_used(toy: Path) -> None:
    def said(command: str, *options: str) -> str:
        arguments = [command, str(toy), "--set", "data.vocabulary.size=10", *options]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == (2 if result.stderr else 0), result.output
        return result.stderr

    other = "was prepared with other settings (data.vocabulary.size: none -> 10): run fusetk prep, "
    sizes = ("--src-vocab-size", "9", "--tgt-vocab-size", "9")
    lengths = ("--src-length", "4", "--tgt-length", "4", "--pairs", "9")
    device = ("--device", "h100")
    for command in (("describe",), ("estimate", *device, *lengths)):
        assert f"{other}or give --src-vocab-size and --tgt-vocab-size" in said(*command)
        assert not said(*command, *sizes)
    assert f"{other}or give --src-length, " in said("estimate", *device, *sizes, *lengths[2:])


def test_updates_follow_from_epochs_or_are_given() -> None:
    def updates(end: str, batches: int | None, accumulate: int = 1) -> int | None:
        settings = [f"training.stages.0.end={end}"]
        settings.append(f"training.stages.0.batch.accumulate={accumulate}")
        return _updates(recipes.load(RECIPE, settings).training.stages[0], batches)

    assert updates("{updates: 70}", None) == 70
    assert updates("{epochs: 3}", 10) == 30
    assert updates("{epochs: 3}", 10, accumulate=4) == 9
    assert updates("{epochs: 3, updates: 25}", 10) == 25
    assert updates("{epochs: 3}", None) is None
    assert updates("{patience: 3}", 10) is None


@pytest.mark.parametrize(
    ("pairs", "accumulate", "batches", "printed"),
    [(100, 1, 1, "1"), (100, 4, 10 / 3, "3.3"), (100, 100, 10, "10"), (20_000, 1000, 1000, "1000")],
)
def test_an_epoch_has_the_cost_of_its_batches(
    pairs: int, accumulate: int, batches: float, printed: str
) -> None:
    """The last update of an epoch has fewer batches."""
    batch = f"{{size: 10, unit: sentences, accumulate: {accumulate}}}"
    settings = [f"training.stages.0.batch={batch}", "training.stages.0.end={epochs: 3}"]
    recipe = recipes.load(RECIPE, settings)
    [cost] = estimate(recipe, (20, 20), TextLengths(None, 5, 4, pairs)).stages
    assert cost.batch == f"{printed} x 40 target tokens (10 pairs)"
    shape = BatchShape([5] * 10, [4] * 10)
    operations = batch_cost(
        build_shapes(recipe, 20, 20).train(), shape, recipe.training.label_smoothing
    ).multiply_adds
    assert cost.multiply_adds == pytest.approx(batches * operations)
    assert cost.target_tokens == pytest.approx(batches * 40)
    assert cost.updates and cost.updates * batches == pytest.approx(3 * pairs / 10)


@pytest.mark.parametrize(("accumulate", "batches"), [(2, 2), (50, 10)])
def test_a_measured_update_has_at_most_the_batches_of_an_epoch(
    accumulate: int, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch and a step of the optimiser take a second each."""
    ticks = itertools.count()
    monkeypatch.setattr(measure, "_now", lambda device: next(ticks))
    batch = f"{{size: 10, unit: sentences, accumulate: {accumulate}}}"
    recipe = recipes.load(RECIPE, [f"training.stages.0.batch={batch}"])
    text = TextLengths(None, 5, 4, 100)
    [cost] = estimate(recipe, (20, 20), text).stages
    speed = measure.measured_speed(recipe, (20, 20), text, torch.device("cpu"), 1)
    assert cost.multiply_adds / speed == pytest.approx(batches + 1)


def stage(updates: int | None, limit: float | None = None) -> StageCost:
    return StageCost("", 100, 7.2e9, 0, updates, limit)


def test_hours_are_multiply_adds_by_speed() -> None:
    assert stage_hours(stage(1000), 1e9) == pytest.approx(2.0)
    assert stage_hours(stage(1000, limit=0.5), 1e9) == 0.5
    assert stage_hours(stage(None, limit=0.5), 1e9) == 0.5
    assert training_hours([stage(1000), stage(500)], 1e9) == pytest.approx(3.0)
    assert training_hours([stage(1000), stage(None)], 1e9) is None


def test_the_peak_depends_on_the_precision() -> None:
    h100 = DEVICES["h100"]
    assert h100.peak("bf16", "highest") == 989e12 / 2
    assert h100.peak("fp32", "highest") == 67e12 / 2
    assert h100.peak("fp32", "high") == 494.5e12 / 2
    assert DEVICES["v100"].peak("fp16", "highest") == 125e12 / 2
    with pytest.raises(ConfigError, match="NVIDIA V100 has no bf16"):
        DEVICES["v100"].peak("bf16", "highest")


def run(*arguments: object) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["estimate", *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_devices_and_price() -> None:
    common = (RECIPE, "--device", "h100", "--src-vocab-size", 100, "--price", 2, "--pairs", 500)
    once = run(*common)
    twice = run(*common, "--devices", 2)
    half = run(*common, "--share", 0.15)
    assert once["hours"] == pytest.approx(2 * twice["hours"]) == pytest.approx(half["hours"] / 2)
    assert once["price"] == pytest.approx(twice["price"]) == pytest.approx(2 * once["hours"])


HUGE = "1" + "0" * 300


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("--set=training.stages.0.end.updates=", "training.stages.0.end.updates"),
        ("--set=training.stages.0.end.epochs=", "training.stages.0.end.epochs"),
        ("--set=training.stages.0.batch.accumulate=", "training.stages.0.batch.accumulate"),
        ("--set=training.stages.0.batch.size=", "training.stages.0.batch.size"),
        ("--devices=", "--devices"),
        ("--pairs=", "--pairs"),
        ("--price=", "--price"),
        ("--set=training.stages.0.end.hours=", "training.stages.0.end.hours"),
        ("--set=model.width=", "sizes of the model or of the vocabularies"),
        ("--src-vocab-size=", "sizes of the model or of the vocabularies"),
    ],
)
def test_a_huge_number_is_an_error_that_names_it(option: str, name: str) -> None:
    """Hours and prices are finite, because JSON has no infinity."""
    command = ["estimate", str(RECIPE), "--device", "h100", "--src-vocab-size", "100", "--json"]
    result = CliRunner().invoke(main, [*command, option + HUGE])
    assert result.exit_code == 2 and name in result.stderr, result.output


def test_the_largest_numbers_have_finite_costs() -> None:
    largest = run(
        *(RECIPE, "--device", "h100", "--src-vocab-size", 100, "--share", LEAST_SHARE),
        *("--price", HIGHEST_PRICE, "--pairs", MOST_PAIRS),
        *("--set", f"training.stages.0.batch.accumulate={MOST_IN_BATCH}"),
        *("--set", f"training.stages.0.end={{epochs: {MOST_UPDATES}}}"),
    )
    assert 1e9 < largest["hours"] < largest["price"] < math.inf


def test_a_small_share_is_not_rounded_to_zero() -> None:
    common = ["estimate", str(RECIPE), "--device", "h100", "--src-vocab-size", "60"]
    result = CliRunner().invoke(main, [*common, "--pairs", "500", "--share", "0.005"])
    assert "0.5% of its peak" in result.stdout


def test_a_short_training_is_not_rounded_to_zero() -> None:
    words = ("--device", "h100", "--src-vocab-size", "60", "--pairs", "500")
    short = ("--set", "training.stages.0.end={updates: 1}")
    printed = CliRunner().invoke(main, ["estimate", str(RECIPE), *words, *short]).stdout
    [minutes] = re.findall(r"training: (\S+) minutes", printed)
    assert float(minutes) == pytest.approx(60 * run(RECIPE, *words, *short)["hours"], rel=0.05)


def test_an_estimate_from_a_data_sheet_has_a_note() -> None:
    common = ["estimate", str(RECIPE), "--src-vocab-size", "60", "--pairs", "500"]
    named = CliRunner().invoke(main, [*common, "--device", "h100"]).stdout
    assert named.endswith("measure it on the GPU with -d cuda\n")
    measured = CliRunner().invoke(main, [*common, "--device", "cpu", "--measure", "1"]).stdout
    assert "training: " in measured and "note: " not in measured


def test_the_cost_has_the_parameters_that_describe_prints() -> None:
    sizes = ("--src-vocab-size", "11", "--tgt-vocab-size", "9")
    described = CliRunner().invoke(main, ["describe", str(RECIPE), *sizes, "--json"])
    text = TextLengths(None, 6, 6, 100)
    cost = estimate(recipes.load(RECIPE), (11, 9), text)
    assert cost.parameters == json.loads(described.stdout)["parameters"]
    assert cost.state >= 4 * 4 * cost.parameters  # weights, gradients, two of Adam
    with_average = estimate(recipes.load(RECIPE, ["training.ema=0.99"]), (11, 9), text)
    assert with_average.state == cost.state + 4 * cost.parameters


def test_the_speed_of_this_machine_is_measured() -> None:
    torch.manual_seed(1)
    settings = ["--set", "model.width=16", "--set", "model.heads=2", "--set", "model.ffn=16"]
    cost = run(
        *(RECIPE, *settings, "--device", "cpu", "--measure", 1, "--src-vocab-size", 60),
        *("--src-length", 5, "--tgt-length", 5, "--pairs", 500),
    )
    assert cost["multiply_adds_a_second"] > 1e6 and cost["speed_from"].startswith("cpu of this")


def test_sentences_longer_than_the_positions_are_refused(toy: Path) -> None:
    assumed = ["--tgt-length", "9", "--pairs", "100", "--src-vocab-size", "30"]
    learned = ["--set", "model.positions=learned", "--set", "model.max_positions=30"]
    command = ["estimate", str(RECIPE), "--device", "cpu", "--measure", "1", *assumed, *learned]
    small = [f"--set=model.{setting}" for setting in ("width=16", "heads=2", "ffn=16")]
    bf16 = ["--set", "training.precision=bf16"]  # pads lengths to 32, which exceeds the positions
    fits = CliRunner().invoke(main, [*command, *small, *bf16, "--src-length", "30"])
    assert fits.exit_code == 0, fits.output
    error = refused(*command, "--src-length", "31")
    assert "sentences of 31 tokens do not fit the 30 positions of the model" in error
    short = [*learned[:2], "--set", "model.max_positions=5"]
    error = refused("estimate", str(toy), "--device", "h100", *short)
    assert "tokens and the model 5 positions" in error


def test_a_share_needs_a_known_peak() -> None:
    assert "--share needs --device" in refused("estimate", str(RECIPE), "--share", "0.5")


def test_sentences_that_need_too_much_memory_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["estimate", str(RECIPE), "--device", "h100", "--src-vocab-size", "20"]
    error = refused(*command, "--src-length", "1e9")
    assert "--src-length: must be at least 1 and at most 100000" in error

    def fail(self: BatchShape, multiple: int = 1, limit: int | None = None) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(BatchShape, "batch", fail)
    assert "give smaller --src-length" in refused(*command)


def test_a_data_sheet_is_not_measured() -> None:
    error = refused("estimate", str(RECIPE), "--device", "h100", "--measure", "6")
    assert "--measure needs --device auto, cpu or cuda" in error
