"""Moses' truecaser: the most frequent case of a word where a sentence begins, learned from where none begins."""

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from fusetk.data.text import read_lines, writer
from fusetk.errors import DataError

SENTENCE_END = frozenset(".:?!")
DELAYED_START = frozenset(["(", "[", '"', "'", "&apos;", "&quot;", "&#91;", "&#93;"])


class Truecaser:
    """Cases of words by their lower-case form, the most frequent first.

    The first word of a sentence takes its most frequent case; other words stay when they are known in their case. Tokens that
    hold an XML tag stay as they are.
    """

    def __init__(self, cases: dict[str, dict[str, int]]):
        self.cases = cases
        self.best = {lower: next(iter(forms)) for lower, forms in cases.items()}
        self.known = {form for forms in cases.values() for form in forms}

    @classmethod
    def learn(cls, lines: Iterable[str]) -> "Truecaser":
        """Count the cases of every word that does not begin a sentence; `lines` are words separated by spaces."""
        counts: dict[str, Counter[str]] = {}
        for line in lines:
            start = True
            for token in line.split(" "):
                if not token or token in DELAYED_START or _is_tag(token):
                    continue
                if not start and token in SENTENCE_END:
                    start = True
                    continue
                if not start and _is_cased(token):
                    counts.setdefault(token.lower(), Counter())[token] += 1
                start = False
        return cls({lower: dict(forms.most_common()) for lower, forms in counts.items()})

    def __call__(self, line: str) -> str:
        out = []
        start = True
        for token in line.split(" "):
            if not _is_tag(token):
                if start or token not in self.known:
                    token = self.best.get(token.lower(), token)
                if token in SENTENCE_END:
                    start = True
                elif token not in DELAYED_START:
                    start = False
            out.append(token)
        return " ".join(out)

    def save(self, path: Path) -> None:
        """Write Moses' model file: `Best (12/14) other (2)` a line."""
        with writer(path) as file:
            for forms in self.cases.values():
                total = sum(forms.values())
                first, *others = forms.items()
                file.write(
                    " ".join(
                        [
                            f"{first[0]} ({first[1]}/{total})",
                            *(f"{form} ({n})" for form, n in others),
                        ]
                    )
                    + "\n"
                )

    @classmethod
    def load(cls, path: Path) -> "Truecaser":
        """Read Moses' model file; raises DataError with the line that is none of it."""
        cases: dict[str, dict[str, int]] = {}
        for number, line in enumerate(read_lines(path, bom=False), 1):
            parts = line.split(" ")
            try:
                counts = [int(float(part.strip("()").split("/")[0])) for part in parts[1::2]]
                cases[parts[0].lower()] = dict(zip(parts[::2], counts, strict=True))
            except ValueError:
                raise DataError(
                    f"{path}, line {number}: not a line of a truecasing model (`Word (12/14) word (2)`)"
                ) from None
        return cls(cases)


def detruecase(line: str) -> str:
    """Capitalise the first word of each sentence, as Moses' detruecaser does."""
    out = []
    start = True
    for token in line.split(" "):
        if start:
            token = token[:1].upper() + token[1:]
        out.append(token)
        if token in SENTENCE_END:
            start = True
        elif token and token not in DELAYED_START:
            start = False
    return " ".join(out)


def _is_tag(token: str) -> bool:
    opening = token.find("<")
    return opening >= 0 and token.find(">", opening + 2) >= 0


@lru_cache(maxsize=500_000)
def _is_cased(token: str) -> bool:
    return token.lower() != token or token.upper() != token
