"""``fusetk doctor``."""

from typing import Any

import click

from fusetk.cli.options import json_option, threads_option
from fusetk.cli.tables import print_json
from fusetk.processor import usable_processors


@click.command("doctor")
@threads_option
@click.option(
    "--measure-again",
    is_flag=True,
    help="Measure the ways to compute again, for this number of threads, for example because the "
    "machine was busy during the first measurement.",
)
@json_option
def command(threads: int | None, measure_again: bool, as_json: bool) -> None:
    """Describe this machine: versions, kernels, limits of speed, and causes of slow computation.

    The limits are the rates of one large matrix product in each number type. The command also
    prints the ways to compute that fusetk measured as the fastest on this machine. They are stored
    in the cache folder. A resumed training keeps the ways that its run recorded.
    """
    from fusetk.doctor import examine

    description = examine(usable_processors(), threads, measure_again)
    if as_json:
        print_json(description)
    else:
        click.echo("\n".join(_lines(description)))


def _lines(description: dict[str, Any]) -> list[str]:
    memory = description["memory_gb"]
    lines = [
        f"fusetk {description['fusetk']}, Python {description['python']}",
        "packages: " + ", ".join(f"{name} {v}" for name, v in description["packages"].items()),
        f"processor: {description['processor']}",
        f"instructions: {' '.join(description['instructions']) or 'unknown'}",
        f"threads: {description['threads']} of {description['processors']} processors",
        f"load: {_or_unknown(description['load'])}",
        f"memory: {_or_unknown(memory['total'])} GB, {_or_unknown(memory['available'])} available",
        "GPUs: " + ("; ".join(description["gpus"]) or "none"),
        "",
        "compiled kernels:",
        *(f"  {name}: {state}" for name, state in description["kernels"].items()),
        "cache folders:",
        *(f"  {folder}: {state}" for folder, state in description["cache"].items()),
        "ways to compute, measured on this machine:",
        *(f"  {name}: {way}" for name, way in description["choices"].items()),
        "rate of one large product, computed by PyTorch:",
    ]
    for name, rate in description["gflops"].items():
        lines.append(f"  {name}: " + (f"{rate:,.0f} GFLOP/s" if rate else "not supported"))
    lines += ["", *(f"slow: {sentence}" for sentence in description["advice"])]
    return lines if description["advice"] else [*lines, "nothing is slow"]


def _or_unknown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,}"
