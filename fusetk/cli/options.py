"""Options that several commands share."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from fusetk import DEVICE, PRECISIONS
from fusetk.cli.common_options import keep_quiet
from fusetk.cli.parameters import Decorator, FilePath, flag_of
from fusetk.decoding.ensemble import SETTINGS, check_ensemble_settings
from fusetk.processor import usable_processors


def at_most_processors(
    context: click.Context, parameter: click.Parameter, value: int | None
) -> int | None:
    """Limit a number of threads to the number of processors; more threads would be slower."""
    most = usable_processors()
    if value is None or value <= most or context.resilient_parsing:  # completion prints no warning
        return value
    click.echo(
        f"warning: --threads {value} is limited to {most}, "
        "the number of processors that this process may use",
        err=True,
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
model_option: Decorator = click.option(
    "-m",
    "--model",
    required=True,
    metavar="RUN",
    type=FilePath(path_type=Path),
    help="A run folder (its best checkpoint is used) or a checkpoint.",
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
    help="Precision of the weights. With bf16, the logits stay fp32; in a Transformer or"
    " coordinated model on CPU the embeddings and norms do, too. int8 is for these models on CPU:"
    " the inputs of products are rounded to 8 bits, too. Log-probabilities are always fp32.",
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
    help="Do not print progress to standard error.",
)
running_options: tuple[Decorator, ...] = (
    precision_option,
    raw_option,
    device_option,
    threads_option,
    quiet_option,
)


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
