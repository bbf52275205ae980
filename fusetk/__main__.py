"""The ``fusetk`` command, also run by ``python -m fusetk``."""

import os
import signal
import sys

from fusetk.errors import EXIT_INTERRUPTED, FusetkError


def run() -> None:
    """Run the command; Ctrl-C ends it without a traceback, also during the imports."""
    interrupted = False

    def interrupt(*signal_and_frame: object) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, interrupt)
    try:
        try:
            os.getcwd()
        except FileNotFoundError:
            print(
                "fusetk: the current folder was deleted: change to another folder", file=sys.stderr
            )
            sys.exit(FusetkError.exit_code)
        from fusetk.cli.main import main

        main()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except Exception:
        # A library that catches KeyboardInterrupt during its import may fail later.
        if not interrupted:
            raise
        sys.exit(EXIT_INTERRUPTED)
    finally:
        if is_default:
            signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    run()
