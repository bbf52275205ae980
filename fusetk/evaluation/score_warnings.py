"""Warnings about texts whose score may mislead.

The checks find subwords, differences in case or tokenisation, lines out of step, and lines that are
blank or not translated.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from fusetk.data.subword_warnings import MANY_SUBWORDS, MAX_LINES, is_subword
from fusetk.errors import join_names, quantity
from fusetk.evaluation.metric import Metric

_NAME = r"(?:amp|apos|quot|lt|gt|#124|#91|#93);"  # of an escaped character, after &
_ENTITY = re.compile(f"&{_NAME}")
_UNESCAPED = re.compile(rf"[<>'\"|\[\]]|&(?!{_NAME})")
_PUNCTUATION = frozenset(".,!?;:。，！？；：、।")
_HYPHENS = ("@-@", "##AT##-##AT##")  # from Moses' tokeniser with -a, from --compound-split


class TextStatistics(NamedTuple):
    """Counts over the first lines of a text."""

    cased_lines: int  # lines that begin with a letter that has case
    capital_lines: int  # of these, lines that begin with a capital
    tokens: int
    subwords: int  # tokens with BPE's joiner or SentencePiece's word mark
    cased_letters: int  # letters that have case
    capital_letters: int
    marked_tokens: int  # tokens that end in a punctuation mark
    lone_marks: int  # of these, tokens that are only the mark
    entities: int  # characters that the Moses tokeniser escaped
    unescaped: int  # characters that it would escape
    hyphens: int  # tokens that are a hyphen between two parts of a word

    @property
    def subword_ratio(self) -> float:
        """The proportion of the tokens that are subwords."""
        return self.subwords / max(self.tokens, 1)

    @property
    def capital_letter_ratio(self) -> float:
        """The proportion of the letters with case that are capitals."""
        return self.capital_letters / max(self.cased_letters, 1)

    @property
    def capital_line_ratio(self) -> float:
        """The proportion of the lines with case that begin with a capital."""
        return self.capital_lines / max(self.cased_lines, 1)

    @property
    def lone_mark_ratio(self) -> float:
        """The proportion of the tokens with a punctuation mark that are only the mark."""
        return self.lone_marks / max(self.marked_tokens, 1)


def text_statistics(lines: Iterable[str]) -> TextStatistics:
    """Count over the first ``MAX_LINES`` lines of a text."""
    counts = dict.fromkeys(TextStatistics._fields, 0)
    for line in islice(lines, MAX_LINES):
        first = line.lstrip()[:1]
        counts["cased_lines"] += first.isupper() or first.islower()
        counts["capital_lines"] += first.isupper()
        counts["cased_letters"] += sum(c.isupper() or c.islower() for c in line)
        counts["capital_letters"] += sum(map(str.isupper, line))
        counts["entities"] += len(_ENTITY.findall(line))
        counts["unescaped"] += len(_UNESCAPED.findall(line))
        for token in line.split():
            counts["tokens"] += 1
            counts["subwords"] += is_subword(token)
            counts["hyphens"] += token in _HYPHENS
            if token[-1] in _PUNCTUATION:
                counts["marked_tokens"] += 1
                counts["lone_marks"] += len(token) == 1
    return TextStatistics(**counts)


def score_warnings(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    lowercase: bool = False,
    source: Sequence[str] | None = None,
    metrics: Collection[Metric] = (),
) -> list[str]:
    """Return the reasons not to trust scores of these texts; all have the same number of lines.

    With ``lowercase``, differences in case are ignored. Texts are checked for the tokenisation
    that ``metrics`` expect.
    """
    names = ["the reference"]
    if len(references) > 1:
        names = [f"reference {k}" for k in range(1, len(references) + 1)]
    hypothesis_stats = text_statistics(hypotheses)
    reference_stats = [text_statistics(lines) for lines in references]
    warnings = _subword_warnings(hypothesis_stats, "the hypothesis")
    for name, stats in zip(names, reference_stats, strict=True):
        warnings += _subword_warnings(stats, name)
    for name, stats, lines in zip(names, reference_stats, references, strict=True):
        if not lowercase:
            warnings += _case_warnings(hypothesis_stats, stats, name)
        warnings += _tokenisation_warnings(hypothesis_stats, stats, name)
        warnings += _step_warnings(hypotheses, lines, name)
    return [
        *warnings,
        *_metric_warnings([hypothesis_stats, *reference_stats], metrics),
        *_blank_warnings(hypotheses, references),
        *_untranslated_warnings(hypotheses, references, source),
    ]


def _subword_warnings(stats: TextStatistics, name: str) -> list[str]:
    ratio = stats.subword_ratio
    if ratio <= MANY_SUBWORDS:
        return []
    return [
        f"{name} looks like subwords ({100 * ratio:.0f} % of its tokens have a joiner); "
        "join them into words before scoring"
    ]


def _case_warnings(hypothesis: TextStatistics, reference: TextStatistics, name: str) -> list[str]:
    advice = "give both in the same case, or use --lowercase"
    if min(hypothesis.cased_letters, reference.cased_letters) < 20:
        return []
    ratio = hypothesis.capital_letter_ratio
    other = reference.capital_letter_ratio
    if max(ratio, other) >= 0.01 and min(ratio, other) <= max(ratio, other) / 10:
        return [
            f"{100 * ratio:.1f} % of the hypothesis' letters are capitals, but {100 * other:.1f} % "
            f"of those of {name}; {advice}"
        ]
    ratio = hypothesis.capital_line_ratio
    other = reference.capital_line_ratio
    if min(hypothesis.cased_lines, reference.cased_lines) >= 10 and abs(ratio - other) > 0.5:
        return [
            f"{100 * ratio:.0f} % of the hypothesis' lines begin with a capital, but "
            f"{100 * other:.0f} % of those of {name}; {advice}"
        ]
    return []


def _tokenisation_warnings(
    hypothesis: TextStatistics, reference: TextStatistics, name: str
) -> list[str]:
    warnings = []
    if min(hypothesis.marked_tokens, reference.marked_tokens) >= 3:
        ratio = hypothesis.lone_mark_ratio
        other = reference.lone_mark_ratio
        if abs(ratio - other) > 0.5:
            tokenised, raw = ("the hypothesis", name) if ratio > other else (name, "the hypothesis")
            warnings.append(
                f"{tokenised} looks tokenised and {raw} does not; "
                "tokenise or detokenise one of them before scoring"
            )
    for having, marked, lacking, plain in (
        ("the hypothesis", hypothesis, name, reference),
        (name, reference, "the hypothesis", hypothesis),
    ):
        if marked.entities >= 3 and not plain.entities and plain.unescaped:
            warnings.append(
                f"{having} writes characters as &apos; or similar and {lacking} does not; unescape "
                "it before scoring"
            )
        if marked.hyphens >= 3 and not plain.hyphens:
            warnings.append(
                f"{having} splits words with {' or '.join(_HYPHENS)} and {lacking} does not; "
                "process both in the same way before scoring"
            )
    return warnings


def _metric_warnings(texts: Sequence[TextStatistics], metrics: Collection[Metric]) -> list[str]:
    """Return warnings if all texts are raw or all are tokenised, and a metric expects the other."""
    if min(text.marked_tokens for text in texts) < 3:
        return []
    ratios = [text.lone_mark_ratio for text in texts]
    word_metrics = [metric.name for metric in metrics if metric.tokenizes is False]
    text_metrics = [metric.name for metric in metrics if metric.tokenizes]
    warnings = []
    if max(ratios) < 0.1 and word_metrics:
        warnings.append(
            f"the text does not look tokenised: for {join_names(word_metrics)}, "
            "'end.' is one word; tokenise both sides first"
        )
    if min(ratios) > 0.9 and text_metrics:
        warnings.append(
            f"the text looks tokenised, and {join_names(text_metrics)} will tokenise it again; "
            "give detokenised text"
        )
    return warnings


class _StepDetector:
    """Finds the line from which on a hypothesis fits the neighbouring reference line better.

    It follows the sum of (overlap with the neighbouring line - overlap with the line itself). Lines
    seem out of step after the lowest sum if the sum then rises by more than 0.15 a line.
    """

    def __init__(self) -> None:
        self.total = 0.0
        self.lowest = 0.0
        self.start = 0  # lines before the lowest sum

    def add(self, line: int, difference: float) -> None:
        """Add the difference of a line, numbered from 1."""
        self.total += difference
        if self.total < self.lowest:
            self.lowest = self.total
            self.start = line

    def out_of_step(self, lines: int) -> bool:
        """Whether the lines after the lowest sum are out of step, in a text of ``lines`` lines."""
        rest = lines - self.start
        return rest >= 20 and self.total - self.lowest > 0.15 * rest


def _step_warnings(hypotheses: Sequence[str], reference: Sequence[str], name: str) -> list[str]:
    """Return a warning if a line seems to be missing or repeated in the hypothesis."""
    detectors = {"next": _StepDetector(), "previous": _StepDetector()}
    previous = frozenset[str]()
    current = _words(reference[0]) if reference else frozenset[str]()
    for i, line in enumerate(hypotheses, 1):
        following = _words(reference[i]) if i < len(reference) else frozenset[str]()
        words = _words(line)
        overlap = _overlap(words, current)
        detectors["next"].add(i, _overlap(words, following) - overlap)
        detectors["previous"].add(i, _overlap(words, previous) - overlap)
        previous = current
        current = following
    return [
        f"from line {detector.start + 1} on, the hypothesis fits the {neighbour} line of {name} "
        "much better; their lines seem misaligned"
        for neighbour, detector in detectors.items()
        if detector.out_of_step(len(reference))
    ]


def _words(line: str) -> frozenset[str]:
    return frozenset(line.lower().split())


def _overlap(words: frozenset[str], others: frozenset[str]) -> float:
    """Return the number of shared words divided by the size of the larger set, 0 to 1."""
    return len(words & others) / max(len(words), len(others), 1)


def _blank_warnings(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> list[str]:
    blank_hypotheses = blank_references = 0
    for hypothesis, *targets in zip(hypotheses, *references, strict=True):
        if hypothesis.strip():
            blank_references += not any(target.strip() for target in targets)
        else:
            blank_hypotheses += all(target.strip() for target in targets)
    limit = 0.01 * len(hypotheses)
    warnings = []
    if blank_hypotheses > limit:
        warnings.append(
            "the hypothesis is blank and the reference is not: "
            f"{quantity(blank_hypotheses, 'line')}"
        )
    if blank_references > limit:
        warnings.append(
            "the reference is blank and the hypothesis is not: "
            f"{quantity(blank_references, 'line')}"
        )
    return warnings


def _untranslated_warnings(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], source: Sequence[str] | None
) -> list[str]:
    if source is None:
        return []
    copied = _copied(hypotheses, source)
    if copied <= 0.05 or copied < 2 * max(_copied(lines, source) for lines in references):
        return []
    return [
        f"{100 * copied:.0f} % of the hypothesis' lines equal the source line; are they translated?"
    ]


def _copied(lines: Sequence[str], source: Sequence[str]) -> float:
    """Return the proportion of lines that are not empty and equal the source line, 0 to 1."""
    return sum(a == b != "" for a, b in zip(lines, source, strict=True)) / len(source)
