"""Options of ``fusetk score --by-length``."""

import re
from dataclasses import dataclass
from pathlib import Path

import click

from fusetk.cli.parameters import Decorator, FilePath, Parsed
from fusetk.errors import join_names
from fusetk.evaluation.length import BOUNDS


@dataclass(frozen=True)
class LengthOptions:
    """The options that need --by-length."""

    longer_than: bool
    bounds: tuple[int, ...] | None
    output: Path | None

    def check_unused(self) -> None:
        """Raise UsageError if one of the options is given; called without --by-length."""
        options = {
            "--longer-than": self.longer_than,
            "--bounds": self.bounds is not None,
            "--output": self.output is not None,
        }
        names = [name for name, present in options.items() if present]
        if names:
            present_options = join_names(names)
            verb = "has" if len(names) == 1 else "have"
            raise click.UsageError(
                f"{present_options} {verb} no effect without --by-length: add --by-length, or omit "
                f"{present_options}"
            )


def parse_bounds(text: str) -> tuple[int, ...]:
    """Parse rising numbers of words, separated by commas. Raises ValueError."""
    if re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", text, re.ASCII):
        bounds = [int(bound) for bound in text.split(",")]
        if bounds == sorted(set(bounds)):
            return tuple(bounds)
    raise ValueError(f"{text!r} is not a list of rising numbers of words, such as 0,10,20")


length_options: tuple[Decorator, ...] = (
    click.option(
        "--by-length",
        is_flag=True,
        help="Print a table of one metric on the sentences of each range of lengths.",
    ),
    click.option(
        "--longer-than",
        is_flag=True,
        help="With --by-length: a row for all sentences longer than each bound.",
    ),
    click.option(
        "--bounds",
        type=Parsed("N,...", parse_bounds),
        help="With --by-length: rising lengths at which the rows are divided. "
        f"Default: {','.join(map(str, BOUNDS))}.",
    ),
    click.option(
        "-o",
        "--output",
        type=FilePath(path_type=Path),
        metavar="PICTURE",
        help="With --by-length: also draw the table, as .png, .pdf or .svg.",
    ),
)
