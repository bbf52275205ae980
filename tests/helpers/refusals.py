"""Errors about wrong command lines."""

from click.testing import CliRunner

from fusetk.cli.main import main


def refused(*words: str) -> str:
    """Return the error about a wrong command line; it is one line."""
    result = CliRunner().invoke(main, words)
    assert (
        result.exit_code == 2
        and result.stderr.startswith("fusetk: ")
        and result.stderr.count("\n") == 1
    ), result.output
    return result.stderr.removeprefix("fusetk: ").rstrip("\n")
