"""The options of ``fusetk rescore``."""

import re

import click

from fusetk.cli.config_options import exponent, search_option
from fusetk.cli.options import models_option, output_option, running_options, tokenized_option
from fusetk.cli.parameters import Decorator, Parsed, all_of
from fusetk.decoding.config import FORCED_BATCH_TOKENS


def parse_feature(text: str) -> str:
    """Return the name of a feature in an n-best list. Raises ValueError."""
    if not re.fullmatch(r"[^\s=|]+", text):
        raise ValueError(f"{text!r} cannot be the name of a feature: remove spaces, = and |")
    return text


OPTIONS: tuple[Decorator, ...] = (
    click.argument("files", nargs=-1, metavar="[SRC [TGT]]"),
    models_option,
    click.option(
        "-i",
        "--input",
        "source",
        metavar="SRC",
        help="File with source sentences, plain or .gz; - is standard input. SRC and TGT can also "
        "be given without -i and -r.",
    ),
    click.option(
        "-r",
        "--reference",
        "target",
        metavar="TGT",
        help="File with their translations, line by line.",
    ),
    click.option(
        "--tsv",
        metavar="FILE",
        help="File with lines of a source, a tab and a target; - is standard input, the default.",
    ),
    click.option(
        "--n-best",
        metavar="FILE",
        help="Moses n-best list of translations of SRC; it is printed with one more feature.",
    ),
    click.option(
        "--json-lines",
        metavar="FILE",
        help="Output of `fusetk decode --json`; it is printed with one more number.",
    ),
    output_option("the scores", "output"),
    tokenized_option("The text is"),
    click.option(
        "--word-scores",
        is_flag=True,
        help="Also print the tokens and their scores: a tab before each token, a space before its "
        "score.",
    ),
    click.option(
        "--no-eos",
        is_flag=True,
        help="Leave EOS out of the score and of the length that normalises it.",
    ),
    search_option(
        "normalize",
        **exponent("write -n 1 before a file, or -n after the files"),
        default=0.0,
        help="Divide scores by the length penalty with this exponent; 1 without a value. Without "
        "the option, scores are not divided.",
    ),
    search_option("penalty"),
    search_option("ensemble"),
    search_option("ensemble_weights"),
    click.option(
        "--feature",
        type=Parsed("NAME", parse_feature),
        default="Rescore",
        show_default=True,
        help="Name of the new feature of --n-best, or of the new number of --json-lines.",
    ),
    click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print JSON objects: id (from 0), score, normalized, tokens, and with --word-scores "
        "word_scores.",
    ),
    click.option(
        "--summary",
        is_flag=True,
        help="Print only the summary of the corpus, on standard output.",
    ),
    search_option(
        "batch_tokens",
        default=FORCED_BATCH_TOKENS,
        show_default=True,
        help="Number of tokens in a batch, both sides together.",
    ),
    *running_options,
)
rescore_options = all_of(OPTIONS)
