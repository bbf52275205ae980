"""Two translations of the same sentences beside each other: which words differ, and which is nearer to the reference.

Sentences are scored by chrF unless sentence BLEU is asked for. BLEU of a single sentence hangs on its few 4-grams: one other
word moves it by tens of points, or to nothing without smoothing. chrF counts characters, so an inflected word is half right.
"""

import re
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

SENTENCE_METRICS = ("chrf", "sacrebleu")  # the first is the default

_PIECES = re.compile(
    r"(\s*)(\w+(?:['’-]\w+)*|\S)"
)  # words, punctuation marks, and the space before them


class Case(NamedTuple):
    """A sentence and both of its translations."""

    line: int  # from 1
    source: str
    reference: str | None
    first: str
    second: str
    scores: tuple[float, float] | None = None  # of the sentence, 0 to 100; None without a reference

    @property
    def gain(self) -> float:
        """By how much the second is better."""
        return self.scores[1] - self.scores[0] if self.scores else 0.0


class Span(NamedTuple):
    """A stretch of a translation that the other has too, or has not."""

    space: str  # before the text
    text: str
    same: bool


def cases(
    sources: Sequence[str],
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[str] | None,
    metric: str = "chrf",
    tokenized: bool = False,
) -> list[Case]:
    """All sentences in order, with their scores if there are references. ``tokenized`` text is not tokenised again for BLEU."""
    if references is None:
        return [
            Case(n, source, None, a, b)
            for n, (source, a, b) in enumerate(zip(sources, first, second, strict=True), 1)
        ]
    score = _scorer(metric, tokenized)
    rows = zip(sources, references, first, second, strict=True)
    return [
        Case(n, source, r, a, b, (score(a, r), score(b, r)))
        for n, (source, r, a, b) in enumerate(rows, 1)
    ]


def _scorer(metric: str, tokenized: bool) -> Callable[[str, str], float]:
    if metric == "chrf":
        from sacrebleu.metrics.chrf import CHRF

        chrf = CHRF()
        return lambda hypothesis, reference: float(
            chrf.sentence_score(hypothesis, [reference]).score
        )
    from sacrebleu.metrics.bleu import BLEU

    bleu = BLEU(effective_order=True, tokenize="none" if tokenized else None)
    return lambda hypothesis, reference: float(bleu.sentence_score(hypothesis, [reference]).score)


def ranked(found: Sequence[Case]) -> list[Case]:
    """The largest gain of the second first; in order where gains are equal, and so all where there are no scores."""
    return sorted(found, key=lambda case: -case.gain)


def marked(first: str, second: str) -> tuple[list[Span], list[Span]]:
    """Both translations as spans, words that follow one another in both on the one hand, and the words between."""
    pieces = [_PIECES.findall(text) for text in (first, second)]
    words = [[word for _, word in side] for side in pieces]
    spans: tuple[list[Span], list[Span]] = ([], [])
    for kind, *places in SequenceMatcher(None, words[0], words[1], autojunk=False).get_opcodes():
        for side, found, (start, end) in zip(pieces, spans, (places[:2], places[2:]), strict=True):
            if start < end:
                text = "".join(space + word for space, word in side[start:end])
                found.append(Span(side[start][0], text[len(side[start][0]) :], kind == "equal"))
    return spans
