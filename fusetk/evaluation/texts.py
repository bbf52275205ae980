"""Reading of hypotheses, references and sources that are scored, and warnings about them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from fusetk.data.text import display_name, read_input, unequal
from fusetk.errors import DataError, join_names, quantity
from fusetk.evaluation.metric import Metric, MetricOptions
from fusetk.evaluation.metrics import LEARNED_METRICS, METRICS, metric_class
from fusetk.evaluation.multi_bleu import split_compounds, split_words
from fusetk.evaluation.score_warnings import score_warnings


class ScoredText(NamedTuple):
    """A hypothesis, a reference or a source."""

    file: str
    words: int  # between ASCII white space, as multi-bleu counts them
    lines: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields without the lines, for JSON."""
        return {"file": self.file, "words": self.words}


class ScoredTexts(NamedTuple):
    """All texts that are read; they have the same number of lines."""

    systems: Mapping[str, ScoredText]  # hypotheses by system
    references: Sequence[ScoredText]
    source: ScoredText | None

    @property
    def first(self) -> ScoredText:
        """The hypothesis of the first system."""
        return next(iter(self.systems.values()))

    @property
    def length_text(self) -> ScoredText:
        """The text that gives the lengths: the source, or else the first reference."""
        return self.source or self.references[0]

    @property
    def source_lines(self) -> Sequence[str] | None:
        """The lines of the source, None if it was not read."""
        return self.source.lines if self.source else None

    @property
    def reference_lines(self) -> list[Sequence[str]]:
        """The lines of each reference."""
        return [text.lines for text in self.references]


def read_texts(
    systems: Mapping[str, str], references: Sequence[str], source: str | None
) -> ScoredTexts:
    """Read the texts of files; the file - is standard input.

    Raises DataError if standard input is given twice, if a file is empty, if a reference has no
    word, or if line counts differ.
    """
    files = [*systems.values(), *references]
    if source is not None:
        files.append(source)
    if files.count("-") > 1:
        raise DataError("standard input can be only one of the texts: give files for the others")
    texts = {file: _read_text(file) for file in dict.fromkeys(files)}
    expected = len(texts[files[0]].lines)
    for file, text in texts.items():
        if len(text.lines) != expected:
            names = display_name(files[0]), display_name(file)
            raise unequal(*names, expected, len(text.lines))
        if file in references and not text.words:
            raise DataError(f"the reference {display_name(file)} has no word: give another file")
    return ScoredTexts(
        {name: texts[file] for name, file in systems.items()},
        [texts[file] for file in references],
        None if source is None else texts[source],
    )


def _read_text(file: str) -> ScoredText:
    lines = list(read_input(file))
    if not lines:
        raise DataError(f"{display_name(file)} is empty: there is nothing to score")
    words = sum(len(split_words(line)) for line in lines)
    return ScoredText(display_name(file), words, lines)


def describe_inputs(hypothesis: ScoredText, references: Sequence[ScoredText]) -> str:
    """Return a sentence about the size of a hypothesis and its references."""
    sides = ", ".join(f"{text.file} ({quantity(text.words, 'word')})" for text in references)
    sentences = quantity(len(hypothesis.lines), "sentence")
    size = f"{sentences}, {quantity(hypothesis.words, 'word')}"
    return f"{hypothesis.file} ({size}) against {sides}"


def describe_systems(texts: ScoredTexts) -> list[str]:
    """Return a sentence about the size of each system's hypothesis and of its references."""
    return [
        f"{name}: {describe_inputs(text, texts.references)}" for name, text in texts.systems.items()
    ]


def ignored_options(metrics: Sequence[str], options: MetricOptions) -> list[str]:
    """Return a warning for each option that some of the metrics ignore.

    Raises DataError if a metric is unknown, or if all of the metrics ignore an option.
    """
    warnings = []
    known = {**METRICS, **LEARNED_METRICS, **{name: metric_class(name) for name in metrics}}
    for option, value in options._asdict().items():
        users = [name for name, metric in known.items() if option in metric.options]
        if value in (None, False) or not users:
            continue
        flag = f"--{option.replace('_', '-')} is for {join_names(users)}"
        others = [metric for metric in metrics if metric not in users]
        if len(others) == len(metrics):
            raise DataError(
                f"{flag}, not for {', '.join(others)}: "
                f"give --metric {join_names(users, 'or')}, or omit the option"
            )
        if others:
            warnings.append(f"{flag}; it changes nothing in {', '.join(others)}")
    return warnings


def text_warnings(
    texts: ScoredTexts, metrics: Sequence[Metric], named: Collection[str], options: MetricOptions
) -> list[str]:
    """Return the reasons why the scores of these texts may mislead.

    Metrics that do not tokenise are always checked for raw text. Metrics that tokenise are checked
    for tokenised text only if the user named them, because the default metrics are of both kinds.
    """
    case_matters = any(metric.case_sensitive for metric in metrics)
    checked = [
        metric
        for metric in metrics
        if metric.tokenizes is False or (metric.tokenizes and metric.name in named)
    ]
    warnings = []
    for name, text in texts.systems.items():
        prefix = f"{name}: " if len(texts.systems) > 1 else ""
        if not text.words:
            warnings.append(f"{prefix}{text.file} has no word")
            continue
        reasons = score_warnings(
            text.lines,
            texts.reference_lines,
            lowercase=not case_matters,
            source=texts.source_lines,
            metrics=checked,
        )
        warnings += [prefix + warning for warning in reasons]
    if options.compound_split and not _has_compounds(texts):
        warnings.append("no word has a hyphen inside, so --compound-split changes nothing")
    return warnings


def _has_compounds(texts: ScoredTexts) -> bool:
    return any(
        split_compounds(line) != line
        for text in (*texts.systems.values(), *texts.references)
        for line in text.lines
    )
