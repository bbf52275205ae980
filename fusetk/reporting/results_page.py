"""Results as one HTML page without external resources: tables, curves, layer weights, translations.

The page is ``results_page.html`` in this folder; its script draws the inserted values.
"""

import html
import re
from pathlib import Path
from statistics import fmean
from typing import Any

from fusetk.data.text import cannot_write
from fusetk.evaluation.compare import (
    ComparedSentence,
    DiffSpan,
    compare_sentences,
    diff_words,
    rank_by_gain,
)
from fusetk.files import replace_file
from fusetk.plotting.html import insert, json_element
from fusetk.reporting.formats import TextTable
from fusetk.reporting.result_files import column_of, read_columns, texts_path, translations_path
from fusetk.reporting.result_layout import text_tables
from fusetk.reporting.result_tables import ResultRow, ResultTable
from fusetk.reporting.saved_run import SavedRun

TEMPLATE = Path(__file__).with_name("results_page.html")
MAX_SENTENCES = 100  # of a pair of systems: half of them with the largest gains
QUANTITIES = (
    ("valid_curve", "loss", "validation loss"),
    ("valid_curve", "bleu", "validation BLEU"),
    ("train_curve", "loss", "training loss"),
    ("train_curve", "grad_norm", "gradient norm"),
)
_UNITS = {"M": 1e6, "s": 1, "min": 60, "h": 3600}
_NUMBER = re.compile(r"[×+]?(-?\d[\d,]*(?:\.\d+)?)\s*(M|s|min|h)?\b")
_BY_SEED = re.compile(r"\d+: ([+-]?\d+(?:\.\d+)?)")  # a seed and its difference

_PARTS = re.compile(r"open: (\d+) of (\d+) (?:seeds|tests)")
_VERDICTS = {"yes": 2.0, "no": -1.0}


def save_results_page(tables: list[ResultTable], folder: Path, path: Path) -> None:
    """Write the page of the tables of a folder. Raises DataError if it cannot be written."""
    title = f"Results: {folder.resolve().name}"
    data = {"title": title, "tables": [_table(table, folder) for table in tables]}
    parts = {"title": html.escape(title), "data": json_element(data)}
    try:
        replace_file(path, insert(TEMPLATE.read_text(encoding="utf-8"), parts))
    except OSError as error:
        raise cannot_write(path, error) from None


def _table(table: ResultTable, folder: Path) -> dict[str, Any]:
    main, *others = text_tables(table)
    return {
        "title": table.title,
        "table": _sortable(main),
        "others": [_sortable(other) for other in others],
        "systems": [_system(row) for row in table.rows],
        "quantities": [
            {"curve": curve, "name": name, "label": label}
            for curve, name, label in QUANTITIES
            if any(name in getattr(run.result, curve) for run in table.runs)
        ],
        "pairs": [
            pair
            for row in table.rows
            if (base := table.base_of(row))
            and base is not row
            and (pair := _pair(folder, base, row))
        ],
    }


def _sortable(table: TextTable) -> dict[str, Any]:
    return {
        "title": table.title,
        "heads": table.heads,
        "rows": table.rows,
        "values": [list(map(sort_value, row, table.heads)) for row in table.rows],
        "notes": table.notes,
    }


def sort_value(cell: str | None, head: str) -> float | None:
    """Return the number by which a cell of the column ``head`` is sorted.

    Cells without a number, and names of systems, whose column has no head, have None. For seeds it
    is their count, and for differences by seed their mean. Gains have the order: no, an undecided
    one with few seeds, one with more seeds, yes.
    """
    if not cell or not head:
        return None
    if cell in _VERDICTS:
        return _VERDICTS[cell]
    if head == "seeds":
        return len(cell.split())
    if head.endswith(", by seed"):
        differences = [float(number) for number in _BY_SEED.findall(cell)]
        return fmean(differences) if differences else None
    parts = _PARTS.fullmatch(cell)
    if parts:
        return int(parts[1]) / int(parts[2])
    match = _NUMBER.match(cell)
    if match is None:
        return None
    return float(match[1].replace(",", "")) * _UNITS.get(match[2], 1)


