"""Named tensors that a model records while it runs, if there is a listener.

A module calls ``trace.record("decoder.fuse.hops", weights)``. To read the tensors, run the model
inside ``with trace.listen() as tensors:``. Then ``tensors["decoder.fuse.hops"]`` is a list with one
tensor for each call. The parts of a name are separated by dots: the side, the layer (``layer1`` is
the lowest), and the kind of tensor. A listener sees the tensors of its own thread only.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch

MODEL_SIDES = ("encoder", "decoder")  # the first part of a name


class _Listener(NamedTuple):
    pattern: str
    tensors: dict[str, list[Any]]


_listener: ContextVar[_Listener | None] = ContextVar("fusetk_trace", default=None)


@contextmanager
def listen(pattern: str = "*") -> Iterator[dict[str, list[Any]]]:
    """Collect the tensors whose names match the shell-style ``pattern``, in order of the calls."""
    tensors: dict[str, list[Any]] = {}
    token = _listener.set(_Listener(pattern, tensors))
    try:
        yield tensors
    finally:
        _listener.reset(token)


def is_listening() -> bool:
    """Whether this thread has a listener."""
    return _listener.get() is not None


def is_listening_for(name: str) -> bool:
    """Whether a listener matches ``name``.

    Call this function before the computation of a tensor that only a listener needs. The result is
    False in compiled layers.
    """
    if torch.compiler.is_compiling():
        return False
    listener = _listener.get()
    return listener is not None and fnmatchcase(name, listener.pattern)


is_recorded = is_listening_for  # the old name, for classes of other packages


def record_selected(name: str, weights: Any, selected: Any, count: int) -> None:
    """Record the weights of ``count`` layers (count,); they are 0 apart from the selected ones.

    ``weights`` (n,) are those of the layers that the index ``selected`` selects.
    """
    if is_listening_for(name):
        every = weights.new_zeros(count)
        every[selected] = weights.detach()
        record(name, every)


def record(name: str, value: Any, part: str = "") -> None:
    """Pass ``value`` (a tensor, which is detached) to the listener if it matches the name.

    The name is ``name.part`` if there is a ``part``. Give ``part`` separately: if compiled code
    depends on the complete name, torch compiles each layer again.
    """
    listener = None if torch.compiler.is_compiling() else _listener.get()
    if listener is None:
        return
    name = f"{name}.{part}" if part else name
    if fnmatchcase(name, listener.pattern):
        listener.tensors.setdefault(name, []).append(value.detach())
