"""Corpus scores: multi-bleu in the arithmetic of the Moses script; sacreBLEU, chrF, chrF++, TER and mteval-v13a by the sacrebleu library.

A metric counts each line by itself, a row of numbers, and scores the sum of rows. So the lines of a system are counted once for the whole
text, for parts of it (``length``) and for samples from it (``significance``). A further metric is a ``Metric`` and an entry in ``METRICS``.
"""

import math
import re
import string
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from fusetk.errors import DataError

ORDER = 4  # BLEU counts n-grams of 1 to 4 words
AT_ONCE = 1000  # lines that sacrebleu gets: it keeps all n-grams of their references, 20 KB a line for chrF

# What Perl's split takes for white space in a line of bytes; str.split would also split at NBSP, U+2028 and the like.
split_words = re.compile(r"[^ \t\n\r\f\v]+").findall

_COMPOUND = re.compile(rb"(\S)-(\S)")
_ASCII = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


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
    tokenize: str | None = (
        None  # sacreBLEU's tokeniser; None is its default for the language-neutral case, 13a
    )
    compound_split: bool = False  # split words at hyphens first; multi-bleu alone


Row = Sequence[float]  # what is counted in a line


class Metric(ABC):
    """A metric that knows its references and options. Hypotheses have as many lines as each reference."""

    name: str  # in METRICS

    @abstractmethod
    def count(self, hypotheses: Sequence[str]) -> list[Row]:
        """A row for each line; what stands where is up to ``library``."""

    @abstractmethod
    def score(self, rows: Sequence[Row]) -> Score:
        """The score of the lines that these rows were counted in, at least one."""

    @abstractmethod
    def library(self) -> Any:
        """The metric of the sacrebleu library that makes the same score of the sum of rows."""


# multi-bleu ----------------------------------------------------------------------------------------------------------


class Counts(NamedTuple):
    """What BLEU needs to know of a sentence; a corpus is the sum of its sentences."""

    correct: tuple[int, ...]  # n-grams of n = 1 .. 4 that a reference has too, clipped to its count
    total: tuple[int, ...]  # n-grams of the hypothesis
    hypothesis_length: int
    reference_length: int  # of the closest reference, the shorter of two equally close ones

    def precisions(self) -> list[float]:
        """Clipped n-gram precisions, 0 to 1; 0 where there are no n-grams at all."""
        return [
            correct / total if total else 0.0
            for correct, total in zip(self.correct, self.total, strict=True)
        ]

    def brevity_penalty(self) -> float:
        """1 for a hypothesis at least as long as the reference; 0 for an empty one, where the script divides by zero."""
        if self.hypothesis_length >= self.reference_length:
            return 1.0
        return (
            math.exp(1 - self.reference_length / self.hypothesis_length)
            if self.hypothesis_length
            else 0.0
        )

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
    closest = min(
        (len(reference) for reference in wanted),
        key=lambda length: (abs(length - len(words)), length),
    )
    return Counts(tuple(correct), tuple(total), len(words), closest)


def add(counts: Sequence[Counts]) -> Counts:
    """The counts of a corpus from those of its sentences."""
    correct = tuple(sum(column) for column in zip(*(c.correct for c in counts), strict=True))
    total = tuple(sum(column) for column in zip(*(c.total for c in counts), strict=True))
    return Counts(
        correct,
        total,
        sum(c.hypothesis_length for c in counts),
        sum(c.reference_length for c in counts),
    )


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """multi-bleu, 0 to 100, of tokenised lines against one reference each."""
    return add(
        [
            count(hypothesis, [reference])
            for hypothesis, reference in zip(hypotheses, references, strict=True)
        ]
    ).bleu()


def _ngrams(words: Sequence[str]) -> Counter[tuple[str, ...]]:
    return Counter(
        tuple(words[i : i + n]) for n in range(1, ORDER + 1) for i in range(len(words) - n + 1)
    )


