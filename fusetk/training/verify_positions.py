"""Search for a module outside fusetk that mixes positions.

It is a part of ``fusetk.training.verify``, which calls it if the logits of a model are wrong.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fusetk.errors import ConfigError, class_name
from fusetk.fusion.base import Fusion
from fusetk.models.attend import AttendedSources
from fusetk.models.connect import Connection
from fusetk.models.residual import Residual
from fusetk.models.seq2seq import Seq2Seq
from fusetk.nn.nested import map_tensors
from fusetk.nn.shape_check import is_outside
from fusetk.training.verify_pairs import TOLERANCE, Pairs
from fusetk.training.verify_training import leaves

# The methods of each class that combine layers, never positions.
METHODS: dict[type[nn.Module], tuple[str, ...]] = {
    Fusion: ("forward",),
    Connection: ("append", "forward"),
    Residual: ("before", "after"),
    AttendedSources: ("sources",),
}


class Call(NamedTuple):
    """A call of a method of a module."""

    module: Any
    method: Callable[..., Any]
    arguments: tuple[Any, ...]


def check_positions(model: Seq2Seq, pairs: Pairs) -> None:
    """Raise ConfigError for the first module outside fusetk that mixes positions.

    Each call of a pass is repeated with its N positions as a sentence (1, N, ...) and as sentences
    (N, 1, ...), and with each position alone.
    """
    for call in _calls(model, pairs):
        for axis, others in ((1, "positions"), (0, "sentences or hypotheses")):
            try:
                mixes = _mixes(call, axis)
            except Exception:  # the method may need other shapes
                continue
            if mixes:
                raise ConfigError(
                    f"{call.module.name} ({class_name(call.module)}) reads other {others}: its "
                    "output at position t must depend only on position t of its input. To read "
                    "other positions, write a self-attention or a model (docs/extending.md)"
                )


def _calls(model: Seq2Seq, pairs: Pairs) -> list[Call]:
    """Return the calls of ``METHODS`` of modules outside fusetk in one pass."""
    calls: list[Call] = []

    def recorded(
        module: nn.Module, method: Callable[..., Any], *arguments: Any, **options: Any
    ) -> Any:
        if not options:  # the built-in models call these methods without names of arguments
            calls.append(Call(module, method, arguments))
        return method(*arguments, **options)

    replaced = [
        (module, name)
        for module in filter(is_outside, model.modules())
        for kind, names in METHODS.items()
        if isinstance(module, kind)
        for name in names
    ]
    for module, name in replaced:
        setattr(module, name, partial(recorded, module, getattr(module, name)))
    try:
        pairs.padded_logits(model)
    finally:
        for module, name in replaced:
            delattr(module, name)
    return calls


def _mixes(call: Call, axis: int) -> bool:
    """Whether the result at a position depends on other positions, which are along ``axis``."""
    first = next(leaf for leaf in leaves(call.arguments) if isinstance(leaf, Tensor))
    positions = first.shape[: 2 if first.dim() > 2 else 1]

    def result(rows: slice) -> list[Tensor]:
        def select(tensor: Tensor) -> Tensor:
            if tensor.shape[: len(positions)] != positions:
                return tensor
            return tensor.flatten(0, len(positions) - 1)[rows].unsqueeze(1 - axis)

        results = leaves(call.method(*map_tensors(select, call.arguments)))
        return [tensor for tensor in results if isinstance(tensor, Tensor)]

    whole, again = (result(slice(None)) for _ in range(2))
    alone = [result(slice(t, t + 1)) for t in range(positions.numel())]
    joined = [torch.cat(parts, axis) for parts in zip(*alone, strict=True)]
    return all(map(_near, whole, again)) and not all(map(_near, whole, joined))


def _near(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal up to rounding; tensors of different shapes are ignored."""
    return a.shape != b.shape or bool(
        ((a - b).abs() <= TOLERANCE * max(1.0, float(a.abs().max()))).all()
    )
