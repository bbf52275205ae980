"""What the speed benchmarks share: systems take turns, so that a machine whose speed drifts is fair to all."""

import argparse
import statistics
from collections.abc import Callable, Iterator


def options(text: str | None) -> argparse.ArgumentParser:
    """A parser with the options of every benchmark of configs."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("configs", nargs="+")
    parser.add_argument("--precision", nargs="+", default=["fp32"], choices=["fp32", "bf16"])
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
    return parser


def compare(
    given: argparse.Namespace,
    turns: Callable[[str, str, argparse.Namespace], Iterator[float]],
    unit: str,
) -> None:
    """Run the turns of each config at each precision; print medians, and the ratios to the first config at the same precision."""
    names = [(config, precision) for precision in given.precision for config in given.configs]
    systems = {name: turns(*name, given) for name in names}
    for system in systems.values():
        next(system)
    found: dict[tuple[str, str], list[float]] = {name: [] for name in names}
    for _ in range(given.turns):
        for name, system in systems.items():
            found[name].append(next(system))
    for (config, precision), speeds in found.items():
        ratio = statistics.median(
            a / b for a, b in zip(speeds, found[given.configs[0], precision], strict=True)
        )
        span = f"{min(speeds):,.0f} to {max(speeds):,.0f}"
        print(
            f"{config} {precision}: median {statistics.median(speeds):,.0f} {unit} ({span}), {ratio:.3f} times the first"
        )
