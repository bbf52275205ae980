"""The end of a process when its parent ends. It has an effect on Linux only."""

import os
import signal
import sys
from collections.abc import Callable

PR_SET_PDEATHSIG = 1  # of Linux's prctl


def ends_with_parent() -> Callable[[], object] | None:
    """Return the function by which a child process gets SIGTERM when its parent is killed.

    Return None on systems other than Linux.
    """
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    set_option = ctypes.CDLL(None).prctl  # loaded before the fork
    return lambda: set_option(PR_SET_PDEATHSIG, signal.SIGTERM)


def end_with_torchrun() -> None:
    """Let the system send SIGTERM to this process when torchrun ends, if torchrun started it."""
    if "TORCHELASTIC_RUN_ID" in os.environ and (set_signal := ends_with_parent()):
        set_signal()
