"""What remains of a command that the user interrupted with Ctrl-C."""

from collections.abc import Mapping

import click

# Commands whose result so far is kept, and how to continue.
CONTINUE: Mapping[str, str] = {
    "prep": "the complete stages are kept: run the same command again to continue",
    "decode": "an output file keeps its complete lines: add --resume to continue",
}


def advice(context: click.Context) -> str:
    """Return how to continue the command of ``context``; empty if nothing of it is kept."""
    text = CONTINUE.get(context.invoked_subcommand or "")
    return f"; {text}" if text else ""
