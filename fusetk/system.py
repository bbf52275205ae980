"""Trained models for inference: ``fusetk.load`` and the ``System`` that it returns.

This module does not import the training loop.
"""

import os
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fusetk import DEVICE, PRECISIONS
from fusetk import recipe as recipes
from fusetk.config import Document, Origin, Place, outside_kinds, parse
from fusetk.data.pipeline import SIDES, Pipeline
from fusetk.data.vocab import EOS
from fusetk.decoding.config import SearchConfig, canonical
from fusetk.decoding.ensemble import check_ensemble_settings
from fusetk.decoding.requests import Request
from fusetk.decoding.target_scores import score_targets
from fusetk.decoding.translate import Translation, Translator
from fusetk.errors import (
    WARNING,
    CheckpointError,
    ConfigError,
    DataError,
    FusetkError,
    ImportFailed,
    first_line,
    join_names,
    out_of_memory,
    quantity,
)
from fusetk.machine import describe_device, device_of
from fusetk.models import Seq2Seq, build_model
from fusetk.models.quantization import CONVERSIONS
from fusetk.nn.precision import float32_by_default
from fusetk.recipe import NEUTRAL_KEYS, Recipe
from fusetk.runs import CONFIG, EMA, MODEL, TEXT, changed_modules, find_checkpoint
from fusetk.ways import slower_than_float32
from fusetk.weights import load_weights, read_state

META = torch.device("meta")
WEIGHT_TYPES = dict(zip(PRECISIONS, (torch.float32, torch.bfloat16, torch.int8), strict=True))

if hasattr(os, "register_at_fork"):
    # A forked process has none of OpenMP's threads: an operation would wait for them forever.
    os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))


class System:
    """A trained model, or an ensemble, that translates and scores raw text.

    Several threads may use it at once. The settings are the keys of a config's section
    ``decoding``, such as ``beam=4``. The settings of a call apply to that call only.
    """

    def __init__(self, models: Sequence[Seq2Seq], pipeline: Pipeline, config: SearchConfig):
        self.models = list(models)
        self.pipeline = pipeline
        self.config = config

    def translate(self, lines: Sequence[str | Request], **settings: Any) -> list[str]:
        """Return the best translation of each line, in order; an empty string for a blank line.

        Raises ConfigError for unknown or invalid settings, and DataError if ``lines`` is not a list
        of strings or requests.
        """
        return self._translator(settings, scores=False).translate(_requests(lines))

    def n_best(self, lines: Sequence[str | Request], **settings: Any) -> list[list[Translation]]:
        """Return the best translations of each line with their tokens and scores, best first.

        The setting ``n_best`` is their number. A blank line has no translations. Raises the errors
        of ``translate``.
        """
        return self._translator(settings).n_best(_requests(lines))

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """Return the natural-log probability of each target line, with EOS, given its source line.

        A blank source is a source of EOS alone; `fusetk rescore` does not score it. Raises
        DataError if the arguments are not lists of strings of the same length, and if a line is too
        long for the model.
        """
        sources = _texts(sources, "sources")
        targets = _texts(targets, "targets")
        if len(sources) != len(targets):
            raise DataError(
                f"{quantity(len(sources), 'source line')} and "
                f"{quantity(len(targets), 'target line')} cannot be scored: give a target for each "
                "source"
            )
        encode = self._translator({}).encode
        pairs = [
            ([*encode("source", source), EOS], encode("target", target))
            for source, target in zip(sources, targets, strict=True)
        ]
        results = score_targets(self.models, pairs, self.config.ensemble_mean)
        return [sum(result.scores) for result in results]

    def _translator(self, settings: Mapping[str, Any], scores: bool = True) -> Translator:
        config = changed(self.config, settings)
        check_ensemble_settings(settings, len(self.models), {})
        return Translator(self.models, self.pipeline, config, scores=scores)


