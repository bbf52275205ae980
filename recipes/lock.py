"""A lock for shell scripts, for systems without `flock`.

`python lock.py FD` locks the file that the calling script has open as descriptor FD. The lock lasts
until the script and its child processes end or close FD. The exit status is 1 if another process
has the lock. Then `python lock.py FD MESSAGE` prints MESSAGE and waits.
"""

import sys
import time

from fusetk.data.stages import lock

PAUSE = 0.5  # seconds between two attempts


def main(descriptor: str, message: str | None = None) -> int:
    """Lock the descriptor and return the exit status."""
    if lock(int(descriptor)):
        return 0
    if message is None:
        return 1
    print(message, file=sys.stderr, flush=True)
    while not lock(int(descriptor)):
        time.sleep(PAUSE)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