class MultiBleu(Metric):
    """BLEU of lines as they are, unsmoothed, words between ASCII white space, as multi-bleu.perl counts it."""

    def __init__(
        self, lowercase: bool, references: Sequence[Sequence[str]], options: Options
    ) -> None:
        self.lowercase = lowercase or options.lowercase
        self.compound_split = options.compound_split
        self.name = "multi-bleu-lc" if self.lowercase else "multi-bleu"
        self.references = [self._prepared(lines) for lines in references]

    def _prepared(self, lines: Sequence[str]) -> Sequence[str]:
        if self.lowercase:
            lines = [line.lower() for line in lines]
        return [split_compounds(line) for line in lines] if self.compound_split else lines

    def count(self, hypotheses: Sequence[str]) -> list[Row]:
        """A row for each line; what stands where is up to ``library``."""
        lines = zip(self._prepared(hypotheses), *self.references, strict=True)
        counts = (count(line, several) for line, *several in lines)
        return [(c.hypothesis_length, c.reference_length, *c.correct, *c.total) for c in counts]

    def score(self, rows: Sequence[Row]) -> Score:
        """The score of the lines that these rows were counted in, at least one."""
        length, wanted, *ngrams = (int(sum(column)) for column in zip(*rows, strict=True))
        counts = Counts(tuple(ngrams[:ORDER]), tuple(ngrams[ORDER:]), length, wanted)
        penalty = counts.brevity_penalty()
        case, compounds = (
            "lc" if self.lowercase else "mixed",
            "|compounds:split" if self.compound_split else "",
        )
        return Score(
            metric=self.name,
            name="BLEU",
            value=counts.bleu(),
            details=_details([100 * p for p in counts.precisions()], penalty, length, wanted),
            signature=f"nrefs:{len(self.references)}|case:{case}|tok:none{compounds}|smooth:none|arithmetic:moses",
            sentences=len(rows),
            hypothesis_length=length,
            reference_length=wanted,
            brevity_penalty=penalty,
        )

    def library(self) -> Any:
        """The metric of the sacrebleu library that makes the same score of the sum of rows."""
        from sacrebleu.metrics.bleu import BLEU

        return BLEU(tokenize="none", smooth_method="none")


def split_compounds(line: str) -> str:
    """Words parted at hyphens as papers on WMT English-German do: ``rich-text`` becomes ``rich ##AT##-##AT## text``.

    As tensor2tensor's get_ende_bleu.sh, it goes over bytes: of a-b-c it parts the first hyphen only, for b is used up; of ä-ö-ü both.
    """
    return _COMPOUND.sub(rb"\1 ##AT##-##AT## \2", line.encode()).decode()


def _details(precisions: Sequence[float], penalty: float, length: int, wanted: int) -> str:
    """What BLEU is made of, as multi-bleu.perl prints it."""
    ratio = length / wanted if wanted else 0.0
    return f"{'/'.join(f'{p:.1f}' for p in precisions)} (BP={penalty:.3f}, ratio={ratio:.3f}, hyp_len={length}, ref_len={wanted})"


# sacrebleu -----------------------------------------------------------------------------------------------------------


class Sacre(Metric):
    """A metric of the sacrebleu library."""

    def __init__(self, name: str, made: Any, references: Sequence[Sequence[str]]) -> None:
        self.name = name
        self.made = made
        self.references = references

    def count(self, hypotheses: Sequence[str]) -> list[Row]:
        """A row for each line; what stands where is up to ``library``."""
        rows: list[Row] = []
        for start in range(0, len(hypotheses), AT_ONCE):
            lines, *streams = (
                side[start : start + AT_ONCE] for side in (hypotheses, *self.references)
            )
            rows += self.made._extract_corpus_statistics(lines, streams)
        return rows

    def score(self, rows: Sequence[Row]) -> Score:
        """The score of the lines that these rows were counted in, at least one."""
        found = self.made._aggregate_and_compute(rows)
        return Score(
            self.name,
            found.name,
            found.score,
            signature=self.signature(),
            sentences=len(rows),
            **self.describe(found),
        )

    def library(self) -> Any:
        """The metric of the sacrebleu library that makes the same score of the sum of rows."""
        return self.made

    def signature(self) -> str:
        """The settings."""
        return str(self.made.get_signature())

    def describe(self, found: Any) -> dict[str, Any]:
        """What a ``Score`` says besides the value."""
        return {"details": ""}


class SacreBleu(Sacre):
    """sacreBLEU."""

    def __init__(self, references: Sequence[Sequence[str]], options: Options) -> None:
        from sacrebleu.metrics.bleu import BLEU

        if options.tokenize is not None and options.tokenize not in BLEU.TOKENIZERS:
            raise DataError(
                f"sacreBLEU has no tokeniser {options.tokenize!r}; choose one of {', '.join(BLEU.TOKENIZERS)}"
            )
        try:  # forced, for `doubts` warns better
            made = BLEU(lowercase=options.lowercase, tokenize=options.tokenize, force=True)
        except (ImportError, RuntimeError, OSError) as error:
            why = " ".join(str(error).split())
            raise DataError(
                f"sacreBLEU's tokeniser {options.tokenize!r} cannot be used here: {why}"
            ) from error
        super().__init__("sacrebleu", made, references)

    def describe(self, found: Any) -> dict[str, Any]:
        """What a ``Score`` says besides the value."""
        return {
            "details": _details(found.precisions, found.bp, found.sys_len, found.ref_len),
            "hypothesis_length": found.sys_len,
            "reference_length": found.ref_len,
            "brevity_penalty": found.bp,
        }