def load(
    path: Path | str | Sequence[Path | str],
    device: str = DEVICE,
    precision: str = PRECISIONS[0],
    raw: bool = False,
    kernels: bool = True,
    **settings: Any,
) -> System:
    """Load the model of a run folder or a checkpoint folder, or several of them as an ensemble.

    ``device`` is auto, cpu, cuda or cuda:N; the default is that of the commands. ``precision`` is
    fp32, bf16, or int8 (Transformers and coordinated models on CPU). With ``raw`` the raw weights
    are loaded instead of their moving average (EMA). With ``kernels=False``, a float32 model keeps
    its parameters, so that a program can change them. Otherwise, on a CPU, maps with another layout
    of the weights may replace its linear maps. ``settings`` are keys of the section ``decoding``.
    Raises FusetkError if a model cannot be loaded.
    """
    paths = [path] if isinstance(path, Path | str) else _paths(path)
    # A new model draws initial weights on the CPU, but the caller's random numbers must not change.
    with torch.random.fork_rng(devices=[]):
        ensemble = load_ensemble(paths, device, precision, raw, kernels=kernels)
    config = changed(ensemble.recipe.decoding, settings)
    check_ensemble_settings(settings, len(paths), {})
    return System(ensemble.models, ensemble.pipeline, config)


# Models -------------------------------------------------------------------------------------------


class Loaded(NamedTuple):
    """A trained model with its config, text pipeline and checkpoint folder."""

    recipe: Recipe
    pipeline: Pipeline
    model: Seq2Seq
    checkpoint: Path
    has_average: bool = False  # whether the checkpoint has a moving average of the weights

    @property
    def name(self) -> str:
        """The names of the run folder and of the checkpoint."""
        return f"{self.checkpoint.parent.parent.name}, {self.checkpoint.name}"

    def translator(self) -> Translator:
        """Return a translator with the search of the run's config."""
        return Translator([self.model], self.pipeline, self.recipe.decoding)


class Ensemble(NamedTuple):
    """One or more trained models with the same vocabularies."""

    models: list[Seq2Seq]
    pipeline: Pipeline
    recipe: Recipe  # the config of the first model


def build(recipe: Recipe, source_size: int, target_size: int) -> Seq2Seq:
    """Build the model of a recipe with float32 initial weights from its seed.

    The seed also fixes the numbers of ``random`` and NumPy, which classes outside fusetk may draw.
    Vocabulary sizes include the special tokens.
    """
    # Unlike `torch.manual_seed`, this leaves the random numbers of GPUs as they are.
    torch.default_generator.manual_seed(recipe.training.seed)
    python_state, numpy_state = random.getstate(), np.random.get_state()
    random.seed(recipe.training.seed)
    np.random.seed(recipe.training.seed)
    try:
        with float32_by_default():
            return build_model(recipe.model, source_size, target_size)
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def build_shapes(recipe: Recipe, source_size: int, target_size: int) -> Seq2Seq:
    """Build the model of a recipe on the device ``meta``: shapes only, without memory.

    A model with a class outside fusetk is built on the CPU first, because the class may read values
    of tensors.
    """
    if not outside_kinds(recipe.model.model_dump()):
        with META:
            return build(recipe, source_size, target_size)
    model = build(recipe, source_size, target_size)
    shapes: dict[Tensor, Any] = {}

    def shape(tensor: Tensor) -> Any:
        if tensor not in shapes:  # a shared parameter remains shared
            shapes[tensor] = tensor.detach().to(META)
            if isinstance(tensor, nn.Parameter):
                shapes[tensor] = nn.Parameter(shapes[tensor], tensor.requires_grad)
        return shapes[tensor]

    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            tensors.update({name: shape(t) for name, t in tensors.items() if t is not None})
    return model


