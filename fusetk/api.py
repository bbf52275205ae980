"""The Python interface: ``fusetk.load`` and what it returns."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fusetk import DEVICE, run
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

        Raises ConfigError for settings that there are not, DataError unless ``lines`` are several lines of text.
        """
        return self._translator(settings).translate(_requests(lines))

    def n_best(self, lines: Sequence[str | Request], **settings: Any) -> list[list[Translation]]:
        """The ``n_best`` best translations of each line with their tokens and scores, best first; none for a blank line.

        Raises what ``translate`` raises.
        """
        return self._translator(settings).n_best(_requests(lines))

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """The natural-log probability of each target line given its source line, of its end mark too.

        Raises DataError unless both are lists of text with the same length, and where a line is too long for the model.
        """
        sources, targets = _texts(sources, "sources"), _texts(targets, "targets")
        if len(sources) != len(targets):
            raise DataError(f"{len(sources)} source lines and {len(targets)} target lines cannot be scored: give a target for each source")
        encode = self._translator({}).encode
        pairs = [([*encode("source", one), EOS], encode("target", other)) for one, other in zip(sources, targets, strict=True)]
        return [sum(found.scores) for found in force(self.models, pairs, self.config.ensemble)]

    def _translator(self, settings: Mapping[str, Any]) -> Translator:
        return Translator(self.models, self.pipeline, changed(self.config, settings))


def load(
    path: Path | str | Sequence[Path | str], device: str = DEVICE, precision: str = "fp32", raw: bool = False, **settings: Any
) -> System:  # fmt: skip
    """The model of a run folder or a checkpoint folder, or of several, which are an ensemble.

    ``device`` is auto, cpu, cuda or cuda:N, by default the one that the commands use; ``precision``
    is fp32 or bf16; ``raw`` takes the weights themselves where training kept a mean of them. Raises
    FusetkError for what cannot be loaded.
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


# Input ---------------------------------------------------------------------------------------------------------------


def _texts(lines: Sequence[str], name: str) -> list[str]:
    """The lines as a list. Raises DataError, with the name of the argument, unless each is a string."""
    texts = _listed(lines, name)
    for number, line in enumerate(texts, 1):
        if not isinstance(line, str):
            raise DataError(f"line {number} of {name} is {_kind(line)}: give a string")
    return texts


def _requests(lines: Sequence[str | Request]) -> list[Request]:
    """The lines as requests. Raises DataError unless each is a string or a Request whose fields are strings."""
    requests = []
    for number, line in enumerate(_listed(lines, "lines"), 1):
        request = Request(line) if isinstance(line, str) else line
        if not isinstance(request, Request):
            raise DataError(f"line {number} of lines is {_kind(line)}: give a string or a Request")
        constraints: Any = request.constraints
        if isinstance(constraints, str | bytes):
            raise DataError(f"the constraints of line {number} are {_kind(constraints)}: give a tuple of phrases")
        if not all(isinstance(text, str) for text in (request.text, request.prefix, *constraints)):
            raise DataError(f"the Request of line {number} has a text, prefix or phrase that is not a string")
        requests.append(request)
    return requests


def _listed(lines: Any, name: str) -> list[Any]:
    if isinstance(lines, str | bytes | Request) or not isinstance(lines, Iterable):
        raise DataError(f"{name} is {_kind(lines)}: give a list of lines, for one line a list with one string")
    return list(lines)


def _kind(value: Any) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"
