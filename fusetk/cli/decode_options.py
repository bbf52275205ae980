"""The options of ``fusetk decode``, and their headings in the help."""

from dataclasses import dataclass

import click

from fusetk.cli.config_options import exponent, search_options, section
from fusetk.cli.decode_input_options import input_options
from fusetk.cli.options import running_options
from fusetk.cli.parameters import Decorator, Parsed, all_of
from fusetk.decoding.config import FORMAT, RUNNING, SAMPLING, SEARCH
from fusetk.errors import ConfigError

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


def _checked_heads(text: str) -> str:
    """Return the value of --alignment. Raises ValueError if it is not a choice of attention."""
    from fusetk.decoding.alignment import parse

    try:
        parse(text)
    except ConfigError as error:
        raise ValueError(
            f"{error}; write --alignment alone for the mean, and -i FILE for the text"
        ) from None
    return text


format_options: tuple[Decorator, ...] = (
    search_options(
        normalize={
            **exponent("write -n alone for an exponent of 1, and -i FILE for the text"),
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
        type=Parsed("WHICH", _checked_heads),
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
        "a target word. With SentencePiece, each subword counts as a word.",
    ),
    click.option(
        "--mbr",
        type=click.Choice(["chrf", "bleu", "comet"]),
        help="Minimum Bayes risk decoding: among --candidates translations, choose the one that is "
        "most similar to all of them by this metric of sentences; comet needs the library of "
        "`fusetk[comet]`. The candidates are those of the search, weighted by their probabilities, "
        "or with --sample equal samples.",
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

decode_options: Decorator = all_of([*input_options, *format_options, *running_options])


@dataclass(frozen=True)
class DecodeOptions:
    """The values of the options, except those of the search."""

    models: tuple[str, ...]
    source: str
    target: str
    shard: tuple[int, int] | None
    resume: bool
    tokenized: bool
    prefix: str | None
    constraints: str | None
    chunk: int
    as_json: bool
    word_scores: bool
    alignment: str | None
    alignment_form: str | None
    replace_unknown: str | None
    mbr: str | None
    candidates: int | None
    timing: bool
    precision: str
    raw: bool
    device: str
    threads: int | None
    quiet: bool
