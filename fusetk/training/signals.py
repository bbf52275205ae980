"""Signals that end training. They are recorded, so that training can save a checkpoint first."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType


class StopNow(Exception):
    """A signal arrived during work that may be abandoned at once."""


class Stop:
    """Within this context SIGTERM, SIGUSR1, SIGINT and SIGHUP are recorded in ``signal``.

    A SIGINT after one of them ends the program. An ignored SIGHUP, as under nohup, stays ignored.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)

    def __init__(self) -> None:
        self.signal: str | None = None  # name of the first signal
        self._raises = False

    def __enter__(self) -> "Stop":
        self._handlers = {}
        # Only the main thread can set handlers.
        if threading.current_thread() is threading.main_thread():
            ignores_hangup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            for number in self.SIGNALS:
                if not (number is signal.SIGHUP and ignores_hangup):
                    self._handlers[number] = signal.signal(number, self._record)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _record(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.signal is not None:
            raise KeyboardInterrupt
        self.signal = self.signal or signal.Signals(number).name
        if self._raises:
            self._raises = False  # raise only once, because a second signal may arrive at any time
            raise StopNow

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Within this context a signal raises StopNow.

        It is for long work that changes nothing, such as validation.
        """
        self._raises = True
        try:
            if self.signal:
                raise StopNow
            yield
        finally:
            self._raises = False
