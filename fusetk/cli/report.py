"""``fusetk report``."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fusetk.cli.tables import NONE, show
from fusetk.errors import CheckpointError, ConfigError, DataError, FusetkError
from fusetk.reporting import measured
from fusetk.reporting.measured import Column, Mean, Run

if TYPE_CHECKING:
    from fusetk.recipe import PaperConfig, Recipe

EXAMPLE = (
    "Example: fusetk report recipes/mlrf/iwslt14_deen --runs runs --checkpoint best --markdown"
)
SECTIONS = ("data", "model", "training", "decoding")  # of a config, which decide a score
FILES = ("train", "valid", "test")  # keys of the section data that name files
MARKS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


class Count(NamedTuple):
    """The parameters of a recipe's model."""

    total: int
    sizes: tuple[int, int]  # source and target entries of the vocabularies
    whose: str  # vocabularies: paper, runs or data


@dataclass(eq=False)
class Row:
    """A recipe that stands for a row of a paper's table, and its runs."""

    path: Path
    recipe: "Recipe"
    paper: "PaperConfig"
    runs: list[Run] = field(default_factory=list)
    count: Count | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.paper.table, str(self.paper.row)

    def printed(self, set_name: str | None) -> float | None:
        """BLEU in the paper, of a set where the paper names several."""
        bleu = self.paper.bleu
        if isinstance(bleu, dict):
            return bleu.get(set_name) if set_name is not None else None
        return bleu if set_name is None else None

    @property
    def adds_up(self) -> bool | None:
        """Whether the printed parameters are those counted at the paper's vocabulary; None where that cannot be said."""
        from fusetk.cli.describe import agree

        if self.count is None or self.count.whose != "paper" or self.paper.parameters is None:
            return None
        return agree(self.paper.parameters, self.count.total)


@dataclass
class Table:
    """Rows of one paper's table, and what is shown of them."""

    title: str
    rows: list[Row]
    columns: list[Column]

    @property
    def runs(self) -> list[Run]:
        return [run for row in self.rows for run in row.runs]

    @property
    def printed_sets(self) -> list[str | None]:
        """Test sets whose BLEU the paper prints; None stands for the one that needs no name."""
        sets: dict[str | None, None] = {}
        for row in self.rows:
            sets.update(
                dict.fromkeys(
                    row.paper.bleu
                    if isinstance(row.paper.bleu, dict)
                    else [None]
                    if row.paper.bleu is not None
                    else []
                )
            )
        return list(sets)


@click.command("report", epilog=EXAMPLE)
@click.argument(
    "recipes", metavar="RECIPE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--runs",
    "folders",
    metavar="DIR",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A run folder, or a folder to search for them; repeatable.",
)
@click.option(
    "--set-name",
    "sets",
    metavar="NAME",
    multiple=True,
    help="Only scores of this test set; repeatable, as are the next two.",
)
@click.option(
    "--checkpoint",
    "checkpoints",
    metavar="LABEL",
    multiple=True,
    help="Only scores of this checkpoint, such as best.",
)
@click.option(
    "--metric",
    "metrics",
    metavar="NAME",
    multiple=True,
    help="Only scores by this metric, such as multi-bleu.",
)
@click.option("--markdown", is_flag=True, help="Print a table in Markdown.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    recipes: tuple[Path, ...],
    folders: tuple[Path, ...],
    sets: tuple[str, ...],
    checkpoints: tuple[str, ...],
    metrics: tuple[str, ...],
    markdown: bool,
    as_json: bool,
) -> None:
    """Print the table of the paper that the RECIPEs stand for, with what runs measured beside it.

    RECIPE is a config, or a folder with configs; those without a row of a table (`paper.row`) are passed over. A run belongs
    to the row that its own config names. Scores are those that `fusetk score --run` noted: mean, sample standard deviation
    over the runs of a row, in brackets how many; Δ is the difference to the table's first row.

    Lines under the table name the runs that differ from each other or from their recipes. A run may
    keep its files in another folder than its recipe, and may change what it keeps, logs and saves.
    Other names of training, validation or test files are differences.
    """
    if markdown and as_json:
        raise click.UsageError("--markdown and --json exclude each other")
    doubts: list[str] = []
    rows = _rows(recipes)
    strangers = _assign(rows, folders, doubts)
    for row in rows:
        row.count = _parameters(row)
    tables = [
        Table(title, members, _columns(members)) for title, members in _by_table(rows).items()
    ]
    _choose(tables, {"--set-name": sets, "--checkpoint": checkpoints, "--metric": metrics})
    for doubt in doubts:
        click.echo(f"warning: {doubt}", err=True)
    if as_json:
        document = {
            "tables": [_plain_values(table) for table in tables],
            "strangers": strangers,
            "warnings": doubts,
        }
        click.echo(json.dumps(document, ensure_ascii=False, indent=1))
        return
    for i, table in enumerate(tables):
        if i:
            click.echo()
        show(table.title, *_cells(table), _lines(table), markdown)
    for folder, number in strangers.items():
        click.echo(
            f"{number} run{'s' * (number > 1)} in {folder} belong{'s' * (number == 1)} to no row here",
            err=True,
        )


