"""The tables of results in Markdown files: ``python -m tools.results [FILE ...] [--check]``.

The command replaces the text between two markers by a table. The first marker names a folder of
results, relative to the file, and the kind of the table:

- no kind: all tables of the folder, with titles and notes.
- ``main OTHER ...``: a short table of the first system and those with the highest scores, first
  those with enough seeds. Each other folder adds a column of differences.
- ``overview OTHER ...``: the difference of each system to its baseline in each of these folders.
- ``significance OTHER ...``: the systems that differ significantly with all, some or no seeds.
- ``power OTHER ...``: how often the rule of a gain finds a true difference.
- ``all-scores``: the differences of all scores of the systems that have enough seeds.
- ``costs``: the measured costs of all systems.
- ``losses SYSTEM ...``: the validation losses of these systems after some epochs. A name alone
  selects the trainings with the recipe's values, and ``NAME@KEY=VALUE,KEY=VALUE`` those with other
  values.
- ``training-losses SYSTEM ...``: the training losses of these systems in some epochs.
- ``tuning KEY EPOCHS``: the lowest validation losses in the first epochs for each value of a key
  that was tried.
- ``loss-counts``: the number of systems whose validation loss is lower than that of their baseline.
- ``measured SYSTEM ...``: the differences of these systems in each folder of ``TEXTS`` below the
  folder. Without names, it has the first system of each page in the folder of the file.
- ``counts``, after a folder of recipes: the numbers of parameters that the paper prints, and those
  of the models.

Without files, the command updates README.md and all pages with a marker in ``results`` and
``docs``.
"""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from fusetk.errors import FusetkError, join_names
from fusetk.reporting.result_tables import ResultTable, read_tables
from tools.counts import count_table, printed_rows
from tools.loss_tables import loss_counts, loss_table, training_loss_table, tuning_table
from tools.system_tables import (
    all_scores,
    all_tables,
    cost_table,
    main_table,
    measured_table,
    overview,
    power_table,
    significance_table,
)

ROOT = Path(__file__).parent.parent
BEGIN = re.compile(
    r"<!-- results: begin (\S+?)"
    r"( costs| counts| all-scores| loss-counts| (?:main|overview|significance|power)(?: \S+?)*|"
    r" measured(?: \w+)*| (?:training-)?losses(?: [\w@.,=]+)+| tuning [\w.]+ \d+)?, "
    r"made by `python -m tools.results \S+` -->\n"
)
END = "<!-- results: end -->"
TEXTS = ("multi30k", "iwslt14")  # folders of results, in the order of the columns of ``measured``
# The tables that compare folders of results, by the word in the marker.
TABLES_OF_FOLDERS: dict[str, Callable[[Sequence[ResultTable]], str]] = {
    "main": main_table,
    "overview": overview,
    "significance": significance_table,
    "power": power_table,
}

Reader = Callable[[Path], list[ResultTable]]


def reader() -> Reader:
    """Return a function that reads the tables of a folder of results once."""
    read = cache(lambda folder: read_tables(folder, {}))
    return lambda folder: read(folder.resolve())


def updated(text: str, folder: Path, read: Reader | None = None) -> str:
    """Return the text with current tables; ``folder`` is that of the file.

    Several files that share ``read`` read the results once.

    Raises DataError if results are damaged, and ValueError if a marker is missing, or if it needs
    one table and a folder has several.
    """
    begins = list(BEGIN.finditer(text))
    if not begins:
        raise ValueError("there is no marker `<!-- results: begin FOLDER, ... -->`")
    read = read or reader()
    parts = [text[: begins[0].end()]]
    next_begins = [begin.start() for begin in begins[1:]] + [len(text)]
    next_ends = [begin.end() for begin in begins[1:]] + [len(text)]
    for begin, next_begin, next_end in zip(begins, next_begins, next_ends, strict=True):
        end = text.find(END, begin.end(), next_begin)
        if end < 0:
            raise ValueError(f"{END} is missing after the marker of {begin[1]}")
        content = _content(begin[1], (begin[2] or "all").split(), folder, read)
        parts.append(f"{content}\n")
        parts.append(text[end:next_end])
    return "".join(parts)


def _content(results: str, words: Sequence[str], folder: Path, read: Reader) -> str:
    """Return the text after a marker.

    ``results`` is the name of the folder of results, or of recipes, below ``folder``. ``words`` are
    the kind of the table and the names that follow it. ``read`` returns the tables of a folder of
    results.
    """
    kind, *names = words
    if kind == "counts":
        return count_table(printed_rows(folder / results))
    if kind == "measured":
        tables = [_only_table(read(folder / results / name)) for name in TEXTS]
        systems = {name: None for name in names} or _systems_of_pages(folder)
        return measured_table(tables, systems, f"{results}/README.md")
    if not any((folder / results).glob("*.json")):
        return f"There are no results in `{results}` yet."
    if make := TABLES_OF_FOLDERS.get(kind):
        return make([_only_table(read(folder / name)) for name in (results, *names)])
    if kind == "costs":
        return cost_table(folder / results)
    tables = read(folder / results)
    if kind == "all-scores":
        return all_scores(_only_table(tables))
    if kind == "loss-counts":
        return loss_counts(tables)
    if kind == "losses":
        return loss_table(tables, names)
    if kind == "tuning":
        return tuning_table(tables, names[0], int(names[1]))
    if kind == "training-losses":
        return training_loss_table(tables, names)
    return all_tables(tables)


def _only_table(tables: Sequence[ResultTable]) -> ResultTable:
    """Return the table of a folder. Raises ValueError if the folder has several."""
    if len(tables) > 1:
        titles = join_names([table.title for table in tables])
        raise ValueError(f"the results have the tables {titles}, but the marker needs one table")
    return tables[0]


def _systems_of_pages(folder: Path) -> dict[str, str]:
    """Return the first system that each page in a folder names, and the name of the page."""
    systems = {}
    for page in sorted(folder.glob("*.md")):
        for begin in BEGIN.finditer(page.read_text(encoding="utf-8")):
            kind, *names = (begin[2] or "all").split()
            if kind == "measured" and names:
                systems[names[0]] = page.name
    return systems


def pages() -> list[Path]:
    """Return the pages with a marker: README.md, and those in ``results`` and ``docs``."""
    files = [ROOT / "README.md", *(ROOT / "results").glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(file for file in files if "<!-- results: begin" in file.read_text("utf-8"))


def main() -> int:
    """Rewrite the files, or with --check return 1 if one is not up to date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "files", type=Path, nargs="*", help="default: README.md and all pages with a marker"
    )
    parser.add_argument("--check", action="store_true", help="change nothing")
    options = parser.parse_args()
    outdated = False
    read = reader()
    for file in options.files or pages():
        old = file.read_text(encoding="utf-8")
        try:
            new = updated(old, file.parent, read)
        except (FusetkError, ValueError) as error:
            sys.exit(f"tools.results: {file}: {error}")
        outdated |= new != old
        if new != old and not options.check:
            file.write_text(new, encoding="utf-8")
    return int(options.check and outdated)


if __name__ == "__main__":
    sys.exit(main())
