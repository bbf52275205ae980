"""The options of ``fusetk decode``."""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import click

from fusetk.cli.common_options import input_argument, input_or_argument
from fusetk.cli.config_options import search_options, section
from fusetk.cli.options import (
    Decorator,
    Exponent,
    device_option,
    models_option,
    precision_option,
    quiet_option,
    raw_option,
    threads_option,
)
from fusetk.decoding.config import FORMAT, RUNNING, SAMPLING, SEARCH
from fusetk.decoding.formats import OutputFormat
from fusetk.errors import ConfigError

if TYPE_CHECKING:
    from fusetk.decoding.translate import Extras

CHUNK = 4000  # lines that are sorted and translated together

SECTIONS = {
    "Input and output": [
        *("models", "source", "target", "shard", "resume", "tokenized"),
        *("prefix", "constraints", "chunk"),
    ],
    SEARCH: section(SEARCH),
    SAMPLING: section(SAMPLING),
    FORMAT: [
        *section(FORMAT),
        *("mbr", "candidates"),
        *("as_json", "word_scores", "alignment", "alignment_form", "replace_unknown", "timing"),
    ],
    RUNNING: [*section(RUNNING), "precision", "raw", "device", "threads", "quiet"],
}


class Shard(click.ParamType):
    """``I/N`` as a pair of numbers."""

    name = "I/N"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> tuple[int, int]:
        match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", value)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            self.fail(
                f"{value!r} is not I/N, the I-th of N parts, I from 1 to N", parameter, context
            )
        return int(match[1]), int(match[2])


input_options: Sequence[Decorator] = (
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
    click.option(
        "-o",
        "--output",
        "target",
        metavar="FILE",
        default="-",
        help="File for the translations; standard output by default.",
    ),
    click.option(
        "--shard",
        type=Shard(),
        help="Translate only the I-th of N parts of FILE. The outputs of all parts, joined in "
        "order, equal the output for the complete FILE.",
    ),
    click.option(
        "--resume",
        is_flag=True,
        help="Continue an interrupted output file and keep its complete lines. Without this option "
        "the file is overwritten.",
    ),
    click.option(
        "--tokenized",
        is_flag=True,
        help="The input is already prepared like the training text of the run, except for the "
        "split into subwords. The output has the same form.",
    ),
    click.option(
        "--prefix",
        metavar="FILE",
        help="File with a line for each input line: the beginning of its translation, or blank.",
    ),
    click.option(
        "--constraints",
        metavar="FILE",
        help="File with a line for each input line: phrases that its translation must contain, in "
        "this order, separated by tabs; or blank. The phrases get good places if the beam is "
        "larger than their number of tokens.",
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

format_options: Sequence[Decorator] = (
    search_options(
        normalize={
            "type": Exponent("write -n alone for an exponent of 1, and -i FILE for the text"),
            "is_flag": False,
            "flag_value": 1.0,
            "metavar": "[ALPHA]",
            "help": "Exponent of the length penalty. Without a value it is 1; 0 means no penalty.",
        },
        n_best={
            "help": "Print N translations of each sentence: `ID ||| text ||| LogProb= score ||| "
            "normalised score`, IDs from 0.",
        },
    ),
    click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print a JSON object for each line: id (from 0), text, source_tokens, and "
        "translations with text, tokens, score and normalized.",
    ),
    click.option(
        "--word-scores",
        is_flag=True,
        help="Add the score of each token and of EOS: `WordScores= ...`, in JSON `word_scores`.",
    ),
    click.option(
        "--alignment",
        is_flag=False,
        flag_value="mean",
        metavar="[WHICH]",
        help="Add the alignment of each token by the attention of a layer (3; -1 is the highest) "
        "or of a head (3.2), or by the mean of all (mean, the default without a value). Printed as "
        "` ||| 0-0 1-2`, source-target, tokens counted from 0; in JSON as pairs.",
    ),
    click.option(
        "--alignment-form",
        type=click.Choice(["hard", "soft"]),
        help="Form of alignments: for each token, the source token with the most attention (hard, "
        "the default), or the weights of all source positions (soft).",
    ),
    click.option(
        "--replace-unknown",
        is_flag=False,
        flag_value="",
        metavar="[DICTIONARY]",
        help="Replace an unknown word by the source word that it is aligned to, or by the "
        "translation of that word in the file DICTIONARY. Its lines are a source word, a tab and "
        "a target word.",
    ),
    click.option(
        "--mbr",
        type=click.Choice(["chrf", "bleu"]),
        help="Minimum Bayes risk decoding: among --candidates translations, choose the one that is "
        "most similar to all of them by this metric of sentences. The candidates are those of the "
        "search, weighted by their probabilities, or with --sample equal samples.",
    ),
    click.option(
        "--candidates",
        type=click.IntRange(2),
        metavar="N",
        help="Number of translations that --mbr compares. Default: 16. The beam is at least as "
        "large.",
    ),
    click.option(
        "--timing",
        is_flag=True,
        help="Add `seconds` to JSON: the time of the lines that were translated together, divided "
        "by their number.",
    ),
)

running_options: Sequence[Decorator] = (
    precision_option,
    raw_option,
    device_option,
    threads_option,
    quiet_option,
)


def decode_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add all options to the command."""
    for option in reversed((*input_options, *format_options, *running_options)):
        command = option(command)
    return command


def output_format_of(
    n_best: int | None,
    as_json: bool,
    word_scores: bool,
    alignment: str | None,
    alignment_form: str | None,
    timing: bool,
) -> OutputFormat:
    """Return the output format. Raises ConfigError for options that have no effect."""
    if alignment_form and not alignment:
        raise ConfigError("--alignment-form has no effect without --alignment: give it, too")
    if timing and not as_json:
        raise ConfigError("--timing has no effect without --json: give it, too")
    kind: Literal["json", "moses", "text"] = "text" if n_best is None else "moses"
    if as_json:
        kind = "json"
    soft = alignment_form == "soft"
    return OutputFormat(kind, n_best or 1, word_scores, alignment is not None, soft, timing)


def extras_of(
    word_scores: bool, alignment: str | None, dictionary: str | None, subwords: bool
) -> "Extras":
    """Return the additional results that the options select.

    ``dictionary`` is None without --replace-unknown, and "" if the option has no file.

    Raises ConfigError for an unknown alignment, and DataError for a dictionary that cannot be read.
    """
    from fusetk.decoding.alignment import parse
    from fusetk.decoding.translate import Extras
    from fusetk.decoding.unknown import Replacement, read_dictionary

    replacement = None
    if dictionary is not None:
        entries = read_dictionary(dictionary) if dictionary else None
        replacement = Replacement(entries, subwords)
    heads = None if alignment is None else parse(alignment)
    return Extras(word_scores, heads, replacement)
