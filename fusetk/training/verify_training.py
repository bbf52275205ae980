"""Check the passes of a model before training: stored values, random numbers, gradients, losses.

It is a part of ``fusetk.training.verify``.
"""

import pickle
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fusetk.errors import ConfigError, class_name, first_names
from fusetk.models.seq2seq import Seq2Seq
from fusetk.models.stack import Stack
from fusetk.nn.shape_check import is_outside
from fusetk.training.buffers import SavedBuffers
from fusetk.training.verify_pairs import (
    TOLERANCE,
    Pairs,
    with_another_sentence,
    with_other_ends,
)
from fusetk.weights import saved_tensors


def check_training(model: Seq2Seq, pairs: Pairs, names: str) -> list[str]:
    """Raise ConfigError if the model breaks a rule in training mode.

    A module must not store values or draw random numbers that a resumed run does not have.
    Gradients must be finite and reach each stack. Raises RuntimeError if gradients cannot be
    computed, for example because a module changes a tensor in place. Returns warnings about later
    words and other sentences that a pass reads, and about parameters of modules outside fusetk
    without a gradient.
    """
    random_numbers = _states_of_libraries()
    model.train()
    try:
        check_stored_values(model, pairs, "training")
        if _states_of_libraries() != random_numbers:
            raise ConfigError(
                f"a model with {names} draws random numbers of `random` or NumPy in training, so a "
                "resumed run would draw other numbers: use torch's default generator"
            )
        _check_unsaved_buffers(model, pairs)
        warnings = _repeat_passes(model, pairs, names)
        with torch.enable_grad():
            with pairs.losses() as losses:
                logits = pairs.padded_logits(model)
            _check_finite(losses)
            sum(losses.values(), logits.sum()).backward()
        _check_gradients(model)
        unused = list(_without_gradient(model))
    finally:
        model.zero_grad(set_to_none=True)
        model.eval()
    if unused:
        warnings.append(
            f"parameters without a gradient in a test pass: {first_names(unused)}; if no batch "
            "uses them, they are not trained"
        )
    return warnings


def _check_unsaved_buffers(model: Seq2Seq, pairs: Pairs) -> None:
    """Raise ConfigError if a pass changes a buffer that checkpoints do not have."""
    saved = saved_tensors(model).keys()
    before = {
        name: (buffer, buffer._version)
        for name, buffer in model.named_buffers()
        if name not in saved
    }
    pairs.padded_logits(model)
    for name, buffer in model.named_buffers():
        old, version = before.get(name, (buffer, buffer._version))
        if buffer is not old or buffer._version != version:
            raise ConfigError(
                f"the buffer {name} changed during a pass in training, but checkpoints do not have "
                "it, so a resumed run would differ: register it without persistent=False"
            )


def _repeat_passes(model: Seq2Seq, pairs: Pairs, names: str) -> list[str]:
    """Compare training passes with equal random numbers.

    Raise ConfigError if equal batches have different results. Return a warning if a result depends
    on later words or on other sentences; that of batch normalisation does.
    """
    buffers = SavedBuffers(model)

    def features(batch: Pairs) -> Tensor:
        torch.manual_seed(1)
        result = batch.training_features(model).float()
        buffers.restore()
        return result

    first = features(pairs)
    if not first.isfinite().all():
        return []
    tolerance = TOLERANCE * max(1.0, float(first.abs().max()))
    if not ((features(pairs) - first).abs() <= tolerance).all():
        raise ConfigError(
            f"a model with {names} computes other values in a second training pass with the same "
            "random numbers, so a resumed run would differ: draw random numbers with torch's "
            "default generator, and keep values that change in buffers"
        )
    return [
        f"in training, a model with {names} reads {what}, which search does not have: remove "
        "this, unless you intend it"
        for what, (other, indices) in {
            "later target words": with_other_ends(pairs),
            "other sentences of the batch": with_another_sentence(pairs),
        }.items()
        if not ((features(other) - first)[indices].abs() <= tolerance).all()
    ]


def _check_finite(losses: Mapping[str, Tensor]) -> None:
    """Raise ConfigError if an additional loss is not finite."""
    for name, loss in losses.items():
        if not loss.isfinite():
            raise ConfigError(
                f"the additional loss {name!r} is not finite with the initial weights: correct the "
                "divisions, roots and logarithms from which it is computed"
            )


