"""The options of ``fusetk rescore``, and the checks of their combination."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from fusetk.cli.options import (
    Decorator,
    Exponent,
    device_option,
    models_option,
    precision_option,
    quiet_option,
    raw_option,
    threads_option,
)

if TYPE_CHECKING:
    from fusetk.evaluation.rescore_rows import RescoreInputs

# For each option that names an input: the number of arguments that it needs, and the error for
# another number.
NUM_ARGUMENTS = {
    "": (2, "give SRC and TGT, or no file to read lines of SRC, tab, TGT from standard input"),
    "--tsv": (0, "--tsv excludes other files: leave them out"),
    "--n-best": (1, "--n-best needs exactly one other file, the source text: give SRC"),
    "--json-lines": (
        0,
        "--json-lines has the source tokens, so it excludes other files: leave them out",
    ),
}


class Feature(click.ParamType):
    """The name of a feature in an n-best list."""

    name = "NAME"

    def convert(
        self, value: str, parameter: click.Parameter | None, context: click.Context | None
    ) -> str:
        if not re.fullmatch(r"[^\s=|]+", value):
            self.fail(
                f"{value!r} cannot be the name of a feature: remove spaces, = and |",
                parameter,
                context,
            )
        return value


options: Sequence[Decorator] = (
    click.argument("files", nargs=-1, metavar="[SRC [TGT]]"),
    models_option,
    click.option(
        "--tsv",
        metavar="FILE",
        help="File with lines of a source, a tab and a target; - is standard input, the default.",
    ),
    click.option(
        "--n-best",
        metavar="FILE",
        help="Moses n-best list of translations of SRC; it is printed with one more feature.",
    ),
    click.option(
        "--json-lines",
        metavar="FILE",
        help="Output of `fusetk decode --json`; it is printed with one more number.",
    ),
    click.option(
        "-o",
        "--output",
        metavar="FILE",
        default="-",
        help="File for the scores; standard output by default.",
    ),
    click.option(
        "--tokenized",
        is_flag=True,
        help="The text is already prepared like the training text of the run, except for the split "
        "into subwords.",
    ),
    click.option(
        "--word-scores",
        is_flag=True,
        help="Also print the tokens and their scores: a tab before each token, a space before its "
        "score.",
    ),
    click.option(
        "--no-end-mark",
        is_flag=True,
        help="Leave EOS out of the score and of the length that normalises it.",
    ),
    click.option(
        "-n",
        "--normalize",
        "--length-penalty",
        "normalize",
        type=Exponent("write -n 1 before a file, or -n after the files"),
        is_flag=False,
        flag_value=1.0,
        default=0.0,
        metavar="[ALPHA]",
        help="Divide scores by the length penalty with this exponent; 1 without a value. Without "
        "the option, scores are not divided.",
    ),
    click.option(
        "--penalty",
        type=click.Choice(["power", "gnmt"]),
        help="Form of the length penalty: length^ALPHA (power) or ((5 + length) / 6)^ALPHA (gnmt). "
        "Default: that of the run's config.",
    ),
    click.option(
        "--ensemble",
        type=click.Choice(["probability", "log"]),
        help="Values that an ensemble averages: probabilities, or log-probabilities (log).",
    ),
    click.option(
        "--feature",
        type=Feature(),
        default="Rescore",
        show_default=True,
        help="Name of the new feature of --n-best, or of the new number of --json-lines.",
    ),
    click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print JSON objects: id (from 0), score, normalized, tokens, and with --word-scores "
        "word_scores.",
    ),
    click.option(
        "--summary", is_flag=True, help="Print only the summary of the corpus, on standard output."
    ),
    click.option(
        "--batch-tokens",
        type=click.IntRange(1),
        metavar="N",
        default=8192,
        show_default=True,
        help="Number of tokens in a batch, both sides together.",
    ),
    precision_option,
    raw_option,
    device_option,
    threads_option,
    quiet_option,
)


def rescore_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add all options to the command."""
    for option in reversed(options):
        command = option(command)
    return command


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
    names = ("normalize", "no_end_mark", "word_scores", "feature")
    changed = [name for name in names if source_of(name) is not ParameterSource.DEFAULT]
    if values["summary"] and changed:
        flag = f"--{changed[0].replace('_', '-')}"
        raise click.UsageError(f"{flag} does not change the summary: leave it or --summary out")
    if values["penalty"] and not values["normalize"]:
        raise click.UsageError("--penalty has no effect without -n: give it, too")
    if "feature" in changed and not is_list:
        raise click.UsageError(
            "--feature has no effect without --n-best or --json-lines: give one of them, too"
        )
