"""What a run tells: lines for people, ``metrics.jsonl`` for programs, a live display on a terminal, TensorBoard on demand."""

import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fusetk.errors import ConfigError


class Log:
    """Writes into a run folder and to standard error. Use as a context."""

    def __init__(self, run: Path, quiet: bool = False, tensorboard: bool = False):
        self._text = (run / "log.txt").open("a", encoding="utf-8")
        self._metrics = (run / "metrics.jsonl").open("a", encoding="utf-8")
        self._console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
        self._board = _board(run) if tensorboard else None
        self._progress = Progress(
            TextColumn("epoch {task.fields[epoch]}  update {task.completed:.0f}{task.fields[of]}"),
            BarColumn(bar_width=None),
            TextColumn("loss {task.fields[loss]:.3f}  ppl {task.fields[ppl]:.2f}  lr {task.fields[lr]:.2e}"),
            TextColumn("{task.fields[speed]:.0f} tokens/s"),
            TimeRemainingColumn(),
            console=self._console,
            disable=quiet or not self._console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None, of="", epoch=1, loss=0.0, ppl=0.0, lr=0.0, speed=0.0)

    def __enter__(self) -> "Log":
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.stop()
        self._text.close()
        self._metrics.close()
        if self._board is not None:
            self._board.close()

    def line(self, text: str) -> None:
        """A line for people, with the time in the file."""
        self._text.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")
        self._text.flush()
        if self._progress.disable:
            if not self._console.quiet:
                with suppress(OSError):  # whoever read it has gone; training goes on
                    print(text, file=sys.stderr, flush=True)
        else:
            self._console.print(text, markup=False)

    def record(self, kind: str, values: dict[str, Any]) -> None:
        """A line for programs: ``kind`` is train or valid."""
        self._metrics.write(json.dumps({"kind": kind, **values}) + "\n")
        self._metrics.flush()
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(f"{kind}/{name}", value, values["update"])

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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass

    def line(self, text: str) -> None:
        pass

    def record(self, kind: str, values: dict[str, Any]) -> None:
        pass

    def progress(self, update: int, total: float | None, **fields: Any) -> None:
        pass


def forget_after(run: Path, update: int) -> None:
    """Drop what ``metrics.jsonl`` says of later updates: a resumed run does them again."""
    path = run / "metrics.jsonl"
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["update"] <= update:
                kept.append(line + "\n")
        except (ValueError, KeyError, TypeError):
            continue  # the last line of a killed run
    aside = path.with_suffix(".aside")
    aside.write_text("".join(kept), encoding="utf-8")
    aside.rename(path)


def _board(run: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError("training.tensorboard is on, but tensorboard is not installed: pip install tensorboard, or set it off") from None
    return SummaryWriter(str(run / "tensorboard"))
