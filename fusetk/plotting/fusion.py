"""What a fusion makes of its layers: hops of attention over them, or the share of each in the result; and learned weights."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from fusetk.errors import DataError
from fusetk.fusion.base import Fusion, LayerFusion
from fusetk.fusion.last import LastFusion
from fusetk.fusion.linear import LinearFusion
from fusetk.models.stack import Stack
from fusetk.plotting.attention import Words
from fusetk.plotting.forward_trace import Pairs, Pass, evaluating, forced
from fusetk.plotting.panel import Panel, beside, share_out

if TYPE_CHECKING:
    from fusetk.models.seq2seq import Seq2Seq

# What --what names: the sides.
KINDS = {"fuse": ("encoder", "decoder"), "encoder-fuse": ("encoder",), "decoder-fuse": ("decoder",)}

HOPS = "attention weight (a column sums to 1)"
SHARE = "share of a layer (a column sums to 1)"
BY_GRADIENT = "what each layer contributes (gradient times input)"


class Fused(NamedTuple):
    """One fusion of L layers at work on B sentences."""

    side: str
    hops: bool  # attention in H hops; otherwise gradient times input, and H is 1
    weights: (
        np.ndarray
    )  # (B, T, H, L), each L summing to 1, float32; rubbish behind the end of a sentence
    lengths: np.ndarray  # (B,) positions of each sentence
    layers: list[str]  # names of the L layers, as of ``layer_names``
    learned: dict[
        str, np.ndarray
    ]  # "weights" (L,) of the layers, "betas" (nodes,) of the nodes of a tree or a chain


def fusions(model: nn.Module, what: str = "fuse") -> list[Fusion]:
    """The fusions of several layers on the sides of ``what`` (a key of KINDS). Raises DataError when there is none."""
    found = {
        module.name.partition(".")[0]: module
        for module in model.modules()
        if isinstance(module, Fusion) and _several(module)
    }
    chosen = [found[side] for side in KINDS[what] if side in found]
    if not chosen:
        if what == "fuse":
            raise DataError(
                "there is no fusion to draw: neither side of this model fuses several layers"
            )
        others = f", its {next(iter(found))} does" if found else ""
        raise DataError(
            f"there is no fusion to draw: the {KINDS[what][0]} of this model does not fuse several layers{others}"
        )
    return chosen


def _several(fusion: Fusion) -> bool:
    return (
        fusion.depth > 1 if isinstance(fusion, LayerFusion) else not isinstance(fusion, LastFusion)
    )


def fused(model: "Seq2Seq", pairs: Pairs, chosen: Sequence[Fusion]) -> list[Fused]:
    """What the chosen fusions do in one forced pass over pairs of source and target ids without marks.

    Raises DataError for a sentence longer than the model's positions, and for a fusion that cannot be differentiated.
    """
    done = forced(model, pairs, "*.fuse.*", {fusion.name: fusion for fusion in chosen})
    depths = {stack.fuse.name: stack.depth for stack in model.modules() if isinstance(stack, Stack)}
    with evaluating(model):
        return [
            _fused(fusion, done.read[fusion.name], done, depths.get(fusion.name))
            for fusion in chosen
        ]


def _fused(fusion: Fusion, history: Sequence[Tensor], done: Pass, depth: int | None) -> Fused:
    side = fusion.name.partition(".")[0]
    hops = done.found.get(f"{fusion.name}.hops")
    hops = (
        None if hops is None or hops.ndim != 4 else hops
    )  # a fusion of one's own may show what it likes
    weights = contributions(fusion, history).unsqueeze(-2) if hops is None else hops
    learned = {what: done.found.get(f"{fusion.name}.{what}") for what in ("weights", "betas")}
    return Fused(
        side,
        hops is not None,
        weights.float().cpu().numpy(),
        done.lengths[side],
        layer_names(len(history), depth)[-weights.shape[-1] :],
        {
            what: values.float().cpu().numpy()
            for what, values in learned.items()
            if values is not None and values.ndim == 1
        },
    )


def layer_names(history: int, depth: int | None = None) -> list[str]:
    """Names of the outputs in a history of a stack of ``depth`` layers (None: as many as the history has).

    l0 is the word embedding; where the history begins with a summary of the layers below, that is ``sum``.
    """
    above = [
        f"l{i}" for i in range((depth or history - 1) - history + 2, (depth or history - 1) + 1)
    ]
    return ["l0" if depth is None or history == depth + 1 else "sum", *above]


def contributions(fusion: Fusion, history: Sequence[Tensor]) -> Tensor:
    """The share of each layer in what is fused, by gradient times input: [(..., D)] -> (..., L), each L summing to 1.

    That of layer l goes by the length of the vector J_l h_l, J_l being the derivative of the fusion by layer l at this
    position, before the closing norm. For sum_l w_l h_l it is |w_l| times the length of h_l; where a fusion is no sum,
    it says what the first-order change would be if layer l grew in proportion. h_l is the layer as it is combined: with
    its layer embedding, and normalised if ``linear`` normalises it, for what grows before a normalisation changes nothing
    behind it. 0 where nothing contributes.
    """
    with torch.no_grad():
        layers, phi = _as_combined(fusion, history)
        found = []
        for i in range(len(layers)):
            with (
                forward_ad.dual_level(),
                sdpa_kernel(SDPBackend.MATH),
            ):  # the fused kernels have no forward derivative
                fed = [
                    forward_ad.make_dual(layer, layer) if i == j else layer
                    for j, layer in enumerate(layers)
                ]
                try:
                    change = forward_ad.unpack_dual(phi(fed)).tangent
                except NotImplementedError as error:
                    raise DataError(
                        f"{fusion.name}: its layers' shares cannot be computed, {str(error).splitlines()[0]}"
                    ) from error
            # A layer that the result does not depend on leaves no tangent.
            found.append(
                layers[i].new_zeros(layers[i].shape[:-1]) if change is None else change.norm(dim=-1)
            )
        lengths = torch.stack(found, -1)
        return lengths / lengths.sum(-1, keepdim=True).clamp_min(torch.finfo(lengths.dtype).tiny)


def _as_combined(
    fusion: Fusion, history: Sequence[Tensor]
) -> tuple[list[Tensor], Callable[[list[Tensor]], Tensor]]:
    """The layers that a fusion combines, and how, without its closing norm where that is known."""
    if not isinstance(fusion, LayerFusion):
        return list(history), fusion
    layers = fusion.layers(history)
    if not isinstance(fusion, LinearFusion):
        return layers, fusion.fuse
    normed = [norm(layer) for norm, layer in zip(fusion.norm_layers, layers, strict=True)]
    return normed, lambda fed: fusion.refine(fusion.combine(fed))


# Panels --------------------------------------------------------------------------------------------------------------


def panels(found: Sequence[Fused], words: Words, hop: int | str = "all") -> list[Panel]:
    """The panels of one sentence pair, the first of each batch; ``hop`` is a number from 1, ``mean`` or ``all``.

    Columns are the words that the side reads at a position: in the decoder the begin mark first. Rows are layers, the
    lowest at the bottom. Raises DataError for a hop that is not there.
    """
    if hop != "all" and not any(one.hops for one in found):
        raise DataError(
            "there are no hops to choose from: only fuse: attention has them, so leave out --head"
        )
    shown: list[Panel] = []
    for one in found:
        x, _ = words.labels(one.side, "self")
        weights = one.weights[0, : len(x)]  # (T, H, L)
        axes = ("word that is read", "layer")
        if one.hops:
            chosen = choose(one, hop)
            shown += [
                Panel(name, title, weights[:, hops].mean(1).T, x, one.layers, HOPS, axes, True)
                for name, title, hops in chosen
            ]
        else:
            name, title = f"{one.side}.fuse.contribution", f"{one.side} fusion, {BY_GRADIENT}"
            shown.append(Panel(name, title, weights[:, 0].T, x, one.layers, SHARE, axes, True))
            title = f"{one.side} fusion, mean over the sentence"
            shown.append(
                Panel(
                    f"{name}.mean",
                    title,
                    weights.mean(0).T,
                    ["mean"],
                    one.layers,
                    SHARE,
                    ("", "layer"),
                    True,
                )
            )
        shown += learned(one)
    return shown


def choose(one: Fused, hop: int | str) -> list[tuple[str, str, list[int]]]:
    """Name, title and hops (counted from 0) of each panel; raises DataError for a hop that is not there."""
    count = one.weights.shape[2]
    if hop == "mean":
        return [
            (
                f"{one.side}.fuse.hops",
                f"{one.side} fusion, mean of {count} hops",
                list(range(count)),
            )
        ]
    if isinstance(hop, int) and not 1 <= hop <= count:
        raise DataError(f"there is no hop {hop}: the {one.side} fusion has {count}, counted from 1")
    numbers = range(1, count + 1) if hop == "all" else [int(hop)]
    return [(f"{one.side}.fuse.hop{h}", f"{one.side} fusion, hop {h}", [h - 1]) for h in numbers]


def learned(one: Fused) -> list[Panel]:
    """A panel of one column for each kind of number that the fusion has learned, the same at every position."""
    shown = []
    for what, values in one.learned.items():
        nodes = what == "betas"
        numbered = [str(i) for i in range(1, len(values) + 1)]
        rows = (
            [*(f"n{i}" for i in numbered[:-1]), "root"]
            if nodes
            else one.layers
            if len(values) == len(one.layers)
            else numbered
        )
        title = (
            f"{one.side} fusion, learned {'beta of each node' if nodes else 'weight of each layer'}"
        )
        measure, axis = ("learned beta", "node") if nodes else ("learned weight", "layer")
        shown.append(
            Panel(
                f"{one.side}.fuse.{what}",
                title,
                values[:, None],
                [what.removesuffix("s")],
                rows,
                measure,
                ("", axis),
                True,
            )
        )
    return shown


def rows(shown: Sequence[Panel]) -> list[int]:
    """How many panels stand in each row of a figure: sides apart, hops as a block, what belongs together side by side."""
    lengths: list[int] = []
    for side in dict.fromkeys(panel.name.partition(".")[0] for panel in shown):
        mine = [panel for panel in shown if panel.name.startswith(f"{side}.")]
        hops = [panel for panel in mine if ".fuse.hop" in panel.name and panel.axes[0] != "hop"]
        if not hops:
            lengths.append(len(mine))
            continue
        before = mine.index(hops[0])
        block = share_out(len(hops), beside(len(hops), len(hops[0].y), len(hops[0].x)))
        lengths += [length for length in (before, *block, len(mine) - before - len(hops)) if length]
    return lengths
