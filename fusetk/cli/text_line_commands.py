"""The commands of ``fusetk text`` that change each line.

``LINE_COMMANDS`` lists a function for each of them. Its docstring is the help of the command, and
its parameters are the options. It returns the function that changes a line.
"""

from functools import partial
from itertools import count
from pathlib import Path

import click
from click.core import ParameterSource

from fusetk.cli.parameters import FiniteRange
from fusetk.cli.text_options import (
    Change,
    LineCommand,
    count_option,
    flag,
    language_option,
    path_option,
)
from fusetk.cli.text_streams import warn, warn_without_spaces
from fusetk.errors import DataError

CHECK_LANGUAGE = "check -l, or use a tool for the language"


def tokenize(language: str, no_escape: bool, aggressive_hyphens: bool) -> Change:
    """Split punctuation from words as Moses' tokeniser does."""
    from fusetk.data.languages import without_tokenizer_rules
    from fusetk.data.tokenize import Tokenizer

    warn(without_tokenizer_rules(language), CHECK_LANGUAGE)
    return Tokenizer(language, not no_escape, aggressive_hyphens)


def detokenize(language: str, no_unescape: bool) -> Change:
    """Join punctuation to words as Moses' detokeniser does."""
    from fusetk.data.tokenize import Detokenizer

    return Detokenizer(language, not no_unescape)


def normalize(language: str, nfc: bool) -> Change:
    """Normalise punctuation as Moses' script normalize-punctuation does."""
    from fusetk.data.languages import without_normalizer_rules
    from fusetk.data.normalize import Normalizer
    from fusetk.data.steps.nfc import to_nfc

    warn(without_normalizer_rules(language), CHECK_LANGUAGE)
    change = Normalizer(language)
    return (lambda line: change(to_nfc(line))) if nfc else change


def apply_bpe(
    codes: Path, vocabulary: Path | None, threshold: int, dropout: float, seed: int
) -> Change:
    """Split words into subwords; every subword except the last of a word ends with `@@`."""
    from fusetk.data.bpe import BPE, COUNTS_NEEDED, read_vocabulary, with_margins
    from fusetk.data.bpe_dropout import DropoutBPE
    from fusetk.data.vocab import mapping_ending

    _check_needed("threshold", "vocabulary")
    _check_needed("seed", "dropout")
    if vocabulary and mapping_ending(vocabulary):
        raise DataError(f"{vocabulary} maps tokens to ids and has no counts; {COUNTS_NEEDED}")
    counts = read_vocabulary(vocabulary, threshold, bom=True) if vocabulary else None
    bpe = BPE.load(codes, counts)
    if not dropout:
        return partial(with_margins, bpe.line)
    numbers = count()
    random_bpe = DropoutBPE(bpe, dropout)

    def change(line: str) -> str:
        random_bpe.start(f"{seed} {next(numbers)}")
        return with_margins(random_bpe.line, line)

    return change


def _check_needed(option: str, needed: str) -> None:
    """Raise UsageError if an option is given without the option that it needs."""
    source_of = click.get_current_context().get_parameter_source
    default = ParameterSource.DEFAULT
    if source_of(option) is not default and source_of(needed) is default:
        raise click.UsageError(f"--{option} has no effect without --{needed}: add --{needed}")


def remove_bpe() -> Change:
    """Join subwords to words."""
    from fusetk.data.bpe import join

    return join


LINE_COMMANDS = {
    "tokenize": LineCommand(
        tokenize,
        [
            language_option,
            flag("--no-escape", help="Do not write & | < > ' \" [ ] as Moses' entities."),
            flag(
                "-a",
                "--aggressive-hyphens",
                help="Split words at hyphens; write @-@ for the hyphen.",
            ),
        ],
        watch=warn_without_spaces,
    ),
    "detokenize": LineCommand(
        detokenize,
        [
            language_option,
            flag("--no-unescape", help="Do not replace Moses' entities by their characters."),
        ],
    ),
    "normalize": LineCommand(
        normalize,
        [language_option, flag("--nfc", help="Convert the text to Unicode normal form C first.")],
    ),
    "apply-bpe": LineCommand(
        apply_bpe,
        [
            path_option("-c", "--codes", required=True, help="File of codes that learn-bpe wrote."),
            path_option(
                "--vocabulary",
                help="File of subwords and counts. Subwords that are not in it are split again.",
            ),
            count_option(
                "--threshold",
                default=1,
                help="Smallest count of a subword in the vocabulary; rarer subwords are split "
                "again.",
            ),
            click.option(
                "--dropout",
                default=0.0,
                show_default=True,
                type=FiniteRange(0, 1),
                metavar="P",
                help="Probability that a merge is left out (BPE dropout); 0.1 is usual.",
            ),
            click.option("--seed", default=1, show_default=True, help="Seed of the dropout."),
        ],
    ),
    "remove-bpe": LineCommand(remove_bpe, []),
}
