"""Options and turns of the speed benchmarks.

Systems take turns, so that changes in the machine's speed affect all of them.
"""

import argparse
import gc
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fusetk.cli.main import COLLECT_AFTER

Name = TypeVar("Name")


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
    The garbage collector runs as often as in the command ``fusetk``.
    """
    gc.set_threshold(COLLECT_AFTER)
    names = [
        (config, precision) for precision in arguments.precision for config in arguments.configs
    ]
    systems: dict[tuple[tuple[str, str], str], Iterator[float]] = {}
    for name in names:
        systems[name, "speed"] = turns(*name, arguments)
        if limits:
            systems[name, "limit"] = limits(*name, arguments)
    values = take_turns(systems, arguments.turns)
    speeds = {name: values[name, "speed"] for name in names}
    greatest = {name: values[name, "limit"] for name in names if limits}
    results: list[dict[str, Any]] = []
    for name, own in speeds.items():
        config, precision = name
        result: dict[str, Any] = {
            "config": config,
            "precision": precision,
            "speed": statistics.median(own),
        }
        results.append(result)
        first = speeds[arguments.configs[0], precision]
        result["of first"] = median_ratio(own, first)
        span = f"{min(own):,.0f} to {max(own):,.0f}"
        print(
            f"{config} {precision}: median {statistics.median(own):,.0f} {unit} ({span}), "
            f"{result['of first']:.3f} times the first"
        )
        if name in greatest:
            limit = greatest[name]
            result["of limit"] = median_ratio(own, limit)
            print(
                f"    {result['of limit']:.3f} of the limit of its products, "
                f"{statistics.median(limit):,.0f} {unit}"
            )

    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def take_turns(systems: Mapping[Name, Iterator[float]], number: int) -> dict[Name, list[float]]:
    """Return ``number`` values of each system. The systems take turns.

    The first value of each is warm-up and is left out.
    """
    for system in systems.values():
        next(system)
    values: dict[Name, list[float]] = {name: [] for name in systems}
    for _ in range(number):
        for name, system in systems.items():
            values[name].append(next(system))
    return values


def median_ratio(values: Sequence[float], others: Sequence[float]) -> float:
    """Return the median of the ratios of two lists of the same turns."""
    return statistics.median(a / b for a, b in zip(values, others, strict=True))
