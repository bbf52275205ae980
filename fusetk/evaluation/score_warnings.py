"""Signs that a score does not mean what its reader thinks: subwords, case or tokenisation that differ, lines out of step."""

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

ENOUGH = 5_000  # lines whose looks are looked at
_ENTITY = re.compile(r"&(?:amp|apos|quot|lt|gt|#124|#91|#93);")
_MARKS = frozenset(".,!?;:。，！？；：、।")
_HYPHENS = (
    "@-@",
    "##AT##-##AT##",
)  # as Moses' tokeniser with -a parts words, and as compounds are split for WMT En-De
OF_WORDS = {"multi-bleu", "multi-bleu-lc"}  # metrics that take words as they stand
_OF_TEXT = {"sacrebleu", "mteval-v13a", "mteval-v13a-cased"}  # metrics that tokenise


class Looks(NamedTuple):
    """What a text looks like, in counts."""

    lines: int  # that begin with a letter that has case
    capital: int  # those of them that begin with a capital
    tokens: int
    subwords: int  # tokens with the joiner of BPE or the word mark of SentencePiece
    letters: int  # that have case
    capitals: int
    marks: int  # tokens that end in a punctuation mark
    apart: int  # those of them that are nothing but the mark
    entities: int  # characters written as the Moses tokeniser escapes them
    hyphens: int  # tokens that are a hyphen between parts of a word

    def share(self, name: str, of: str) -> float:
        """One count over another, 0 for none."""
        whole: int = getattr(self, of)
        return getattr(self, name) / whole if whole else 0.0


def looks(lines: Iterable[str]) -> Looks:
    """Count over the first lines of a text."""
    begun = capital = tokens = subwords = letters = capitals = marks = apart = entities = (
        hyphens
    ) = 0
    for line in islice(lines, ENOUGH):
        first = line.lstrip()[:1]
        begun += first.isupper() or first.islower()
        capital += first.isupper()
        capitals += sum(map(str.isupper, line))
        letters += sum(c.isupper() or c.islower() for c in line)
        entities += len(_ENTITY.findall(line))
        for token in line.split():
            tokens += 1
            subwords += token.endswith("@@") or token.startswith("\u2581")
            hyphens += token in _HYPHENS
            if token[-1] in _MARKS:
                marks += 1
                apart += len(token) == 1
    return Looks(
        begun, capital, tokens, subwords, letters, capitals, marks, apart, entities, hyphens
    )


def doubts(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    lowercase: bool = False,
    *,
    source: Sequence[str] | None = None,
    metrics: Collection[str] = (),
) -> list[str]:
    """Sentences that each name a reason not to trust the scores; none for text that looks all right.

    ``lowercase`` says that case is ignored anyway; ``metrics`` are checked for the kind of text
    that they want: tokenised or not.
    All texts have as many lines.
    """
    found: list[str] = []
    mine = looks(hypotheses)
    theirs = [looks(lines) for lines in references]
    names = [
        f"reference {k}" if len(references) > 1 else "the reference"
        for k in range(1, len(references) + 1)
    ]
    for name, side in zip(["the hypothesis", *names], [mine, *theirs], strict=True):
        if side.share("subwords", "tokens") > 0.01:
            percent = 100 * side.share("subwords", "tokens")
            found.append(
                f"{name} looks like subwords ({percent:.0f} % of its tokens carry a joiner); join them into words before scoring"
            )
    for name, side, lines in zip(names, theirs, references, strict=True):
        if not lowercase:
            found += _case(mine, side, name)
        found += _tokenisation(mine, side, name)
        found += _step(hypotheses, lines, name)
    return [
        *found,
        *_wants(mine, theirs, metrics),
        *_missing(hypotheses, references),
        *_untranslated(hypotheses, references, source),
    ]


def _case(mine: Looks, side: Looks, name: str) -> list[str]:
    advice = "compare them in one case or with --lowercase"
    if min(mine.letters, side.letters) < 20:
        return []
    a, b = mine.share("capitals", "letters"), side.share("capitals", "letters")
    if max(a, b) >= 0.01 and min(a, b) <= max(a, b) / 10:
        return [
            f"{100 * a:.1f} % of the hypothesis' letters are capitals but {100 * b:.1f} % of those of {name}; {advice}"
        ]
    a, b = mine.share("capital", "lines"), side.share("capital", "lines")
    if min(mine.lines, side.lines) >= 10 and abs(a - b) > 0.5:
        return [
            f"{100 * a:.0f} % of the hypothesis' lines begin with a capital but {100 * b:.0f} % of those of {name}; {advice}"
        ]
    return []