class _NoRandomWeights(TorchFunctionMode):
    """Context in which a model does not draw initial weights, because loading replaces them.

    A model with a class outside fusetk is built without this context, because the class may draw
    tensors that loading does not replace.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in (torch.Tensor.uniform_, torch.Tensor.normal_):
            return args[0]
        return function(*args, **(kwargs or {}))


def load_model(
    path: Path | str,
    device: str | torch.device = DEVICE,
    raw: bool = False,
    report: Callable[[str], None] = lambda message: None,
) -> Loaded:
    """Load the model of a checkpoint folder, or of the best checkpoint of a run folder.

    If the run has no best checkpoint, the last one is loaded. If training kept a moving average of
    the weights (EMA), it is loaded unless ``raw`` is set. ``report`` gets a line that names the
    checkpoint and the device. Raises CheckpointError if the path is neither a checkpoint nor a run,
    or if a file is missing or damaged, ImportFailed if the model has a class outside fusetk that
    cannot be imported, FusetkError if the memory of the device does not suffice, and the errors of
    ``device_of``.
    """
    run, folder = find_checkpoint(Path(path))
    model_device = device_of(str(device))
    target = f" ({folder.resolve().name})" if folder.is_symlink() else ""
    place = describe_device(model_device)
    if model_device.type == "cpu":
        place += f", {quantity(torch.get_num_threads(), 'thread')}"
    report(f"loading {folder}{target} on {place}")
    folder = folder.resolve()  # training may move the link while the files are read
    recipe = _recipe_of(run)
    state = read_state(folder)
    # The search uses no dropout and no initial weights.
    changeable = (*NEUTRAL_KEYS, r"training\..*", r"model\.(.*\.)?(\w*dropout|init)")
    recipes.check_unchanged(recipe, run / CONFIG, folder, state, changeable)
    outside = outside_kinds(recipe.model.model_dump())
    steps = outside_kinds([step.step for step in recipe.data.steps])
    update = state.get("progress", {}).get("update")  # a mean of checkpoints has none
    for module in changed_modules(run, outside | steps, update):
        report(f"{WARNING}the code of the module {module} was changed after the training")
    pipeline = Pipeline.load(run / TEXT)
    with nullcontext() if outside else _NoRandomWeights():
        model = build(recipe, len(pipeline.source_vocab), len(pipeline.target_vocab))
    # The checkpoint may be copied from a run without an average; then loading raises an error.
    has_average = EMA in state["sha256"] or bool(recipe.training.ema and "progress" in state)
    load_weights(model, folder, EMA if has_average and not raw else MODEL)
    try:
        model.to(model_device)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        raise FusetkError(
            f"{folder} does not fit into the memory of {place} ({first_line(error)}): end other "
            "programs on the device, or choose another device"
        ) from None
    return Loaded(recipe, pipeline, model.eval(), folder, has_average)


def _recipe_of(run: Path) -> Recipe:
    """Return the config of a trained run.

    Raises CheckpointError if it is not valid any more, and ImportFailed if a class of the run
    cannot be imported.
    """
    try:
        return recipes.load(run / CONFIG)
    except ImportFailed:
        raise
    except ConfigError as error:
        raise CheckpointError(
            f"{run / CONFIG}, or the code of a class that it names, was changed after training "
            f"wrote it: {error}"
        ) from None


def load_ensemble(
    paths: Sequence[Path | str],
    device: str | torch.device = DEVICE,
    precision: str = PRECISIONS[0],
    raw: bool = False,
    report: Callable[[str], None] = lambda message: None,
    kernels: bool = True,
) -> Ensemble:
    """Load models with weights of ``precision``, one of ``PRECISIONS``.

    With ``kernels=False``, float32 models keep their parameters; see ``load``. ``report`` gets a
    line for each model, and a warning if fp32 is faster on this processor. Raises ConfigError if
    ``paths`` is empty, if the precision is unknown, if int8 does not support the device or a model,
    if ``raw`` has no effect, or if the vocabularies or the text preparation of the models differ,
    and the errors of ``load_model``.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"unknown precision {precision!r}: choose {', '.join(PRECISIONS)}")
    if not paths:
        raise ConfigError("there is no model to load: give a run folder or a checkpoint")
    loaded = [load_model(path, device, raw, report) for path in paths]
    check_raw(raw, paths, loaded)
    first = loaded[0].pipeline
    for path, other in zip(paths[1:], loaded[1:], strict=True):
        if difference := first.difference(other.pipeline):
            raise ConfigError(
                f"{paths[0]} and {path} cannot be an ensemble: the {difference} of their text "
                "preparation differ; train both on the same prepared data"
            )
        for side in SIDES:
            first_tokens = first.vocabulary(side).tokens
            other_tokens = other.pipeline.vocabulary(side).tokens
            if first_tokens != other_tokens:
                raise ConfigError(
                    f"{paths[0]} and {path} cannot be an ensemble: their {side} vocabularies "
                    f"differ ({len(first_tokens)} and {len(other_tokens)} tokens); train both on "
                    "the same prepared data"
                )
    models = [system.model for system in loaded]
    if kernels or precision != "fp32":
        convert = CONVERSIONS[WEIGHT_TYPES[precision]]
        models = [convert(model) for model in models]
    on_cpu = next(models[0].parameters()).device.type == "cpu"
    if on_cpu and precision != "fp32" and slower_than_float32(WEIGHT_TYPES[precision]):
        report(f"{WARNING}{precision} is slower than fp32 on this processor: use precision fp32")
    return Ensemble(models, first, loaded[0].recipe)


