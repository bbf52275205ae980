"""``fusetk dataset``."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusetk.cli.common_options import inform
from fusetk.cli.parameters import FilePath
from fusetk.errors import ConfigError, join_names

if TYPE_CHECKING:
    from fusetk.datasets.table import DatasetConfig

EXAMPLE = "Example: fusetk dataset iwslt14-de-en --raw work/iwslt14_deen/raw"


@click.command("dataset", epilog=EXAMPLE)
@click.argument("name", required=False)
@click.option(
    "--raw",
    metavar="DIR",
    type=FilePath(file_okay=False, path_type=Path),
    help="Folder for the raw text, which `fusetk run --raw` reads. Without it, the command lists "
    "the files and texts of the data set.",
)
@click.option(
    "--files",
    metavar="DIR",
    type=FilePath(file_okay=False, path_type=Path),
    help="Existing folder of the archives, or of their unpacked files. Missing archives are "
    "downloaded into it. Default: DIR/archives, in the folder of --raw.",
)
@click.option(
    "--text",
    "texts",
    multiple=True,
    metavar="NAME",
    help="Make only this text, such as a test set; repeatable. Default: all texts.",
)
@click.option("--no-fetch", is_flag=True, help="Do not download anything.")
@click.option(
    "--any-data", is_flag=True, help="Accept texts that do not have their published lengths."
)
def command(
    name: str | None,
    raw: Path | None,
    files: Path | None,
    texts: tuple[str, ...],
    no_fetch: bool,
    any_data: bool,
) -> None:
    """Make the raw text of the published data set NAME, or list all data sets.

    Archives are downloaded where they are public, and an interrupted download continues. Sizes and
    checksums are compared where they are published. The text is unpacked and extracted as published
    preparations do it. Cleaning, such as limits of length, is part of `fusetk prep`. A set with
    several references becomes SET.en, SET.en1, and so on. Existing texts are not made again.
    """
    from fusetk.datasets import table
    from fusetk.datasets.make import ARCHIVES, make

    options = {"--files": files, "--text": texts, "--no-fetch": no_fetch, "--any-data": any_data}
    _check(name, raw, options)
    if name is None:
        for known in table.names():
            click.echo(f"{known:<22}{table.read(known).title}")
        return
    dataset = table.read(name, texts)
    if raw is None:
        _describe(dataset)
        return
    folder = files or raw / ARCHIVES
    if files is not None and not files.is_dir():
        raise ConfigError(f"--files {files}: the folder does not exist; make it first")
    counts = make(dataset, raw, folder, not no_fetch, inform, any_data)
    if not counts:
        inform(f"{raw}: all texts exist, nothing to do")
    elif dataset.note:
        inform(f"note: {dataset.note}")


def _check(name: str | None, raw: Path | None, options: Mapping[str, object]) -> None:
    """Raise ConfigError for options without the data set or the folder that they need."""
    if name is None and raw is not None:
        raise ConfigError("--raw needs a data set: fusetk dataset NAME --raw DIR")
    given_options = [option for option, value in options.items() if value]
    if given_options and raw is None:
        verb = "has" if len(given_options) == 1 else "have"
        raise ConfigError(
            f"{join_names(given_options)} {verb} no effect without --raw: give the folder of the "
            "text with --raw"
        )


def _describe(dataset: "DatasetConfig") -> None:
    """Print the files and texts of a data set."""
    click.echo(dataset.title)
    if dataset.note:
        click.echo(f"note: {dataset.note}")
    for archive in dataset.archives:
        size = "size not published" if archive.size is None else f"{archive.size:,} bytes"
        known = archive.sha256 or archive.md5 or "no published checksum"
        click.echo(f"file {archive.file}: {archive.url or archive.note}; {size}; {known}")
    for text in dataset.texts:
        pairs = "" if text.pairs is None else f", {text.pairs:,} pairs"
        click.echo(f"text {text.name}: {text.source} and {text.target}, {text.format}{pairs}")