# Rows and runs -------------------------------------------------------------------------------------------------------


def _rows(paths: Iterable[Path]) -> list[Row]:
    """The rows that configs stand for, in the order of their tables; raises ConfigError when there is none, or one twice."""
    from fusetk import config as configs
    from fusetk import recipe

    found: dict[tuple[str, str], Row] = {}
    for path in _files(paths):
        paper = configs.load(path).values.get("paper")
        if not isinstance(paper, dict) or paper.get("row") is None:
            continue
        one = recipe.load(path)
        assert one.paper is not None
        row = Row(path, one, one.paper)
        if row.key in found:
            raise ConfigError(
                f"{found[row.key].path} and {path} both stand for the row {row.key[1]!r} of {row.key[0]}: give one of them"
            )
        found[row.key] = row
    if not found:
        raise ConfigError(
            f"{', '.join(map(str, paths))}: no config here has a paper.row, so there is no row to report"
        )
    return sorted(
        found.values(), key=lambda row: (row.paper.line is None, row.paper.line or 0)
    )  # otherwise as given


def _files(paths: Iterable[Path]) -> list[Path]:
    """Config files as they are given, and those in folders, each once."""
    found: dict[Path, Path] = {}
    for path in paths:
        below = (
            sorted(p for ending in ("yaml", "yml") for p in path.rglob(f"*.{ending}"))
            if path.is_dir()
            else [path]
        )
        for file in below:
            found.setdefault(file.resolve(), file)
    return list(found.values())


def _by_table(rows: Iterable[Row]) -> dict[str, list[Row]]:
    tables: dict[str, list[Row]] = {}
    for row in rows:
        tables.setdefault(row.paper.table, []).append(row)
    return tables


def _assign(rows: Sequence[Row], folders: Iterable[Path], doubts: list[str]) -> dict[str, int]:
    """Give each run in the folders to its row; returns how many in each folder have none here."""
    by_key = {row.key: row for row in rows}
    seen: set[Path] = set()
    strangers: dict[str, int] = {}
    for folder in folders:
        if not folder.is_dir():
            raise CheckpointError(
                f"{folder} is no folder of runs: "
                + ("it is a file" if folder.exists() else "there is no such folder")
            )
        runs = measured.collect(folder, doubts)
        if not runs:
            doubts.append(f"there is no run folder in {folder}")
        for run in runs:
            if run.folder.resolve() in seen:
                continue
            seen.add(run.folder.resolve())
            row = by_key.get((str(run.setting("paper", "table")), str(run.setting("paper", "row"))))
            if row is None:
                strangers[str(folder)] = strangers.get(str(folder), 0) + 1
            else:
                row.runs.append(run)
    return strangers


def _parameters(row: Row) -> Count | None:
    """Parameters at the vocabulary of the paper, of the row's runs, or of the prepared data; None where no size is known."""
    from fusetk.cli.describe import count_parameters, vocabulary_sizes
    from fusetk.data.pipeline import Pipeline

    if row.paper.vocabulary:
        whose, sizes = "paper", row.paper.vocabulary
    else:
        try:
            text = next(
                (run.folder / "text" for run in row.runs if (run.folder / "text").is_dir()), None
            )
            pipeline = Pipeline.load(text) if text else None
            sizes = (
                (len(pipeline.source_vocab), len(pipeline.target_vocab))
                if pipeline
                else vocabulary_sizes(row.recipe)
            )
            whose = "runs" if pipeline else "data"
        except FusetkError:
            return None
    return Count(sum(count_parameters(row.recipe, sizes).values()), sizes, whose)


def _columns(rows: Sequence[Row]) -> list[Column]:
    sets = [name for row in rows if isinstance(row.paper.bleu, dict) for name in row.paper.bleu]
    return measured.columns([run for row in rows for run in row.runs], list(dict.fromkeys(sets)))


def _choose(tables: Iterable[Table], wanted: Mapping[str, Sequence[str]]) -> None:
    """Keep the columns that options name; raises DataError where a name fits no score at all."""
    tables = list(tables)
    for place, (option, names) in enumerate(wanted.items()):
        known = dict.fromkeys(column[place] for table in tables for column in table.columns)
        unknown = [name for name in names if name not in known]
        if unknown and known:
            raise DataError(
                f"{option} {unknown[0]}: no run here has such a score; noted are {', '.join(known)}"
            )
        for table in tables:
            table.columns = [
                column for column in table.columns if not names or column[place] in names
            ]


