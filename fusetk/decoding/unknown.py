"""Unknown words of a translation, each replaced by what it is aligned to (Jean et al. 2015, section 3.3; Luong et al. 2015)."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fusetk.data import bpe
from fusetk.data.text import read_lines
from fusetk.data.vocab import SPECIAL, UNK
from fusetk.errors import DataError


class Replacement:
    """Puts in the place of an unknown word the source word that it is aligned to, translated by a dictionary if that knows it."""

    def __init__(self, dictionary: Mapping[str, str] | None = None, subwords: bool = True):
        """``dictionary`` of source words, as the pipeline makes them, to target words. Without ``subwords`` tokens are words."""
        self.dictionary = dictionary or {}
        self.subwords = subwords

    def __call__(
        self, source: Sequence[str], target: Sequence[str], pairs: Iterable[tuple[int, int]]
    ) -> list[str]:
        """Source and target tokens and which are aligned, (source, target) from 0 -> target tokens.

        A target word with an unknown token in it is replaced as a whole, by one token that is a word. Words in a row that are aligned
        to the same source word become one: they are pieces of it. What is aligned to nothing stays.
        """
        if SPECIAL[UNK] not in target:
            return list(target)
        aligned = {place: i for i, place in sorted(pairs, reverse=True)}
        words = self._words(source)
        found: list[str] = []
        last: range | None = None  # the source word that was put in, if just now
        for word in self._words(target):
            origin = next(
                (aligned[i] for i in word if target[i] == SPECIAL[UNK] and i in aligned), None
            )
            if origin is None:
                found += target[word.start : word.stop]
                last = None
                continue
            here = next(place for place in words if origin in place)
            if here != last:
                original = (
                    bpe.join(" ".join(source[here.start : here.stop]))
                    if self.subwords
                    else source[origin]
                )
                found.append(self.dictionary.get(original, original))
            last = here
        return found

    def _words(self, tokens: Sequence[str]) -> list[range]:
        """The tokens of each word."""
        starts = [
            i
            for i in range(len(tokens))
            if not (i and self.subwords and tokens[i - 1].endswith(bpe.JOINER))
        ]
        return [
            range(start, end) for start, end in zip(starts, [*starts[1:], len(tokens)], strict=True)
        ]


def read_dictionary(path: Path | str) -> dict[str, str]:
    """Lines of a source word, a tab and a target word, plain or .gz; of several lines for one source word the first counts.

    Raises DataError with the line of anything else.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), 1):
        source, tab, target = line.partition("\t")
        if not tab or not target.strip() or "\t" in target or len(source.split()) != 1:
            raise DataError(
                f"{path}, line {number}: {line[:40]!r} is not a source word, a tab and a target word"
            )
        found.setdefault(source.strip(), target.strip())
    return found
