"""Panels of the layers of a fusion: attention hops, shares by gradient, learned weights."""

from collections.abc import Sequence

import numpy as np

from fusetk.errors import DataError, join_names, quantity
from fusetk.evaluation.layer_shares import FusionTrace
from fusetk.plotting.attention import TokenPair
from fusetk.plotting.panel import Panel, square_rows

HOPS = "attention weight (a column sums to 1)"
SHARE = "share of a layer (a column sums to 1)"
BY_GRADIENT = "contribution of each layer (gradient times input)"


def panels(traces: Sequence[FusionTrace], tokens: TokenPair, hop: int | str = "all") -> list[Panel]:
    """Return the panels of one sentence pair: the first of each trace's batch.

    ``hop`` is a number from 1, ``mean`` or ``all``. A column is a token that the side reads; the
    decoder reads BOS first. A row is a layer, the lowest at the bottom. Raises the errors of
    ``check_hop``.
    """
    check_hop(traces, hop)
    all_panels: list[Panel] = []
    for traced in traces:
        x, _ = tokens.labels(traced.side, "self")
        weights = traced.weights[0, : len(x)]  # (T, H, L)
        if traced.hops:
            all_panels += [
                layer_panel(name, title, weights[:, hops].mean(1), x, traced.layers, HOPS)
                for name, title, hops in choose_hops(traced, hop)
            ]
        else:
            all_panels += _contribution_panels(traced, weights[:, 0], x)
        all_panels += learned_panels(traced)
    return all_panels


def layer_panel(
    name: str,
    title: str,
    weights: np.ndarray,
    x: Sequence[str],
    layers: Sequence[str],
    measure: str,
    axis: str = "input token",
) -> Panel:
    """Return the panel of weights (columns, layers); ``axis`` is the name of the columns."""
    axes = (axis, "layer")
    return Panel(name, title, weights.T, x, layers, measure, axes, up=True, top=1.0)


def _contribution_panels(traced: FusionTrace, shares: np.ndarray, x: Sequence[str]) -> list[Panel]:
    """Return the panel of all positions (T, L), and that of their mean."""
    name = f"{traced.side}.fuse.contribution"
    title = f"{traced.side} fusion, {BY_GRADIENT}"
    mean_title = f"{traced.side} fusion, mean over the sentence"
    mean = shares.mean(0, keepdims=True)
    return [
        layer_panel(name, title, shares, x, traced.layers, SHARE),
        layer_panel(f"{name}.mean", mean_title, mean, ["mean"], traced.layers, SHARE, axis=""),
    ]


def check_hop(traces: Sequence[FusionTrace], hop: int | str) -> None:
    """Raise DataError if no fusion has this hop: a number from 1, ``mean`` or ``all``."""
    counts = {traced.side: _num_hops(traced) for traced in traces if traced.hops}
    if hop != "all" and not counts:
        raise DataError("no fusion of this model has hops, as fuse: attention has: omit the head")
    if isinstance(hop, int) and not 1 <= hop <= max(counts.values()):
        known = join_names(
            [f"the {side} fusion has {quantity(count, 'hop')}" for side, count in counts.items()]
        )
        raise DataError(f"--head {hop} is out of range: {known}, counted from 1")


def choose_hops(traced: FusionTrace, hop: int | str) -> list[tuple[str, str, list[int]]]:
    """Return the name, title and hops (counted from 0) of each panel.

    There is no panel if the fusion does not have the hop.
    """
    side = traced.side
    count = _num_hops(traced)
    if hop == "mean":
        return [(f"{side}.fuse.hops", f"{side} fusion, mean of {count} hops", list(range(count)))]
    numbers = range(1, count + 1)
    return [
        (f"{side}.fuse.hop{number}", f"{side} fusion, hop {number}", [number - 1])
        for number in numbers
        if hop in ("all", number)
    ]


def _num_hops(traced: FusionTrace) -> int:
    return int(traced.weights.shape[2])


def learned_panels(traced: FusionTrace) -> list[Panel]:
    """Return a one-column panel for each kind of learned number; all positions share it."""
    return [_learned_panel(traced, what, values) for what, values in traced.learned.items()]


def _learned_panel(traced: FusionTrace, what: str, values: np.ndarray) -> Panel:
    rows = [str(i) for i in range(1, len(values) + 1)]
    if what == "betas":
        rows = [*(f"n{row}" for row in rows[:-1]), "root"]
        text = "beta of each node"
        measure = "learned beta"
        axis = "node"
    else:
        if len(values) == len(traced.layers):
            rows = traced.layers
        text = "weight of each layer"
        measure = "learned weight"
        axis = "layer"
    return Panel(
        f"{traced.side}.fuse.{what}",
        f"{traced.side} fusion, learned {text}",
        values[:, None],
        [what.removesuffix("s")],
        rows,
        measure,
        ("", axis),
        up=True,
    )


def row_lengths(panels: Sequence[Panel]) -> list[int]:
    """Return the number of panels in each row of a figure.

    Each side starts a row. The hops of a side form a block; its other panels share a row.
    """
    lengths: list[int] = []
    for side in dict.fromkeys(panel.name.partition(".")[0] for panel in panels):
        of_side = [panel for panel in panels if panel.name.startswith(f"{side}.")]
        hops = [panel for panel in of_side if ".fuse.hop" in panel.name and panel.axes[0] != "hop"]
        if not hops:
            lengths.append(len(of_side))
            continue
        before = of_side.index(hops[0])
        after = len(of_side) - before - len(hops)
        lengths += [length for length in (before, *square_rows(hops), after) if length]
    return lengths
