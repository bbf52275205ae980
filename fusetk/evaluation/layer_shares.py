"""The share of each layer in the result of a fusion: attention weights, or gradient times input."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from fusetk.decoding.target_scores import IdPair
from fusetk.errors import DataError, Diverged, first_line
from fusetk.evaluation.forward_trace import (
    ForwardTrace,
    batches,
    evaluating,
    is_inside,
    trace_forward,
)
from fusetk.fusion.base import Fusion, fusions_of_stacks
from fusetk.models.stack import stacks_of
from fusetk.trace import MODEL_SIDES

if TYPE_CHECKING:
    from fusetk.models.seq2seq import Seq2Seq


class FusionTrace(NamedTuple):
    """The layer weights of one fusion of L layers on B sentences."""

    side: str
    hops: bool  # True: attention weights of H hops; False: gradient times input, H = 1
    # (B, T, H, L), float32; the sum over L is 1. Undefined after the end of a sentence.
    weights: np.ndarray
    lengths: np.ndarray  # (B,) positions of each sentence
    layers: list[str]  # names of the L layers, see ``layer_names``
    learned: dict[str, np.ndarray]  # "weights" (L,) of layers, "betas" (nodes,) of a tree or chain


def find_fusions(model: nn.Module, sides: Sequence[str] = MODEL_SIDES) -> list[Fusion]:
    """Return the fusions of several layers on these sides.

    Raises DataError if there are none.
    """
    by_side = {name.partition(".")[0]: each for name, each in fusions_of_stacks(model).items()}
    fusions = [by_side[side] for side in sides if side in by_side]
    if fusions:
        return fusions
    if len(sides) > 1:
        raise DataError(
            "neither side of this model fuses several layers: give a run with `fuse` in encoder or "
            "decoder"
        )
    hint = f"; its {next(iter(by_side))} does" if by_side else ""
    raise DataError(f"the {sides[0]} of this model does not fuse several layers{hint}")


def trace_fusions(
    model: "Seq2Seq", pairs: Sequence[IdPair], fusions: Sequence[Fusion]
) -> list[FusionTrace]:
    """Return the layer weights of the fusions, by forced decoding of ``pairs``.

    Raises DataError if a sentence is longer than the model's positions, if a fusion has no
    forward-mode derivative, or if its records have wrong shapes, and Diverged if the weights are
    NaN.
    """
    traced = trace_forward(model, pairs, "*.fuse.*", {fusion.name: fusion for fusion in fusions})
    depths = {stack.fuse.name: stack.depth for stack in stacks_of(model)}
    with evaluating(model):
        return [_trace_fusion(fusion, traced, depths.get(fusion.name)) for fusion in fusions]


def trace_batches(
    model: "Seq2Seq", pairs: Sequence[IdPair], fusions: Sequence[Fusion]
) -> Iterator[list[FusionTrace]]:
    """Yield the results of ``trace_fusions`` for batches of pairs of similar length."""
    for batch in batches(pairs):
        yield trace_fusions(model, batch, fusions)


def mean_shares(model: "Seq2Seq", pairs: Sequence[IdPair]) -> dict[str, dict[str, float]]:
    """Return the mean share of each layer over all positions: fusion -> layer -> share.

    The share in a fusion with hops is the mean of its hops. Raises the errors of ``find_fusions``
    and ``trace_fusions``.
    """
    fusions = find_fusions(model)
    sums: dict[str, np.ndarray] = {}
    positions: dict[str, int] = {}
    layers: dict[str, list[str]] = {}
    for traces in trace_batches(model, pairs, fusions):
        for fusion, traced in zip(fusions, traces, strict=True):
            inside = is_inside(traced.lengths, traced.weights.shape[1])
            total = traced.weights[inside].mean(1).sum(0, dtype=np.float64)
            sums[fusion.name] = sums.get(fusion.name, 0.0) + total
            positions[fusion.name] = positions.get(fusion.name, 0) + int(inside.sum())
            layers[fusion.name] = traced.layers
    return {
        name: dict(zip(layers[name], (total / positions[name]).tolist(), strict=True))
        for name, total in sums.items()
    }


def _trace_fusion(fusion: Fusion, traced: ForwardTrace, depth: int | None) -> FusionTrace:
    history: Sequence[Tensor] = traced.inputs[fusion.name]
    side = fusion.name.partition(".")[0]
    weights = traced.recorded.get(f"{fusion.name}.hops")
    has_hops = weights is not None
    if weights is None:
        weights = contributions(fusion, history).unsqueeze(-2)
    else:
        _check_hops(fusion, weights, len(fusion.combination(history)[0]))
    if weights[:, 0].isnan().any():
        raise Diverged("weights of layers")
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


def _check_hops(fusion: Fusion, weights: Tensor, layers: int) -> None:
    """Raise DataError if the recorded weights of a user's fusion have a wrong shape or sum.

    ``layers`` is the number L of layers that the fusion gets.
    """
    name = f"{fusion.name}.hops"
    _check_dimensions(name, weights, 4, "(B, T, hops, L)")
    if weights.shape[-1] != layers:
        raise DataError(
            f"{type(fusion).__name__} recorded {name} with {weights.shape[-1]} weights, and the "
            f"fusion gets {layers} layers: record one for each, 0 if the fusion does not read it"
        )
    sums = weights[:, 0].float().sum(-1)  # positions after the end of a sentence are undefined
    worst = float(sums.flatten()[(sums - 1).abs().argmax()])
    if abs(worst - 1) > 0.01:
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
                f"{first_line(error)}"
            ) from error
    if change is None:  # the output does not depend on this layer
        return layers[scaled].new_zeros(layers[scaled].shape[:-1])
    return change.norm(dim=-1)