def _tokenisation(mine: Looks, side: Looks, name: str) -> list[str]:
    found = []
    if min(mine.marks, side.marks) >= 3:
        a, b = mine.share("apart", "marks"), side.share("apart", "marks")
        if abs(a - b) > 0.5:
            tokenised, raw = ("the hypothesis", name) if a > b else (name, "the hypothesis")
            found.append(
                f"{tokenised} looks tokenised and {raw} does not; tokenise or detokenise one of them before scoring"
            )
    for count, what, advice in (
        ("entities", "writes characters as &apos; or the like", "unescape it"),
        ("hyphens", f"parts words by {' or '.join(_HYPHENS)}", "treat both alike"),
    ):
        a, b = getattr(mine, count), getattr(side, count)
        if max(a, b) >= 3 and not min(a, b):
            with_it, without = ("the hypothesis", name) if a else (name, "the hypothesis")
            found.append(f"{with_it} {what} and {without} does not; {advice} before scoring")
    return found


def _wants(mine: Looks, theirs: Sequence[Looks], metrics: Collection[str]) -> list[str]:
    """Where both sides look alike, but not as a metric wants them."""
    sides = [mine, *theirs]
    if min(side.marks for side in sides) < 3:
        return []
    apart = [side.share("apart", "marks") for side in sides]
    found = []
    if max(apart) < 0.1 and (those := [name for name in metrics if name in OF_WORDS]):
        found.append(
            f"the text does not look tokenised: for {' and '.join(those)}, 'end.' is one word; tokenise both sides first"
        )
    if min(apart) > 0.9 and (those := [name for name in metrics if name in _OF_TEXT]):
        found.append(
            f"the text looks tokenised, and is tokenised once more by {' and '.join(those)}; give detokenised text"
        )
    return found


def _step(hypotheses: Sequence[str], lines: Sequence[str], name: str) -> list[str]:
    """Where the hypothesis, from some line on, fits the lines before or behind much better: a line is missing, or there twice."""
    total, lowest, start = (
        [0.0, 0.0],
        [0.0, 0.0],
        [0, 0],
    )  # what the next and the previous line of the reference fit better, up to a line
    previous, here = frozenset[str](), _words(lines[0]) if lines else frozenset[str]()
    for i, line in enumerate(hypotheses, 1):
        words, behind = _words(line), _words(lines[i]) if i < len(lines) else frozenset[str]()
        fit = _overlap(words, here)
        for k, other in enumerate((behind, previous)):
            total[k] += _overlap(words, other) - fit
            if total[k] < lowest[k]:
                lowest[k], start[k] = total[k], i
        previous, here = here, behind
    return [
        f"from line {start[k] + 1} on, the hypothesis fits the {what} line of {name} much better; they seem to be out of step"
        for k, what in enumerate(("next", "previous"))
        if len(lines) - start[k] >= 20 and total[k] - lowest[k] > 0.15 * (len(lines) - start[k])
    ]


def _words(line: str) -> frozenset[str]:
    return frozenset(line.lower().split())


def _overlap(mine: frozenset[str], theirs: frozenset[str]) -> float:
    """What share of the different words of the longer line both lines have, 0 to 1."""
    return len(mine & theirs) / max(len(mine), len(theirs), 1)


def _missing(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> list[str]:
    blank = sum(
        not line.strip() and all(r.strip() for r in several)
        for line, *several in zip(hypotheses, *references, strict=True)
    )
    return (
        [f"lines of the hypothesis that are blank where the reference is not: {blank}"]
        if blank > 0.01 * len(hypotheses)
        else []
    )


def _untranslated(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], source: Sequence[str] | None
) -> list[str]:
    if source is None:
        return []
    equal = [
        sum(a == b != "" for a, b in zip(lines, source, strict=True)) / len(source)
        for lines in (hypotheses, *references)
    ]
    if equal[0] <= 0.05 or equal[0] < 2 * max(equal[1:]):
        return []
    return [
        f"{100 * equal[0]:.0f} % of the hypothesis' lines are those of the source; are they translations?"
    ]
