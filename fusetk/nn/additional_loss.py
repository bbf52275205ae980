"""Additional losses: terms that modules add to the loss that training minimises.

A module calls ``add`` or ``add_positions`` during a forward pass. Training adds the terms of the
pass to the loss. In validation and in search, nothing is collected, and both functions do nothing.

The loss of an update is a mean over its target tokens. A term has the same weight in it for every
split of an update into batches, processes and parts of batches.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fusetk.errors import ConfigError
from fusetk.nn.packed_layout import ROW_MULTIPLE
from fusetk.nn.step_layout import StepLayout
from fusetk.trace import MODEL_SIDES


def is_collected() -> bool:
    """Whether this thread collects additional losses.

    Call this function before a computation that only an additional loss needs.
    """
    return _pass.get() is not None


def add(name: str, value: Tensor) -> None:
    """Add ``value`` (), which does not depend on the number of tokens, to the loss of an update.

    An example is a penalty on weights. If the values of the batches of an update differ, their mean
    is added, weighted by the target tokens of each batch. ``name`` begins with ``encoder.`` or
    ``decoder.``. Logs show it, and values with the same name are summed. Raises ConfigError if the
    name or the shape is wrong, or if the value does not require a gradient.
    """
    if is_collected():
        _add(name, value, False)


def add_positions(name: str, values: Tensor) -> None:
    """Add the sum of a value for each position, divided by the target tokens of an update.

    ``values`` have the leading dimensions of the layers of a stack: (B, T), (1, N) or (N,). The
    side at the start of ``name`` is that of the layers. Padding is left out. Source positions are
    summed, too, and divided by the number of target tokens. Names and errors are those of ``add``.
    """
    if is_collected():
        _add(name, values, True)


def targets(shape: Sequence[int]) -> Tensor:
    """Return the target token of each position of the decoder, for a loss of other features.

    ``shape`` is the shape of the layers without their last dimension, and of the result. At padding
    the tokens have no meaning. Call this function only if ``is_collected()``.
    """
    current = _pass.get()
    if current is None:
        raise RuntimeError("there are targets only in training: test is_collected() before")
    return current.arranged(current.tgt_out, "decoder", torch.Size(shape), "targets")


class _Pass:
    """The additional losses of one forward pass, as sums over its target tokens."""

    def __init__(self, src_mask: Tensor, tgt_out: Tensor, target_index: Tensor):
        """The arguments are those of ``collect``."""
        self.losses: dict[str, Tensor] = {}
        self.needs_gradient = torch.is_grad_enabled()
        self.src_mask = src_mask
        self.tgt_out = tgt_out
        self.target_index = target_index
        self.reads_source = False  # whether a stack of both sides reads the source
        self.layout: StepLayout | None = None  # of the target in a recurrent model

    def again(self) -> "_Pass":
        """Return a pass with the same positions and without losses, for recomputed layers."""
        other = _Pass(self.src_mask, self.tgt_out, self.target_index)
        other.reads_source = self.reads_source
        other.layout = self.layout
        return other

    def add(self, name: str, values: Tensor, per_position: bool) -> None:
        place = f"the additional loss {name!r}"
        side = str(name).partition(".")[0]
        if side not in MODEL_SIDES or side == name:
            raise ConfigError(f"{place} needs a name that begins with encoder. or decoder.")
        if not isinstance(values, Tensor) or not (per_position or values.shape == ()):
            kind = f"has the type {type(values).__name__}"
            if isinstance(values, Tensor):
                kind = f"has the shape {tuple(values.shape)}"
            raise ConfigError(
                f"{place} {kind}: give a scalar tensor, or give add_positions a number for each "
                "position"
            )
        if self.needs_gradient and not values.requires_grad:
            raise ConfigError(
                f"{place} does not require a gradient, so it would not change the training: "
                "compute it from parameters or layers that are not detached"
            )
        loss = values.float()
        if per_position:
            side = "encoder" if self.reads_source else side
            real = self.arranged(self._mask(side), side, values.shape, f"{place} has values")
            if slots := self._slots(side, values.shape):
                real = real & slots.is_real
            loss = loss.masked_fill(~real, 0.0).sum()
        else:
            loss = loss * len(self.target_index)
        # If the loss is NaN or infinite, so is its gradient, and the update is skipped.
        loss = loss * (loss.detach() * 0 + 1)
        self.losses[name] = self.losses[name] + loss if name in self.losses else loss

    def _mask(self, side: str) -> Tensor:
        """Return a mask that is True at the real tokens of a side, (B, S) or (B, T).

        Without target tokens, the mask of the source is False: its sentence is not in the update.
        """
        if side == "encoder":
            return self.src_mask & (len(self.target_index) > 0)
        mask = self.src_mask.new_zeros(self.tgt_out.numel())
        return mask.index_fill_(0, self.target_index, True).view(self.tgt_out.shape)

    def _slots(self, side: str, shape: torch.Size) -> StepLayout | None:
        """Return ``layout`` if ``shape`` is that of its slots."""
        layout = self.layout if side == "decoder" else None
        return layout if layout is not None and shape == layout.places.shape else None

    def arranged(self, padded: Tensor, side: str, shape: torch.Size, place: str) -> Tensor:
        """Return a padded tensor, (B, S) or (B, T), in the shape of the positions of a side.

        Raises ConfigError, which begins with ``place``, if no layers have this shape.
        """
        if shape == padded.shape:
            return padded
        if slots := self._slots(side, shape):
            return padded.flatten()[slots.places]
        if shape == padded[:, 0].shape and padded.shape[1] == 1:  # one step of a recurrent decoder
            return padded[:, 0]
        if len(shape) == 2 and shape[0] == 1 and padded.device.type == "cpu":
            packed = padded[self._mask(side)]
            repeated = shape[1] - len(packed)
            if 0 <= repeated < ROW_MULTIPLE:
                return F.pad(packed, (0, repeated))[None]
        raise ConfigError(
            f"{place} of the shape {tuple(shape)}: it must be the shape of the layers of the "
            f"{side} without their last dimension"
        )


_pass: ContextVar[_Pass | None] = ContextVar("fusetk_additional_losses", default=None)


def _add_to_pass(name: str, values: Tensor, per_position: bool) -> None:
    current = _pass.get()
    assert current is not None
    current.add(name, values, per_position)


_add = _add_to_pass


@contextmanager
def collect(src_mask: Tensor, tgt_out: Tensor, target_index: Tensor) -> Iterator[dict[str, Tensor]]:
    """Collect the additional losses of the forward pass of a batch: name -> sum, float32.

    The sum has the unit of a sum of losses over the target tokens of the batch. The arguments are
    the source mask (B, S), the targets (B, T), and the indices (N,) of the target tokens without
    padding in (B * T).
    """
    current = _Pass(src_mask, tgt_out, target_index)
    with _Collecting(current):
        yield current.losses


class _Collecting(AbstractContextManager[None]):
    """Within this context, a pass collects losses. A context can be entered again."""

    def __init__(self, current: _Pass):
        self.current = current

    def __enter__(self) -> None:
        self.token = _pass.set(self.current)

    def __exit__(self, *error: object) -> None:
        _pass.reset(self.token)


def recomputation() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of the two passes of ``torch.utils.checkpoint``, its ``context_fn``.

    The second pass must run the same operations as the first one. Its losses are dropped.
    """
    current = _pass.get()
    return nullcontext(), nullcontext() if current is None else _Collecting(current.again())


@contextmanager
def reading_source() -> Iterator[None]:
    """Within this context, a stack of both sides reads the source."""
    current = _pass.get()
    if current is None:
        yield
        return
    current.reads_source = True
    try:
        yield
    finally:
        current.reads_source = False


def set_layout(layout: StepLayout | None) -> None:
    """Set the layout of the target positions of a recurrent model."""
    current = _pass.get()
    if current is not None:
        current.layout = layout


def run_uncompiled() -> None:
    """Exclude the collection of losses from code that torch compiles."""
    global _add
    torch.compiler.assume_constant_result(is_collected)  # True in every update
    _add = torch.compiler.disable(_add_to_pass)
