"""Check before training that a model computes the same logits in training and in search.

The contract tests check this for the classes of fusetk. ``verify`` is for models with classes
outside fusetk: with a class that breaks a rule, training may seem to go well, and only the
translations are wrong.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fusetk.errors import ConfigError, class_name
from fusetk.fusion.base import Fusion
from fusetk.models.attend import AttendedSources
from fusetk.models.connect.base import SourcesConnection
from fusetk.models.residual import Residual
from fusetk.models.self_attention import CustomSelfAttention
from fusetk.models.seq2seq import Seq2Seq, State
from fusetk.models.stack import Layer
from fusetk.nn.attention import SelfAttention
from fusetk.nn.nested import select
from fusetk.nn.shape_check import check_shape, is_outside
from fusetk.special_tokens import EOS
from fusetk.training.verify_classes import outside_errors, wrong_attributes, wrong_classes
from fusetk.training.verify_pairs import SOURCE_LENGTHS, TOLERANCE, Pairs, random_pairs
from fusetk.training.verify_positions import check_positions
from fusetk.training.verify_training import (
    check_buffers_in_evaluation,
    check_stored_values,
    check_training,
    leaves,
    losses_of_batches,
)
from fusetk.ways import use_precision
from fusetk.weights import saved_tensors

SMALL = 0.1  # Parameters below this value may hide a broken rule. It is also the size of noise.


@contextmanager
def newer_rule(warnings: list[str], resuming: bool) -> Iterator[None]:
    """Turn the ConfigError of a rule that earlier versions did not check into a warning.

    It stays an error unless the run is ``resuming``.
    """
    try:
        yield
    except ConfigError as error:
        if not resuming:
            raise
        warnings.append(str(error))


def verify(
    model: Seq2Seq,
    source_size: int,
    target_size: int,
    kinds: Sequence[str],
    resuming: bool = False,
) -> list[str]:
    """Return warnings about a model. Raise ConfigError if it breaks a rule or cannot compute.

    The rules are tested with the initial weights, and again with noise on small parameters. The
    vocabulary sizes include the special tokens. ``kinds`` are the classes outside fusetk, for the
    error. The parameters, buffers, the mode and torch's random numbers are restored. If the run is
    ``resuming``, an earlier version may have trained it: the rules that it may not have checked
    give warnings.
    """
    warnings: list[str] = []
    names = " or ".join(kinds)
    if next(model.parameters(), None) is None:
        raise ConfigError(
            f"a model with {names} has no parameters: does its __init__ call super().__init__ with "
            "all arguments?"
        )
    for problem in wrong_classes(model):
        raise ConfigError(problem)
    for problem in dict.fromkeys(wrong_attributes(model)):
        with newer_rule(warnings, resuming):
            raise ConfigError(problem)
    with outside_errors(f"a model with {names} cannot compute"):
        pairs = random_pairs(model, source_size, target_size)
        with _evaluation(model):
            shapes = _saved_shapes(model)
            _check_residuals(model)
            _check_layer_results(model, pairs)
            _check_decode(model, pairs)
            with newer_rule(warnings, resuming):
                check_buffers_in_evaluation(model, pairs)
            _compare(model, pairs, names)
            check_stored_values(model, pairs, "evaluation")
            _check_layers(model, pairs)
            _check_sources(model)
            warnings += check_training(model, pairs, names)
            _add_noise(model)
            _compare(model, pairs, names, may_be_infinite=True)
            _check_shapes(shapes, model)
            _check_memory(model)
            warnings += dict.fromkeys(losses_of_batches(model, pairs))
    return warnings


@contextmanager
def _evaluation(model: Seq2Seq) -> Iterator[None]:
    """Evaluate a model without gradients, in true float32; restore it at the end."""
    parameters = list(model.parameters())
    device = parameters[0].device
    modes = [(module, module.training) for module in model.modules()]
    weights = [parameter.detach().clone() for parameter in parameters]
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    devices = [device] if device.type == "cuda" else []
    restore_precision = use_precision("highest")
    try:
        model.eval()
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            yield
    finally:
        restore_precision()
        with torch.no_grad():
            for parameter, weight in zip(parameters, weights, strict=True):
                parameter.copy_(weight)
            for module, name, buffer, value in buffers:
                setattr(module, name, buffer.copy_(value))  # a pass may have replaced the buffer
        model.train()  # deletes cached tensors
        for module, mode in modes:
            module.training = mode


def _saved_shapes(model: Seq2Seq) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in saved_tensors(model).items()}


def _check_shapes(before: Mapping[str, torch.Size], model: Seq2Seq) -> None:
    """Raise ConfigError if a pass created a tensor that checkpoints have, or changed its shape."""
    for name, shape in _saved_shapes(model).items():
        if name not in before:
            raise ConfigError(
                f"a pass created {name}, so the optimiser and a new model that loads a checkpoint "
                "do not have it: create it in __init__"
            )
        if shape != before[name]:
            raise ConfigError(
                f"the shape of the buffer {name} changed during a pass. A checkpoint fits a new "
                "model only if the shape is fixed"
            )


def _check_memory(model: Seq2Seq) -> None:
    """Raise ConfigError if two tensors share memory. safetensors refuses to save them."""
    # A tensor that is not contiguous is copied when it is saved.
    places = sorted(
        (tensor.data_ptr(), tensor.nbytes, name)
        for name, tensor in saved_tensors(model).items()
        if tensor.numel() and tensor.is_contiguous()
    )
    for (start, size, name), (next_start, _, other) in pairwise(places):
        if start + size > next_start:
            raise ConfigError(
                f"{name} and {other} share memory, so a checkpoint cannot hold both: register one "
                "of them, and compute the other one in the forward pass"
            )


def _check_decode(model: Seq2Seq, pairs: Pairs) -> None:
    """Raise ConfigError if the method ``decode`` of a model outside fusetk returns wrong types."""
    if not is_outside(model):
        return
    result: Any = model.decode(pairs.tgt_in, model.start(model.encode(pairs.src, pairs.src_mask)))
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], State)):
        raise ConfigError(
            f"{class_name(model)}.decode returned a {type(result).__name__}; it must return the "
            "features (B, T, D) and a fusetk.models.seq2seq.State"
        )
    width = model.output.weight.shape[-1]
    if not (isinstance(result[0], Tensor) and result[0].shape == (*pairs.tgt_in.shape, width)):
        shape = tuple(getattr(result[0], "shape", ()))
        raise ConfigError(
            f"{class_name(model)}.decode returned features of the shape {shape} for target tokens "
            f"of the shape {tuple(pairs.tgt_in.shape)}; they must have {width} features each, "
            "from which `output` computes the logits"
        )


def _check_layer_results(model: Seq2Seq, pairs: Pairs) -> None:
    """Raise ConfigError if a layer outside fusetk does not return an output and a state."""

    def after(layer: nn.Module, arguments: tuple[Any, ...], result: Any) -> None:
        if not (isinstance(result, tuple) and len(result) == 2):
            raise ConfigError(
                f"{class_name(layer)}.forward returned a {type(result).__name__}; it must return "
                "the output (B, T, D) and the state of the layer, for example its cache or None"
            )

    layers = [each for each in model.modules() if isinstance(each, Layer) and is_outside(each)]
    hooks = [layer.register_forward_hook(after) for layer in layers]
    try:
        if layers:
            pairs.padded_logits(model)
    finally:
        for hook in hooks:
            hook.remove()


def _check_residuals(model: Seq2Seq) -> None:
    """Raise ConfigError if a residual connection outside fusetk breaks a rule.

    It must return the right types and shapes, and must not change the stream in place.
    """
    device = next(model.parameters()).device
    for module in model.modules():
        if not (isinstance(module, Residual) and is_outside(module)):
            continue
        if module.spans_layers or module.attention_class is not SelfAttention:
            continue  # other streams and outputs
        x = torch.randn(1, 3, module.width, device=device)
        y = torch.randn_like(x)
        before: Any = module.before(x)
        if not (isinstance(before, tuple) and len(before) == 2):
            raise ConfigError(
                f"{class_name(module)}.before ({module.name}) returned a {type(before).__name__}; "
                "it must return the input of the sub-layer and the stream"
            )
        check_shape(module.after(before[1], y), x.shape[:-1], module.width, module)
        if x._version:
            raise _in_place_error(module)


def _in_place_error(module: nn.Module) -> ConfigError:
    """Return the error for a module that changes its input."""
    return ConfigError(
        f"{class_name(module)} changes its input in place: compute a new tensor, because other "
        "modules read the input, too"
    )


def _check_layers(model: Seq2Seq, pairs: Pairs) -> None:
    """Raise ConfigError if a fusion or ``SourcesConnection`` outside fusetk changes its layers."""
    versions: dict[nn.Module, list[int]] = {}

    def versions_of(arguments: tuple[Any, ...]) -> list[int]:
        return [part._version for part in leaves(arguments[0]) if isinstance(part, Tensor)]

    def before(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        versions[module] = versions_of(arguments)

    def after(module: nn.Module, arguments: tuple[Any, ...], result: Any) -> None:
        if versions_of(arguments) != versions[module]:
            raise _in_place_error(module)

    kinds = (Fusion, SourcesConnection)
    readers = [m for m in model.modules() if isinstance(m, kinds) and is_outside(m)]
    hooks = [reader.register_forward_pre_hook(before) for reader in readers]
    hooks += [reader.register_forward_hook(after) for reader in readers]
    try:
        pairs.padded_logits(model)
    finally:
        for hook in hooks:
            hook.remove()


def _check_sources(model: Seq2Seq) -> None:
    """Raise ConfigError if an attention outside fusetk breaks a rule about the encoder's layers.

    It must not change them in place. An attention that reads the output needs ``reads_output``.
    Without it, the encoder's stack does not compute the top input, which ``fuse: last`` returns.
    """
    device = next(model.parameters()).device
    src = torch.full((1, max(SOURCE_LENGTHS)), EOS, device=device)[:, : model.max_positions]
    for module in model.modules():
        if not (isinstance(module, AttendedSources) and is_outside(module)):
            continue
        memory = model.encode(src, torch.ones_like(src, dtype=torch.bool))
        memory = memory._replace(history=tuple(memory.history))
        layers = [*memory.history, memory.output]
        versions = [layer._version for layer in layers]
        sources = module.checked_sources(memory)
        if versions != [layer._version for layer in layers]:
            raise _in_place_error(module)
        if module.reads_output:
            continue
        changed = memory._replace(output=memory.output + 1)
        if not all(map(torch.equal, sources, module.checked_sources(changed))):
            raise ConfigError(
                f"{class_name(module)} reads memory.output: set reads_output = True in the class"
            )


def _add_noise(model: Seq2Seq) -> None:
    """Add noise to vectors and to small parameters, such as gates that are 0 at first."""
    model.train().eval()  # deletes cached tensors
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        if parameter.dim() < 2 or float(parameter.abs().max()) < SMALL:
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise.to(parameter), alpha=SMALL)


def _compare(model: Seq2Seq, pairs: Pairs, names: str, may_be_infinite: bool = False) -> None:
    """Raise ConfigError if two computations that should be equal differ."""
    padded = pairs.padded_logits(model)
    if not padded.isfinite().all():
        if may_be_infinite:
            return
        raise ConfigError(
            f"a model with {names} has logits that are not finite before any update: "
            f"{_advice_for_logits_that_are_not_finite(model)}"
        )
    scale = max(1.0, float(padded.abs().max()))
    for rule, compute in RULES.items():
        failed = f"a model with {names} failed in the test of a rule"
        with outside_errors(failed, f". The rule: {rule}"):
            logits = compute(model, pairs)
        difference = float((logits - padded).abs().max())
        if not difference <= TOLERANCE * scale:
            check_positions(model, pairs)
            advice = ""
            if any(isinstance(m, CustomSelfAttention) and is_outside(m) for m in model.modules()):
                advice = ". A self-attention must read only the keys at which `visible` is True"
            if compute is _training_logits and is_outside(model):
                advice += ". `packs = False` in the class of the model turns packing off"
            raise ConfigError(
                f"a model with {names} breaks a rule: {rule}{advice}. The logits differ by up to "
                f"{difference:.3g}. Correct the class; the section Rules of docs/extending.md "
                "explains the rule"
            )


def _advice_for_logits_that_are_not_finite(model: Seq2Seq) -> str:
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            return f"set the initial values of {name}, which has NaN or infinity"
    return "correct the initial weights and the divisions of the class"


def _in_steps(model: Seq2Seq, rows: Tensor, state: State, swap_at: int | None = None) -> Tensor:
    """Return the features of target tokens (B, T) that are read one by one.

    ``swap_at`` is the step before which the hypotheses of each pair of rows change places.
    """
    steps = []
    for step, token in enumerate(rows.split(1, dim=1)):
        if step == swap_at:
            swapped = torch.arange(len(rows), device=rows.device).view(-1, 2).flip(1).flatten()
            state = state._replace(per_hypothesis=select(state.per_hypothesis, swapped))
        features, state = model.decode(token, state)
        steps.append(features)
    return torch.cat(steps, 1)


def _search_logits(model: Seq2Seq, pairs: Pairs) -> Tensor:
    state = model.start(model.encode(pairs.src, pairs.src_mask))
    return pairs.logits(model, _in_steps(model, pairs.tgt_in, state))


def _single_logits(model: Seq2Seq, pairs: Pairs) -> Tensor:
    """Compute each pair alone."""
    features = [
        model(src[None, : len(source)], mask[None, : len(source)], tgt[None, : len(target)])
        for src, mask, tgt, source, target in zip(
            pairs.src, pairs.src_mask, pairs.tgt_in, pairs.sources, pairs.targets, strict=True
        )
    ]
    return model.output(torch.cat(features, 1)[0]).float()


def _training_logits(model: Seq2Seq, pairs: Pairs) -> Tensor:
    return model.output(pairs.training_features(model)).float()


def _loss_logits(model: Seq2Seq, pairs: Pairs) -> Tensor:
    features = pairs.training_features(model)
    return F.linear(features, model.output.weight, model.output.bias).float()


def _reordered_logits(model: Seq2Seq, pairs: Pairs) -> Tensor:
    """Read two hypotheses of each sentence, with other words, that change places in the middle."""
    state = model.start(model.encode(pairs.src, pairs.src_mask))
    sentences = torch.arange(len(pairs.src), device=pairs.device).repeat_interleave(2)
    state = state._replace(per_hypothesis=select(state.per_hypothesis, sentences))
    middle = pairs.tgt_in.shape[1] // 2
    rows = torch.stack((pairs.tgt_in, pairs.tgt_in.roll(1, 0)), 1)
    rows[:, :, middle:] = rows[:, :, middle:].flip(1)
    features = _in_steps(model, rows.flatten(0, 1), state, middle)
    first, second = features[::2, :middle], features[1::2, middle:]
    return pairs.logits(model, torch.cat((first, second), 1))


# Rules, each with another computation of the logits of padded sentences.
RULES: dict[str, Callable[[Seq2Seq, Pairs], Tensor]] = {
    "two equal passes in evaluation must have the same logits; F.dropout needs the argument "
    "training=self.training": lambda model, pairs: pairs.padded_logits(model),
    "the logits of a target must be the same token by token, as in search, and at once, as in "
    "training. The method decode must not read later positions, and its state must hold what the "
    "next call needs of earlier ones. A module must not store values between calls": (
        _search_logits
    ),
    "a sentence must have the same logits alone and in a batch: it must not read padding or "
    "other sentences": _single_logits,
    "the packed sentences of a training batch on a CPU, (1, N, D), must have the same logits "
    "as padded ones": _training_logits,
    "a hypothesis must not read the other hypotheses of its sentence, and must keep its state "
    "when a search reorders them: the tensors of a hypothesis belong in state.per_hypothesis": (
        _reordered_logits
    ),
    "the attribute `output` must compute a linear map with its attributes `weight` and `bias`, "
    "because the loss of training reads these two and does not call `output`. Other operations "
    "belong in the method decode": _loss_logits,
}
