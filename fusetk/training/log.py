"""What a run tells: lines for people, ``metrics.jsonl`` for programs, a live display on a terminal, TensorBoard on demand."""

import json
import math
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fusetk.errors import ConfigError
from fusetk.files import write_if_changed
from fusetk.runs import LOG, METRICS, parse_metrics


class Lines:
    """A file that lines are added to. What the disk refuses waits until it takes more, and is no reason to stop; that is said once."""

    def __init__(self, path: Path):
        self._path, self._file = path, path.open("ab", buffering=0)
        self._waiting, self._said = b"", False

    def add(self, text: str) -> None:
        """Write a line, and those that wait."""
        self._waiting += text.encode() + b"\n"
        try:
            while self._waiting:
                self._waiting = self._waiting[self._file.write(self._waiting) or 0 :]
        except OSError as error:
            if not self._said:
                _say(
                    f"{self._path} cannot be written ({error.strerror}): training goes on, what belongs there waits"
                )
            self._said = True

    def close(self) -> None:
        """The end."""
        with suppress(OSError):
            self._file.close()


class _StandardError:
    """Standard error that may be closed: writing to it never fails, as when the terminal of a training is closed."""

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


class Log:
    """Writes into a run folder and to standard error. Use as a context."""

    def __init__(self, run: Path, quiet: bool = False, tensorboard: bool = False):
        self._text, self._metrics = Lines(run / LOG), Lines(run / METRICS)
        self._console = Console(
            file=cast(IO[str], _StandardError()), quiet=quiet, highlight=False, soft_wrap=True
        )
        self._board = _board(run) if tensorboard else None
        self._progress = Progress(
            TextColumn("epoch {task.fields[epoch]}  update {task.completed:.0f}{task.fields[of]}"),
            BarColumn(bar_width=None),
            TextColumn(
                "loss {task.fields[loss]:.3f}  ppl {task.fields[ppl]:.2f}  lr {task.fields[lr]:.2e}"
            ),
            TextColumn("{task.fields[speed]:.0f} tokens/s"),
            TimeRemainingColumn(),
            console=self._console,
            disable=quiet or not self._console.is_terminal,
        )
        self._task = self._progress.add_task(
            "", total=None, of="", epoch=1, loss=0.0, ppl=0.0, lr=0.0, speed=0.0
        )

    def __enter__(self) -> "Log":
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()
        self._text.close()
        self._metrics.close()
        if self._board is not None:
            with suppress(OSError):
                self._board.close()

    def line(self, text: str) -> None:
        """A line for people, with the time in the file."""
        self._text.add(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}")
        if self._progress.disable:
            if not self._console.quiet:
                _say(text)
        else:
            self._console.print(text, markup=False)

    def record(self, kind: str, values: dict[str, Any]) -> None:
        """A line for programs: ``kind`` is train or valid. A number that is not finite is null."""
        values = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }
        self._metrics.add(json.dumps({"kind": kind, **values}, allow_nan=False))
        try:
            for name, value in values.items():
                if self._board is not None and isinstance(value, int | float):
                    self._board.add_scalar(f"{kind}/{name}", value, values["update"])
        except OSError as error:
            self._board = None
            self.line(
                f"TensorBoard's files cannot be written ({error}): training goes on without them"
            )

    def progress(self, update: int, total: float | None, **fields: Any) -> None:
        """Move the live display; ``total`` updates where they can be known. What is not given stays as it was."""
        if self._progress.disable:
            return
        if total is not None:
            fields["of"] = f" of {total:.0f}"
        self._progress.update(self._task, completed=update, total=total, **fields)


class Silent(Log):
    """Of the processes that train together, all but the first say nothing."""

    def __init__(self) -> None:
        pass

    def __enter__(self) -> "Silent":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def line(self, text: str) -> None:
        pass

    def record(self, kind: str, values: dict[str, Any]) -> None:
        pass

    def progress(self, update: int, total: float | None, **fields: Any) -> None:
        pass


def peak_memory(device: torch.device) -> int:
    """The most bytes held so far: of a GPU by torch, otherwise by this process, 0 where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def forget_after(run: Path, update: int) -> None:
    """Remove later updates from ``metrics.jsonl``, and damaged lines: a resumed run repeats those updates."""
    path = run / METRICS
    if not path.exists():
        return
    lines = path.read_bytes().splitlines()
    records = [(line, parse_metrics(line)) for line in lines]
    write_if_changed(
        path,
        b"".join(line + b"\n" for line, record in records if record and record["update"] <= update),
    )


def _say(text: str) -> None:
    with suppress(OSError, ValueError):  # A closed standard error does not stop training.
        print(text, file=sys.stderr, flush=True)


def _board(run: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError(
            "training.tensorboard is on, but tensorboard is not installed: pip install tensorboard, or set it off"
        ) from None
    return SummaryWriter(str(run / "tensorboard"))
