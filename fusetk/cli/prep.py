"""``fusetk prep``: convert raw parallel text to ids."""

import time
from collections.abc import Callable
from pathlib import Path

import click

from fusetk.cli.common_options import inform, is_quiet
from fusetk.cli.options import config_argument, set_option
from fusetk.cli.parameters import check_paths
from fusetk.cli.prep_output import print_table, warn_of_long_sentences
from fusetk.cli.recipes import load_recipe
from fusetk.cli.tables import print_json
from fusetk.data.config import DataConfig, load_data
from fusetk.data.pipeline import SIDES
from fusetk.data.prepare import PreparedFolder, prepare
from fusetk.display import Display


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
        prepared = prepare(data, jobs, force, inform, validate)
    seconds = time.perf_counter() - start
    folder = prepared.folder
    if folder.is_relative_to(Path.cwd()):
        folder = folder.relative_to(Path.cwd())
    if not prepared.made:
        inform(f"{folder}: nothing changed, nothing to do")
    if not is_quiet():
        print_table(prepared)
    warn_of_long_sentences(prepared)
    if prepared.made:
        words = _words_of_made_splits(prepared)
        speed = f" ({words / seconds:,.0f} words/s)" if words else ""
        inform(f"{folder}: made {', '.join(prepared.made)} in {seconds:.1f} s{speed}")
    if as_json:
        keys = ("fingerprint", "splits", "vocabulary", "bpe")
        print_json({key: prepared.data[key] for key in keys})


def _words_of_made_splits(prepared: PreparedFolder) -> int:
    """Return the number of words, on both sides, of the splits whose words were made now."""
    return sum(
        counts[side]["words"]
        for name, counts in prepared.splits.items()
        if f"words.{name}" in prepared.made
        for side in SIDES
    )
