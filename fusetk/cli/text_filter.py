"""``fusetk text filter``."""

import os
from pathlib import Path

import click

from fusetk.cli.common_options import inform
from fusetk.cli.parameters import FilePath, FiniteRange
from fusetk.data.text import FilePair, check_inputs_and_output
from fusetk.errors import DataError, quantity


@click.command("filter")
@click.argument("source", type=FilePath(path_type=Path))
@click.argument("target", type=FilePath(path_type=Path))
@click.option(
    "-o",
    "--output",
    "prefix",
    required=True,
    metavar="PREFIX",
    help="Write files named PREFIX and the suffixes of SOURCE and TARGET.",
)
@click.option(
    "--min-length",
    default=1,
    show_default=True,
    type=click.IntRange(0),
    help="Smallest number of tokens on either side.",
)
@click.option(
    "--max-length", type=click.IntRange(1), help="Largest number of tokens on either side."
)
@click.option(
    "--max-ratio",
    type=FiniteRange(1),
    help="Largest ratio of the longer side's length to the shorter side's.",
)
@click.option("--deduplicate", is_flag=True, help="Drop pairs that equal an earlier pair.")
def filter_pairs(
    source: Path, target: Path, prefix: str, deduplicate: bool, **limits: float | None
) -> None:
    """Drop pairs of lines of SOURCE and TARGET by length.

    The command prints the number of dropped pairs for each reason.
    """
    from pydantic import ValidationError

    from fusetk.data.filter import filter_files
    from fusetk.data.steps.deduplicate import Deduplicate
    from fusetk.data.steps.filter import Filter

    try:
        step = Filter.model_validate({"step": "filter", **limits})
    except ValidationError as error:  # the options do not suit each other
        raise click.UsageError(str(error.errors()[0]["ctx"]["error"])) from None
    unique = [Deduplicate(step="deduplicate")] if deduplicate else []
    if not os.path.basename(prefix):
        raise click.UsageError(
            f"-o {prefix!r}: the names of the files would be their suffixes: add a name"
        )
    outputs = _output_paths(prefix, source, target)
    num_kept, dropped = filter_files(FilePair(source, target), outputs, step, unique)
    reasons = "".join(f", {count} {reason}" for reason, count in sorted(dropped.items()))
    inform(f"{quantity(num_kept + dropped.total(), 'pair')} in, {num_kept:,} out{reasons}")


def _output_paths(prefix: str, source: Path, target: Path) -> FilePair:
    """Return the prefix with the suffixes of the inputs, without .gz.

    Raises DataError if an input cannot be read, or if a file would be both read and written.
    """
    first, second = (
        Path(prefix + Path(path.name.removesuffix(".gz")).suffix) for path in (source, target)
    )
    if first == second or {first, second} & {source, target}:
        raise DataError(
            f"-o {prefix} and the suffixes of the inputs give {first} and {second}; "
            "the outputs must differ from each other and from the inputs: give another prefix"
        )
    for path in (first, second):
        check_inputs_and_output((source, target), path)
    return FilePair(first, second)
