"""Progress of long work on standard error: a bar on a terminal, lines at intervals in a log.

A command opens a ``Display``. Functions of the package report their work with ``task`` or
``tracked``, which have no effect if no display is open.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

Item = TypeVar("Item")

INTERVAL = 30.0  # seconds from a line of a log to the next one
REFRESHES = 4  # refreshes of the bar per second
MIN_BAR = 6  # columns
MAX_BAR = 40

_open: list["Display"] = []  # the open displays; the last one shows the tasks


class Task:
    """Work whose progress is counted, for example 300 of 29,000 lines."""

    def __init__(
        self,
        name: str,
        unit: str,
        total: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """``total`` is the count at the end, if it is known."""
        self.name = name
        self.unit = unit
        self.total = total
        self.start = self.count = 0.0
        self.clock = clock
        self.start_time = clock()
        self.on_change: Callable[[], None] = lambda: None

    def advance(self, count: float = 1) -> None:
        """Add to the count."""
        self.set(self.count + count)

    def set(self, count: float) -> None:
        """Set the count; a count above the total is reduced to it."""
        self.count = count if self.total is None else min(count, self.total)
        self.on_change()

    def rate(self) -> float:
        """Return the mean count per second."""
        return (self.count - self.start) / max(self.clock() - self.start_time, 1e-9)

    def position(self) -> str:
        """Return the name and the count."""
        total = "" if self.total is None else f" of {self.total:,.0f}"
        name = f"{self.name}  " if self.name else ""
        return f"{name}{self.count:,.0f}{total} {self.unit}"

    def fields(self) -> Sequence[str]:
        """Return further texts. A narrow terminal shows only the first of them."""
        rate = self.rate()
        return [f"{rate:,.1f} {self.unit}/s"] if rate else []

    def bar(self) -> tuple[float, float | None]:
        """Return the part of the bar that is full, and its length; None if it is unknown."""
        return self.count, self.total

    def time_left(self) -> str:
        """Return the estimated time to the end; empty if it is unknown."""
        rate = self.rate()
        if self.total is None or rate <= 0:
            return ""
        minutes, seconds = divmod(round((self.total - self.count) / rate), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02}:{seconds:02}"

    def line(self) -> str:
        """Return the progress as a line of a log."""
        left = self.time_left()
        return ", ".join([self.position(), *self.fields(), *([f"{left} left"] if left else [])])


class Display:
    """Progress of the current task on standard error. Use it as a context manager.

    On a terminal, the last line is a bar with rate and time left. Elsewhere, a line is printed if
    there was none for ``INTERVAL`` seconds, so short work prints none.
    """

    def __init__(
        self,
        disabled: bool = False,
        console: "Console | None" = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """A ``disabled`` display shows nothing. ``console`` prints to standard error."""
        self.disabled = disabled
        self.clock = clock
        self.tasks: list[Task] = []  # the last one is shown
        self.last_line = clock()
        self._live: Any = None
        if disabled:
            return
        if console is None and sys.stderr.isatty():
            from rich.console import Console

            console = Console(file=sys.stderr, highlight=False)
        if console is not None and console.is_terminal and not console.is_dumb_terminal:
            from rich.live import Live

            # Standard output may be a file, whose lines must not be printed above the bar.
            self._live = Live(
                _CurrentTask(self),
                console=console,
                refresh_per_second=REFRESHES,
                transient=True,
                redirect_stdout=False,
            )

    @property
    def is_bar(self) -> bool:
        """Whether progress is a bar on a terminal."""
        return self._live is not None

    def __enter__(self) -> "Display":
        _open.append(self)
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        _open.remove(self)
        if self._live is not None:
            self._live.stop()

    @contextmanager
    def show(self, task: Task) -> Iterator[Task]:
        """Show a task within this context, instead of the task that was shown before."""
        if self.disabled:
            yield task
            return
        self.tasks.append(task)
        task.on_change = self._changed
        try:
            yield task
        finally:
            if self._live is not None:
                self._live.refresh()  # a short task also shows its end
            self.tasks.remove(task)

    def line_due(self) -> bool:
        """Whether a log needs a line now."""
        return not self.disabled and not self.is_bar and self.clock() - self.last_line >= INTERVAL

    def line_printed(self) -> None:
        """Restart the time to the next line of a log."""
        self.last_line = self.clock()

    def _changed(self) -> None:
        if self.line_due():
            self.line_printed()
            print(self.tasks[-1].line(), file=sys.stderr, flush=True)


@contextmanager
def task(name: str, unit: str, total: float | None = None) -> Iterator[Task]:
    """Show a new task on the open display within this context."""
    if not _open:
        yield Task(name, unit, total)
        return
    shown_by = _open[-1]
    with shown_by.show(Task(name, unit, total, clock=shown_by.clock)) as new:
        yield new


def tracked(
    items: Iterable[Item], name: str, unit: str, total: float | None = None, step: int = 1
) -> Iterator[Item]:
    """Yield the items, and count them as a task.

    Every count takes 1 us, so ``step`` items are counted together.
    """
    number = 0
    with task(name, unit, total) as counted:
        for number, item in enumerate(items, 1):
            yield item
            if number % step == 0:
                counted.set(number)
        counted.set(number)


class _CurrentTask:
    """The current task of a display as one line of a terminal."""

    def __init__(self, display: Display):
        self.display = display

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        tasks = self.display.tasks[-1:]  # another thread may remove the task
        if not tasks:
            return
        [current] = tasks
        before, after, width = _fitting(current, options.max_width)
        row = Table.grid(padding=(0, 2, 0, 0))
        cells: list[Any] = [Text(before, no_wrap=True, overflow="ellipsis")]
        if width:
            full, size = current.bar()
            cells.append(ProgressBar(size, full, width, pulse=size is None))
        if after:
            cells.append(Text(after, no_wrap=True))
        row.add_row(*cells)
        yield row


def _fitting(current: Task, width: int) -> tuple[str, str, int]:
    """Return the texts before and after the bar, and the width of the bar, for a terminal.

    The time left is shown before all other fields. The bar is at least ``MIN_BAR`` columns wide,
    or 0 if there is no room.
    """
    before = current.position()
    left = current.time_left()
    room = width - len(before)
    fields: list[str] = []
    for field in [left, *current.fields()]:
        if field and room - len(field) - 2 >= MIN_BAR + 2:
            fields.append(field)
            room -= len(field) + 2
    if left in fields[:1]:
        fields = [*fields[1:], left]
    bar = min(MAX_BAR, room - 2)
    return before, "  ".join(fields), bar if bar >= MIN_BAR else 0
