"""Advice to the user who interrupted a command with Ctrl-C."""

from collections.abc import Mapping

import click

# Commands that keep a part of their result, and how to continue.
CONTINUE: Mapping[str, str] = {
    "prep": "the complete stages are kept: run the same command again to continue",
    "decode": "a file of -o keeps its complete lines: add --resume to continue it",
    "dataset": "the complete texts and downloads are kept: run the same command again to continue",
    "run": "the complete steps are kept: run the same command again to continue",
    "demo": "the complete steps are kept: run the same command again to continue",
}


def advice(context: click.Context) -> str:
    """Return how to continue the command of ``context``; empty if it keeps no result.

    The object of the context, if it has one, is the name of the command that calls this one.
    """
    text = CONTINUE.get(context.obj or context.invoked_subcommand or "")
    return f"; {text}" if text else ""
