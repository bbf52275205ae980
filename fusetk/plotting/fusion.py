"""Weights of the layers of a fusion: attention hops, contributions by gradient, learned weights."""

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from fusetk.errors import DataError
from fusetk.fusion.base import Fusion, fusions_of_stacks
from fusetk.models.stack import Stack
from fusetk.plotting.attention import TokenPair
from fusetk.plotting.forward_trace import ForwardTrace, Pairs, evaluating, trace_forward
from fusetk.plotting.panel import Panel, near_square, split_rows

if TYPE_CHECKING:
    from fusetk.models.seq2seq import Seq2Seq

# The values of --what and their sides.
KINDS = {"fuse": ("encoder", "decoder"), "encoder-fuse": ("encoder",), "decoder-fuse": ("decoder",)}

HOPS = "attention weight (a column sums to 1)"
SHARE = "share of a layer (a column sums to 1)"
BY_GRADIENT = "contribution of each layer (gradient times input)"


class FusionTrace(NamedTuple):
    """The layer weights of one fusion of L layers on B sentences."""

    side: str
    hops: bool  # True: attention weights of H hops; False: gradient times input, H = 1
    # (B, T, H, L), float32; the sum over L is 1. Undefined after the end of a sentence.
    weights: np.ndarray
    lengths: np.ndarray  # (B,) positions of each sentence
    layers: list[str]  # names of the L layers, see ``layer_names``
    learned: dict[str, np.ndarray]  # "weights" (L,) of layers, "betas" (nodes,) of a tree or chain


def find_fusions(model: nn.Module, what: str = "fuse") -> list[Fusion]:
    """Return the fusions of several layers on the sides of ``what`` (a key of KINDS).

    Raises DataError if there are none.
    """
    by_side = {name.partition(".")[0]: each for name, each in fusions_of_stacks(model).items()}
    fusions = [by_side[side] for side in KINDS[what] if side in by_side]
    if fusions:
        return fusions
    if what == "fuse":
        raise DataError("no fusion to draw: neither side of this model fuses several layers")
    side = KINDS[what][0]
    hint = f", its {next(iter(by_side))} does" if by_side else ""
    raise DataError(
        f"no fusion to draw: the {side} of this model does not fuse several layers{hint}"
    )


def trace_fusions(model: "Seq2Seq", pairs: Pairs, fusions: Sequence[Fusion]) -> list[FusionTrace]:
    """Return the layer weights of the fusions, by forced decoding of ``pairs``.

    ``pairs`` holds source and target ids without BOS and EOS. Raises DataError if a sentence is
    longer than the model's positions, if a fusion has no forward-mode derivative, or if its records
    have wrong shapes.
    """
    traced = trace_forward(model, pairs, "*.fuse.*", {fusion.name: fusion for fusion in fusions})
    depths = {stack.fuse.name: stack.depth for stack in model.modules() if isinstance(stack, Stack)}
    with evaluating(model):
        return [_trace_fusion(fusion, traced, depths.get(fusion.name)) for fusion in fusions]


def _trace_fusion(fusion: Fusion, traced: ForwardTrace, depth: int | None) -> FusionTrace:
    history: Sequence[Tensor] = traced.inputs[fusion.name]
    side = fusion.name.partition(".")[0]
    weights = traced.recorded.get(f"{fusion.name}.hops")
    has_hops = weights is not None
    if weights is None:
        weights = contributions(fusion, history).unsqueeze(-2)
    else:
        _check_hops(fusion, weights)
    learned = {}
    for what in ("weights", "betas"):
        values = traced.recorded.get(f"{fusion.name}.{what}")
        if values is not None:
            _check_dimensions(f"{fusion.name}.{what}", values, 1, "one dimension")
            learned[what] = values.float().cpu().numpy()
    return FusionTrace(
        side,
        has_hops,
        weights.float().cpu().numpy(),
        traced.lengths[side],
        layer_names(len(history), depth)[-weights.shape[-1] :],
        learned,
    )


def _check_hops(fusion: Fusion, weights: Tensor) -> None:
    """Raise DataError if the recorded weights of a user's fusion have a wrong shape or sum."""
    name = f"{fusion.name}.hops"
    _check_dimensions(name, weights, 4, "(B, T, hops, L)")
    sums = weights[:, 0].float().sum(-1)  # positions after the end of a sentence are undefined
    worst = float(sums.flatten()[(sums - 1).abs().argmax()])
    if not abs(worst - 1) <= 0.01:
        raise DataError(
            f"{type(fusion).__name__} recorded {name}, whose sum over the layers must be 1, but it "
            f"is {worst:.3g}: divide the weights by their sum, or record them under another name"
        )


