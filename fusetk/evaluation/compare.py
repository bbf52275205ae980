"""Comparison of two translations of the same sentences: sentence scores and differing words.

Sentences are scored by chrF, or by sentence BLEU on request. BLEU of a single sentence depends on a
few 4-grams: one different word changes it by tens of points, or to zero without smoothing. chrF
counts characters, so a word with a wrong inflection is partly right.
"""

import re
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from fusetk.decoding.sentence_utility import TranslationPair, utility
from fusetk.evaluation.metrics import score

SENTENCE_METRICS = ("chrf", "sacrebleu")  # the first is the default
# Limit of the pairs of equal words of two translations for an exact comparison, whose time grows
# with these pairs times the spans.
MAX_EQUAL_PAIRS = 20_000

_WORD = re.compile(r"(\s*)(\w+(?:['’-]\w+)*|\S)")  # a word or punctuation mark, and space before it


class ComparedSentence(NamedTuple):
    """A source sentence and two translations of it."""

    line: int  # from 1
    source: str
    reference: str | None
    first: str
    second: str
    scores: tuple[float, float] | None = None  # of both translations, 0 to 100

    @property
    def is_same(self) -> bool:
        """Whether the two translations are identical."""
        return self.first == self.second

    @property
    def gain(self) -> float:
        """The score of the second translation minus that of the first; 0 without scores."""
        return self.scores[1] - self.scores[0] if self.scores else 0.0


class DiffSpan(NamedTuple):
    """Consecutive words of a translation: the other translation has all of them, or none."""

    space: str  # before the text
    text: str
    same: bool


class ComparisonSummary(NamedTuple):
    """Counts and corpus scores of all compared sentences."""

    sentences: int
    same: int  # sentences with two identical translations
    better: int | None = None  # sentences with a higher score of the second translation
    worse: int | None = None
    equal: int | None = None
    corpus: dict[str, tuple[float, float]] | None = None  # corpus scores by metric

    def __str__(self) -> str:
        if self.corpus is None:
            differ = self.sentences - self.same
            return (
                f"sentences: {self.sentences}, translations that differ: {differ}, "
                f"the same: {self.same}"
            )
        scores = ", ".join(
            f"{name} {first:.2f} -> {second:.2f}" for name, (first, second) in self.corpus.items()
        )
        return (
            f"{scores}; the second translation is better in {self.better} of {self.sentences} "
            f"sentences, worse in {self.worse}, equal in {self.equal} ({self.same} the same)"
        )


def compare_sentences(
    sources: Sequence[str],
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[str] | None,
    metric: str = SENTENCE_METRICS[0],
    tokenized: bool = False,
) -> list[ComparedSentence]:
    """Pair the two translations of each sentence, in order; with references, score them.

    ``tokenized`` text is not tokenised again for BLEU.
    """
    if references is None:
        return [
            ComparedSentence(line, source, None, old, new)
            for line, (source, old, new) in enumerate(zip(sources, first, second, strict=True), 1)
        ]
    kind = "bleu" if metric == "sacrebleu" else "chrf"
    similarity = utility(kind, "none" if tokenized else None)
    scores = [
        similarity(list(map(TranslationPair, sources, translations, references)))
        for translations in (first, second)
    ]
    rows = zip(sources, references, first, second, zip(*scores, strict=True), strict=True)
    return [ComparedSentence(line, *row) for line, row in enumerate(rows, 1)]


def summarize(
    sentences: Sequence[ComparedSentence], references: Sequence[str] | None, tokenized: bool
) -> ComparisonSummary:
    """Count better, worse and equal second translations, and score both corpora.

    Without references, count only the sentences and the identical translations.
    """
    same = sum(sentence.is_same for sentence in sentences)
    if references is None:
        return ComparisonSummary(len(sentences), same)
    better = sum(sentence.gain > 0 for sentence in sentences)
    worse = sum(sentence.gain < 0 for sentence in sentences)
    tokenizer = "none" if tokenized else None
    first = [sentence.first for sentence in sentences]
    second = [sentence.second for sentence in sentences]
    first_scores, second_scores = (
        score(lines, [references], SENTENCE_METRICS, tokenize=tokenizer)
        for lines in (first, second)
    )
    return ComparisonSummary(
        sentences=len(sentences),
        same=same,
        better=better,
        worse=worse,
        equal=len(sentences) - better - worse,
        corpus={
            one.name: (one.value, other.value)
            for one, other in zip(first_scores, second_scores, strict=True)
        },
    )


def rank_by_gain(sentences: Sequence[ComparedSentence]) -> list[ComparedSentence]:
    """Sort by the gain of the second translation, largest first; equal gains keep their order."""
    return sorted(sentences, key=lambda sentence: -sentence.gain)


def diff_words(first: str, second: str) -> tuple[list[DiffSpan], list[DiffSpan]]:
    """Split both translations into spans of words that they share and words that they do not.

    If more than ``MAX_EQUAL_PAIRS`` pairs of words are equal, a word that makes up more than 1 % of
    the longer translation does not begin a shared span (``autojunk`` of difflib). Otherwise the
    comparison could take minutes.
    """
    pieces = [_WORD.findall(text) for text in (first, second)]  # (space, word)
    words = [[word for _, word in side] for side in pieces]
    first_spans: list[DiffSpan] = []
    second_spans: list[DiffSpan] = []
    counts = Counter(words[1])
    repetitive = sum(counts[word] for word in words[0]) > MAX_EQUAL_PAIRS
    # difflib examines only the frequencies of its second sequence, from 200 words on.
    swapped = repetitive and len(words[0]) > len(words[1])
    shorter, longer = words[::-1] if swapped else words
    matcher = SequenceMatcher(None, shorter, longer, autojunk=repetitive)
    for kind, *bounds in matcher.get_opcodes():
        if swapped:
            bounds = bounds[2:] + bounds[:2]
        first_spans += _span(pieces[0][bounds[0] : bounds[1]], kind == "equal")
        second_spans += _span(pieces[1][bounds[2] : bounds[3]], kind == "equal")
    return first_spans, second_spans


def _span(pieces: Sequence[tuple[str, str]], same: bool) -> list[DiffSpan]:
    """Return the span of ``pieces``, which are (space, word); empty for no words."""
    if not pieces:
        return []
    space = pieces[0][0]
    text = "".join(before + word for before, word in pieces)
    return [DiffSpan(space, text[len(space) :], same)]