def losses_of_batches(model: Seq2Seq, pairs: Pairs) -> Iterator[str]:
    """Yield a warning for each additional loss whose weight depends on the size of batches.

    The loss of a batch should be the sum of those of its sentences, with padding and packed. The
    model must be in evaluation mode.
    """
    sentences = [
        Pairs([source], [target], pairs.device)
        for source, target in zip(pairs.sources, pairs.targets, strict=True)
    ]

    def losses(batch: Pairs, compute: Callable[[Pairs, Seq2Seq], Tensor]) -> dict[str, Tensor]:
        with batch.losses() as collected:
            compute(batch, model)
        return collected

    for compute in (Pairs.training_features, Pairs.padded_logits):
        together = losses(pairs, compute)
        alone = [losses(sentence, compute) for sentence in sentences] if together else []
        for name, loss in together.items():
            parts = torch.stack([each.get(name, loss.new_zeros(())) for each in alone])
            if (parts.sum() - loss).abs() > TOLERANCE * parts.abs().sum():
                yield (
                    f"the additional loss {name!r} of a batch is not the sum of those of its "
                    "sentences, so its weight depends on the size of batches, on padding and on "
                    "the number of processes: give a number for each position to "
                    "additional_loss.add_positions"
                )


def _check_gradients(model: Seq2Seq) -> None:
    """Raise ConfigError if a gradient is not finite, or if none reaches the layers of a stack."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            raise ConfigError(
                f"the gradient of {name} is not finite with the initial weights: correct the "
                "divisions, roots and logarithms of your classes"
            )
    for name, module in model.named_modules():
        if not isinstance(module, Stack):
            continue
        trainable = [p for p in module.layers.parameters() if p.requires_grad]
        if trainable and all(p.grad is None for p in trainable):
            raise ConfigError(
                f"no gradient reaches the layers of {name}: a class detaches its input or does "
                "not use it: correct the class"
            )


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


def check_buffers_in_evaluation(model: Seq2Seq, pairs: Pairs) -> None:
    """Raise ConfigError if a pass in evaluation mode changes a buffer in a class outside fusetk."""
    pairs.padded_logits(model)  # a module may store constants once
    before = {
        name: (buffer, buffer._version, buffer.clone())
        for name, (_, buffer) in _outside_buffers(model).items()
    }
    pairs.padded_logits(model)
    for name, (module, buffer) in _outside_buffers(model).items():
        old, version, values = before.get(name, (None, 0, buffer))
        unwritten = buffer is old and buffer._version == version
        # F.batch_norm changes values, but not the version.
        if not (unwritten and equal_tensors(buffer, values)):
            raise ConfigError(
                f"the buffer {name} of {class_name(module)} changed during a pass in evaluation: "
                "change it only if self.training is True"
            )


def equal_tensors(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors have equal values; NaN equals NaN. They may be sparse."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    first, second = (x if x.layout == torch.strided else x.to_dense() for x in (first, second))
    return torch.allclose(first, second, 0, 0, equal_nan=True)


def _outside_buffers(model: Seq2Seq) -> dict[str, tuple[nn.Module, Tensor]]:
    """Return the innermost module outside fusetk, and the tensor, of each buffer in such modules.

    The buffers of modules of fusetk and PyTorch inside these modules are included.
    """
    return {
        f"{place}.{name}".lstrip("."): (module, buffer)
        for place, module in model.named_modules()  # a module precedes those that it contains
        if is_outside(module)
        for name, buffer in module.named_buffers()
    }


def check_stored_values(model: Seq2Seq, pairs: Pairs, mode: str) -> None:
    """Raise ConfigError if a module outside fusetk stores values of a pass in the current mode."""
    pairs.padded_logits(model)  # a module may store constants once
    before = attributes(model)
    pairs.padded_logits(model)
    for (module, name), new in attributes(model).items():
        old = before.get((module, name), [])
        if len(old) != len(new) or any(
            one is not other and (isinstance(one, Tensor | np.ndarray) or one != other)
            for one, other in zip(old, new, strict=True)
        ):
            reason = "because several threads may use the model"
            if mode == "training":
                reason = "or in a buffer (self.register_buffer), because checkpoints do not have it"
            raise ConfigError(
                f"{class_name(module)}.{name} changed during a pass in {mode}: keep the value in a "
                f"local variable or in the result, {reason}"
            )


def attributes(model: Seq2Seq) -> dict[tuple[nn.Module, str], list[Any]]:
    """Return the leaves of each attribute of modules outside fusetk (see ``leaves``)."""
    return {
        (module, name): list(leaves(value))
        for module in filter(is_outside, model.modules())
        for name, value in own_attributes(module)
    }


def own_attributes(module: nn.Module) -> list[tuple[str, Any]]:
    """Return the attributes of a module that not every module has, without those of ``reserve``."""
    usual = {*vars(nn.Module()), "_reserved"}
    return [(name, value) for name, value in vars(module).items() if name not in usual]


def leaves(value: Any) -> Iterator[Any]:
    """Yield the tensors, arrays, numbers and texts in a value, and in its lists, tuples and
    mappings.
    """
    if isinstance(value, list | tuple | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from leaves(part)
    elif isinstance(value, Tensor | np.ndarray | np.generic | int | float | str):
        yield value