# What is shown -------------------------------------------------------------------------------------------------------


def _heads(table: Table) -> tuple[list[str], str]:
    """What tells each measured column from the others, and what is the same for all."""
    differing = [len({column[place] for column in table.columns}) > 1 for place in range(3)]
    heads = [
        " ".join(
            ["measured", *(part for part, shown in zip(column, differing, strict=True) if shown)]
        )
        for column in table.columns
    ]
    common = (
        [part for part, shown in zip(table.columns[0], differing, strict=True) if not shown]
        if table.columns
        else []
    )
    return heads, ", ".join(common)


def _cells(table: Table) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of the table."""
    heads, columns = ["", "parameters", "ours"], [_names(table), *_parameter_cells(table)]
    for name in table.printed_sets:
        heads += [f"BLEU {name}" if name else "BLEU", "Δ"]
        columns += _printed_cells([row.printed(name) for row in table.rows])
    for head, column in zip(_heads(table)[0], table.columns, strict=True):
        heads += [head, "Δ"]
        means = [measured.mean(row.runs, column) for row in table.rows]
        columns += [
            [str(mean) if mean else NONE for mean in means],
            _differences([mean and mean.value for mean in means], 2),
        ]
    trained = {measured.updates(run) for run in table.runs}
    if len(trained) > 1:
        heads.append("updates")
        columns.append(
            [
                " / ".join(dict.fromkeys(measured.updates(run) or "?" for run in row.runs)) or NONE
                for row in table.rows
            ]
        )
    return heads, [list(cells) for cells in zip(*columns, strict=True)]


def _names(table: Table) -> list[str]:
    """The rows, with the mark of a footnote where one has it."""
    marked = _marked(table)
    return [
        row.key[1] + (_mark(marked.index(row) + 1) if row in marked else "") for row in table.rows
    ]


def _marked(table: Table) -> list[Row]:
    """The rows that have a footnote."""
    return [row for row in table.rows if row.adds_up is False or row.paper.note]


def _mark(number: int) -> str:
    return str(number).translate(MARKS)


def _parameter_cells(table: Table) -> list[list[str]]:
    """As printed, and ours: in millions where the paper has millions."""
    ours = [f"{row.count.total / 1e6:.2f}M" if row.count else NONE for row in table.rows]
    return [[row.paper.parameters or NONE for row in table.rows], ours]


def _printed_cells(values: Sequence[float | None]) -> list[list[str]]:
    """BLEU with as many digits as the paper has, and the differences."""
    digits = max(
        (len(repr(float(value)).partition(".")[2]) for value in values if value is not None),
        default=0,
    )
    return [
        [f"{value:.{digits}f}" if value is not None else NONE for value in values],
        _differences(values, digits),
    ]


def _differences(values: Sequence[float | None], digits: int) -> list[str]:
    """To the first value, which has none."""
    first, *others = values
    return [
        "",
        *(
            f"{value - first:+.{digits}f}" if value is not None and first is not None else NONE
            for value in others
        ),
    ]


def _lines(table: Table) -> list[str]:
    """What stands under the table: footnotes, what the columns are, and remarks."""
    found = []
    for number, row in enumerate(_marked(table), 1):
        count = f"{row.count.total:,}" if row.count else NONE
        wrong = (
            [f"{row.paper.parameters} is printed, the system that is described counts {count}"]
            if row.adds_up is False
            else []
        )
        found.append(
            f"{_mark(number)} " + "; ".join([*wrong, *([row.paper.note] if row.paper.note else [])])
        )
    found += _vocabularies(table)
    if table.columns:
        common = _heads(table)[1]
        over = "mean ± sample standard deviation over seeds (runs)"
        found.append(f"measured: {common}; {over}" if common else f"measured: {over}")
    return [*found, *_remarks(table)]


def _vocabularies(table: Table) -> list[str]:
    """At which vocabularies parameters are counted."""
    groups: dict[str, list[Row]] = {}
    names = {
        "paper": "the paper's vocabulary",
        "runs": "the runs' vocabulary",
        "data": "the prepared data's vocabulary",
    }
    for row in table.rows:
        if row.count:
            source, target = row.count.sizes
            groups.setdefault(
                f"at {names[row.count.whose]} of {source:,} and {target:,}", []
            ).append(row)
    if len(groups) == 1:
        return [f"ours: parameters counted {next(iter(groups))}"]
    return [
        f"ours: parameters counted {how}: {', '.join(row.key[1] for row in rows)}"
        for how, rows in groups.items()
    ]


def _remarks(table: Table) -> list[str]:
    """Where runs are not alike, not like their recipes, or have no score."""
    unscored = [
        run
        for run in table.runs
        if not any(measured.note_of(run, column) for column in table.columns)
    ]
    without = [f"without a score here: {measured.named(unscored)}"] if unscored else []
    return [*measured.remarks(table.runs, table.columns), *_departures(table), *without]


def _departures(table: Table) -> list[str]:
    """Runs whose config is not that of their recipe; each set of changes once."""
    from fusetk.recipe import NEUTRAL_KEYS

    free = re.compile("|".join([r"training\.seed", *NEUTRAL_KEYS]))
    groups: dict[str, list[Run]] = {}
    for row in table.rows:
        theirs = _without_folders(row.recipe.model_dump(mode="json"))
        for run in row.runs:
            mine = _without_folders(run.config)
            changes = [c for part in SECTIONS for c in _changes(mine.get(part), theirs[part], part)]
            told = [f"{place} {change}" for place, change in changes if not free.fullmatch(place)]
            if told:
                groups.setdefault(", ".join(told), []).append(run)
    return [
        f"not as in their recipes: {measured.named(runs)}: {changes}"
        for changes, runs in groups.items()
    ]


def _without_folders(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with base names in place of paths, since a text may lie anywhere."""
    data = config.get("data")
    if not isinstance(data, dict):
        return dict(config)
    named = {key: _base_names(data[key]) for key in FILES if key in data}
    return {**config, "data": {**{key: data[key] for key in data if key != "folder"}, **named}}


