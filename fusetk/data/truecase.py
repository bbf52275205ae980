"""Moses' truecaser: the first word of a sentence gets its most frequent case.

The cases are counted on words that do not begin a sentence.
"""

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from fusetk.data.text import read_lines, writer
from fusetk.errors import DataError

SENTENCE_END = frozenset(".:?!")
DELAYED_START = frozenset(["(", "[", '"', "'", "&apos;", "&quot;", "&#91;", "&#93;"])


class Truecaser:
    """A truecaser for lines of words.

    ``cases`` maps the lower-case form of a word to the counts of its cases, the most frequent case
    first. The first word of a sentence gets its most frequent case. Other words are unchanged if
    the training text has them in the same case, and otherwise get their most frequent case. Tokens
    with an XML tag are unchanged.
    """

    def __init__(self, cases: dict[str, dict[str, int]]):
        self.cases = cases
        self.best = {lower: next(iter(forms)) for lower, forms in cases.items()}
        self.known = {form for forms in cases.values() for form in forms}

    @classmethod
    def learn(cls, lines: Iterable[str]) -> "Truecaser":
        """Count the cases of the words that do not begin a sentence.

        ``lines`` are words separated by spaces.
        """
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
                elif token and token not in DELAYED_START:
                    start = False
            out.append(token)
        return " ".join(out)

    def save(self, path: Path) -> None:
        """Write Moses' model file with lines such as `Best (12/14) other (2)`."""
        with writer(path) as file:
            for forms in self.cases.values():
                total = sum(forms.values())
                (best, count), *others = forms.items()
                entries = [f"{best} ({count}/{total})", *(f"{form} ({n})" for form, n in others)]
                file.write(" ".join(entries) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Truecaser":
        """Read Moses' model file; raises DataError with the malformed line."""
        cases: dict[str, dict[str, int]] = {}
        for number, line in enumerate(read_lines(path, bom=False), 1):
            parts = line.split(" ")
            try:
                counts = [int(float(part.strip("()").split("/")[0])) for part in parts[1::2]]
                cases[parts[0].lower()] = dict(zip(parts[::2], counts, strict=True))
            except ValueError:
                raise DataError(
                    f"{path}, line {number}: not a line of a truecasing model, "
                    "such as `Word (12/14) word (2)`"
                ) from None
        return cls(cases)


def detruecase(line: str) -> str:
    """Capitalise the first word of each sentence, as Moses' detruecaser does."""
    out = []
    start = True
    for token in line.split(" "):
        if start:
            token = token[:1].title() + token[1:]
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
