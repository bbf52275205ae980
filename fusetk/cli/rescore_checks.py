"""Checks of the combination of options of ``fusetk rescore``."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from fusetk.cli.parameters import flag_of

if TYPE_CHECKING:
    from fusetk.evaluation.rescore_rows import RescoreInputs

# For each option that names an input: the number of arguments that it needs, and the error for
# another number.
NUM_ARGUMENTS = {
    "": (2, "give SRC and TGT, or omit both: standard input then has lines of SRC, tab, TGT"),
    "--tsv": (0, "--tsv excludes other files: omit them"),
    "--n-best": (1, "--n-best needs exactly one other file, the source text: give SRC"),
    "--json-lines": (
        0,
        "--json-lines has the source tokens, so it excludes other files: omit them",
    ),
}


def named_files(
    arguments: tuple[str, ...], source: str | None, target: str | None
) -> tuple[str, ...]:
    """Return the names of the files: SRC, TGT and any further arguments.

    ``source`` and ``target`` are the values of -i and -r. The next argument replaces a value that
    is None. Raises UsageError if TGT has no SRC.
    """
    remaining = list(arguments)
    if source is None and remaining:
        source = remaining.pop(0)
    if target is None and remaining:
        target = remaining.pop(0)
    if source is None and target is not None:
        raise click.UsageError("--reference needs the source text: give SRC, too")
    return tuple(name for name in (source, target, *remaining) if name is not None)


def checked_inputs(inputs: "RescoreInputs") -> "RescoreInputs":
    """Return the inputs, with standard input as the default.

    Raises UsageError if the files and options are not exactly one input.
    """
    files = {"--tsv": inputs.tsv, "--n-best": inputs.n_best, "--json-lines": inputs.json_lines}
    flags = [flag for flag, name in files.items() if name is not None]
    if len(flags) > 1:
        raise click.UsageError(f"{flags[0]} and {flags[1]} are two inputs: give one of them")
    if not inputs.names:
        return inputs._replace(tsv="-")
    count, error = NUM_ARGUMENTS["".join(flags)]
    if len(inputs.files) != count:
        raise click.UsageError(error)
    if inputs.names.count("-") > 1:
        raise click.UsageError("standard input can be only one of the files")
    return inputs


def check_options(inputs: "RescoreInputs", values: Mapping[str, Any]) -> None:
    """Raise UsageError for options that have no effect with the others."""
    is_list = bool(inputs.n_best or inputs.json_lines)
    if is_list and (values["word_scores"] or (values["as_json"] and not values["summary"])):
        raise click.UsageError(
            "--word-scores and --json are for pairs of lines, not for --n-best or --json-lines"
        )
    source_of = click.get_current_context().get_parameter_source
    names = ("normalize", "no_eos", "word_scores", "feature")
    changed = [name for name in names if source_of(name) is not ParameterSource.DEFAULT]
    if values["summary"] and changed:
        raise click.UsageError(
            f"{flag_of(changed[0])} does not change the summary: omit it, or omit --summary"
        )
    if values["penalty"] and not values["normalize"]:
        raise click.UsageError(
            "--penalty has no effect without -n or with -n 0: give -n an exponent above 0"
        )
    if "feature" in changed and not is_list:
        raise click.UsageError(
            "--feature has no effect without --n-best or --json-lines: add one of them"
        )
