"""Draw MLRF's Figure 3 from the JSON of `fusetk report` on standard input: figure3.py PICTURE OUT.

OUT is the folder of the runs, which an error names.
"""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fusetk.errors import DataError, FusetkError
from fusetk.plotting.figure import check_output, save_picture, style_axes

TABLE = "MLRF Figure 3"
SET = "test"
BASELINE = "baseline"


def read(table: dict[str, Any], out: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Return the measured and the published BLEU of the rows on the test set of the figure.

    Raises DataError if no row ran.
    """
    measured: dict[str, float] = {}
    published: dict[str, float] = {}
    for row in table["rows"]:
        if row["printed"] is not None:
            published[row["row"]] = row["printed"]
        for score in row["measured"]:
            if score["set_name"] == SET:
                measured.setdefault(row["row"], score["mean"])
    if not measured:
        row = "recipes/mlrf/iwslt14_deen/figure3_hops_1.yaml"
        raise DataError(
            f"no run in {out} has a score: call `fusetk run {row} --raw DIR --out "
            f"{shlex.quote(str(out))}` first, and the same for other rows figure3_*.yaml"
        )
    return measured, published


def hops(values: dict[str, float]) -> tuple[list[int], list[float]]:
    """Return the numbers of hops and their BLEU."""
    points = [(int(row.split()[0]), bleu) for row, bleu in values.items() if row != BASELINE]
    return [number for number, _ in points], [bleu for _, bleu in points]


def draw(measured: dict[str, float], published: dict[str, float]) -> Figure:
    """Return the figure: BLEU by number of hops, and the baselines as dashed lines."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for values, color, style, fill, name in (
        (measured, "tab:blue", "o-", "full", "measured"),
        (published, "tab:grey", "o", "none", "published"),
    ):
        axes.plot(*hops(values), style, color=color, fillstyle=fill, label=f"Dec-SA, {name}")
        if BASELINE in values:
            axes.axhline(values[BASELINE], color=color, ls="--", label=f"baseline, {name}")
    axes.set_xlabel("hops")
    axes.set_ylabel("BLEU")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(fontsize=9)
    style_axes(axes)
    return figure


def main() -> int:
    """Read the report, draw the figure, and print the measured values."""
    picture, out = map(Path, sys.argv[1:])
    try:
        check_output(picture, numbers=False)
        table = next(t for t in json.load(sys.stdin)["tables"] if t["table"] == TABLE)
        measured, published = read(table, out)
        save_picture(draw(measured, published), picture)
    except FusetkError as error:
        print(f"figure3.py: {error}", file=sys.stderr)
        return error.exit_code
    for row, bleu in measured.items():
        print(f"{row:<10} {bleu:6.2f}")
    for warning in table["warnings"]:
        print(f"figure3.py: {warning}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
