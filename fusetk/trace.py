"""What a model shows of itself: named tensors recorded while it runs, nothing when nobody listens.

A module calls ``trace.record("decoder.fuse.hops", weights)``; whoever wants to see them runs the model inside
``with trace.listen() as found:`` and reads ``found["decoder.fuse.hops"]``, a list with one tensor for each call.
Names are dotted: side, layer (``layer1`` is the lowest), what it is. Each thread listens for itself alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import fnmatchcase
from typing import Any, NamedTuple


class _Listener(NamedTuple):
    pattern: str
    found: dict[str, list[Any]]


_listener: ContextVar[_Listener | None] = ContextVar("fusetk_trace", default=None)


@contextmanager
def listen(pattern: str = "*") -> Iterator[dict[str, list[Any]]]:
    """Collect what is recorded under names that match the shell-style ``pattern``, in order of the calls."""
    found: dict[str, list[Any]] = {}
    token = _listener.set(_Listener(pattern, found))
    try:
        yield found
    finally:
        _listener.reset(token)


def wanted(name: str) -> bool:
    """Whether somebody listens for ``name``: ask before computing what only a listener needs."""
    listener = _listener.get()
    return listener is not None and fnmatchcase(name, listener.pattern)


def record(name: str, value: Any) -> None:
    """Hand ``value`` (a tensor, recorded detached) to the listener, if there is one for ``name``."""
    listener = _listener.get()
    if listener is not None and fnmatchcase(name, listener.pattern):
        listener.found.setdefault(name, []).append(value.detach())
