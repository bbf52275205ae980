"""The priority of this process among those of other sessions."""

import os
import time
from contextlib import suppress
from pathlib import Path

AUTOGROUP_FILE = Path("/proc/self/autogroup")


def apply_nice_to_session(timeout: float = 3.0) -> None:
    """Set the nice value of the session to that of this process, if it leads the session.

    Linux may divide the time of the processors between sessions (autogroups, sched(7)). Between
    processes of different sessions, only the nice values of the sessions count. Linux limits all
    users except root to one change in 0.1 seconds. This function tries again for ``timeout``
    seconds.
    """
    nice = os.getpriority(os.PRIO_PROCESS, 0) if hasattr(os, "getpriority") else 0
    if nice == 0 or os.getsid(0) != os.getpid():
        return
    end = time.monotonic() + timeout
    with suppress(OSError):
        while time.monotonic() < end:
            try:
                AUTOGROUP_FILE.write_text(str(nice))
                return
            except BlockingIOError:
                time.sleep(0.1)
