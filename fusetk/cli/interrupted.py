"""Advice to the user who interrupted a command with Ctrl-C."""

from collections.abc import Mapping

import click

# Commands that keep a part of their result, and how to continue.
CONTINUE: Mapping[str, str] = {
    "prep": "the complete stages are kept: run the same command again to continue",
    "decode": "a file of -o keeps its complete lines: add --resume to continue it",
    "dataset": "the complete texts and downloads are kept: run the same command again to continue",
}


def advice(context: click.Context) -> str:
    """Return how to continue the command of ``context``; empty if it keeps no result."""
    text = CONTINUE.get(context.invoked_subcommand or "")
    return f"; {text}" if text else ""
