"""Tiny models of each registered backbone, connection, fusion and attention.

A new registered class is tested without a change here, unless it has options without a default.
The environment variable FUSETK_TEST_FUSION names a class outside the package that is tested, too,
for example `my_fusion:FeatureMix`.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch

from fusetk.config import resolve
from fusetk.fusion import FUSIONS
from fusetk.fusion.base import Fusion
from fusetk.models import MODELS, Seq2Seq
from fusetk.models.attend import ATTENDS
from fusetk.models.connect import CONNECTIONS

SOURCE_SIZE, TARGET_SIZE = 11, 9


class Backbone(NamedTuple):
    """The properties of a backbone that determine its systems."""

    sizes: dict[str, Any]  # options that it needs to be built
    connects: bool = True  # its stacks have connections
    attends_in_each_layer: bool = True  # otherwise its decoder has one attention
    test_encoder_fuses: bool = False  # test each fusion in the encoder, too
    test_variants: bool = False  # test the variants of connections and fusions, too


BACKBONES = {
    "transformer": Backbone(
        {
            "width": 16,
            "heads": 2,
            "ffn": 24,
            "encoder": {"layers": 2},
            "decoder": {"layers": 2},
        },
        test_encoder_fuses=True,
        test_variants=True,
    ),
    "coordinated": Backbone({"width": 16, "heads": 2, "ffn": 24, "stack": {"layers": 2}}),
    "conv": Backbone(
        {
            "width": 10,
            "encoder": {"layers": 2, "widths": [8, 12]},
            "decoder": {"layers": 2, "widths": 8, "kernels": [3, 2]},
        }
    ),
    "recurrent": Backbone(
        {
            "width": 16,
            "heads": 2,
            "init": 0.3,
            "embedding_dropout": 0.1,
            "output_dropout": 0.1,
            "encoder": {"depth": 1},
            "query": {"depth": 1},
            "decoder": {"depth": 1},
        },
        connects=False,
        attends_in_each_layer=False,
        test_encoder_fuses=True,
    ),
}

# Options that a fusion needs to fit these sizes, and the variants that compute something else.
ATTENTION: dict[str, Any] = {"hops": 3, "attention_hidden": 12, "hidden": 12}
FUSES: dict[str, list[dict[str, Any]]] = {
    "average": [{}],
    "ffn": [{"hidden": 12}],
    "attention": [
        ATTENTION,
        {**ATTENTION, "feature_wise": True, "independent_w1": True, "add_top": True},
        {**ATTENTION, "independent_w1": "hops", "embedding": False},
    ],
    "linear": [
        {},
        {"normalize": "softmax", "norm_layers": True},
        {"weights": "matrix", "aggregation": "ewp-ffn"},
    ],
    "iterative": [{"hidden": 12}, {"aggregation": "concat-ffn", "embedding": True}],
    "tree": [{"leaves": 2}, {"leaves": 2, "aggregation": "mean", "layer_embedding": True}],
}
CONNECTS: dict[str, list[dict[str, Any]]] = {
    "linear": [{}, {"normalize": "softmax", "norm_layers": False, "norm": True}],
    "dense": [
        {"growth": 6},
        {"growth": [6, 10], "summary_every": 1},
        {"growth": 6, "summary_every": 1, "summary_layer": "added"},
    ],
}
# Connections, residual connections, fusions and attentions that are tested in a few systems only,
# with others on the other side: the backbone and its options.
PRE: dict[str, Any] = {"norm": "pre"}
MUDD_1 = {"kind": "mudd", "streams": 1}
STATIC = {"kind": "hyper", "streams": 2, "weights": "static"}
MANIFOLD = {"kind": "manifold-hyper", "streams": 3, "iterations": 5}
PERMUTATIONS = {"kind": "manifold-hyper", "streams": 3, "mix": "permutations"}
BLOCKS = {"kind": "attention-residual", "block": 2}
SHARED_VALUES = {"kind": "value-residual", "first": 1, "own": 0}
GROUPS = {"kind": "groups", "groups": 1, "embedding": True}


def _sides(site: str, encoder: Any, decoder: Any, **more: Any) -> dict[str, Any]:
    return {"encoder": {site: encoder}, "decoder": {site: decoder}, **more}


SUCCESSORS: dict[str, tuple[str, dict[str, Any]]] = {
    "depth-weighted connections": (
        "transformer",
        _sides("connect", "depth-weighted", {"kind": "depth-weighted", "dilation": 2}),
    ),
    "depth-weighted and dynamic connections": (
        "conv",
        _sides("connect", "depth-weighted", MUDD_1),
    ),
    "separate inputs": ("transformer", _sides("connect", "mudd", "cross", **PRE)),
    "separate inputs, post-norm": (
        "transformer",
        _sides(
            *("connect", {"kind": "cross", "initial_std": 0.1}, "mudd"),
            **{"kv_heads": 1, "positions": "rotary", "scale": 1.5},
        ),
    ),
    "baseline of today": (
        "transformer",
        {
            **PRE,
            "normalization": "rms",
            "activation": "swiglu",
            "positions": "rotary",
            "kv_heads": 1,
            "encoder": {"layers": 1},
        },
    ),
    "dynamic connections": (
        "coordinated",
        {"stack": {"connect": MUDD_1, "ffn_growth": 0.5}, **PRE},
    ),
    "groups, attend transparent": (
        "transformer",
        {"decoder": {"fuse": "groups", "attend": "transparent"}},
    ),
    "dense, attend transparent": (
        "transformer",
        {
            "encoder": {"connect": {"kind": "dense", "growth": 6}},
            "decoder": {"attend": {"kind": "transparent", "norm_layers": True}},
        },
    ),
    "groups below attention": ("conv", {"encoder": {"fuse": GROUPS}}),
    "attend transparent": ("recurrent", {"decoder": {"attend": "transparent"}}),
    "residual rezero": ("transformer", _sides("residual", "rezero", "rezero", norm="none")),
    "residual deep-norm and admin": ("transformer", _sides("residual", "deep-norm", "admin")),
    "residual layer-scale and laurel-weights": (
        "transformer",
        _sides("residual", "layer-scale", "laurel-weights"),
    ),
    "residual laurel-low-rank and laurel-previous": (
        "transformer",
        _sides("residual", "laurel-low-rank", "laurel-previous", **PRE),
    ),
    "residual value-residual": (
        "transformer",
        _sides("residual", "value-residual", {"kind": "value-residual", "learned": True}, **PRE),
    ),
    "residual value-residual, shared values": (
        "transformer",
        {
            "encoder": {"residual": SHARED_VALUES},
            "decoder": {"residual": SHARED_VALUES},
            "kv_heads": 1,
            "positions": "rotary",
        },
    ),
    "residual value-residual with groups of heads": (
        "transformer",
        {
            "encoder": {"residual": "value-residual", "checkpoint": True},
            "decoder": {"residual": "value-residual", "fuse": "average", "attend": "dense-sum"},
            "kv_heads": 1,
            "positions": "rotary",
        },
    ),
    "residual hyper": ("transformer", _sides("residual", "hyper", STATIC, **PRE)),
    "residual hyper in one stack": ("coordinated", {"stack": {"residual": "hyper"}, **PRE}),
    "residual hyper below a fusion": (
        "transformer",
        {
            "encoder": {"residual": STATIC},
            "decoder": {"residual": "hyper", "fuse": "average", "attend": "dense-sum"},
            **PRE,
        },
    ),
    "residual manifold-hyper": ("transformer", _sides("residual", MANIFOLD, MANIFOLD, **PRE)),
    "residual manifold-hyper, permutations": (
        "transformer",
        _sides("residual", PERMUTATIONS, PERMUTATIONS, **PRE),
    ),
    "residual attention-residual": (
        "transformer",
        _sides("residual", BLOCKS, "attention-residual", **PRE),
    ),
    "residual attention-residual in two stacks": (
        "coordinated",
        {"stack": {"residual": BLOCKS}, "share_weights": False, "mixed_attention": False, **PRE},
    ),
    "residual attention-residual below a fusion": (
        "transformer",
        {"decoder": {"residual": BLOCKS, "fuse": "average"}, **PRE},
    ),
}


def kinds_tested_elsewhere(site: str) -> set[str]:
    """Return the kinds of a site in ``SUCCESSORS``."""
    kinds = set()
    for _, options in SUCCESSORS.values():
        for side in options.values():
            if isinstance(side, dict) and site in side:
                value = side[site]
                kinds.add(value if isinstance(value, str) else value["kind"])
    return kinds


# The rows of Table 3 of layer-wise coordination, and combinations of them.
COORDINATED: dict[str, dict[str, Any]] = {
    "weights of their own": {"share_weights": False},
    "projections of the target": {"share_weights": False, "source_maps": "target"},
    "two sub-layers": {"mixed_attention": False},
    "two sub-layers with maps of their own": {"mixed_attention": False, "cross_weights": "own"},
    "nothing shared": {
        "share_weights": False,
        "mixed_attention": False,
        "cross_weights": "own",
        "scale": 1.5,
    },
    "no language embedding, learned positions": {
        "language_embedding": False,
        "positions": "learned",
        "attention_bias": False,
    },
    "recomputed": {"stack": {"checkpoint": True, "connect": "linear"}},
}


# The rows of DTMT's tables, and combinations of them.
RECURRENT: dict[str, dict[str, Any]] = {
    "shallow": {side: {"cell": "gru", "depth": 0} for side in ("encoder", "query", "decoder")},
    "L-GRU without the bias of H": {"linear_bias": False},
    "LAU, deeper": {side: {"cell": "lau", "depth": 2} for side in ("encoder", "query", "decoder")},
    "three cells and depths": {
        "encoder": {"cell": "lau", "depth": 0},
        "query": {"cell": "gru"},
        "decoder": {"depth": 2},
    },
    "without the advanced techniques": {
        "heads": 1,
        "layer_norm": False,
        "positions": "none",
        "scale": 2.0,
    },
    "projected context, embeddings of another width, tied": {
        "project_context": True,
        "embedding": 12,
        "tie": "target",
    },
}


# Parameters without a gradient in systems whose name contains the first string. The first sub-layer
# of a stack has one source, so its query cannot change the weight of that source. The bias of the
# keys' norm adds the same number to all scores of a query.
NO_GRADIENT = {
    "attention-residual": ".layers.0.attention_residual.depth.",
    "separate inputs": ".key_norm.bias",
}

# The kinds of a config that names none. They make the model of the backbone's default.
DEFAULTS = {"connect": "last", "fuse": "last", "attend": "top", "residual": "plain"}


def variants(kind: str, table: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The configs of a kind to test."""
    return [{"kind": kind, **options} for options in table.get(kind, [{}])]