class Mteval(SacreBleu):
    """BLEU as NIST's script mteval-v13a.pl computes it, cased as with its -c.

    That is sacreBLEU: its tokeniser 13a is the script's, and so are the smoothing (where no n-gram matches, half a match is counted, for
    the next such n a quarter) and the reference length, that of the closest one, the shorter at a tie. Without -c the script lower-cases
    A to Z and no other letter, and so does this. One thing differs: where a whole text has no match at all, or not one n-gram of
    some length, the script still gives a little, and this 0, as sacreBLEU does.
    """

    def __init__(self, cased: bool, references: Sequence[Sequence[str]], options: Options) -> None:
        from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

        self.tokenizer = Tokenizer13a()
        self.lower = str.lower if options.lowercase else str if cased else _lower_ascii
        super().__init__([self._prepared(lines) for lines in references], Options(tokenize="none"))
        self.name = "mteval-v13a-cased" if self.lower is str else "mteval-v13a"

    def _prepared(self, lines: Sequence[str]) -> list[str]:
        return [self.lower(self.tokenizer(line)) for line in lines]

    def count(self, hypotheses: Sequence[str]) -> list[Row]:
        """A row for each line; what stands where is up to ``library``."""
        return super().count(self._prepared(hypotheses))

    def signature(self) -> str:
        """The settings."""
        found = self.made.get_signature()
        found.update("case", {str: "mixed", str.lower: "lc", _lower_ascii: "lc[A-Z]"}[self.lower])
        found.update("tok", "13a")
        found.update("arithmetic", "mteval-v13a")
        return str(found)


def _lower_ascii(line: str) -> str:
    return line.translate(_ASCII)


class Chrf(Sacre):
    """chrF, and chrF++ with words of ``word_order``."""

    def __init__(
        self, word_order: int, references: Sequence[Sequence[str]], options: Options
    ) -> None:
        from sacrebleu.metrics.chrf import CHRF

        made = CHRF(word_order=word_order, lowercase=options.lowercase)
        super().__init__("chrf++" if word_order else "chrf", made, references)


class Ter(Sacre):
    """TER, which ignores case."""

    def __init__(self, references: Sequence[Sequence[str]], options: Options) -> None:
        from sacrebleu.metrics.ter import TER

        super().__init__("ter", TER(), references)

    def describe(self, found: Any) -> dict[str, Any]:
        """What a ``Score`` says besides the value."""
        return {
            "details": f"edits={found.num_edits:.0f}, ref_len={found.ref_length:.10g}",
            "reference_length": found.ref_length,
        }


# All of them ---------------------------------------------------------------------------------------------------------

METRICS: dict[str, Callable[[Sequence[Sequence[str]], Options], Metric]] = {
    "sacrebleu": SacreBleu,
    "multi-bleu": partial(MultiBleu, False),
    "multi-bleu-lc": partial(MultiBleu, True),
    "mteval-v13a": partial(Mteval, False),
    "mteval-v13a-cased": partial(Mteval, True),
    "chrf": partial(Chrf, 0),
    "chrf++": partial(Chrf, 2),
    "ter": Ter,
}
DEFAULT = ("sacrebleu", "multi-bleu", "multi-bleu-lc", "chrf", "ter")
CASELESS = {"multi-bleu-lc", "mteval-v13a", "ter"}
HEEDED: dict[str, Collection[str]] = {
    "tokenize": ("sacrebleu",),
    "compound_split": ("multi-bleu", "multi-bleu-lc"),
}  # options by whom


def make(
    references: Sequence[Sequence[str]], metrics: Sequence[str], options: Options
) -> list[Metric]:
    """The metrics of these names, each once: in lower case, multi-bleu and multi-bleu-lc are one.

    Raises DataError for a metric or tokeniser that does not exist.
    """
    unknown = [metric for metric in metrics if metric not in METRICS]
    if unknown:
        raise DataError(f"there is no metric {unknown[0]!r}; choose from {', '.join(METRICS)}")
    made = [METRICS[metric](references, options) for metric in dict.fromkeys(metrics)]
    return list({metric.name: metric for metric in made}.values())


def score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str] = DEFAULT,
    *,
    lowercase: bool = False,
    tokenize: str | None = None,
    compound_split: bool = False,
) -> list[Score]:
    """Score lines against one or more references: ``references[k][i]`` is what reference k says for hypothesis i.

    ``multi-bleu`` takes the lines as they are, words between ASCII white space, as multi-bleu.perl does; ``multi-bleu-lc``
    lower-cases them first. Lower case is Unicode's (``str.lower``): the script with ``-lc`` reads bytes and changes A to Z
    only, so the two differ on text with other capitals. Raises DataError for a metric or tokeniser that does not exist,
    for unequal line counts and for no lines at all.
    """
    if not hypotheses or not references:
        raise DataError(
            "there is nothing to score: no lines"
            if references
            else "there is nothing to score against: no reference"
        )
    for k, lines in enumerate(references, 1):
        if len(lines) != len(hypotheses):
            raise DataError(
                f"the hypothesis has {len(hypotheses)} lines and reference {k} has {len(lines)}; each line needs its reference"
            )
    made = make(references, metrics, Options(lowercase, tokenize, compound_split))
    return [metric.score(metric.count(hypotheses)) for metric in made]
