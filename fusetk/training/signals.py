"""Signals that ask for an end: noted, so that training can save first."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType


class StopNow(Exception):
    """A signal came where work may be dropped at once."""


class Stop:
    """Within this context SIGTERM, SIGUSR1, SIGINT and SIGHUP are noted in ``signal``; a SIGINT after one of them ends the program.

    A SIGHUP that is ignored, as under nohup, stays ignored.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)

    def __init__(self) -> None:
        self.signal: str | None = None  # the name of the first that came
        self._droppable = False

    def __enter__(self) -> "Stop":
        self._before = {}
        if threading.current_thread() is threading.main_thread():  # others may not set handlers
            ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            numbers = [
                number for number in self.SIGNALS if not (number is signal.SIGHUP and ignored)
            ]
            self._before = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.signal is not None:
            raise KeyboardInterrupt
        self.signal = self.signal or signal.Signals(number).name
        if self._droppable:
            self._droppable = False  # once: a second signal may come anywhere
            raise StopNow

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Within this context a signal raises StopNow: for long work that changes nothing, such as validation."""
        self._droppable = True
        try:
            if self.signal:
                raise StopNow
            yield
        finally:
            self._droppable = False