def check_raw(raw: bool, paths: Sequence[str | Path], loaded: Sequence[Loaded]) -> None:
    """Raise ConfigError if ``raw`` has no effect: no model has a moving average of its weights."""
    if raw and not any(system.has_average for system in loaded):
        names = join_names([str(path) for path in paths])
        verb = "has" if len(paths) == 1 else "have"
        raise ConfigError(
            f"{names} {verb} no moving average of the weights (training.ema), so --raw (raw=True "
            "in Python) has no effect: omit --raw"
        )


def changed(
    config: SearchConfig, settings: Mapping[str, Any], origins: Mapping[str, str] | None = None
) -> SearchConfig:
    """Return a search config with changed settings.

    ``origins`` has the names of the options that give the settings, for errors. Raises ConfigError
    for an unknown setting, an invalid value, and a setting that has no effect, also if its value is
    the default. A default that replaces another value of ``config`` is not an error.
    """
    places: dict[Place, Origin] = {
        (key,): Origin(origin, Path()) for key, origin in (origins or {}).items()
    }
    document = Document({**config.model_dump(), **canonical(settings)}, places)
    try:
        result = parse(document, SearchConfig, "the settings of the search have")
        result.check_given(canonical(settings).keys(), config)
        return result
    except (ConfigError, ValueError) as error:
        text = str(error)
        # Only errors about the combination of settings have no place.
        if origins and " [" not in text:
            names = re.compile(rf"(?<![\w-])({'|'.join(origins)})\b")
            text = names.sub(lambda name: origins[name[0]], text)
        raise ConfigError(text) from None


# Input --------------------------------------------------------------------------------------------


def _texts(lines: Sequence[str], name: str) -> list[str]:
    """Return the lines as a list, without line ends.

    Raises DataError, with ``name``, if a line is not a string.
    """
    texts = _as_list(lines, name)
    for number, line in enumerate(texts, 1):
        if not isinstance(line, str):
            raise DataError(f"line {number} of {name} is {_kind(line)}: give a string")
    return [_without_line_end(line) for line in texts]


def _requests(lines: Sequence[str | Request]) -> list[Request]:
    """Return the lines as requests, without line ends.

    Raises DataError if a line is neither a string nor a Request whose fields are strings.
    """
    requests = []
    for number, line in enumerate(_as_list(lines, "lines"), 1):
        request = Request(line) if isinstance(line, str) else line
        if not isinstance(request, Request):
            raise DataError(f"line {number} of lines is {_kind(line)}: give a string or a Request")
        constraints: Any = request.constraints
        if isinstance(constraints, str | bytes) or not isinstance(constraints, Iterable):
            raise DataError(
                f"the constraints of line {number} are {_kind(constraints)}: give a tuple of "
                "phrases"
            )
        constraints = tuple(constraints)
        if not all(isinstance(text, str) for text in (request.text, request.prefix, *constraints)):
            raise DataError(
                f"the Request of line {number} has a text, prefix or phrase that is not a string"
            )
        text, prefix, *phrases = map(
            _without_line_end, (request.text, request.prefix, *constraints)
        )
        requests.append(Request(text, prefix, tuple(phrases)))
    return requests


def _paths(paths: Iterable[Path | str]) -> list[Path | str]:
    """Return the paths as a list. Raises ConfigError if one is neither a string nor a Path."""
    is_list = isinstance(paths, Iterable) and not isinstance(paths, bytes)
    listed: list[Any] = list(paths) if is_list else [paths]
    for path in listed:
        if not isinstance(path, Path | str):
            raise ConfigError(
                f"the path of a model is {_kind(path)}: give a string or a Path, or a list of them"
            )
    return listed


def _without_line_end(line: str) -> str:
    """Remove the line end, as the commands do; `readlines` keeps it."""
    return line.removesuffix("\n").rstrip("\r")


def _as_list(lines: Any, name: str) -> list[Any]:
    if isinstance(lines, str | bytes | Request) or not isinstance(lines, Iterable):
        raise DataError(
            f"{name} is {_kind(lines)}: give a list of lines; for a single line, give a list with "
            "one string"
        )
    return list(lines)


def _kind(value: Any) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"
