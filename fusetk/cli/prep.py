"""``fusetk prep``: convert raw parallel text to ids."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import click

from fusetk.cli.common_options import inform, is_quiet
from fusetk.cli.options import config_argument, set_option
from fusetk.cli.parameters import check_paths
from fusetk.cli.recipes import load_recipe
from fusetk.cli.tables import print_complete, print_json
from fusetk.data.config import DataConfig, load_data
from fusetk.data.prepare import Manifest, prepare
from fusetk.display import Display

LONG_SENTENCE = 1000  # tokens; a longer training sentence is a warning


@click.command("prep")
@config_argument
@set_option
@click.option(
    "--jobs",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="Number of worker processes. Short texts are prepared without them.",
)
@click.option("--force", is_flag=True, help="Make all files again, even if nothing changed.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the counts as JSON to standard output."
)
def command(config: str, overrides: tuple[str, ...], jobs: int, force: bool, as_json: bool) -> None:
    """Prepare the text that CONFIG names: tokenise, filter, learn BPE and vocabularies, write ids.

    A second run makes only the files whose inputs or settings changed, and prints what changed. If
    nothing changed, only the section `data` of CONFIG is checked.
    """

    data = load_data(config, overrides)
    run(data, jobs, force, as_json, validate=lambda: load_recipe(config, overrides))


def run(
    data: DataConfig,
    jobs: int,
    force: bool,
    as_json: bool = False,
    validate: Callable[[], object] = lambda: None,
) -> None:
    """Prepare the data; print changes and a table to standard error, JSON to standard output.

    ``validate`` is called before the first file is made.
    """
    check_paths(data.folder)
    start = time.perf_counter()
    with Display(is_quiet()):
        manifest = prepare(data, jobs, force, inform, validate)
    seconds = time.perf_counter() - start
    folder = manifest.folder
    if folder.is_relative_to(Path.cwd()):
        folder = folder.relative_to(Path.cwd())
    if not manifest.made:
        inform(f"{folder}: nothing changed, nothing to do")
    if not is_quiet():
        print_table(manifest)
    for side in ("source", "target"):
        longest = manifest.splits["train"][side].get("longest", 0)
        if longest > LONG_SENTENCE:
            language = manifest.data["languages"][side]
            click.echo(
                f"warning: the longest {language} sentence of train has {longest:,} tokens, so "
                "training may need much memory and time: drop long pairs by the step "
                "{step: filter, max_length: 175} in data.steps",
                err=True,
            )
    if manifest.made:
        words = sum(
            counts[side]["words"]
            for name, counts in manifest.splits.items()
            if f"words.{name}" in manifest.made
            for side in ("source", "target")
        )
        speed = f" ({words / seconds:,.0f} words/s)" if words else ""
        inform(f"{folder}: made {', '.join(manifest.made)} in {seconds:.1f} s{speed}")
    if as_json:
        keys = ("fingerprint", "splits", "vocabulary", "bpe")
        print_json({key: manifest.data[key] for key in keys})


def print_table(manifest: Manifest) -> None:
    """Print a table of the splits, and the sizes of the vocabularies."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    languages = manifest.data["languages"]
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("split", "pairs in", "out", "dropped"):
        table.add_column(heading, justify="left" if heading in ("split", "dropped") else "right")
    for side in ("source", "target"):
        table.add_column(f"{languages[side]} tokens", justify="right")
        table.add_column("unknown", justify="right")
    for name, counts in manifest.splits.items():
        dropped = [f"{count:,} {reason}" for reason, count in counts["dropped"].items()]
        if counts.get("to_valid"):
            dropped.append(f"({counts['to_valid']:,} to valid)")
        cells = [
            escape(name),
            f"{counts['pairs_in']:,}",
            f"{counts['pairs_out']:,}",
            "\n".join(dropped) or "none",
        ]
        for side in ("source", "target"):
            cells += [f"{counts[side]['tokens']:,}", f"{counts[side]['unknown_rate']:.2%}"]
        table.add_row(*cells)
        if "segmentations" in counts:
            table.add_row(*_dropout_row(name, counts))
    print_complete(table, stderr=True)
    console = Console(stderr=True)
    sizes = manifest.data["vocabulary"]
    kind = "joint vocabulary" if sizes["joint"] else "vocabularies"
    entries = [f"{languages[side]} {sizes[side]:,}" for side in ("source", "target")]
    both = f"{sizes['source']:,}" if sizes["joint"] else ", ".join(entries)
    console.print(f"{kind}: {both} entries, 4 of them special", highlight=False)


def _dropout_row(name: str, counts: Mapping[str, Any]) -> list[str]:
    """Return the row of the means of the segmentations by BPE dropout.

    Percentages after the numbers of tokens compare them with the text without dropout.
    """
    cells = [f"{name}, BPE dropout", "", "", ""]
    for side in ("source", "target"):
        tokens, unknown = (
            mean(segmentation[side][key] for segmentation in counts["segmentations"])
            for key in ("tokens", "unknown_rate")
        )
        more = tokens / max(counts[side]["tokens"], 1) - 1
        cells += [f"{tokens:,.0f} ({more:+.1%})", f"{unknown:.2%}"]
    return cells
