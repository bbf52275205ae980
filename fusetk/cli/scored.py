"""Texts that ``fusetk score`` reads."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from fusetk.data.text import STANDARD_INPUT, Pair, read_lines, standard_input, unequal
from fusetk.errors import DataError
from fusetk.evaluation.metrics import CASELESS, HEEDED, Options, split_compounds, split_words
from fusetk.evaluation.score_warnings import OF_WORDS, doubts


class Text(NamedTuple):
    """A text that is scored, or scored against."""

    file: str
    words: int  # as multi-bleu counts them: between ASCII white space
    lines: Sequence[str]

    def about(self) -> dict[str, Any]:
        """For JSON: all but the lines."""
        return {"file": self.file, "words": self.words}


class Texts(NamedTuple):
    """All that is read, line by line."""

    systems: Mapping[str, Text]  # by name, HYP first
    references: Sequence[Text]
    source: Text | None

    @property
    def first(self) -> Text:
        """HYP."""
        return next(iter(self.systems.values()))


def read(systems: Mapping[str, str], references: Sequence[str], source: str | None) -> Texts:
    """The texts of these files, - being standard input; raises DataError for empty ones and unless all are as long as the first."""
    names = [*systems.values(), *references, *([] if source is None else [source])]
    if names.count("-") > 1:
        raise click.UsageError("standard input can be only one of the texts")
    found: dict[str, Text] = {}
    for name in dict.fromkeys(names):
        lines = list(standard_input() if name == "-" else read_lines(name))
        if not lines:
            raise DataError(f"{known_as(name)} is empty; there is nothing to score")
        found[name] = Text(known_as(name), sum(len(split_words(line)) for line in lines), lines)
    first = len(found[names[0]].lines)
    for name, text in found.items():
        if len(text.lines) != first:
            raise _unequal(names[0], name, first, len(text.lines))
    told = [found[name] for name in references]
    return Texts(
        {name: found[file] for name, file in systems.items()},
        told,
        None if source is None else found[source],
    )


def known_as(name: str) -> str:
    """What messages call a file."""
    return STANDARD_INPUT if name == "-" else name


def against(hypothesis: Text, references: Sequence[Text]) -> str:
    """What was scored, and against what."""
    sides = ", ".join(f"{text.file} ({text.words} words)" for text in references)
    return f"{hypothesis.file} ({len(hypothesis.lines)} sentences, {hypothesis.words} words) against {sides}"


def unheeded(metrics: Sequence[str], options: Options) -> list[str]:
    """A sentence for each option that only some of the metrics heed; raises UsageError for one that none heeds."""
    found = []
    for name, value in options._asdict().items():
        if value in (None, False) or name not in HEEDED:
            continue
        flag, heed = f"--{name.replace('_', '-')}", HEEDED[name]
        others = [metric for metric in metrics if metric not in heed]
        if len(others) == len(metrics):
            advice = f"give --metric {' or '.join(heed)}, or leave it out"
            raise click.UsageError(
                f"{flag} is for {' and '.join(heed)}, not for {', '.join(others)}: {advice}"
            )
        if others:
            found.append(
                f"{flag} is for {' and '.join(heed)}; it changes nothing in {', '.join(others)}"
            )
    return found


def warnings(
    texts: Texts, metrics: Sequence[str], asked: Sequence[str], options: Options
) -> list[str]:
    """Why scores by ``metrics`` may mislead; ``asked`` are the metrics that the user named.

    Metrics of words are checked for raw text in any case. Metrics that tokenise are checked for
    tokenised text only if they were named, because the default has metrics of both kinds.
    """
    blind = options.lowercase or CASELESS.issuperset(metrics)
    told = [text.lines for text in texts.references]
    source = texts.source.lines if texts.source else None
    checked = [metric for metric in metrics if metric in OF_WORDS or metric in asked]
    checked = [metric for metric in checked if metric != "sacrebleu" or options.tokenize != "none"]
    found = []
    for name, text in texts.systems.items():
        about = doubts(text.lines, told, blind, source=source, metrics=checked)
        found += [f"{name}: {doubt}" if len(texts.systems) > 1 else doubt for doubt in about]
    everything = (
        line for text in (*texts.systems.values(), *texts.references) for line in text.lines
    )
    if options.compound_split and all(split_compounds(line) == line for line in everything):
        found.append("no word has a hyphen inside, so --compound-split changes nothing")
    return found


def _unequal(first: str, second: str, mine: int, theirs: int) -> DataError:
    if "-" in (first, second):
        return DataError(
            f"{known_as(first)} has {mine} lines and {known_as(second)} has {theirs}; each line needs its counterpart"
        )
    return unequal(Pair(Path(first), Path(second)), mine, theirs)
