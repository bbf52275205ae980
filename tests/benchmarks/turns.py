"""Options and turns of the speed benchmarks.

Systems take turns, so that changes in the machine's speed affect all of them.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any


def options(
    description: str | None, precisions: Sequence[str] = ("fp32", "bf16")
) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark of configs."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("configs", nargs="+")
    parser.add_argument("--precision", nargs="+", default=["fp32"], choices=precisions)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    parser.add_argument(
        "--vocabulary",
        nargs=2,
        type=int,
        metavar="N",
        help="source and target entries, if not those of the data",
    )
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the ratios to this file")
    return parser


def compare(
    arguments: argparse.Namespace,
    turns: Callable[[str, str, argparse.Namespace], Iterator[float]],
    unit: str,
    limits: Callable[[str, str, argparse.Namespace], Iterator[float]] | None = None,
) -> None:
    """Run the turns of each config at each precision and print the medians.

    Ratios are to the first config at the same precision. ``limits`` yields the greatest possible
    speed of a config, measured in each turn beside the speed. ``--json`` writes a list of dicts.
    """
    names = [
        (config, precision) for precision in arguments.precision for config in arguments.configs
    ]
    systems = {name: turns(*name, arguments) for name in names}
    bounds = {name: limits(*name, arguments) for name in names} if limits else {}
    for iterator in (*systems.values(), *bounds.values()):
        next(iterator)
    speeds: dict[tuple[str, str], list[float]] = {name: [] for name in names}
    greatest: dict[tuple[str, str], list[float]] = {name: [] for name in bounds}
    for _ in range(arguments.turns):
        for name, system in systems.items():
            speeds[name].append(next(system))
            if name in bounds:
                greatest[name].append(next(bounds[name]))
    results: list[dict[str, Any]] = []
    for name, values in speeds.items():
        config, precision = name
        result: dict[str, Any] = {
            "config": config,
            "precision": precision,
            "speed": statistics.median(values),
        }
        results.append(result)
        first = speeds[arguments.configs[0], precision]
        result["of first"] = median_ratio(values, first)
        span = f"{min(values):,.0f} to {max(values):,.0f}"
        print(
            f"{config} {precision}: median {statistics.median(values):,.0f} {unit} ({span}), "
            f"{result['of first']:.3f} times the first"
        )
        if name in greatest:
            limit = greatest[name]
            result["of limit"] = median_ratio(values, limit)
            print(
                f"    {result['of limit']:.3f} of the limit of its products, "
                f"{statistics.median(limit):,.0f} {unit}"
            )

    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def median_ratio(values: Sequence[float], others: Sequence[float]) -> float:
    """Return the median of the ratios of two lists of the same turns."""
    return statistics.median(a / b for a, b in zip(values, others, strict=True))
