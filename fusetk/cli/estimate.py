"""``fusetk estimate``."""

import json
from typing import TYPE_CHECKING, Any

import click

from fusetk import DEVICE
from fusetk.cli.options import config_argument, set_option, threads_option

if TYPE_CHECKING:
    from fusetk.estimate.cost import TrainingCost
    from fusetk.recipe import Recipe

EXAMPLE = (
    "Examples: fusetk estimate my.yaml; "
    "fusetk estimate recipes/rtal/wmt14_ende/big_rtal_6layers.yaml --device h100 --devices 8 "
    "--src-vocab-size 37000 --pairs 4500000 --price 2.5"
)


@click.command("estimate", epilog=EXAMPLE)
@config_argument
@set_option
@click.option(
    "-d",
    "--device",
    default=DEVICE,
    show_default=True,
    help="h100, a100 or v100: a share of the peak in the data sheet. auto, cpu, cuda or cuda:N: "
    "the speed of a few updates on this machine.",
)
@click.option(
    "--share",
    type=click.FloatRange(0, 1, min_open=True),
    metavar="S",
    help="Share of the peak that training reaches on h100, a100 or v100. Default: 0.3, an "
    "assumption.",
)
@click.option(
    "--measure",
    default=6,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="Number of updates that are measured on this machine.",
)
@click.option(
    "--devices",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="Number of devices that share the work, without loss.",
)
@click.option(
    "--price", type=click.FloatRange(0), metavar="P", help="Price of a device for an hour."
)
@click.option(
    "--src-vocab-size",
    type=click.IntRange(5),
    help="Entries of the source vocabulary. Default: as for `fusetk describe`.",
)
@click.option(
    "--tgt-vocab-size",
    type=click.IntRange(5),
    help="Entries of the target vocabulary. If only one size is given, it is used for both sides.",
)
@click.option(
    "--src-length",
    type=click.FloatRange(1),
    metavar="L",
    help="Mean length of a source sentence in tokens. Default: that of the prepared text, or 25.",
)
@click.option(
    "--tgt-length",
    type=click.FloatRange(1),
    metavar="L",
    help="Mean length of a target sentence in tokens.",
)
@click.option(
    "--pairs",
    type=click.IntRange(1),
    metavar="N",
    help="Number of training pairs, for stages that end after epochs. Default: that of the "
    "prepared text.",
)
@threads_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    config: str,
    overrides: tuple[str, ...],
    device: str,
    share: float | None,
    measure: int,
    devices: int,
    price: float | None,
    src_vocab_size: int | None,
    tgt_vocab_size: int | None,
    src_length: float | None,
    tgt_length: float | None,
    pairs: int | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Estimate the cost of the training of CONFIG: memory, multiply-adds, hours and money.

    The multiply-adds of matrix products and convolutions, and the memory that the backward pass
    needs, are counted for some batches of the prepared text, or for batches with mean lengths.
    Memory is that of float32 and of at least one process. It excludes buffers of libraries.
    Validation, checkpoints and translation are not part of the hours.
    """
    import torch

    from fusetk import recipe as recipes
    from fusetk.estimate.cost import estimate, text_of, training_hours
    from fusetk.estimate.devices import DEVICES, SHARE
    from fusetk.reporting.parameters import vocabulary_sizes

    if threads:
        torch.set_num_threads(threads)
    if share is not None and device not in DEVICES:
        raise click.UsageError(f"--share needs --device {', '.join(DEVICES)}")
    recipe = recipes.load(config, overrides)
    source = src_vocab_size or tgt_vocab_size
    sizes = (source, tgt_vocab_size or source) if source else vocabulary_sizes(recipe)
    text = text_of(recipe, src_length, tgt_length, pairs)
    cost = estimate(recipe, sizes, text)
    if device in DEVICES:
        sheet = DEVICES[device]
        training = recipe.training
        speed = (share or SHARE) * sheet.peak(training.precision, training.matmul)
        how = f"{sheet.title}, {share or SHARE:.0%} of its peak in {training.precision}"
    else:
        speed, how = _measure(recipe, sizes, text, device, measure)
    hours = training_hours(cost.stages, devices * speed)
    document = _document(cost, speed, how, devices, hours, price)
    if as_json:
        click.echo(json.dumps(document, indent=1))
        return
    where = f"{text.pairs:,} prepared pairs" if text.corpus else "pairs of assumed length"
    click.echo(
        f"text: {where}, {text.source:.1f} source and {text.target:.1f} target tokens on average"
    )
    _print(cost, document)


def _measure(
    recipe: "Recipe", sizes: tuple[int, int], text: Any, device: str, updates: int
) -> tuple[float, str]:
    """Return the speed on this machine in multiply-adds a second, and how it was measured."""
    from fusetk.cli.memory import memory_advice
    from fusetk.estimate.measure import measured_speed
    from fusetk.machine import device_of

    place = device_of(device)
    with memory_advice("give a device by name, such as --device h100"):
        speed = measured_speed(recipe, sizes, text, place, updates)
    return speed, f"{place} of this machine, {updates} updates measured"


def _document(
    cost: "TrainingCost",
    speed: float,
    how: str,
    devices: int,
    hours: float | None,
    price: float | None,
) -> dict[str, Any]:
    from fusetk.estimate.cost import stage_hours

    stages = [
        {
            "batch": stage.batch,
            "target_tokens_of_update": round(stage.target_tokens),
            "multiply_adds_of_update": round(stage.multiply_adds),
            "updates": stage.updates,
            "target_tokens_a_second": round(
                devices * speed * stage.target_tokens / stage.multiply_adds
            ),
            "hours": stage_hours(stage, devices * speed),
        }
        for stage in cost.stages
    ]
    money = None if price is None or hours is None else price * hours * devices
    return {
        "parameters": cost.parameters,
        "memory_bytes": cost.memory,
        "memory_of_weights_and_optimizer_bytes": cost.state,
        "multiply_adds_a_second": speed,
        "speed_from": how,
        "devices": devices,
        "stages": stages,
        "hours": hours,
        "price": money,
    }


def _print(cost: "TrainingCost", document: dict[str, Any]) -> None:
    speed = document["multiply_adds_a_second"]
    click.echo(f"parameters: {cost.parameters:,}")
    activations = (cost.memory - cost.state) / 1e9
    click.echo(
        f"memory: {cost.memory / 1e9:.2f} GB: {cost.state / 1e9:.2f} for weights, gradients and "
        f"optimiser, {activations:.2f} for a batch"
    )
    click.echo(f"speed: {speed / 1e9:,.1f} G multiply-adds/s on each device ({_source(document)})")
    for number, stage in enumerate(document["stages"], 1):
        updates = "an unknown number of" if stage["updates"] is None else f"{stage['updates']:,}"
        click.echo(
            f"stage {number}: {updates} updates of {stage['batch']}, "
            f"{stage['multiply_adds_of_update'] / 1e9:,.1f} G multiply-adds, "
            f"{stage['target_tokens_a_second']:,} target tokens/s, {_hours(stage['hours'])}"
        )
    total = f"training: {_hours(document['hours'])}"
    if document["price"] is not None:
        total += f", price {document['price']:,.2f}"
    click.echo(total)


def _source(document: dict[str, Any]) -> str:
    return str(document["speed_from"]) + (
        f"; {document['devices']} devices" if document["devices"] > 1 else ""
    )


def _hours(hours: float | None) -> str:
    if hours is None:
        return "unknown hours: its course decides, or --pairs is missing"
    return f"{hours:,.2f} hours" if hours < 100 else f"{hours:,.0f} hours"
