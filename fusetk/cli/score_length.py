"""``fusetk score --by-length``: a table of scores by sentence length."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fusetk.cli.score_length_options import LengthOptions
from fusetk.cli.score_options import TextOptions
from fusetk.cli.tables import NONE, print_json, print_warnings, show
from fusetk.data.text import check_inputs_and_output
from fusetk.errors import DataError
from fusetk.evaluation.length import (
    BOUNDS,
    LengthTable,
    length_bins,
    ranges_above,
    score_by_length,
)
from fusetk.evaluation.metrics import make_metrics
from fusetk.evaluation.texts import (
    describe_systems,
    ignored_options,
    read_texts,
    text_warnings,
)


def run(
    text: TextOptions,
    references: Sequence[str],
    files: Mapping[str, str],
    length: LengthOptions,
) -> None:
    """Score the systems in ``files`` by sentence length, print a table, and draw it on request."""
    name = text.length_metric
    options = text.metric_options
    ignored_options([name], options)
    if length.output is not None:
        from fusetk.plotting.figure import check_output

        check_output(length.output, numbers=False)
        inputs = [*files.values(), *references, *([text.source] if text.source else [])]
        check_inputs_and_output(inputs, length.output)
    texts = read_texts(files, references, text.source)
    [metric] = make_metrics(texts.reference_lines, [name], options, texts.source_lines)
    make_ranges = ranges_above if length.longer_than else length_bins
    table = score_by_length(texts, metric, make_ranges(length.bounds or BOUNDS))
    if length.output is not None and not any(table.sentences):
        raise DataError(
            f"{length.output}: nothing to draw, because no line has more than "
            f"{table.ranges[0].fewest - 1} words; give lower --bounds"
        )
    warnings = text_warnings(texts, [metric], text.metrics, options)
    print_warnings(warnings)
    if text.as_json:
        print_json({**table.as_dict(), "warnings": warnings})
    else:
        _show(table)
    if length.output is not None:
        _draw(table, length.output)


def _show(table: LengthTable) -> None:
    heads = ["words", "sentences", *table.scores]
    rows = [
        [str(length_range), str(sentences), *(_cell(values[i]) for values in table.scores.values())]
        for i, (length_range, sentences) in enumerate(
            zip(table.ranges, table.sentences, strict=True)
        )
    ]
    lines = describe_systems(table.texts)
    reason = "" if table.texts.source else ", the first reference, because --source is not given"
    lines.append(f"lengths: words between white space in {table.texts.length_text.file}{reason}")
    if table.blank:
        first = table.ranges[0]
        place = f"in the row {first}" if first.contains(0) else "in no row"
        lines.append(f"blank: {table.blank} of these lines, {place}")
    if table.signature:
        lines.append(f"signature: {table.signature}")
    side = "source" if table.texts.source else "first reference"
    show(f"{table.metric} by the length of the {side}", heads, rows, lines)


def _cell(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _draw(table: LengthTable, output: Path) -> None:
    from fusetk.plotting.length import Chart, plot

    label = f"words of the {'source sentence' if table.texts.source else 'first reference'}"
    ranges = [str(length_range) for length_range in table.ranges]
    plot(Chart(ranges, table.sentences, table.scores, label, table.metric), output)