def sides(kind: str) -> list[str]:
    """The keys of a backbone's stacks, the source's first."""
    return [key for key in ("encoder", "decoder", "stack") if key in BACKBONES[kind].sizes]


def build(kind: str, seed: int = 7, scale: float = 3.0, **options: Any) -> Seq2Seq:
    """Build a model in evaluation mode.

    Large weights make an error in a cache or in the order of rows visible in the output.
    """
    sizes = BACKBONES[kind].sizes
    merged = {**sizes, **options, "kind": kind}
    for side in sides(kind):
        merged[side] = {**sizes[side], **options.get(side, {})}
    config = MODELS[kind].Config.model_validate(merged)
    torch.manual_seed(seed)
    model = MODELS[kind](config, SOURCE_SIZE, TARGET_SIZE)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any() and parameter.dim() > 1:
                parameter.normal_(std=0.1)
            elif parameter.dim() > 1:
                parameter.mul_(scale)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


Builder = Callable[[], Seq2Seq]


def _name(option: dict[str, Any]) -> str:
    values = [
        f"{key} {value}"
        for key, value in option.items()
        if isinstance(value, str | bool | list) and key != "kind"
    ]
    return ", ".join([option["kind"], *values])


def outside_fusions() -> list[str]:
    """Return the fusions that FUSETK_TEST_FUSION names. Fail if one of them cannot be used."""
    names = os.environ.get("FUSETK_TEST_FUSION", "").split()
    for name in names:
        try:
            resolve(name, FUSIONS, Fusion)
        except ValueError as error:
            message = f"FUSETK_TEST_FUSION: {error}"
            raise pytest.fail.Exception(message, pytrace=False) from None
    return names


