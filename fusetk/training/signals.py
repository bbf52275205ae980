"""Signals that end training. They are recorded, so that training can save a checkpoint first."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)


class StopNow(Exception):
    """A signal arrived during work that may be abandoned at once."""


@contextmanager
def signals_handled(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Within this context ``handler`` gets the signals that end training.

    An ignored SIGHUP, as under nohup, stays ignored. Only the main thread can set handlers; in
    another thread, this context has no effect.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        ignores_hangup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        for number in SIGNALS:
            if not (number is signal.SIGHUP and ignores_hangup):
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


class Stop:
    """Context in which the first of ``SIGNALS`` is recorded in ``signal``.

    A SIGINT after one of them ends the program.
    """

    def __init__(self) -> None:
        self.signal: str | None = None  # name of the first signal
        self._raises = False
        self._handled = signals_handled(self._record)

    def __enter__(self) -> "Stop":
        self._handled.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._handled.__exit__(kind, error, trace)

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
