"""Options and turns of the speed benchmarks.

Systems take turns, so that changes in the machine's speed affect all of them.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence


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
    return parser


def compare(
    arguments: argparse.Namespace,
    turns: Callable[[str, str, argparse.Namespace], Iterator[float]],
    unit: str,
) -> None:
    """Run the turns of each config at each precision and print the medians.

    Ratios are to the first config at the same precision.
    """
    names = [
        (config, precision) for precision in arguments.precision for config in arguments.configs
    ]
    systems = {name: turns(*name, arguments) for name in names}
    for system in systems.values():
        next(system)
    speeds: dict[tuple[str, str], list[float]] = {name: [] for name in names}
    for _ in range(arguments.turns):
        for name, system in systems.items():
            speeds[name].append(next(system))
    for (config, precision), values in speeds.items():
        first = speeds[arguments.configs[0], precision]
        ratio = statistics.median(a / b for a, b in zip(values, first, strict=True))
        span = f"{min(values):,.0f} to {max(values):,.0f}"
        print(
            f"{config} {precision}: median {statistics.median(values):,.0f} {unit} ({span}), "
            f"{ratio:.3f} times the first"
        )
