"""The files and lines of a training run: ``log.txt``, ``metrics.jsonl``, TensorBoard files."""

import json
import math
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

from rich.console import Console

from fusetk.display import Display
from fusetk.errors import WARNING, ConfigError
from fusetk.files import write_if_changed
from fusetk.runs import LOG, METRICS, parse_metrics
from fusetk.training.progress import Progress


class AppendingFile:
    """A file to which lines are appended. A write error never stops training.

    Lines that cannot be written are buffered and retried with the next line and at the end, and the
    first error is reported. ``logging.FileHandler`` drops such lines.
    """

    def __init__(self, path: Path):
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._buffer = b""
        self._reported = False

    def add(self, text: str) -> None:
        """Append a line, after the buffered lines."""
        self._buffer += text.encode() + b"\n"
        self._write()

    def close(self) -> None:
        """Close the file after a last attempt to write the buffered lines."""
        self._write()
        if self._buffer:
            _print_error(f"{self._path} lacks its last lines, because they could not be written")
        with suppress(OSError):
            self._file.close()

    def _write(self) -> None:
        try:
            while self._buffer:
                written = self._file.write(self._buffer) or 0
                self._buffer = self._buffer[written:]
        except OSError as error:
            if not self._reported:
                _print_error(
                    f"{self._path} cannot be written ({error.strerror}): "
                    "training continues, and lines are kept in memory until it can be written"
                )
            self._reported = True


class _StandardError:
    """Standard error that raises no exceptions if it is closed, for example with its terminal."""

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.flush()

    def isatty(self) -> bool:
        with suppress(AttributeError, OSError, ValueError):
            return sys.stderr.isatty()
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


class Log:
    """Output of training into a run folder and to standard error. Use it as a context manager."""

    def __init__(self, run: Path, quiet: bool = False, tensorboard: bool = False, update: int = 0):
        """Continue the output after ``update``. Raises ConfigError if tensorboard is missing."""
        self._text = AppendingFile(run / LOG)
        self._metrics = AppendingFile(run / METRICS)
        console = Console(
            file=cast(IO[str], _StandardError()),
            highlight=False,
            force_terminal=_StandardError().isatty(),  # also if FORCE_COLOR is set
        )
        self._console = console
        self._quiet = quiet
        self._tensorboard: Any = None
        if tensorboard:  # the values of updates after ``update`` are hidden
            self._tensorboard = import_tensorboard()(
                str(run / "tensorboard"), purge_step=update + 1
            )
        self.display = Display(quiet, console)

    def __enter__(self) -> "Log":
        self.display.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.display.__exit__(kind, error, trace)
        self._text.close()
        self._metrics.close()
        if self._tensorboard is not None:
            with suppress(OSError):
                self._tensorboard.close()

    def line(self, text: str, shorten: bool = False) -> None:
        """Print a line, and write it with date and time into the log file.

        A quiet log prints warnings only. With ``shorten``, a terminal shows only the fields that
        fit into a line. Two spaces separate the fields.
        """
        self._text.add(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}")
        if self._quiet and not text.startswith(WARNING):
            return
        self.display.line_printed()
        if not self.display.is_bar:
            _print_error(text)
            return
        width = self._console.width
        while shorten and len(text) > width and "  " in text:
            text = text.rpartition("  ")[0]
        self._console.print(text, markup=False)

    def record(self, kind: str, values: dict[str, Any]) -> None:
        """Write a line of ``metrics.jsonl``; ``kind`` is train or valid.

        A number that is not finite becomes null. A value may be a mapping from names to values.
        """
        values = _finite(values)
        self._metrics.add(json.dumps({"kind": kind, **values}, allow_nan=False))
        if self._tensorboard is None:
            return
        try:
            for name, value in _flat(values):
                if isinstance(value, int | float):
                    self._tensorboard.add_scalar(f"{kind}/{name}", value, values["update"])
        except OSError as error:
            self._tensorboard = None
            self.line(
                f"TensorBoard files cannot be written ({error}): training continues without them"
            )


def _finite(value: Any) -> Any:
    """Return a value with None instead of each number that is not finite."""
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings; slashes separate the names of the levels."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


class NullLog(Log):
    """Log that writes nothing. All processes except rank 0 use it."""

    def __init__(self) -> None:
        self.display = Display(disabled=True)

    def __enter__(self) -> "NullLog":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def line(self, text: str, shorten: bool = False) -> None:
        pass

    def record(self, kind: str, values: dict[str, Any]) -> None:
        pass


def forget_after(run: Path, progress: Progress) -> None:
    """Remove damaged lines and those after ``progress`` from ``metrics.jsonl``.

    A resumed run repeats these updates. It also repeats the validation of the last update if the
    checkpoint does not have it.
    """
    path = run / METRICS
    if not path.exists():
        return
    lines = path.read_bytes().splitlines()
    records = [(line, parse_metrics(line)) for line in lines]
    remaining = [line + b"\n" for line, record in records if record and _precedes(record, progress)]
    write_if_changed(path, b"".join(remaining))


def _precedes(record: Mapping[str, Any], progress: Progress) -> bool:
    """Whether a record of ``metrics.jsonl`` is not after ``progress``."""
    repeated = record["kind"] == "valid" and not progress.validated
    return bool(record["update"] < progress.update + (not repeated))


def _print_error(text: str) -> None:
    with suppress(OSError, ValueError):  # A closed standard error does not stop training.
        print(text, file=sys.stderr, flush=True)


def import_tensorboard() -> Any:
    """Return the writer class of TensorBoard. Raises ConfigError if the package is missing."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError(
            "training.tensorboard is set, but tensorboard is not installed: "
            "pip install 'fusetk[tensorboard]', or remove training.tensorboard"
        ) from None
    return SummaryWriter
