"""Progress through the lines of an input: a bar on a terminal, plain lines in a log."""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import click

INTERVAL = 30.0  # seconds between two lines in a log


class LineProgress:
    """Progress through lines, printed to standard error. Use it as a context manager.

    On a terminal it is a bar with rate and time left. Elsewhere it is a line every ``INTERVAL``
    seconds, so that short runs print none.
    """

    def __init__(self, total: int | None, disabled: bool = False, clock: Any = time.monotonic):
        """``total`` is the number of lines, if it is known."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.total = total
        self.disabled = disabled
        self.clock = clock
        self.start = self.last = clock()
        self.complete = 0  # lines of complete chunks
        self.begun = 0  # lines of the current chunk that are translated
        console = Console(file=sys.stderr)
        self.bar = Progress(
            TextColumn("{task.fields[text]}"),
            BarColumn(bar_width=None),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=disabled or not console.is_terminal,
        )
        self.task = self.bar.add_task("", total=total, text="")

    def __enter__(self) -> "LineProgress":
        self.bar.start()
        self._show()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bar.stop()

    def batch(self, lines: int) -> None:
        """Add lines that were translated together."""
        self.begun += lines
        self._show()

    def tracked(self, translate: Callable[..., Any], processes: int = 1) -> Callable[..., Any]:
        """Return ``translate``, whose first argument is a chunk of lines, with progress.

        Each of the ``processes`` translates an equal part of the lines.
        """

        def run(chunk: Any, *arguments: Any) -> Any:
            result = translate(chunk, *arguments)
            self.complete += len(chunk) * processes
            self.begun = 0
            self._show()
            return result

        return run

    def _show(self) -> None:
        if self.disabled:
            return
        lines = self.complete + self.begun
        if self.total is not None:
            lines = min(lines, self.total)
        if not self.bar.disable:
            self.bar.update(self.task, completed=lines, text=self._text(lines))
        elif self.clock() - self.last >= INTERVAL:
            self.last = self.clock()
            click.echo(self._text(lines) + self._time_left(lines), err=True)

    def _text(self, lines: int) -> str:
        rate = lines / max(self.clock() - self.start, 1e-9)
        total = "" if self.total is None else f" of {self.total:,}"
        return f"{lines:,}{total} lines, {rate:,.1f} lines/s"

    def _time_left(self, lines: int) -> str:
        if self.total is None or not lines:
            return ""
        seconds = (self.clock() - self.start) * (self.total - lines) / lines
        minutes, seconds = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return f", {hours}:{minutes:02}:{seconds:02} left"
