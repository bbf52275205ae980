"""Check before training that a model computes the same logits in training and in search.

The contract tests check this for the classes of fusetk. ``verify`` is for models with classes
outside fusetk: with a class that breaks a rule, training may seem to go well, and only the
translations are wrong.
"""

import pickle
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fusetk.config import outside_error
from fusetk.data.batch import pad
from fusetk.errors import ConfigError, FusetkError, class_name, first_names, out_of_memory
from fusetk.fusion.base import Fusion, LayerFusion
from fusetk.models.attend import AttendedSources
from fusetk.models.connect.base import SourcesConnection
from fusetk.models.residual import Residual, StreamEnds
from fusetk.models.seq2seq import Seq2Seq
from fusetk.models.stack import Stack
from fusetk.nn.attention import SelfAttention
from fusetk.nn.nested import select
from fusetk.nn.shape_check import check_shape, is_outside
from fusetk.special_tokens import BOS, EOS, SPECIAL
from fusetk.ways import use_precision

SOURCE_LENGTHS = (3, 8, 5)  # lengths of source sentences, with EOS
TARGET_LENGTHS = (6, 4, 7)  # lengths of target sentences, with BOS
# Largest difference between two computations of the same logits, relative to the largest logit.
# Differences of rounding are below it.
TOLERANCE = 1e-3
SMALL = 0.1  # Parameters below this value may hide a broken rule. It is also the size of noise.


def verify(model: Seq2Seq, source_size: int, target_size: int, kinds: Sequence[str]) -> list[str]:
    """Return warnings about a model. Raise ConfigError if it breaks a rule or cannot compute.

    The rules are tested with the initial weights, and again with noise on small parameters. The
    vocabulary sizes include the special tokens. ``kinds`` are the classes outside fusetk, for the
    error. The parameters, buffers, the mode and torch's random numbers are restored.
    """
    names = " or ".join(kinds)
    if next(model.parameters(), None) is None:
        raise ConfigError(
            f"a model with {names} has no parameters: does its __init__ call super().__init__ with "
            "all arguments?"
        )
    for problem in _wrong_classes(model):
        raise ConfigError(problem)
    try:
        pairs = _random_pairs(model, source_size, target_size)
        with _evaluation(model):
            _check_residuals(model)
            _compare(model, pairs, names)
            _check_stored_values(model, pairs, "evaluation")
            _check_layers(model, pairs)
            _check_sources(model)
            warnings = _check_training(model, pairs, names)
            _add_noise(model)
            _compare(model, pairs, names, may_be_infinite=True)
    except FusetkError:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        raise ConfigError(f"a model with {names} cannot compute: {outside_error(error)}") from error
    return warnings


class _Pairs(NamedTuple):
    """Sentence pairs; the tensors are on the device of the model."""

    sources: list[list[int]]  # with EOS
    targets: list[list[int]]  # with BOS
    src: Tensor  # (B, S)
    src_mask: Tensor  # (B, S)
    tgt_in: Tensor  # (B, T)
    target_index: Tensor  # (N,), the real target tokens in (B * T)
    lengths: tuple[Tensor, Tensor]  # of sources and targets (B,), on the CPU


def _random_pairs(model: Seq2Seq, source_size: int, target_size: int) -> _Pairs:
    """Return pairs of random words, which the model can read."""
    generator = torch.Generator().manual_seed(1)

    def words(size: int, count: int) -> list[int]:
        lowest = min(len(SPECIAL), size - 1)
        return torch.randint(lowest, size, (count,), generator=generator).tolist()

    longest = model.max_positions or max(SOURCE_LENGTHS + TARGET_LENGTHS)
    sources = [[*words(source_size, min(n, longest) - 1), EOS] for n in SOURCE_LENGTHS]
    targets = [[BOS, *words(target_size, min(n, longest) - 1)] for n in TARGET_LENGTHS]
    device = next(model.parameters()).device
    src, src_mask = (tensor.to(device) for tensor in pad(sources))
    tgt_in, tgt_mask = (tensor.to(device) for tensor in pad(targets))
    target_index = tgt_mask.flatten().nonzero()[:, 0]
    lengths = (src_mask.sum(1).cpu(), tgt_mask.sum(1).cpu())
    return _Pairs(sources, targets, src, src_mask, tgt_in, target_index, lengths)


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
            raise in_place_error(module)


