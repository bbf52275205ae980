"""``fusetk decode`` in several processes: the first one reads and writes, and each translates a part of every chunk."""

import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from fusetk.decoding.stream import deal
from fusetk.errors import FusetkError
from fusetk.processes import World

if TYPE_CHECKING:
    from fusetk.decoding.translate import Request

Value = TypeVar("Value")
PATIENCE = timedelta(
    days=365
)  # somebody may type; that a process is gone is seen by its connections


class Shown(NamedTuple):
    """Some lines translated."""

    text: list[str]  # the output for each line
    sentences: int  # lines with a word in them
    tokens: int  # of their best translations


Chunk = tuple[int, "list[Request]"]  # the number of its first line, from 0, and its lines
Work = Callable[[Sequence[int], "Sequence[Request]"], Shown]  # of lines with these numbers


class Ended(FusetkError):
    """Another process has failed or is gone, and with it all end."""


def work_together(
    world: World, chunks: Iterator[Chunk], work: Work, write: Callable[[Shown], None]
) -> None:
    """Translate and write chunks in order. All but the first process read nothing and write nothing.

    Raises Ended where a process fails, in the first; the others just end.
    """
    if world.size == 1:
        for first, requests in chunks:
            write(work(range(first, first + len(requests)), requests))
    elif world.first:
        try:
            for chunk in chunks:
                _tell(world, chunk)
                write(_share(world, chunk, work))
        except Ended:
            raise
        except Exception:  # the input is broken, nobody reads the output, ...
            _tell(world, None)
            raise
        _tell(world, None)
    else:
        while (chunk_told := _tell(world, None)) is not None:
            _share(world, chunk_told, work)


def _tell(world: World, chunk: Chunk | None) -> Chunk | None:
    """The first process' chunk; None is the end."""
    with _connected(world):
        return world.broadcast(chunk)


def _share(world: World, chunk: Chunk, work: Work) -> Shown:
    """A chunk translated by all processes together."""
    first, requests = chunk
    hands = deal([len(request.text) for request in requests], world.size)
    mine = hands[world.rank]
    shown = agreed(world, lambda: work([first + i for i in mine], [requests[i] for i in mine]))
    with _connected(world):
        parts = world.all_gather(shown)
    text = {
        i: line
        for hand, part in zip(hands, parts, strict=True)
        for i, line in zip(hand, part.text, strict=True)
    }
    return Shown(
        [text[i] for i in range(len(requests))],
        sum(part.sentences for part in parts),
        sum(part.tokens for part in parts),
    )


def agreed(world: World, act: Callable[[], Value]) -> Value:
    """What ``act`` returns, where it fails in no process; else all end, the first with an error that names those that failed."""
    if world.size == 1:
        return act()
    result: list[Value] = []
    said: str | None = None
    try:
        result.append(act())
    except FusetkError as error:
        said = str(error)
    except Exception as error:
        traceback.print_exc()
        said = f"{type(error).__name__}: {error}"
    with _connected(world):
        failed = {
            name: what for name, what in world.all_gather((str(world), said)) if what is not None
        }
    if not failed:
        return result[0]
    if not world.first:
        sys.exit(Ended.exit_code)
    if list(failed) == [str(world)] or (
        len(failed) == world.size and len(set(failed.values())) == 1
    ):
        raise Ended(next(iter(failed.values())))
    raise Ended("; ".join(f"{name} failed: {what}" for name, what in failed.items()))


@contextmanager
def _connected(world: World) -> Iterator[None]:
    """Within this context a connection that breaks is Ended."""
    try:
        yield
    except RuntimeError as error:
        raise Ended(
            f"{world} lost the others, one of them has ended: {str(error).splitlines()[0]}"
        ) from None
