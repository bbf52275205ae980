"""Options that several commands share."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from fusetk import DEVICE, PRECISIONS
from fusetk.cli.common_options import QUIET_HELP, keep_quiet, print_warning
from fusetk.cli.parameters import Decorator, FilePath, all_of, flag_of
from fusetk.decoding.ensemble import SETTINGS, check_ensemble_settings
from fusetk.processor import usable_processors


def at_most_processors(
    context: click.Context, parameter: click.Parameter, value: int | None
) -> int | None:
    """Limit a number of threads to the number of processors; more threads would be slower."""
    most = usable_processors()
    if value is None or value <= most or context.resilient_parsing:  # completion prints no warning
        return value
    print_warning(
        f"--threads {value} is limited to {most}, the number of processors that this process may "
        "use"
    )
    return most


def use_threads(threads: int | None) -> None:
    """Set the number of threads of PyTorch. None does not change it and does not import PyTorch."""
    if threads:
        import torch

        torch.set_num_threads(threads)


# The options --------------------------------------------------------------------------------------

SET_HELP = "Change a key of the config, for example training.seed=3. Repeatable; the last one wins."

config_argument: Decorator = click.argument("config", type=FilePath(dir_okay=False))
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
    type=click.Choice(PRECISIONS),
    default=PRECISIONS[0],
    show_default=True,
    help="Precision of the weights. With bf16, the logits stay fp32. On CPU, the embeddings and"
    " norms of Transformers and coordinated models stay fp32, too. int8 needs such a model on CPU,"
    " and rounds the inputs of matrix products to 8 bits, too. Log-probabilities are always fp32.",
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
    " Default: the number of cores, but at most the limit of a container.",
)
json_option: Decorator = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object."
)
quiet_option: Decorator = click.option(
    "-q",
    "--quiet",
    is_flag=True,
    callback=keep_quiet,
    help=QUIET_HELP,
)
running_options: tuple[Decorator, ...] = (
    precision_option,
    raw_option,
    device_option,
    threads_option,
    quiet_option,
)


RUNS = "fusetk.runs"  # key of Context.meta: the runs of -m
RUN_COUNTS = ("no run", "one run", "two runs")  # by number, for errors


def runs_argument(
    name: str, metavar: str = "RUN...", least: int = 1, most: int | None = None
) -> Decorator:
    """Return an argument of ``least`` to ``most`` runs, and an option -m with the same meaning.

    The parameter ``name`` is a tuple of paths.
    """

    def all_runs(
        context: click.Context, parameter: click.Parameter, value: tuple[Path, ...]
    ) -> tuple[Path, ...]:
        return _all_runs(context, parameter, value, least, most)

    return _argument_and_option(name, metavar, all_runs, "The same as RUN; repeatable.")


def run_argument(name: str) -> Decorator:
    """Return an argument RUN, and an option -m with the same meaning."""

    def only_run(
        context: click.Context, parameter: click.Parameter, value: tuple[Path, ...]
    ) -> Path:
        return _all_runs(context, parameter, value, 1, 1)[0]

    text = "A run folder (its best checkpoint is used) or a checkpoint; the same as RUN."
    return _argument_and_option(name, "RUN", only_run, text)


def _argument_and_option(
    name: str, metavar: str, callback: Callable[..., Any], help_text: str
) -> Decorator:
    """Return an argument of runs, whose callback reads them, and the option -m."""

    def store(context: click.Context, parameter: click.Parameter, value: tuple[Path, ...]) -> None:
        context.meta[RUNS] = value

    path = FilePath(path_type=Path)
    argument = click.argument(name, nargs=-1, metavar=metavar, type=path, callback=callback)
    option = click.option(
        *("-m", "--model", "model_option"),
        metavar="RUN",
        multiple=True,
        type=path,
        is_eager=True,  # read before the argument
        expose_value=False,
        callback=store,
        help=help_text,
    )
    return all_of([argument, option])


def _all_runs(
    context: click.Context,
    parameter: click.Parameter,
    arguments: tuple[Path, ...],
    least: int,
    most: int | None,
) -> tuple[Path, ...]:
    """Return the runs of the arguments or of -m.

    Raises UsageError if both are given, or for a wrong number of runs.
    """
    options: tuple[Path, ...] = context.meta.get(RUNS, ())
    if arguments and options:
        raise click.UsageError(
            f"{arguments[0]} is given as an argument, and {options[0]} with -m: give all runs in "
            "the same way"
        )
    runs = arguments or options
    if len(runs) < least:
        raise click.MissingParameter(ctx=context, param=parameter)
    if most and len(runs) > most:
        allowed = dict.fromkeys((RUN_COUNTS[least], RUN_COUNTS[most]))
        raise click.UsageError(
            f"{len(runs)} runs are given ({', '.join(map(str, runs))}): give {' or '.join(allowed)}"
        )
    return runs


def check_ensemble(options: Mapping[str, Any], models: Sequence[str]) -> None:
    """Raise ConfigError if a given option of an ensemble does not fit the number of models."""
    settings = {key: options[key] for key in SETTINGS if options[key] is not None}
    flags = {key: flag_of(key) for key in SETTINGS}
    check_ensemble_settings(settings, len(models), flags)


def output_option(content: str, name: str) -> Decorator:
    """Return the option -o for a file with this content; ``name`` is the parameter."""
    return click.option(
        "-o",
        "--output",
        name,
        metavar="FILE",
        default="-",
        help=f"File for {content}; standard output by default.",
    )


def tokenized_option(text: str, result: str = "", run: str = "run") -> Decorator:
    """Return the option --tokenized; its help begins with ``text`` and ends with ``result``."""
    return click.option(
        "--tokenized",
        is_flag=True,
        help=f"{text} already prepared like the training text of the {run}, "
        f"except for the split into subwords.{result}",
    )