def in_place_error(module: nn.Module) -> ConfigError:
    """Return the error for a module that changes its input."""
    return ConfigError(
        f"{class_name(module)} changes its input in place: compute a new tensor, because other "
        "modules read the input, too"
    )


def _check_stored_values(model: Seq2Seq, pairs: _Pairs, mode: str) -> None:
    """Raise ConfigError if a module outside fusetk stores values of a pass in the current mode."""
    next(_computations(model, pairs))  # a module may store constants once
    before = _attributes(model)
    next(_computations(model, pairs))
    for (module, name), new in _attributes(model).items():
        old = before.get((module, name), [])
        if len(old) != len(new) or any(
            one is not other and (isinstance(one, Tensor) or one != other)
            for one, other in zip(old, new, strict=True)
        ):
            reason = "because several threads may use the model"
            if mode == "training":
                reason = "or in a buffer (self.register_buffer), because checkpoints do not have it"
            raise ConfigError(
                f"{class_name(module)}.{name} changed during a pass in {mode}: keep the value in a "
                f"local variable or in the result, {reason}"
            )


def _attributes(model: Seq2Seq) -> dict[tuple[nn.Module, str], list[Any]]:
    """Return the tensors, numbers and texts in each attribute of modules outside fusetk."""
    usual = vars(nn.Module()).keys()
    return {
        (module, name): list(_leaves(value))
        for module in filter(is_outside, model.modules())
        for name, value in vars(module).items()
        if name not in usual
    }


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the tensors, numbers and texts in a value, and in its lists, tuples and mappings."""
    if isinstance(value, list | tuple | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _leaves(part)
    elif isinstance(value, Tensor | int | float | str):
        yield value


def _check_layers(model: Seq2Seq, pairs: _Pairs) -> None:
    """Raise ConfigError if a fusion or ``SourcesConnection`` outside fusetk changes its layers."""
    versions: dict[nn.Module, list[int]] = {}

    def versions_of(arguments: tuple[Any, ...]) -> list[int]:
        return [part._version for part in _leaves(arguments[0]) if isinstance(part, Tensor)]

    def before(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        versions[module] = versions_of(arguments)

    def after(module: nn.Module, arguments: tuple[Any, ...], result: Any) -> None:
        if versions_of(arguments) != versions[module]:
            raise in_place_error(module)

    kinds = (Fusion, SourcesConnection)
    readers = [m for m in model.modules() if isinstance(m, kinds) and is_outside(m)]
    hooks = [reader.register_forward_pre_hook(before) for reader in readers]
    hooks += [reader.register_forward_hook(after) for reader in readers]
    try:
        next(_computations(model, pairs))
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
            raise in_place_error(module)
        if module.reads_output:
            continue
        changed = memory._replace(output=memory.output + 1)
        if not all(map(torch.equal, sources, module.checked_sources(changed))):
            raise ConfigError(
                f"{class_name(module)} reads memory.output: set reads_output = True in the class"
            )


def _check_training(model: Seq2Seq, pairs: _Pairs, names: str) -> list[str]:
    """Raise RuntimeError if gradients cannot be computed in training mode.

    An example is a module that changes a tensor in place. Raises ConfigError if a module stores
    values or draws random numbers that a resumed run does not have, if a gradient is not finite, or
    if no gradient reaches a stack. Returns a warning if parameters of modules outside fusetk get no
    gradient.
    """
    random_numbers = _states_of_libraries()
    model.train()
    try:
        _check_stored_values(model, pairs, "training")
        if _states_of_libraries() != random_numbers:
            raise ConfigError(
                f"a model with {names} draws random numbers of `random` or NumPy in training, so a "
                "resumed run would draw others: use those of torch"
            )
        with torch.enable_grad():
            _, logits, _ = next(_computations(model, pairs))
            logits.sum().backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None and not parameter.grad.isfinite().all():
                raise ConfigError(
                    f"the gradient of {name} is not finite with the initial weights: correct the "
                    "divisions, roots and logarithms of your classes"
                )
        for name, module in model.named_modules():
            trainable = [p for p in module.parameters() if p.requires_grad]
            if isinstance(module, Stack) and trainable and all(p.grad is None for p in trainable):
                raise ConfigError(
                    f"no gradient reaches the layers of {name}: a class detaches its input or "
                    "does not use it: correct the class"
                )
        unused = list(_without_gradient(model))
    finally:
        model.zero_grad(set_to_none=True)
        model.eval()
    if not unused:
        return []
    return [
        f"parameters without a gradient in a test pass: {first_names(unused)}; if no batch "
        "uses them, they are not trained"
    ]


def _states_of_libraries() -> tuple[Any, ...]:
    """Return the states of the random numbers of Python and NumPy."""
    return random.getstate(), pickle.dumps(np.random.get_state())


def _without_gradient(model: Seq2Seq) -> Iterator[str]:
    """Yield the names of the trainable parameters of modules outside fusetk without a gradient."""
    outside = {
        id(parameter)
        for module in filter(is_outside, model.modules())
        for parameter in module.parameters()
    }
    for name, parameter in model.named_parameters():
        if id(parameter) in outside and parameter.requires_grad and parameter.grad is None:
            yield name


def _add_noise(model: Seq2Seq) -> None:
    """Add noise to vectors and to small parameters, such as gates that are 0 at first."""
    model.train().eval()  # deletes cached tensors
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        if parameter.dim() < 2 or float(parameter.abs().max()) < SMALL:
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise.to(parameter), alpha=SMALL)


def _compare(model: Seq2Seq, pairs: _Pairs, names: str, may_be_infinite: bool = False) -> None:
    """Raise ConfigError if two computations that should be equal differ."""
    for rule, first, second in _computations(model, pairs):
        if not first.isfinite().all():
            if may_be_infinite:
                return
            raise ConfigError(
                f"a model with {names} has logits that are not finite before any update: correct "
                "the initial weights and the divisions of the class"
            )
        scale = max(1.0, float(first.abs().max()))
        difference = float((first - second).abs().max())
        if not difference <= TOLERANCE * scale:
            raise ConfigError(
                f"a model with {names} breaks a rule: {rule}. The logits differ by up to "
                f"{difference:.3g}. Correct the class; the section Rules of docs/extending.md "
                "explains the rule"
            )


def _wrong_classes(model: Seq2Seq) -> Iterator[str]:
    """Yield a message for each mistake in a class outside fusetk that is visible without a
    computation.
    """
    parameters = {id(parameter) for parameter in model.parameters()}
    registered = parameters | {id(buffer) for buffer in model.buffers()}
    for module in filter(is_outside, model.modules()):
        yield from _wrong_overrides(module)
        yield from _unregistered(module, parameters, registered)


def _wrong_overrides(module: nn.Module) -> Iterator[str]:
    """Yield a message for each method whose replacement needs another base class or attribute."""
    cls: Any = type(module)
    if (
        isinstance(module, LayerFusion)
        and cls.fuse is LayerFusion.fuse
        and cls.forward is not LayerFusion.forward
    ):
        yield (
            f"{class_name(module)} replaces forward of LayerFusion, so the options norm, "
            "norm_layers and add_top would have no effect: implement fuse instead, or make it a "
            "subclass of Fusion"
        )
    if (
        isinstance(module, Residual)
        and cls.Ends.open is not StreamEnds.open
        and not cls.spans_layers
    ):
        yield (
            f"{class_name(module)}.Ends has its own method open, so connections cannot read the "
            "stream: set spans_layers = True"
        )


def _unregistered(module: nn.Module, parameters: set[int], registered: set[int]) -> Iterator[str]:
    """Yield a message for each attribute with weights or tensors that are not registered.

    ``parameters`` are the ids of the model's parameters; ``registered`` includes its buffers.
    """
    usual = vars(nn.Module()).keys()
    for name, value in vars(module).items():
        if name in usual:
            continue
        if any(id(weight) not in parameters for weight in _weights(value)):
            yield (
                f"{class_name(module)}.{name} has weights that are not registered, so they are "
                "neither trained nor saved: use nn.ModuleList, nn.ModuleDict, nn.Parameter or "
                "nn.ParameterList"
            )
        elif any(
            isinstance(tensor, Tensor) and tensor.dim() and id(tensor) not in registered
            for tensor in _leaves(value)
        ):
            yield (
                f"{class_name(module)}.{name} has a tensor that is not registered, so "
                "checkpoints do not have it and it does not move to a GPU: use "
                "self.register_buffer"
            )


def _weights(value: Any) -> Iterator[Tensor]:
    """Yield the trainable tensors in a value, its modules, and its lists, tuples and mappings."""
    if isinstance(value, Tensor):
        if value.requires_grad and value.is_leaf:
            yield value
    elif isinstance(value, nn.Module):
        yield from (parameter for parameter in value.parameters() if parameter.requires_grad)
    elif isinstance(value, list | tuple | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _weights(part)


def _computations(model: Seq2Seq, pairs: _Pairs) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield rules, each with two computations of the same logits."""
    sources, targets, src, src_mask, tgt_in, target_index, lengths = pairs

    def real(features: Tensor) -> Tensor:
        return model.output(features.flatten(0, 1)[target_index]).float()

    def one_by_one(rows: Tensor, state: Any, swap_at: int | None = None) -> list[Tensor]:
        """Return the features of each step; ``swap_at`` reorders the pairs of hypotheses."""
        steps = []
        for step, token in enumerate(rows.split(1, dim=1)):
            if step == swap_at:
                swapped = torch.arange(len(rows), device=src.device).view(-1, 2).flip(1).flatten()
                state = state._replace(per_hypothesis=select(state.per_hypothesis, swapped))
            features, state = model.decode(token, state)
            steps.append(features)
        return steps

    padded = real(model(src, src_mask, tgt_in))
    yield (
        "two equal passes in evaluation must have the same logits; F.dropout needs the argument "
        "training=self.training",
        real(model(src, src_mask, tgt_in)),
        padded,
    )
    yield (
        "the logits of a target must be the same token by token, as in search, and at once, as in "
        "training. A fusion, connection or residual connection must not read other positions. The "
        "method decode must not read later positions, and its state must hold what the next call "
        "needs of earlier ones. A module must not store values between calls",
        real(torch.cat(one_by_one(tgt_in, model.start(model.encode(src, src_mask))), 1)),
        padded,
    )
    alone = [
        model(src[i : i + 1, : len(s)], src_mask[i : i + 1, : len(s)], tgt_in[i : i + 1, : len(t)])
        for i, (s, t) in enumerate(zip(sources, targets, strict=True))
    ]
    yield (
        "a sentence must have the same logits alone and in a batch: it must not read padding or "
        "other sentences",
        model.output(torch.cat(alone, 1)[0]).float(),
        padded,
    )
    yield (
        "the packed sentences of a training batch on a CPU, (1, N, D), must have the same logits "
        "as padded ones (`packs = False` in the class of the model turns packing off)",
        model.output(model(src, src_mask, tgt_in, target_index, lengths)).float(),
        padded,
    )
    # Two hypotheses of each sentence, with other words; they change places in the middle.
    state = model.start(model.encode(src, src_mask))
    sentences = torch.arange(len(sources), device=src.device).repeat_interleave(2)
    state = state._replace(per_hypothesis=select(state.per_hypothesis, sentences))
    others = tgt_in.roll(1, 0)
    middle = tgt_in.shape[1] // 2
    rows = torch.stack((tgt_in, others), 1)
    rows[:, :, middle:] = rows[:, :, middle:].flip(1)
    steps = one_by_one(rows.flatten(0, 1), state, middle)
    yield (
        "a hypothesis must not read the other hypotheses of its sentence, and must keep its state "
        "when a search reorders them",
        real(torch.cat([step[int(t >= middle) :: 2] for t, step in enumerate(steps)], 1)),
        padded,
    )
