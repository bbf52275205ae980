"""Options of the commands that draw pictures."""

from collections.abc import Mapping
from pathlib import Path

import click

from fusetk.cli.parameters import Decorator, Parsed
from fusetk.errors import DataError
from fusetk.plotting.figure import NUMBERS, PICTURES
from fusetk.plotting.style import STYLES, Size, parse_size

style_option: Decorator = click.option(
    "--style",
    type=click.Choice(list(STYLES)),
    default="screen",
    show_default=True,
    help="screen: as large as the content needs. paper: as wide as one column (3.3 inches), or two"
    " (6.9) if the labels need it, with fonts of 7 points, 300 pixels per inch, and no title.",
)


def size_option(height: str) -> Decorator:
    """Return the option --size; ``height`` is a sentence about the height."""
    return click.option(
        "--size",
        type=Parsed("WIDTH[xHEIGHT]", parse_size),
        help=f"Size of the picture in inches. {height}",
    )


def check_picture(output: Path, size: Size | None, style: str) -> None:
    """Raise DataError if --size or --style paper is given for a file that is not a picture."""
    if output.suffix.lower() in PICTURES:
        return
    for option, is_given in (("--size", size is not None), ("--style paper", style == "paper")):
        if is_given:
            raise DataError(
                f"{option} is for pictures ({', '.join(PICTURES)}), and {output} is not a picture: "
                f"remove {option}"
            )


def check_numbers(output: Path, options: Mapping[str, bool]) -> None:
    """Raise DataError if an option is given that changes no number in a file of numbers.

    ``options`` says for each of these options whether it is given.
    """
    for option, is_given in options.items():
        if is_given and output.suffix.lower() in NUMBERS:
            raise DataError(f"{option} changes no number in {output}: remove {option}")
