"""Options that several commands share."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from fusetk import DEVICE

# The minus sign of a negative number, after `--option=` or alone.
_NEGATIVE = re.compile(r"^(--[a-z-]+=|)-(?=[0-9.])")

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # not Linux


def at_most_processors(
    context: click.Context, parameter: click.Parameter, value: int | None
) -> int | None:
    """Limit a number of threads to the number of processors; more threads would be slower."""
    most = processors()
    if value is None or value <= most:
        return value
    click.echo(
        f"warning: --threads {value} is limited to {most}, "
        "the number of processors that this process may use",
        err=True,
    )
    return most


# The options --------------------------------------------------------------------------------------

SET_HELP = "Change a key of the config, for example training.seed=3. Repeatable; the last one wins."

config_argument: Decorator = click.argument("config", type=click.Path(dir_okay=False))
set_option: Decorator = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help=SET_HELP
)
models_option: Decorator = click.option(
    "-m",
    "--model",
    "models",
    metavar="RUN",
    multiple=True,
    required=True,
    help="A run folder (its best checkpoint is used) or a checkpoint. Repeat the option for an"
    " ensemble; all its models must have the same vocabularies.",
)
precision_option: Decorator = click.option(
    "--precision",
    type=click.Choice(["fp32", "bf16", "int8"]),
    default="fp32",
    show_default=True,
    help="Precision of the weights. With bf16, the output projection stays fp32. int8 is for"
    " Transformers on CPU: the inputs of products are rounded to 8 bits, too. Log-probabilities are"
    " always fp32.",
)
raw_option: Decorator = click.option(
    "--raw",
    is_flag=True,
    help="Use the raw weights instead of their moving average (runs trained with training.ema).",
)
device_option: Decorator = click.option(
    "-d", "--device", default=DEVICE, show_default=True, help="auto, cpu, cuda or cuda:N."
)
threads_option: Decorator = click.option(
    "--threads",
    type=click.IntRange(1),
    callback=at_most_processors,
    help="Number of CPU threads, at most the number of processors that this process may use."
    " Default: the number of cores.",
)
quiet_option: Decorator = click.option(
    "-q", "--quiet", is_flag=True, help="Do not print progress to standard error."
)


class Exponent(click.ParamType):
    """The exponent of a length penalty, from 0 to 10."""

    name = "ALPHA"

    def __init__(self, hint: str):
        """``hint`` is added to the error about a value that is not a number."""
        self.hint = hint

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> float:
        try:
            exponent = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number; {self.hint}", parameter, context)
        if not 0 <= exponent <= 10:
            self.fail(f"{value} is not between 0 and 10", parameter, context)
        return exponent


class Sections(click.Command):
    """A command whose help groups its options under headings.

    No option of such a command may start with a digit: -1 is always a value.
    """

    def __init__(self, *arguments: Any, sections: Mapping[str, Sequence[str]], **settings: Any):
        """``sections`` maps each heading to the names of its parameters.

        Parameters without a heading, and ``--help``, are listed under the last one.
        """
        super().__init__(*arguments, **settings)
        self.sections = sections

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        # A space before a negative number prevents click from parsing it as an option.
        return super().parse_args(context, [_NEGATIVE.sub(r"\1 -", arg) for arg in args])

    def by_section(self, context: click.Context) -> dict[str, list[click.Option]]:
        """Return the options under each heading."""
        options = {
            option.name: option
            for option in self.get_params(context)
            if isinstance(option, click.Option)
        }
        sections = {
            title: [options.pop(name) for name in names] for title, names in self.sections.items()
        }
        last = next(reversed(sections))
        sections[last] += options.values()
        return sections

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        for title, options in self.by_section(context).items():
            records = [option.get_help_record(context) for option in options]
            with formatter.section(title):
                formatter.write_dl([record for record in records if record])
