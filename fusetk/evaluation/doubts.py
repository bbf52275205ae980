"""Signs that a score does not mean what its reader will think: subwords, case or tokenisation that differ between the sides."""

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

ENOUGH = 5_000  # lines that are looked at
_ENTITY = re.compile(r"&(?:amp|apos|quot|lt|gt|#124|#91|#93);")
_MARKS = frozenset(".,!?;:。，！？；：、।")


class Looks(NamedTuple):
    """What a text looks like, in counts."""

    tokens: int
    subwords: int  # tokens with the joiner of BPE or the word mark of SentencePiece
    letters: int  # that have case
    capitals: int
    marks: int  # tokens that end in a punctuation mark
    apart: int  # those of them that are nothing but the mark
    entities: int  # characters written as the Moses tokeniser escapes them

    def share(self, name: str, of: str) -> float:
        """One count over another, 0 for none."""
        whole: int = getattr(self, of)
        return getattr(self, name) / whole if whole else 0.0


def looks(lines: Iterable[str]) -> Looks:
    """Count over the first lines of a text."""
    tokens = subwords = letters = capitals = marks = apart = entities = 0
    for line in islice(lines, ENOUGH):
        capitals += sum(map(str.isupper, line))
        letters += sum(c.isupper() or c.islower() for c in line)
        entities += len(_ENTITY.findall(line))
        for token in line.split():
            tokens += 1
            subwords += token.endswith("@@") or token.startswith("\u2581")
            if token[-1] in _MARKS:
                marks += 1
                apart += len(token) == 1
    return Looks(tokens, subwords, letters, capitals, marks, apart, entities)


def doubts(hypotheses: Sequence[str], references: Sequence[Sequence[str]], lowercase: bool = False) -> list[str]:
    """Sentences that each name a reason not to trust the scores; none for text that looks all right.

    ``lowercase`` says that case is ignored anyway.
    """
    found: list[str] = []
    mine = looks(hypotheses)
    theirs = [looks(lines) for lines in references]
    names = [f"reference {k}" if len(references) > 1 else "the reference" for k in range(1, len(references) + 1)]
    for name, side in zip(["the hypothesis", *names], [mine, *theirs], strict=True):
        if side.share("subwords", "tokens") > 0.01:
            percent = 100 * side.share("subwords", "tokens")
            found.append(f"{name} looks like subwords ({percent:.0f} % of its tokens carry a joiner); join them into words before scoring")
    for name, side in zip(names, theirs, strict=True):
        if not lowercase:
            found += _case(mine, side, name)
        found += _tokenisation(mine, side, name)
    return found


def _case(mine: Looks, side: Looks, name: str) -> list[str]:
    if min(mine.letters, side.letters) < 20:
        return []
    a, b = mine.share("capitals", "letters"), side.share("capitals", "letters")
    if max(a, b) < 0.01 or min(a, b) > max(a, b) / 10:
        return []
    return [
        f"{100 * a:.1f} % of the hypothesis' letters are capitals but {100 * b:.1f} % of those of {name}; "
        "compare them in one case or with --lowercase"
    ]


def _tokenisation(mine: Looks, side: Looks, name: str) -> list[str]:
    found = []
    if min(mine.marks, side.marks) >= 3:
        a, b = mine.share("apart", "marks"), side.share("apart", "marks")
        if abs(a - b) > 0.5:
            tokenised, raw = ("the hypothesis", name) if a > b else (name, "the hypothesis")
            found.append(f"{tokenised} looks tokenised and {raw} does not; tokenise or detokenise one of them before scoring")
    if max(mine.entities, side.entities) >= 3 and not min(mine.entities, side.entities):
        escaped, plain = ("the hypothesis", name) if mine.entities else (name, "the hypothesis")
        found.append(f"{escaped} writes characters as &apos; or the like and {plain} does not; unescape it before scoring")
    return found
