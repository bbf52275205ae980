"""The tables of results in a Markdown file: ``python -m tools.results README.md [--check]``.

The command replaces the text between two markers by the tables of the folder of results that the
first marker names, relative to the file.
"""

import argparse
import re
import sys
from pathlib import Path

from fusetk.cli.tables import NONE, markdown_table
from fusetk.errors import FusetkError
from fusetk.reporting.result_layout import text_tables
from fusetk.reporting.result_tables import read_tables

BEGIN = re.compile(r"<!-- results: begin (\S+), made by `python -m tools.results \S+` -->\n")
END = "<!-- results: end -->"


def updated(text: str, folder: Path) -> str:
    """Return the text with current tables; ``folder`` is that of the file.

    Raises DataError if results are damaged, and ValueError if a marker is missing.
    """
    parts = BEGIN.split(text)
    for i in range(1, len(parts), 2):
        _, marker, rest = parts[i + 1].partition(END)
        if not marker:
            raise ValueError(f"{END} is missing after the marker of {parts[i]}")
        parts[i + 1] = f"{tables(folder / parts[i], parts[i])}\n{END}{rest}"
    if len(parts) == 1:
        raise ValueError("there is no marker `<!-- results: begin FOLDER, ... -->`")
    begins = [match[0] for match in BEGIN.finditer(text)]
    return "".join(part if i % 2 == 0 else begins[i // 2] for i, part in enumerate(parts))


def tables(results: Path, name: str) -> str:
    """Return the tables of a folder of results as Markdown; a sentence if there is no result."""
    if not any(results.glob("*.json")):
        return f"There are no results in `{name}` yet."
    texts = []
    for table in read_tables(results, {}):
        for text in text_tables(table):
            rows = [[NONE if cell is None else cell for cell in row] for row in text.rows]
            texts.append(markdown_table(text.title, text.heads, rows, text.notes))
        table.p_values.save()
    return "\n\n".join(texts)


def main() -> int:
    """Rewrite the file, or with --check return 1 if it is not up to date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--check", action="store_true", help="change nothing")
    options = parser.parse_args()
    old = options.file.read_text(encoding="utf-8")
    try:
        new = updated(old, options.file.parent)
    except (FusetkError, ValueError) as error:
        sys.exit(f"tools.results: {options.file}: {error}")
    if options.check:
        return int(new != old)
    if new != old:
        options.file.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