def _system(row: ResultRow) -> dict[str, Any]:
    """Return the curves of all seeds, and the layer weights of the first run that has them."""
    fused = [
        (run, weights) for run in row.runs for weights in run.result.layer_weights if weights.panels
    ]
    system: dict[str, Any] = {
        "name": row.name,
        "runs": [
            {
                "seed": run.result.seed,
                "curves": {
                    "train_curve": run.result.train_curve,
                    "valid_curve": run.result.valid_curve,
                },
            }
            for run in row.runs
        ],
        "panels": [],
        "panels_of": "",
    }
    if fused:
        run, weights = fused[0]
        system["panels"] = [panel.model_dump(mode="json") for panel in weights.panels]
        system["panels_of"] = (
            f"seed {run.result.seed}, checkpoint {weights.checkpoint}; "
            f"{weights.sentences} sentences of {weights.text}"
        )
    return system


def _pair(folder: Path, base: ResultRow, row: ResultRow) -> dict[str, Any] | None:
    """Return the sentences that the first common seed of two rows translates differently.

    Return None if there are no translations of the same text by the same checkpoint.
    """
    for seed, run in row.by_seed.items():
        twin = base.by_seed.get(seed)
        if twin is None:
            continue
        for set_name, names in run.result.translations.items():
            same_text = twin.result.texts.get(set_name) == run.result.texts[set_name]
            common = [n for n in names if n in twin.result.translations.get(set_name, [])]
            if same_text and common:
                # The best checkpoint is preferred to others, and raw text to tokens.
                name = max(common, key=lambda n: (n.startswith("best."), n.endswith(".raw")))
                checkpoint = name.rpartition(".")[0]
                label = f"{row.name} and {base.name}, seed {seed}, {set_name}"
                label += "" if checkpoint == "best" else f", {checkpoint}"
                sentences = _compare(folder, twin, run, set_name, name)
                return {"label": label, "base": base.name, "name": row.name, **sentences}
    return None


def _compare(
    folder: Path, base: SavedRun, run: SavedRun, set_name: str, name: str
) -> dict[str, Any]:
    path = texts_path(folder, set_name, run.result.texts[set_name])
    if not path.exists():
        return {"summary": f"{path.name} is missing: there is no text to show.", "sentences": []}
    texts = read_columns(path)
    kind = name.rpartition(".")[2]
    paths = [translations_path(folder, side.stem, set_name) for side in (base, run)]
    first, second = (
        column_of(read_columns(path_of_run), name, path_of_run) for path_of_run in paths
    )
    compared = compare_sentences(
        column_of(texts, "source.raw", path),
        first,
        second,
        column_of(texts, f"reference1.{kind}", path),
        tokenized=kind == "txt",
    )
    differing = rank_by_gain([sentence for sentence in compared if not sentence.is_same])
    if not differing:
        return {"summary": "All translations are the same.", "sentences": []}
    chosen = differing
    if len(differing) > MAX_SENTENCES:
        half = MAX_SENTENCES // 2
        chosen = differing[:half] + differing[-half:]
    which = "They are shown"
    if chosen != differing:
        which = f"The {len(chosen)} with the largest differences of sentence chrF are shown"
    summary = (
        f"{len(differing):,} of {len(compared):,} translations differ. {which}, the largest gain "
        "of sentence chrF first. Words that only one translation has are underlined."
    )
    return {"summary": summary, "sentences": [_sentence(sentence) for sentence in chosen]}


def _sentence(sentence: ComparedSentence) -> dict[str, Any]:
    first, second = diff_words(sentence.first, sentence.second)
    return {
        "line": sentence.line,
        "source": sentence.source,
        "reference": sentence.reference,
        "gain": round(sentence.gain, 1),
        "first": _spans(first),
        "second": _spans(second),
    }


def _spans(spans: list[DiffSpan]) -> list[tuple[str, bool]]:
    """Return text and whether both translations have it; the space before a span is shared."""
    return [
        part for span in spans for part in ((span.space, True), (span.text, span.same)) if part[0]
    ]
