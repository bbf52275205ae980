"""The priority of this process among those of other sessions."""

import os
import time
from contextlib import suppress
from pathlib import Path

SESSION_PRIORITY = Path("/proc/self/autogroup")


def apply_nice_to_session(timeout: float = 3.0) -> None:
    """Give the session of this process its nice value, if the process leads the session.

    Linux may divide the time of the processors between sessions (autogroups). A nice value then
    has no effect on the processes of other sessions, unless their sessions have nice values, too.
    From users without rights, it accepts one change in 0.1 seconds; ``timeout`` is in seconds.
    """
    nice = os.getpriority(os.PRIO_PROCESS, 0) if hasattr(os, "getpriority") else 0
    if nice == 0 or os.getsid(0) != os.getpid():
        return
    end = time.monotonic() + timeout
    with suppress(OSError):
        while time.monotonic() < end:
            try:
                SESSION_PRIORITY.write_text(str(nice))
                return
            except BlockingIOError:
                time.sleep(0.1)
