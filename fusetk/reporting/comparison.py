"""The comparison of the translations of two systems: runs, or files with translations."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fusetk.data.text import (
    check_inputs_and_output,
    display_name,
    read_input,
    read_lines,
    unequal,
    writer,
)
from fusetk.errors import DataError, join_names
from fusetk.evaluation.compare import (
    ComparedSentence,
    ComparisonSummary,
    compare_sentences,
    rank_by_gain,
    summarize,
)
from fusetk.runs import find_checkpoint


class CompareInputs(NamedTuple):
    """The texts of a comparison; all have the same number of lines."""

    systems: tuple[Path, Path]  # run folders, checkpoints or files
    sources: list[str]
    references: list[str] | None
    translations: list[list[str] | None]  # of each system; None for a run

    @property
    def has_runs(self) -> bool:
        """Whether a system is a run, which must translate the sources."""
        return None in self.translations


class Comparison(NamedTuple):
    """Compared sentences, and a summary of all sentences."""

    names: tuple[str, str]  # of both systems
    metric: str
    sentences: Sequence[ComparedSentence]
    summary: ComparisonSummary

    def without_equal(self) -> "Comparison":
        """Return the comparison without the sentences with two identical translations."""
        differing = [sentence for sentence in self.sentences if not sentence.is_same]
        return self._replace(sentences=differing)


def check_metric(metric: str | None, reference: str | None) -> None:
    """Raise DataError for a metric without a reference."""
    if metric and reference is None:
        raise DataError(f"--metric {metric} needs a reference: give one with -r, or omit --metric")


def read_inputs(
    systems: tuple[Path, Path],
    source: str,
    reference: str | None,
    output: Path | None,
    model_options: Sequence[str],
) -> CompareInputs:
    """Read all files, before the first translation, so that mistakes are reported at once.

    ``model_options`` are the options of the command line that have no effect without a run. Raises
    DataError or CheckpointError if a system, a text, an option or the output cannot be used.
    """
    for path in systems:
        _check_system(path)
    if model_options and not any(path.is_dir() for path in systems):
        first, second = systems
        raise DataError(
            f"{first} and {second} are translations already, so {join_names(model_options)} would "
            f"change nothing: omit {'it' if len(model_options) == 1 else 'them'}"
        )
    if output is not None:
        files = [source, reference, *systems]
        _check_output(output, [Path(file) for file in files if file not in (None, "-")])
    sources = list(read_input(source))
    name = display_name(source)
    if not sources:
        raise DataError(f"{name} is empty: there is nothing to compare")
    references = None if reference is None else _read(reference, name, len(sources))
    translations = [None if path.is_dir() else _read(path, name, len(sources)) for path in systems]
    return CompareInputs(systems, sources, references, translations)


def _check_system(path: Path) -> None:
    """Raise CheckpointError or DataError if a run or a file of translations does not exist."""
    if path.is_dir():
        find_checkpoint(path)
    elif not path.exists():
        raise DataError(f"{path} is neither a run folder nor a file: it does not exist")


def _check_output(output: Path, inputs: Sequence[Path]) -> None:
    if output.suffix != ".json":
        raise DataError(
            f"{output}: the name must end in .json; the text is printed to standard output"
        )
    check_inputs_and_output([path for path in inputs if path.is_file()], output)


def _read(path: Path | str, source: str, sentences: int) -> list[str]:
    lines = list(read_lines(path))
    if len(lines) != sentences:
        raise unequal(source, path, sentences, len(lines))
    return lines


def compare(
    inputs: CompareInputs,
    metric: str,
    tokenized: bool,
    device: str,
    report: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Compare the translations of all sentences. Runs translate the sources first.

    With references, the sentences are sorted by the gain of the second system. ``report`` is called
    with the lines of ``system.load_model``.
    """

    def named(path: Path, lines: list[str] | None) -> tuple[str, list[str]]:
        """Return the name and the translations of a system."""
        if lines is not None:
            return str(path), lines
        from fusetk import system

        loaded = system.load_model(path, device, report=report)
        return loaded.name, loaded.translator().translate(inputs.sources, tokenized)

    (first_name, first_lines), (second_name, second_lines) = map(
        named, inputs.systems, inputs.translations
    )
    # Runs in different folders may have one name.
    if first_name == second_name and inputs.systems[0] != inputs.systems[1]:
        first_name, second_name = (f"{path} ({first_name})" for path in inputs.systems)
    sentences = compare_sentences(
        inputs.sources, first_lines, second_lines, inputs.references, metric, tokenized
    )
    summary = summarize(sentences, inputs.references, tokenized)
    return Comparison((first_name, second_name), metric, rank_by_gain(sentences), summary)


def write_comparison(output: Path, comparison: Comparison) -> None:
    """Write the comparison as JSON."""
    first, second = comparison.names
    document: dict[str, Any] = {
        "first": first,
        "second": second,
        "metric": comparison.metric if comparison.summary.corpus else None,
        "summary": comparison.summary._asdict(),
        "sentences": [sentence._asdict() for sentence in comparison.sentences],
    }
    with writer(output) as file:
        file.write(json.dumps(document, ensure_ascii=False, indent=2) + "\n")
