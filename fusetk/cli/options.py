"""Options that several commands share."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from fusetk import DEVICE

_NEGATIVE = re.compile(r"^(--[a-z-]+=|)-(?=[0-9.])")

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # not Linux


def at_most_processors(
    context: click.Context, parameter: click.Parameter, value: int | None
) -> int | None:
    """A number of threads; with more threads than processors, threads wait for each other at every operation."""
    most = processors()
    if value is None or value <= most:
        return value
    click.echo(
        f"warning: --threads {value} is limited to {most}, the processors that this process may use",
        err=True,
    )
    return most


# The options --------------------------------------------------------------------------------------------------------

SET_HELP = "Change a key of the config, e.g. training.seed=3; repeatable, the last wins."

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
    help="A run folder (its best checkpoint) or a checkpoint; again for each further model of an ensemble, with the same vocabularies.",
)
precision_option: Decorator = click.option(
    "--precision",
    type=click.Choice(["fp32", "bf16"]),
    default="fp32",
    show_default=True,
    help="Of the model's weights, but for the map to the vocabulary and log-probabilities, which are fp32.",
)
raw_option: Decorator = click.option(
    "--raw",
    is_flag=True,
    help="Take the weights themselves where training kept an exponential mean of them beside them.",
)
device_option: Decorator = click.option(
    "-d", "--device", default=DEVICE, show_default=True, help="auto, cpu, cuda or cuda:N."
)
threads_option: Decorator = click.option(
    "--threads",
    type=click.IntRange(1),
    callback=at_most_processors,
    help="Processor threads; by default as many as there are cores. No more are used than this process has processors.",
)
quiet_option: Decorator = click.option(
    "-q", "--quiet", is_flag=True, help="No progress on standard error."
)


class Exponent(click.ParamType):
    """A length penalty's; what is no number is text that was meant for something else."""

    name = "ALPHA"

    def __init__(self, hint: str):
        self.hint = hint

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> float:
        try:
            found = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number; {self.hint}", parameter, context)
        if not 0 <= found <= 10:
            self.fail(f"{value} is not between 0 and 10", parameter, context)
        return found


class Sections(click.Command):
    """A command with so many options that its help shows them under headings. No option begins with a digit: -1 is a value."""

    def __init__(self, *given: Any, sections: Mapping[str, Sequence[str]], **named: Any):
        """``sections``: the names of parameters under each heading; those in none stand under the last, as does ``--help``."""
        super().__init__(*given, **named)
        self.sections = sections

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(
            context, [_NEGATIVE.sub(r"\1 -", arg) for arg in args]
        )  # a space, or click takes it for an option

    def by_section(self, context: click.Context) -> dict[str, list[click.Option]]:
        """The options under each heading."""
        options = {
            option.name: option
            for option in self.get_params(context)
            if isinstance(option, click.Option)
        }
        found = {
            title: [options.pop(name) for name in names] for title, names in self.sections.items()
        }
        found[next(reversed(found))] += options.values()
        return found

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        for title, options in self.by_section(context).items():
            with formatter.section(title):
                formatter.write_dl(
                    [record for option in options if (record := option.get_help_record(context))]
                )
