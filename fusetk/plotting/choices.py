"""The choices of ``fusetk plot-attention``, and checks of their combination."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fusetk.data.text import check_inputs_and_output
from fusetk.errors import DataError, join_names
from fusetk.plotting import attention
from fusetk.plotting.figure import check_output
from fusetk.plotting.save import check_one
from fusetk.plotting.sentences import InputPair, command_line_pairs, file_pairs

# The values of --what that draw fusions, and the sides of these fusions.
FUSION_SIDES = {
    "fuse": ("encoder", "decoder"),
    "encoder-fuse": ("encoder",),
    "decoder-fuse": ("decoder",),
}
# The same for connections.
CONNECTION_SIDES = {
    "connect": ("encoder", "decoder"),
    "encoder-connect": ("encoder",),
    "decoder-connect": ("decoder",),
}
# The values of --what, and their names in titles.
ATTENTION = {what: attention.NAMES[kind] for what, (_, kind) in attention.SIDES_AND_KINDS.items()}
WHATS = {
    **ATTENTION,
    **dict.fromkeys(FUSION_SIDES, "layer fusion"),
    **dict.fromkeys(CONNECTION_SIDES, "connections"),
    "similarity": "similarity of layers",
}
# The values of --what that --corpus accepts. Attention belongs to the tokens of one sentence.
CORPUS_WHATS = [what for what in WHATS if what not in ATTENTION]


class PlotOptions(NamedTuple):
    """The values of the options that select the text and the panels."""

    what: str
    layer: int | None
    head: str | int | None
    step: str | int | None
    tokenized: bool
    corpus: bool
    output: Path
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    source_file: str | None
    target_file: str | None
    lines: range | None


def parse_head(text: str) -> str | int:
    """Parse a number from 1, ``mean`` or ``all``. Raises ValueError."""
    if text in ("mean", "all"):
        return text
    if text.isascii() and text.isdigit() and int(text) >= 1:
        return int(text)
    raise ValueError(f"{text!r} is not a number from 1, mean or all")


def parse_step(text: str) -> str | int:
    """Parse a number from 1, or a word. Raises ValueError for 0."""
    if not (text.isascii() and text.isdigit()):
        return text
    if int(text) < 1:
        raise ValueError(f"{text} is neither a number from 1 nor a word")
    return int(text)


def check_options(choices: PlotOptions) -> None:
    """Raise DataError for options that exclude each other, before anything is loaded."""
    check_output(choices.output, pages=True)
    if choices.what in CONNECTION_SIDES:
        if choices.head is not None or choices.step is not None:
            raise DataError(
                "--head and --step select attention between tokens: omit them with --what "
                f"{choices.what}"
            )
        if choices.corpus and choices.layer is not None:
            raise DataError("--layer draws the tokens of one sentence: omit it with --corpus")
        return
    _check_text(choices)
    if choices.what == "similarity" and (choices.layer, choices.head) != (None, None):
        raise DataError(
            "similarity compares the outputs of all layers of a stack: omit --layer and --head"
        )
    if choices.what in FUSION_SIDES and choices.layer is not None:
        raise DataError("a fusion combines all layers: omit --layer")
    if choices.what in ATTENTION and choices.corpus:
        raise DataError(
            "--corpus averages over sentences, but attention belongs to the tokens of one "
            f"sentence: use --corpus with --what {join_names(CORPUS_WHATS, 'or')}"
        )
    if choices.step is not None and choices.what in (*CORPUS_WHATS, "encoder-self"):
        raise DataError(
            "--step selects a step of the decoder's attention: use it with --what cross, self, "
            "decoder-self or mixed"
        )
    if not choices.corpus:
        check_one(len(choices.sources), choices.output)


def check_connections(choices: PlotOptions, need_text: bool) -> str:
    """Return a note for the user if a given text is not read; '' otherwise.

    ``need_text`` says whether the weights of the connections depend on the text. Raises DataError
    for options that do not suit the connections of the model.
    """
    if need_text:
        _check_text(choices)
        if not choices.corpus:
            check_one(len(choices.sources), choices.output)
        return ""
    reason = "the weights that are drawn are the same for every sentence"
    if choices.layer is not None:
        raise DataError(f"{reason}: omit --layer, which draws the weights at each token")
    texts = (choices.sources, choices.targets, choices.source_file, choices.target_file)
    if not (any(texts) or choices.lines or choices.corpus):
        return ""
    _check_one_text(choices)
    files = list(filter(None, (choices.source_file, choices.target_file)))
    check_inputs_and_output(files, choices.output)
    return f"{reason}; the text is not read"


def _check_text(choices: PlotOptions) -> None:
    if not choices.sources and choices.source_file is None:
        numbers = "cosines" if choices.what == "similarity" else "weights"
        raise DataError(
            f"these {numbers} depend on the words: give a sentence with -s, or a file with -i"
        )
    _check_one_text(choices)


def _check_one_text(choices: PlotOptions) -> None:
    if bool(choices.sources) == (choices.source_file is not None):
        raise DataError("give sentences either on the command line (-s) or in a file (-i)")
    if choices.sources and (choices.target_file is not None or choices.lines is not None):
        raise DataError(
            "-r and --lines need a file of sentences (-i); give the translation of a sentence "
            "with -t"
        )
    if choices.source_file is not None and choices.targets:
        raise DataError("-t needs -s; give the translations of a file with -r")


def input_pairs(choices: PlotOptions) -> Iterator[InputPair] | Sequence[InputPair]:
    """Return the sentences of the command line or of the file.

    Raises DataError if a file cannot be read or is the output.
    """
    if choices.source_file is None:
        return command_line_pairs(choices.sources, choices.targets)
    check_inputs_and_output(
        filter(None, (choices.source_file, choices.target_file)), choices.output
    )
    return file_pairs(choices.source_file, choices.target_file, choices.lines)
