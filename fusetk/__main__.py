"""The ``fusetk`` command, also run by ``python -m fusetk``."""

import sys

from fusetk.errors import EXIT_INTERRUPTED


def run() -> None:
    """Run the command; Ctrl-C ends it without a traceback, also during the imports."""
    try:
        from fusetk.cli.main import main

        main()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    run()
