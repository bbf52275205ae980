"""The Python interface: ``fusetk.load`` and what it returns."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fusetk import run
from fusetk.config import Document, Origin, Place, parse
from fusetk.data.pipeline import Pipeline
from fusetk.data.vocab import EOS
from fusetk.decoding.config import SearchConfig
from fusetk.decoding.forced import force
from fusetk.decoding.translate import Request, Translation, Translator
from fusetk.errors import DataError
from fusetk.models.seq2seq import Seq2Seq


class System:
    """A trained model, or an ensemble, that translates and scores raw text. Several threads may use it at once.

    Settings are those of a config's section ``decoding``, such as ``beam=4``; what is given in a call holds for that call alone.
    """

    def __init__(self, models: Sequence[Seq2Seq], pipeline: Pipeline, config: SearchConfig):
        self.models = list(models)
        self.pipeline = pipeline
        self.config = config

    def translate(self, lines: Sequence[str | Request], **settings: Any) -> list[str]:
        """The best translation of each line, in order; blank for a blank line.

        Raises ConfigError for settings that there are not.
        """
        return self._translator(settings).translate(lines)

    def n_best(self, lines: Sequence[str | Request], **settings: Any) -> list[list[Translation]]:
        """The ``n_best`` best translations of each line with their tokens and scores, best first; none for a blank line."""
        return self._translator(settings).n_best(lines)

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """The natural-log probability of each target line given its source line, of its end mark too.

        Raises DataError where there are not as many of the ones as of the others, or where one is too long for the model.
        """
        if len(sources) != len(targets):
            raise DataError(f"{len(sources)} source lines and {len(targets)} target lines cannot be scored: give a target for each source")
        encode = self._translator({}).encode
        pairs = [([*encode("source", one), EOS], encode("target", other)) for one, other in zip(sources, targets, strict=True)]
        return [sum(found.scores) for found in force(self.models, pairs, self.config.ensemble)]

    def _translator(self, settings: Mapping[str, Any]) -> Translator:
        return Translator(self.models, self.pipeline, changed(self.config, settings))


def load(
    path: Path | str | Sequence[Path | str], device: str = "cpu", precision: str = "fp32", raw: bool = False, **settings: Any
) -> System:  # fmt: skip
    """The model of a run folder or a checkpoint folder, or of several, which are an ensemble.

    ``device`` is auto, cpu, cuda or cuda:N, ``precision`` fp32 or bf16; ``raw`` takes the weights themselves where training kept a mean
    of them. Raises FusetkError for what cannot be loaded.
    """
    paths = [path] if isinstance(path, Path | str) else list(path)
    with torch.random.fork_rng():  # weights are drawn before they are read, which is nothing to the caller
        found = run.load_ensemble(paths, device, precision, raw)
    return System(found.models, found.pipeline, changed(found.recipe.decoding, settings))


def changed(config: SearchConfig, settings: Mapping[str, Any], origins: Mapping[str, str] | None = None) -> SearchConfig:
    """Settings of the search, some of them changed; ``origins`` are what a user knows them by.

    Raises ConfigError for what is no setting or cannot have that value.
    """
    places: dict[Place, Origin] = {(key,): Origin(origin, Path()) for key, origin in (origins or {}).items()}
    return parse(Document({**config.model_dump(), **settings}, places), SearchConfig)
