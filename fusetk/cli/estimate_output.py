"""Output of ``fusetk estimate``: text or JSON."""

from typing import TYPE_CHECKING, Any

import click

from fusetk.errors import quantity

if TYPE_CHECKING:
    from fusetk.estimate.cost import TrainingCost


def as_document(
    cost: "TrainingCost",
    speed: float,
    how: str,
    devices: int,
    hours: float | None,
    price: float | None,
) -> dict[str, Any]:
    """Return the estimate for JSON. ``how`` says where the speed comes from."""
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


def print_estimate(cost: "TrainingCost", document: dict[str, Any]) -> None:
    """Print the estimate as lines."""
    speed = document["multiply_adds_a_second"]
    click.echo(f"parameters: {cost.parameters:,}")
    activations = (cost.memory - cost.state) / 1e9
    click.echo(
        f"memory: {cost.memory / 1e9:.2f} GB: {cost.state / 1e9:.2f} for weights, gradients and "
        f"optimiser, {activations:.2f} for a batch"
    )
    click.echo(f"speed: {speed / 1e9:,.1f} G multiply-adds/s on each device ({_source(document)})")
    for number, stage in enumerate(document["stages"], 1):
        updates = stage["updates"]
        number_of_updates = (
            "an unknown number of updates" if updates is None else quantity(updates, "update")
        )
        click.echo(
            f"stage {number}: {number_of_updates} of {stage['batch']}, "
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
        return "unknown hours: set end.updates, end.hours, or end.epochs with --pairs"
    if hours < 1:
        return f"{60 * hours:.2g} minutes"
    return f"{hours:,.2f} hours" if hours < 100 else f"{hours:,.0f} hours"
