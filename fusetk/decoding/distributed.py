"""Translation by several processes.

Rank 0 reads and writes. Each rank translates a part of every chunk.
"""

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple, TypeVar

from fusetk.data.text import display_name
from fusetk.decoding.output_file import STANDARD_OUTPUT
from fusetk.decoding.requests import Request
from fusetk.errors import ConfigError, FusetkError, first_line, join_names
from fusetk.files import is_stream
from fusetk.processes import World

Value = TypeVar("Value")

# The ranks wait long for input, because a user may type it. If a rank ends, it closes its
# connections, and the others notice that at once.
INPUT_TIMEOUT = timedelta(days=365)


class ChunkOutput(NamedTuple):
    """The output of some translated lines."""

    text: list[str]  # the output of each line
    sentences: int  # lines that have a translation
    tokens: int  # number of tokens of their best translations


Chunk = tuple[int, list[Request]]  # the number of its first line, from 0, and its lines
Translate = Callable[[Sequence[int], Sequence[Request]], ChunkOutput]  # gets line numbers and lines


class ProcessFailed(FusetkError):
    """A process has failed or has ended, so all processes end."""


def check_restart(inputs: Sequence[str], target: str) -> None:
    """Raise ConfigError if torchrun restarted the command and it reads or writes a stream.

    Before the restart, the command has read a part of the stream, or may have written to it.
    """
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        return
    streams = [display_name(path) for path in inputs if is_stream(path)]
    if is_stream(target):
        streams.append(STANDARD_OUTPUT if target == "-" else target)
    if streams:
        raise ConfigError(
            f"torchrun restarted fusetk decode, which cannot begin again with {join_names(streams)}"
            ": name files with -i and -o; --resume then keeps the complete lines"
        )


def translate_chunks(
    world: World,
    chunks: Iterator[Chunk],
    translate: Translate,
    write: Callable[[ChunkOutput], None],
) -> None:
    """Translate and write chunks in order. Only rank 0 reads ``chunks`` and calls ``write``.

    If a process fails, rank 0 raises ProcessFailed and the others exit.
    """
    if world.size == 1:
        for first, requests in chunks:
            write(translate(range(first, first + len(requests)), requests))
    elif world.first:
        try:
            for chunk in chunks:
                _broadcast(world, chunk)
                write(_translate_together(world, chunk, translate))
        except ProcessFailed:
            raise
        except Exception:  # for example, the input is broken or the reader of the output has gone
            _broadcast(world, None)
            raise
        _broadcast(world, None)
    else:
        while (next_chunk := _broadcast(world, None)) is not None:
            _translate_together(world, next_chunk, translate)


def _broadcast(world: World, chunk: Chunk | None) -> Chunk | None:
    """Return rank 0's chunk in all processes; None means the end of the input."""
    with connected(world):
        return world.broadcast(chunk)


def _translate_together(world: World, chunk: Chunk, translate: Translate) -> ChunkOutput:
    first, requests = chunk
    parts = balance([len(request.text) for request in requests], world.size)
    own_part = parts[world.rank]
    numbers = [first + i for i in own_part]
    own_requests = [requests[i] for i in own_part]
    own_output = all_succeed(world, lambda: translate(numbers, own_requests))
    with connected(world):
        outputs = world.all_gather(own_output)
    text = [""] * len(requests)
    for part, output in zip(parts, outputs, strict=True):
        for i, line in zip(part, output.text, strict=True):
            text[i] = line
    sentences = sum(output.sentences for output in outputs)
    return ChunkOutput(text, sentences, sum(output.tokens for output in outputs))


def balance(sizes: Sequence[int], parts: int) -> list[list[int]]:
    """Distribute the indices of items over parts of similar total size.

    The parts get the items in turn, the largest item first.
    """
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    return [order[part::parts] for part in range(parts)]


def all_succeed(world: World, act: Callable[[], Value]) -> Value:
    """Return the result of ``act`` if it succeeds in all processes.

    Otherwise all processes end; rank 0 raises ProcessFailed, which names the processes that failed.
    """
    if world.size == 1:
        return act()
    result: list[Value] = []
    failure: str | None = None
    try:
        result.append(act())
    except FusetkError as error:
        failure = str(error)
    except Exception as error:
        traceback.print_exc()
        failure = f"{type(error).__name__}: {error}"
    with connected(world):
        failures = {
            name: text for name, text in world.all_gather((str(world), failure)) if text is not None
        }
    if not failures:
        return result[0]
    if not world.first:
        sys.exit(ProcessFailed.exit_code)
    only_this = list(failures) == [str(world)]
    all_the_same = len(failures) == world.size and len(set(failures.values())) == 1
    if only_this or all_the_same:
        raise ProcessFailed(next(iter(failures.values())))
    raise ProcessFailed("; ".join(f"{name} failed: {text}" for name, text in failures.items()))


@contextmanager
def connected(world: World) -> Iterator[None]:
    """Raise ProcessFailed if a connection breaks within this context."""
    try:
        yield
    except RuntimeError as error:
        raise ProcessFailed(
            f"{world} lost the connection to the other processes because one of them has ended: "
            f"{first_line(error)}"
        ) from None
