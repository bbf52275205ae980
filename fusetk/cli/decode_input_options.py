"""Options of ``fusetk decode`` for its input and output files."""

import re

import click

from fusetk.cli.common_options import input_argument, input_or_argument
from fusetk.cli.options import models_option, output_option, tokenized_option
from fusetk.cli.parameters import Decorator, Parsed

CHUNK = 4000  # lines that are sorted and translated together


def parse_shard(text: str) -> tuple[int, int]:
    """Parse ``I/N``, the I-th of N parts. Raises ValueError."""
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(f"{text!r} is not I/N, the I-th of N parts, I from 1 to N")
    return int(match[1]), int(match[2])


input_options: tuple[Decorator, ...] = (
    models_option,
    click.option(
        "-i",
        "--input",
        "source",
        metavar="FILE",
        default="-",
        callback=input_or_argument,
        help="Text, one sentence a line, plain or .gz; standard input by default. The file can"
        " also be given without -i.",
    ),
    input_argument("source"),
    output_option("the translations", "target"),
    click.option(
        "--shard",
        type=Parsed("I/N", parse_shard),
        help="Translate only the I-th of N parts of FILE. The outputs of all parts, joined in "
        "order, equal the output for the complete FILE. The last digits of scores may differ.",
    ),
    click.option(
        "--resume",
        is_flag=True,
        help="Continue an interrupted output file and keep its complete lines. Without this option "
        "the file is overwritten.",
    ),
    tokenized_option("The input is", " The output has the same form."),
    click.option(
        "--prefix",
        metavar="FILE",
        help="File with a line for each input line: the beginning of its translation, or blank.",
    ),
    click.option(
        "--constraints",
        metavar="FILE",
        help="File with a line for each input line: phrases that its translation must contain, in "
        "this order, separated by tabs; or blank. Choose a beam that is larger than the number of "
        "tokens of the phrases: a smaller one may not find good places for them. With "
        "SentencePiece, the last word of a phrase may become the start of a longer word.",
    ),
    click.option(
        "--chunk",
        type=click.IntRange(1),
        default=CHUNK,
        show_default=True,
        metavar="LINES",
        help="Number of lines, for each process, that are read, sorted by length and translated "
        "together. There are fewer if the input does not have more lines yet.",
    ),
)
