"""Corpus scores: multi-bleu in the arithmetic of the Moses script, and sacreBLEU, chrF, chrF++, TER of the sacrebleu library.

A further metric is a function from hypotheses and references to a ``Score``, and an entry in ``METRICS``.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from fusetk.errors import DataError

ORDER = 4  # BLEU counts n-grams of 1 to 4 words

# What Perl's split takes for white space in a line of bytes; str.split would also split at NBSP, U+2028 and the like.
split_words = re.compile(r"[^ \t\n\r\f\v]+").findall


@dataclass(frozen=True)
class Score:
    """One metric of one hypothesis: the value, how it came about, and what was scored."""

    metric: str  # the name in METRICS
    name: str  # what the metric calls itself: BLEU, chrF2, TER
    value: float  # 0 to 100; TER may exceed 100
    details: str  # what the value is made of, as the metric prints it; may be empty
    signature: str  # the settings that another one needs to get the same value
    sentences: int
    hypothesis_length: int | None = None  # in the metric's own tokens; None where it counts none
    reference_length: float | None = None
    brevity_penalty: float | None = None

    def __str__(self) -> str:
        return f"{self.name} = {self.value:.2f}" + (f", {self.details}" if self.details else "")


class Options(NamedTuple):
    """What the metrics may be told."""

    lowercase: bool = False  # lower-case both sides first; TER always ignores case
    tokenize: str | None = None  # sacreBLEU's tokeniser; None is its default for the language-neutral case, 13a


Metric = Callable[[Sequence[str], Sequence[Sequence[str]], Options], Score]


# multi-bleu ----------------------------------------------------------------------------------------------------------


class Counts(NamedTuple):
    """What BLEU needs to know of a sentence; a corpus is the sum of its sentences."""

    correct: tuple[int, ...]  # n-grams of n = 1 .. 4 that a reference has too, clipped to its count
    total: tuple[int, ...]  # n-grams of the hypothesis
    hypothesis_length: int
    reference_length: int  # of the closest reference, the shorter of two equally close ones

    def precisions(self) -> list[float]:
        """Clipped n-gram precisions, 0 to 1; 0 where there are no n-grams at all."""
        return [correct / total if total else 0.0 for correct, total in zip(self.correct, self.total, strict=True)]

    def brevity_penalty(self) -> float:
        """1 for a hypothesis at least as long as the reference; 0 for an empty one, where the script divides by zero."""
        if self.hypothesis_length >= self.reference_length:
            return 1.0
        return math.exp(1 - self.reference_length / self.hypothesis_length) if self.hypothesis_length else 0.0

    def bleu(self) -> float:
        """BLEU, 0 to 100, without smoothing: 0 as soon as one precision is 0."""
        precisions = self.precisions()
        if not all(precisions) or not self.reference_length:
            return 0.0
        return 100 * self.brevity_penalty() * math.exp(sum(map(math.log, precisions)) / ORDER)


def count(hypothesis: str, references: Sequence[str]) -> Counts:
    """The counts of one tokenised sentence against one or more tokenised references."""
    words = split_words(hypothesis)
    wanted = [split_words(reference) for reference in references]
    allowed: Counter[tuple[str, ...]] = Counter()
    for reference in wanted:
        allowed |= _ngrams(reference)  # the greatest count in any reference
    correct, total = [0] * ORDER, [0] * ORDER
    for ngram, times in _ngrams(words).items():
        total[len(ngram) - 1] += times
        correct[len(ngram) - 1] += min(times, allowed[ngram])
    closest = min((len(reference) for reference in wanted), key=lambda length: (abs(length - len(words)), length))
    return Counts(tuple(correct), tuple(total), len(words), closest)


def add(counts: Sequence[Counts]) -> Counts:
    """The counts of a corpus from those of its sentences."""
    correct = tuple(sum(column) for column in zip(*(c.correct for c in counts), strict=True))
    total = tuple(sum(column) for column in zip(*(c.total for c in counts), strict=True))
    return Counts(correct, total, sum(c.hypothesis_length for c in counts), sum(c.reference_length for c in counts))


def count_lines(hypotheses: Sequence[str], references: Sequence[Sequence[str]], lowercase: bool = False) -> list[Counts]:
    """The counts of each line against what each reference says for it."""
    lower = str.lower if lowercase else str
    return [count(lower(h), [lower(r) for r in several]) for h, *several in zip(hypotheses, *references, strict=True)]


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """multi-bleu, 0 to 100, of tokenised lines against one reference each."""
    return add([count(hypothesis, [reference]) for hypothesis, reference in zip(hypotheses, references, strict=True)]).bleu()


def _ngrams(words: Sequence[str]) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for n in range(1, ORDER + 1) for i in range(len(words) - n + 1))


def multi_bleu(sentences: Sequence[Counts], references: int, lowercase: bool = False) -> Score:
    """The score of sentences that were counted by ``count_lines``."""
    counts = add(sentences)
    penalty = counts.brevity_penalty()
    length, wanted = counts.hypothesis_length, counts.reference_length
    precisions = "/".join(f"{100 * p:.1f}" for p in counts.precisions())
    ratio = length / wanted if wanted else 0.0
    return Score(
        metric="multi-bleu-lc" if lowercase else "multi-bleu",
        name="BLEU",
        value=counts.bleu(),
        details=f"{precisions} (BP={penalty:.3f}, ratio={ratio:.3f}, hyp_len={length}, ref_len={wanted})",
        signature=f"nrefs:{references}|case:{'lc' if lowercase else 'mixed'}|tok:none|smooth:none|arithmetic:moses",
        sentences=len(sentences),
        hypothesis_length=length,
        reference_length=wanted,
        brevity_penalty=penalty,
    )


def _multi_bleu(lowercase: bool, hypotheses: Sequence[str], references: Sequence[Sequence[str]], options: Options) -> Score:
    lowercase = lowercase or options.lowercase
    return multi_bleu(count_lines(hypotheses, references, lowercase), len(references), lowercase)


# sacrebleu -----------------------------------------------------------------------------------------------------------


def _sacrebleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]], options: Options) -> Score:
    from sacrebleu.metrics.bleu import BLEU

    if options.tokenize is not None and options.tokenize not in BLEU.TOKENIZERS:
        raise DataError(f"sacreBLEU has no tokeniser {options.tokenize!r}; choose one of {', '.join(BLEU.TOKENIZERS)}")
    try:
        metric = BLEU(lowercase=options.lowercase, tokenize=options.tokenize, force=True)  # `doubts` warns better
    except (ImportError, RuntimeError, OSError) as error:
        raise DataError(f"sacreBLEU's tokeniser {options.tokenize!r} cannot be used here: {' '.join(str(error).split())}") from error
    found = metric.corpus_score(hypotheses, references)
    precisions = "/".join(f"{p:.1f}" for p in found.precisions)
    return Score(
        metric="sacrebleu",
        name="BLEU",
        value=found.score,
        details=f"{precisions} (BP={found.bp:.3f}, ratio={found.ratio:.3f}, hyp_len={found.sys_len}, ref_len={found.ref_len})",
        signature=str(metric.get_signature()),
        sentences=len(hypotheses),
        hypothesis_length=found.sys_len,
        reference_length=found.ref_len,
        brevity_penalty=found.bp,
    )


def _chrf(word_order: int, hypotheses: Sequence[str], references: Sequence[Sequence[str]], options: Options) -> Score:
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF(word_order=word_order, lowercase=options.lowercase)
    found = metric.corpus_score(hypotheses, references)
    name = "chrf++" if word_order else "chrf"
    return Score(name, found.name, found.score, "", str(metric.get_signature()), len(hypotheses))


def _ter(hypotheses: Sequence[str], references: Sequence[Sequence[str]], options: Options) -> Score:
    from sacrebleu.metrics.ter import TER

    metric = TER()
    found: Any = metric.corpus_score(hypotheses, references)
    details = f"edits={found.num_edits:.0f}, ref_len={found.ref_length:.10g}"
    signature = str(metric.get_signature())
    return Score("ter", "TER", found.score, details, signature, len(hypotheses), reference_length=found.ref_length)


# All of them ---------------------------------------------------------------------------------------------------------

METRICS: dict[str, Metric] = {
    "sacrebleu": _sacrebleu,
    "multi-bleu": partial(_multi_bleu, False),
    "multi-bleu-lc": partial(_multi_bleu, True),
    "chrf": partial(_chrf, 0),
    "chrf++": partial(_chrf, 2),
    "ter": _ter,
}
DEFAULT = ("sacrebleu", "multi-bleu", "multi-bleu-lc", "chrf", "ter")


def score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str] = DEFAULT,
    *,
    lowercase: bool = False,
    tokenize: str | None = None,
) -> list[Score]:
    """Score lines against one or more references: ``references[k][i]`` is what reference k says for hypothesis i.

    ``multi-bleu`` takes the lines as they are, words between ASCII white space, as multi-bleu.perl does; ``multi-bleu-lc``
    lower-cases them first. Lower case is Unicode's (``str.lower``): the script with ``-lc`` reads bytes and changes A to Z
    only, so the two differ on text with other capitals. Raises DataError for a metric or tokeniser that does not exist,
    for unequal line counts and for no lines at all.
    """
    unknown = [metric for metric in metrics if metric not in METRICS]
    if unknown:
        raise DataError(f"there is no metric {unknown[0]!r}; choose from {', '.join(METRICS)}")
    if not hypotheses or not references:
        raise DataError("there is nothing to score: no lines" if references else "there is nothing to score against: no reference")
    for k, lines in enumerate(references, 1):
        if len(lines) != len(hypotheses):
            raise DataError(f"the hypothesis has {len(hypotheses)} lines and reference {k} has {len(lines)}; each line needs its reference")
    options = Options(lowercase, tokenize)
    found = [METRICS[metric](hypotheses, references, options) for metric in dict.fromkeys(metrics)]
    return list({result.metric: result for result in found}.values())  # with lowercase, both multi-bleus are one