OUTSIDE_FUSIONS = outside_fusions()


def _sites(kind: str) -> dict[str, Builder]:
    """Each connection and fusion at each side of a backbone.

    Variants of a kind are tested in the decoder only.
    """
    backbone = BACKBONES[kind]
    systems: dict[str, Builder] = {}
    *source_sides, target_side = sides(kind)
    fusions = [*FUSIONS, *OUTSIDE_FUSIONS]
    tables = {"connect": (list(CONNECTIONS), CONNECTS), "fuse": (fusions, FUSES)}
    if not backbone.connects:
        del tables["connect"]
    for site, (registered, options) in tables.items():
        both_sides = site == "connect" or backbone.test_encoder_fuses
        for name in registered:
            if name == DEFAULTS[site] or name in kinds_tested_elsewhere(site) - set(options):
                continue
            first, *others = variants(name, options)
            tested = [first, *others] if backbone.test_variants else [first]
            for option in tested:
                label = f"{kind}, {target_side} {site} {_name(option)}"
                systems[label] = partial(build, kind, **{target_side: {site: option}})
            if source_sides and both_sides:
                label = f"{kind}, encoder {site} {_name(first)}"
                systems[label] = partial(build, kind, encoder={site: first})
    return systems


def _attentions(kind: str) -> dict[str, Builder]:
    """Each attention to encoder layers, between residual and between dense stacks."""
    backbone = BACKBONES[kind]
    systems: dict[str, Builder] = {}
    if "decoder" not in sides(kind):
        return systems
    for attend in ATTENDS:
        if attend in kinds_tested_elsewhere("attend") - {"dense-sum"}:
            continue
        if attend == "layerwise" and not backbone.attends_in_each_layer:
            continue
        if attend != DEFAULTS["attend"]:
            systems[f"{kind}, attend {attend}"] = partial(build, kind, decoder={"attend": attend})
        if not backbone.connects:
            continue
        connect = {
            "kind": "dense",
            "growth": 6,
            "summary_every": None if attend == "layerwise" else 1,
        }
        systems[f"{kind}, dense, attend {attend}"] = partial(
            build,
            kind,
            encoder={"connect": connect},
            decoder={"connect": connect, "attend": attend},
        )
    return systems


