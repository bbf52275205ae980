"""Repeated words in saved translations: ``python -m tools.repetitions RESULTS SET REFERENCE BASE``.

The command compares all complete trainings of a folder of results with the training of the system
BASE that has the same seed and the same changes of the recipe. The reference is a file with the
text that sacreBLEU compares with, plain or .gz. A translation repeats words if a sequence of four
words occurs in it twice. For each training and checkpoint the command prints:

- repeats: the share of the translations that repeat words;
- all: the number of all sentences, then sacreBLEU and the difference to that of the baseline;
- without repeats: the number of sentences whose translations by both systems repeat no words, then
  BLEU and Δ of these sentences.

If the second Δ is as large as the first, repetitions are not the reason for the difference.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from fusetk.cli.tables import NONE, markdown_rows
from fusetk.data.text import read_lines
from fusetk.errors import DataError, FusetkError
from fusetk.evaluation.metric import Metric, MetricOptions
from fusetk.evaluation.metrics import make_metrics
from fusetk.reporting.result_files import RunResult, read_columns, read_results, translations_path
from fusetk.reporting.saved_run import SavedRun

LENGTH = 4  # words of a repeated sequence


def repeats_words(line: str) -> bool:
    """Whether a sequence of ``LENGTH`` words occurs twice in a line."""
    words = line.split()
    sequences = [tuple(words[i : i + LENGTH]) for i in range(len(words) - LENGTH + 1)]
    return len(set(sequences)) < len(sequences)


def rows(folder: Path, set_name: str, references: list[str], base: str) -> Iterator[list[str]]:
    """Yield a row of the table for each training and checkpoint, the baseline's included.

    Raises DataError if the baseline or a file of translations is missing or does not fit the
    references.
    """
    results = [
        (path.stem, result)
        for path, result in read_results(folder).items()
        if not SavedRun(path.stem, result).changes_end
    ]
    stems = {_config(result): stem for stem, result in results if result.system == base}
    if not stems:
        raise DataError(f"{folder} has no complete training of the system {base}")
    [metric] = make_metrics([references], ["sacrebleu"], MetricOptions())
    for stem, result in results:
        if base_stem := stems.get(_config(result)):
            own, other = (
                _translations(translations_path(folder, name, set_name), len(references))
                for name in (stem, base_stem)
            )
            for checkpoint in (name for name in own if name in other):
                cells = _cells(metric, own[checkpoint], other[checkpoint])
                yield [result.row, str(result.seed), checkpoint, *cells]


def _config(result: RunResult) -> tuple[int, str]:
    return result.seed, repr(sorted(result.overrides.items()))


def _translations(path: Path, lines: int) -> dict[str, list[str]]:
    """Return the translations of a file by checkpoint."""
    columns = read_columns(path)
    texts = {name.removesuffix(".raw"): columns[name] for name in columns if name.endswith(".raw")}
    for text in texts.values():
        if len(text) != lines:
            raise DataError(f"{path} has {len(text):,} lines, and the reference has {lines:,}")
    return texts


def _cells(metric: Metric, own: list[str], other: list[str]) -> list[str]:
    repeating = [repeats_words(line) for line in own]
    chosen = [i for i, line in enumerate(other) if not repeating[i] and not repeats_words(line)]
    statistics = [metric.statistics(lines) for lines in (own, other)]
    cells = [f"{100 * sum(repeating) / len(own):.1f} %"]
    for sentences in (range(len(own)), chosen):
        if not sentences:
            cells += ["0", NONE, NONE]
            continue
        score, base = (metric.score([row[i] for i in sentences]).value for row in statistics)
        cells += [str(len(sentences)), f"{score:.2f}", f"{score - base:+.2f}"]
    return cells


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("set_name", metavar="set", help="name of the test set in the results")
    parser.add_argument("reference", type=Path)
    parser.add_argument("base", help="system of the baseline, for example pre_norm")
    options = parser.parse_args()
    headings = [
        "",
        "seed",
        "checkpoint",
        "repeats",
        "all",
        "BLEU",
        "Δ",
        "without repeats",
        "BLEU",
        "Δ",
    ]
    try:
        references = list(read_lines(options.reference))
        table = list(rows(options.results, options.set_name, references, options.base))
    except FusetkError as error:
        sys.exit(f"tools.repetitions: {error}")
    print(markdown_rows(headings, table))


if __name__ == "__main__":
    main()