def _check_dimensions(name: str, values: Tensor, dimensions: int, shape: str) -> None:
    if values.ndim != dimensions:
        raise DataError(
            f"{name} was recorded with the shape {tuple(values.shape)}; it must be {shape}: "
            "correct the call of trace.record"
        )


def layer_names(history: int, depth: int | None = None) -> list[str]:
    """Return the names of the ``history`` outputs of a stack of ``depth`` layers.

    l0 is the word embedding. If the history starts with a summary of the lower layers, the name of
    that summary is ``sum``. ``depth=None``: the history has every layer.
    """
    top = depth or history - 1
    above = [f"l{i}" for i in range(top - history + 2, top + 1)]
    return ["l0" if depth is None or history == depth + 1 else "sum", *above]


def contributions(fusion: Fusion, history: Sequence[Tensor]) -> Tensor:
    """Return each layer's share in the fused output, by gradient times input.

    [(..., D)] -> (..., L); the sum over L is 1. All shares are 0 if no layer contributes.

    The share of layer l is proportional to the norm of J_l h_l. J_l is the derivative of the fusion
    with respect to layer l at this position, before the closing norm. For sum_l w_l h_l the norm is
    |w_l| times the norm of h_l. For a fusion that is not a sum, J_l h_l is the first-order change
    of the output when layer l is scaled. h_l includes the layer embedding and the normalisation by
    ``norm_layers``: scaling a layer before a normalisation does not change the output.
    Raises DataError if the fusion has no forward-mode derivative.
    """
    with torch.no_grad(), warnings.catch_warnings():
        # PyTorch compiles the forward derivative of layer normalisation with torch.jit.script.
        warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated")
        layers, combine = fusion.combination(history)
        norms = [_change_norm(fusion, combine, layers, i) for i in range(len(layers))]
        norm = torch.stack(norms, -1)
        return norm / norm.sum(-1, keepdim=True).clamp_min(torch.finfo(norm.dtype).tiny)


def _change_norm(
    fusion: Fusion, combine: Callable[[list[Tensor]], Tensor], layers: list[Tensor], scaled: int
) -> Tensor:
    """Return the norm (...) of the output's first-order change when one layer is scaled."""
    # The fused attention kernels have no forward-mode derivative; the math backend has one.
    with forward_ad.dual_level(), sdpa_kernel(SDPBackend.MATH):
        dual = list(layers)
        dual[scaled] = forward_ad.make_dual(layers[scaled], layers[scaled])
        try:
            change = forward_ad.unpack_dual(combine(dual)).tangent
        except NotImplementedError as error:
            raise DataError(
                f"{fusion.name}: the contributions of its layers cannot be computed: "
                f"{str(error).splitlines()[0]}"
            ) from error
    if change is None:  # the output does not depend on this layer
        return layers[scaled].new_zeros(layers[scaled].shape[:-1])
    return change.norm(dim=-1)


# Panels -------------------------------------------------------------------------------------------


def panels(traces: Sequence[FusionTrace], tokens: TokenPair, hop: int | str = "all") -> list[Panel]:
    """Return the panels of one sentence pair: the first of each trace's batch.

    ``hop`` is a number from 1, ``mean`` or ``all``. A column is a token that the side reads; the
    decoder reads BOS first. A row is a layer, the lowest at the bottom. Raises DataError if ``hop``
    is out of range or no fusion has hops.
    """
    if hop != "all" and not any(traced.hops for traced in traces):
        raise DataError("no fusion of this model has hops (only fuse: attention has): omit --head")
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


def choose_hops(traced: FusionTrace, hop: int | str) -> list[tuple[str, str, list[int]]]:
    """Return the name, title and hops (counted from 0) of each panel.

    Raises DataError if ``hop`` is out of range.
    """
    side = traced.side
    count = traced.weights.shape[2]
    if hop == "mean":
        return [(f"{side}.fuse.hops", f"{side} fusion, mean of {count} hops", list(range(count)))]
    if isinstance(hop, int) and not 1 <= hop <= count:
        raise DataError(
            f"--head {hop} is out of range: the {side} fusion has {count} hops, counted from 1"
        )
    numbers = range(1, count + 1) if hop == "all" else [int(hop)]
    return [
        (f"{side}.fuse.hop{number}", f"{side} fusion, hop {number}", [number - 1])
        for number in numbers
    ]


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
        block = split_rows(len(hops), near_square(len(hops), len(hops[0].y), len(hops[0].x)))
        lengths += [length for length in (before, *block, after) if length]
    return lengths