def _base_names(value: Any) -> Any:
    """The base name of each path in a string, a list or a dict."""
    if isinstance(value, dict):
        return {key: _base_names(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_base_names(inner) for inner in value]
    return Path(value).name if isinstance(value, str) else value


def _changes(mine: Any, theirs: Any, place: str) -> list[tuple[str, str]]:
    """Each key that both configs set to different values, and the difference.

    A key that only one config has is newer or older than the other's fusetk, except below
    `data.valid` and `data.test`.
    """
    if isinstance(mine, dict) and isinstance(theirs, dict) and place != "data.valid":
        keys = (
            list(mine | theirs) if place == "data.test" else [key for key in mine if key in theirs]
        )
        return [
            change
            for key in keys
            for change in _changes(mine.get(key), theirs.get(key), f"{place}.{key}")
        ]
    if (
        isinstance(mine, list)
        and isinstance(theirs, list)
        and not place.startswith(("data.valid", "data.test"))
    ):
        if len(mine) != len(theirs):
            return [(place, f"has {len(mine)} entries, not {len(theirs)}")]
        return [
            change
            for i, pair in enumerate(zip(mine, theirs, strict=True))
            for change in _changes(*pair, f"{place}.{i}")
        ]
    return [] if mine == theirs else [(place, f"{json.dumps(mine)}, not {json.dumps(theirs)}")]


# For programs --------------------------------------------------------------------------------------------------------


def _plain_values(table: Table) -> dict[str, Any]:
    """A table for programs."""
    baseline = table.rows[0]
    rows = []
    for row in table.rows:
        scores = [
            _score(column, measured.mean(row.runs, column), measured.mean(baseline.runs, column))
            for column in table.columns
        ]
        rows.append(
            {
                "row": row.paper.row,
                "line": row.paper.line,
                "recipe": str(row.path),
                "parameters": {
                    "printed": row.paper.parameters,
                    "ours": row.count and row.count.total,
                    "vocabulary": row.count and row.count.sizes,
                    "vocabulary_of": row.count and row.count.whose,
                    "adds_up": row.adds_up,
                },
                "note": row.paper.note,
                "printed": row.paper.bleu,
                "measured": [score for score in scores if score],
                "runs": [_run_values(run) for run in row.runs],
            }
        )
    return {"table": table.title, "rows": rows, "remarks": _remarks(table)}


def _score(column: Column, mean: Mean | None, first: Mean | None) -> dict[str, Any] | None:
    if mean is None:
        return None
    values = {"mean": mean.value, "deviation": mean.deviation, "runs": mean.runs}
    return {**column._asdict(), **values, "difference": mean.value - first.value if first else None}


def _run_values(run: Run) -> dict[str, Any]:
    setting = {
        "seed": run.setting("training", "seed"),
        "precision": run.setting("training", "precision"),
    }
    scores = [note._asdict() for note in run.notes]
    return {
        "folder": str(run.folder),
        **setting,
        "updates": run.updates,
        "data": run.data,
        "scores": scores,
    }