def _combinations() -> dict[str, Builder]:
    """Systems that combine several options."""
    systems: dict[str, Builder] = {}
    connected = {"connect": "linear", "fuse": {"kind": "attention", **ATTENTION}}
    systems["transformer, linear connections and attention fusions, one layer embedding"] = partial(
        build, "transformer", encoder=connected, decoder=connected
    )
    tree = {"layers": 4, "fuse": {"kind": "tree", "hidden": 12}}
    systems["transformer, trees of four leaves"] = partial(
        build, "transformer", encoder=tree, decoder=tree
    )
    summed = {
        "layers": 3,
        "connect": {"kind": "dense", "growth": 6, "summary_every": 1, "summary_layer": "added"},
    }
    systems["conv, summaries and fusions above them"] = partial(
        build,
        "conv",
        encoder={**summed, "widths": 8, "fuse": "average"},
        decoder={**summed, "kernels": 2, "fuse": {"kind": "ffn", "hidden": 6}},
    )
    systems["transformer, pre-norm, dense attention to linear connections"] = partial(
        build,
        "transformer",
        norm="pre",
        encoder={"connect": "linear"},
        decoder={"connect": "linear", "attend": "dense-sum"},
    )
    systems["transformer, pre-norm, learned positions, tied"] = partial(
        build, "transformer", norm="pre", positions="learned", tie="target"
    )
    for gate in ("scalar", "vector"):
        # A scale of 3 would saturate the gate.
        systems[f"transformer, context gate {gate}"] = partial(
            build, "transformer", context_gate=gate, scale=1.5
        )
    systems["transformer, pre-norm, attend layerwise"] = partial(
        build, "transformer", norm="pre", decoder={"attend": "layerwise"}
    )
    for name, options in COORDINATED.items():
        for norm in ("post", "pre"):
            systems[f"coordinated, {norm}-norm, {name}"] = partial(
                build, "coordinated", norm=norm, **options
            )
    for name, options in RECURRENT.items():
        systems[f"recurrent, {name}"] = partial(build, "recurrent", **options)
    fusion = {"kind": "attention", **ATTENTION, "layer_embedding": True}
    deep = {"depth": 2, "fuse": fusion}
    systems["recurrent, attention fusions over the depth"] = partial(
        build, "recurrent", encoder=deep, decoder=deep
    )
    fused = {**summed, "fuse": {"kind": "ffn", "hidden": 6}}
    for share in (True, False):
        systems[f"coordinated, summaries, a fusion above them, weights shared: {share}"] = partial(
            build, "coordinated", share_weights=share, stack=fused
        )
    return systems


def _systems() -> dict[str, Builder]:
    systems: dict[str, Builder] = {}
    for kind in MODELS:
        systems[kind] = partial(build, kind)
        systems.update(_sites(kind))
        systems.update(_attentions(kind))
    for name, (kind, options) in SUCCESSORS.items():
        systems[f"{kind}, {name}"] = partial(build, kind, **options)
    systems.update(_combinations())
    return systems


SYSTEMS = _systems()

# Search knows a model by its interface only: the default of each backbone, and the system whose
# state has the most parts.
SEARCHED = [
    "transformer",
    "transformer, dense, attend layerwise",
    "coordinated",
    "coordinated, pre-norm, nothing shared",
    "conv",
    "conv, dense, attend dense-sum",
    "recurrent",
    "recurrent, three cells and depths",
]
