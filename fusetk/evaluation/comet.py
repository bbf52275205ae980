"""COMET, a metric that a neural network was trained to compute (Rei et al. 2020).

The library `comet` is optional. Its scores of sentences are averaged.
"""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar

from fusetk import display
from fusetk.decoding.sentence_utility import TranslationPair
from fusetk.errors import DataError, one_line
from fusetk.evaluation.metric import Metric, MetricOptions, Score, StatisticsRow

DEFAULT_MODEL = "Unbabel/wmt22-comet-da"
BLOCK = 256  # lines in one call of the library
BATCH = 16  # lines that the network reads together
MISSING = "the metric comet needs its library: pip install 'fusetk[comet]'"


class Comet(Metric):
    """The mean of COMET's scores of the sentences, times 100.

    With several references, the score of a sentence is the mean over its references.
    """

    name = "comet"
    tokenizes = True
    needs_source: ClassVar[bool] = True
    options = ("comet_model",)

    def __init__(
        self,
        references: Sequence[Sequence[str]],
        options: MetricOptions,
        source: Sequence[str] | None = None,
    ) -> None:
        """Load the model; a model that is given by its name is downloaded once.

        Raises DataError if the library is missing, the model cannot be loaded, or the option
        ``lowercase`` is set.
        """
        assert source is not None  # because of needs_source
        if options.lowercase:
            raise DataError("--lowercase is not for comet: omit one of the two options")
        self.references = references
        self.source = source
        self.model = CometModel(options.comet_model or DEFAULT_MODEL)

    def statistics(self, hypotheses: Sequence[str]) -> list[StatisticsRow]:
        """Return a row (score, 1) for each line."""
        rows: list[StatisticsRow] = []
        with display.task(self.name, "lines", len(hypotheses)) as done:
            for start in range(0, len(hypotheses), BLOCK):
                block = slice(start, start + BLOCK)
                scores = []
                for reference in self.references:
                    texts = zip(
                        self.source[block], hypotheses[block], reference[block], strict=True
                    )
                    scores.append(self.model.compare([TranslationPair(*row) for row in texts]))
                rows += [(sum(line) / len(line), 1.0) for line in zip(*scores, strict=True)]
                done.set(len(rows))
        return rows

    def value(self, totals: StatisticsRow) -> float:
        """Return the mean score for the sum of the rows of some lines."""
        return totals[0] / totals[1] if totals[1] else 0.0

    def score(self, rows: Sequence[StatisticsRow]) -> Score:
        return Score(
            metric=self.name,
            name="COMET",
            value=self.value([sum(column) for column in zip(*rows, strict=True)]),
            details="",
            signature=f"nrefs:{len(self.references)}|model:{self.model.name}|version:{_version()}",
            sentences=len(rows),
        )


class CometModel:
    """A COMET model."""

    def __init__(self, name: str = DEFAULT_MODEL):
        """Load the model of a checkpoint file, or of a name that the library knows.

        Raises DataError if the library is missing or the model cannot be loaded.
        """
        self.name = name
        self.model = _load(name)

    def compare(self, comparisons: Sequence[TranslationPair]) -> list[float]:
        """Return the score of each translation with ``other`` as its reference, about 0 to 100."""
        import torch

        lines = [
            {"src": row.source, "mt": row.translation, "ref": row.other} for row in comparisons
        ]
        gpus = int(torch.cuda.is_available())
        result = self.model.predict(lines, batch_size=BATCH, gpus=gpus, progress_bar=False)
        return [100 * float(score) for score in result.scores]


def _load(name: str) -> Any:
    try:
        from comet import download_model, load_from_checkpoint
    except ImportError:
        raise DataError(MISSING) from None
    try:
        path = name if Path(name).is_file() else download_model(name)
        return load_from_checkpoint(path)
    except Exception as error:  # the library and its network raise errors of many kinds
        reason = one_line(error) or type(error).__name__
        raise DataError(
            f"the COMET model {name} cannot be loaded ({reason}): check the name or the "
            "connection; `fusetk score --comet-model FILE` reads a checkpoint"
        ) from None


def _version() -> str:
    try:
        return version("unbabel-comet")
    except PackageNotFoundError:
        return "unknown"
