"""Output of ``fusetk compare``: text with marks or colours."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from fusetk.evaluation.compare import ComparedSentence, DiffSpan, diff_words
from fusetk.reporting.comparison import Comparison

if TYPE_CHECKING:
    from rich.text import Text

LABELS = ("source", "reference", "first", "second")
MARKS = (("[-", "-]"), ("{+", "+}"))  # around words of one translation only, as in wdiff
STYLES = ("bold red", "bold green")


def print_comparison(comparison: Comparison) -> None:
    """Print the names, the sentences and the summary."""
    for label, name in zip(LABELS[2:], comparison.names, strict=True):
        click.echo(f"{label}: {name}")
    for sentence in comparison.sentences:
        scores = ""
        if sentence.scores:
            first, second = sentence.scores
            scores = f", {comparison.metric} {first:.1f} -> {second:.1f} ({sentence.gain:+.1f})"
        click.echo(f"\nline {sentence.line}{scores}")
        if sys.stdout.isatty():
            _draw(sentence)
        else:
            _print_plain(sentence)
    click.echo(f"\n{comparison.summary}")


def _print_plain(sentence: ComparedSentence) -> None:
    spans = diff_words(sentence.first, sentence.second)
    marked = [_mark(side, *marks) for side, marks in zip(spans, MARKS, strict=True)]
    texts = (sentence.source, sentence.reference, *marked)
    for label, text in zip(LABELS, texts, strict=True):
        if text is not None:
            click.echo(f"  {label:<9}  {text}".rstrip())


def _mark(spans: Sequence[DiffSpan], before: str, after: str) -> str:
    parts = []
    for span in spans:
        text = span.text if span.same else before + span.text + after
        parts.append(span.space + text)
    return "".join(parts)


def _draw(sentence: ComparedSentence) -> None:
    """Print a sentence with colours on the terminal."""
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    spans = diff_words(sentence.first, sentence.second)
    first, second = (_styled(side, style) for side, style in zip(spans, STYLES, strict=True))
    reference = None if sentence.reference is None else Text(sentence.reference)
    table = Table.grid(Column(no_wrap=True), Column(overflow="fold"), padding=(0, 2))
    texts = (Text(sentence.source), reference, first, second)
    for label, text in zip(LABELS, texts, strict=True):
        if text is not None:
            table.add_row(Text(label, style="dim"), text)
    Console().print(table)


def _styled(spans: Sequence[DiffSpan], style: str) -> "Text":
    from rich.text import Text

    text = Text()
    for span in spans:
        text.append(span.space)
        text.append(span.text, style="" if span.same else style)
    return text
