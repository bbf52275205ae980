"""The ``fusetk`` command, also run by ``python -m fusetk``."""

import sys


def run() -> None:
    """Run the command; Ctrl-C ends it without a traceback, also during the imports."""
    try:
        from fusetk.cli.main import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    run()
