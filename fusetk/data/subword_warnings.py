"""Detection of text that is already split into subwords."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from fusetk.data.bpe import JOINER
from fusetk.data.text import read_lines

MAX_LINES = 5_000  # lines of a text that are inspected
MANY_SUBWORDS = 0.01  # share of subwords above which there is a warning
WORD_MARK = "\u2581"  # SentencePiece writes it for a space


def is_subword(token: str) -> bool:
    """Whether a token has BPE's joiner or SentencePiece's word mark."""
    return token.endswith(JOINER) or token.startswith(WORD_MARK)


def warnings(paths: Iterable[Path]) -> Iterator[str]:
    """Yield a warning for each text file whose first lines have many subwords."""
    for path in paths:
        tokens = [token for line in islice(read_lines(path), MAX_LINES) for token in line.split()]
        subwords = [token for token in tokens if is_subword(token)]
        if len(subwords) <= MANY_SUBWORDS * len(tokens):
            continue
        share = f"{100 * len(subwords) / len(tokens):.0f} % of the tokens of {path}"
        advice = "the text is already split into subwords; give the text without subwords"
        if subwords[0].endswith(JOINER):
            yield (
                f"{share} end in {JOINER}: {advice}, such as the output of fusetk text "
                "remove-bpe, and name the codes in data.bpe.codes"
            )
        else:
            yield f"{share} begin with {WORD_MARK}: {advice}, and use the step sentencepiece"
