"""``fusetk estimate``."""

from typing import TYPE_CHECKING, Any

import click

from fusetk.cli.estimate_options import estimate_options
from fusetk.cli.estimate_output import as_document, print_estimate
from fusetk.cli.memory import memory_advice
from fusetk.cli.options import use_threads
from fusetk.cli.recipes import load_recipe
from fusetk.cli.tables import print_json
from fusetk.cli.vocabulary_options import given_sizes
from fusetk.errors import ConfigError, join_names

if TYPE_CHECKING:
    from fusetk.recipe import Recipe

EXAMPLE = (
    "Examples: fusetk estimate my.yaml; "
    "fusetk estimate recipes/rtal/wmt14_ende/big_rtal_6layers.yaml --device h100 --devices 8 "
    "--src-vocab-size 37000 --pairs 4500000 --price 2.5"
)
NOTE = (
    "note: this counts matrix products and convolutions only. A small model takes many times "
    "longer, because starting kernels takes longer than the products: measure it on the GPU with "
    "-d cuda"
)


@click.command("estimate", epilog=EXAMPLE)
@estimate_options
def command(
    config: str,
    overrides: tuple[str, ...],
    device: str,
    share: float | None,
    measure: int | None,
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
    The memory is that of one process in float32, without buffers of libraries. Fused attention,
    which CPUs and GPUs use, does not store its weights and needs less.
    Validation, checkpoints and translation are not part of the hours.

    A small model trains much more slowly on a GPU than this estimate, because starting kernels
    takes longer than the matrix products: measure it with -d cuda on the GPU.
    """
    recipe = load_recipe(config, overrides)
    from fusetk.estimate.cost import estimate, text_of, training_hours
    from fusetk.estimate.devices import DEVICES, SHARE, UPDATES
    from fusetk.reporting.parameters import vocabulary_sizes

    use_threads(threads)
    if share is not None and device not in DEVICES:
        raise click.UsageError(f"--share needs --device {join_names([*DEVICES], 'or')}")
    if measure is not None and device in DEVICES:
        raise click.UsageError(
            f"--measure needs --device auto, cpu or cuda: the speed of {device} is a share of the "
            "peak in its data sheet (--share)"
        )
    sizes = given_sizes(src_vocab_size, tgt_vocab_size) or vocabulary_sizes(recipe)
    text = text_of(recipe, src_length, tgt_length, pairs)
    with memory_advice("give smaller --src-length and --tgt-length"):
        cost = estimate(recipe, sizes, text)
    if device in DEVICES:
        sheet = DEVICES[device]
        training = recipe.training
        speed = (share or SHARE) * sheet.peak(training.precision, training.matmul)
        how = f"{sheet.title}, {100 * (share or SHARE):.3g}% of its peak in {training.precision}"
    else:
        speed, how = _measure(recipe, sizes, text, device, measure or UPDATES)
    hours = training_hours(cost.stages, devices * speed)
    document = as_document(cost, speed, how, devices, hours, price)
    if as_json:
        print_json(document)
        return
    where = f"{text.pairs:,} prepared pairs" if text.corpus else "pairs of assumed length"
    click.echo(
        f"text: {where}, {text.source:.1f} source and {text.target:.1f} target tokens on average"
    )
    print_estimate(cost, document)
    if device in DEVICES:
        click.echo(NOTE)


def _measure(
    recipe: "Recipe", sizes: tuple[int, int], text: Any, device: str, updates: int
) -> tuple[float, str]:
    """Return the speed on this machine in multiply-adds a second, and how it was measured."""
    from fusetk.estimate.devices import DEVICES
    from fusetk.estimate.measure import measured_speed
    from fusetk.machine import device_of

    try:
        place = device_of(device)
    except ConfigError as error:
        names = join_names([*DEVICES], "or")
        raise ConfigError(f"{error}; or name a GPU: {names}") from None
    with memory_advice("give a device by name, such as --device h100"):
        speed = measured_speed(recipe, sizes, text, place, updates)
    return speed, f"{place} of this machine, {updates} updates measured"
