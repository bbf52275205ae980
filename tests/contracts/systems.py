"""Tiny models of everything that is registered, for the contract tests: register something and it is covered."""

from collections.abc import Callable
from typing import Any

import torch

from fusetk.fusion import FUSIONS
from fusetk.models import MODELS, Seq2Seq
from fusetk.models.stack import ATTENDS, CONNECTIONS

SOURCE_SIZE, TARGET_SIZE = 11, 9

# Options without which a kind cannot be built.
SIZES: dict[str, dict[str, Any]] = {
    "transformer": {
        "width": 16,
        "heads": 2,
        "ffn": 24,
        "encoder": {"layers": 2},
        "decoder": {"layers": 2},
    },
    "coordinated": {"width": 16, "heads": 2, "ffn": 24, "stack": {"layers": 2}},
    "conv": {
        "width": 10,
        "encoder": {"layers": 2, "widths": [8, 12]},
        "decoder": {"layers": 2, "widths": 8, "kernels": [3, 2]},
    },
    "recurrent": {
        "width": 16,
        "heads": 2,
        "init": 0.3,
        "embedding_dropout": 0.1,
        "output_dropout": 0.1,
        "encoder": {"depth": 1},
        "query": {"depth": 1},
        "decoder": {"depth": 1},
    },
}

# Options without which a fusion does not fit those sizes, and the variants whose computation differs.
ATTENTION: dict[str, Any] = {"hops": 3, "attention_hidden": 12, "hidden": 12}
FUSES: dict[str, list[dict[str, Any]]] = {
    "average": [{}],
    "ffn": [{"hidden": 12}],
    "attention": [ATTENTION, {**ATTENTION, "feature_wise": True, "independent_w1": True}],
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


# Table 3 of layer-wise coordination, and what goes with it.
COORDINATED: dict[str, dict[str, Any]] = {
    "weights of their own": {"share_weights": False},
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


# The rows of DTMT's tables, and what goes with them.
RECURRENT: dict[str, dict[str, Any]] = {
    "shallow": {side: {"cell": "gru", "depth": 0} for side in ("encoder", "query", "decoder")},
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


def variants(kind: str, table: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The configs of a kind to test."""
    return [{"kind": kind, **options} for options in table.get(kind, [{}])]


def sides(kind: str) -> list[str]:
    """The keys of a backbone's stacks, the source's first."""
    return [key for key in ("encoder", "decoder", "stack") if key in SIZES[kind]]


def build(kind: str, seed: int = 7, scale: float = 3.0, **options: Any) -> Seq2Seq:
    """A model with weights scaled up, so that a wrong cache or a wrong row shows in the output; in evaluation mode."""
    sizes = SIZES[kind]
    merged = {**sizes, **options, "kind": kind}
    for side in sides(kind):
        merged[side] = {**sizes[side], **options.get(side, {})}
    model = MODELS[kind].Config.model_validate(merged)
    torch.manual_seed(seed)
    built = MODELS[kind](model, SOURCE_SIZE, TARGET_SIZE)
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return built.eval()


def _system(kind: str, **options: Any) -> Callable[[], Seq2Seq]:
    return lambda: build(kind, **options)


def _name(option: dict[str, Any]) -> str:
    named = [
        f"{key} {value}"
        for key, value in option.items()
        if isinstance(value, str | bool | list) and key != "kind"
    ]
    return ", ".join([option["kind"], *named])


def _systems() -> dict[str, Callable[[], Seq2Seq]]:
    """Each kind at each site of each backbone; variants of a kind on the Transformer's decoder."""
    found = {}
    for kind in MODELS:
        found[kind] = _system(kind)
        recurrent = kind == "recurrent"  # without connections, and with one attention
        for site, kinds, table in (("connect", CONNECTIONS, CONNECTS), ("fuse", FUSIONS, FUSES)):
            for name in kinds if site == "fuse" or not recurrent else ():
                for n, option in enumerate(variants(name, table)):
                    *source, target = sides(kind)
                    if n == 0 or kind == "transformer":
                        found[f"{kind}, {target} {site} {_name(option)}"] = _system(
                            kind, **{target: {site: option}}
                        )
                    if (
                        source
                        and n == 0
                        and (site == "connect" or kind in ("transformer", "recurrent"))
                    ):
                        found[f"{kind}, encoder {site} {_name(option)}"] = _system(
                            kind, encoder={site: option}
                        )
        for attend in ATTENDS if "decoder" in sides(kind) else ():
            dense = {
                "connect": {
                    "kind": "dense",
                    "growth": 6,
                    "summary_every": None if attend == "layerwise" else 1,
                }
            }
            if recurrent and attend == "layerwise":
                continue
            found[f"{kind}, attend {attend}"] = _system(kind, decoder={"attend": attend})
            if not recurrent:
                found[f"{kind}, dense, attend {attend}"] = _system(
                    kind, encoder=dense, decoder={**dense, "attend": attend}
                )
    both = {
        side: {"connect": "linear", "fuse": {"kind": "attention", **ATTENTION}}
        for side in ("encoder", "decoder")
    }
    found["transformer, linear connections and attention fusions, one layer embedding"] = _system(
        "transformer", **both
    )
    four = {"layers": 4, "fuse": {"kind": "tree", "hidden": 12}}
    summed = {
        "layers": 3,
        "connect": {"kind": "dense", "growth": 6, "summary_every": 1, "summary_layer": "added"},
    }
    found["transformer, trees of four leaves"] = _system("transformer", encoder=four, decoder=four)
    found["conv, summaries and fusions above them"] = _system(
        "conv",
        encoder={**summed, "widths": 8, "fuse": "average"},
        decoder={**summed, "kernels": 2, "fuse": {"kind": "ffn", "hidden": 6}},
    )
    found["transformer, pre-norm, dense attention to linear connections"] = _system(
        "transformer",
        norm="pre",
        encoder={"connect": "linear"},
        decoder={"connect": "linear", "attend": "dense-sum"},
    )
    found["transformer, pre-norm, learned positions, tied"] = _system(
        "transformer", norm="pre", positions="learned", tie="target"
    )
    for gate in ("scalar", "vector"):
        found[f"transformer, context gate {gate}"] = _system(
            "transformer", context_gate=gate, scale=1.5
        )  # more would shut it
    found["transformer, pre-norm, attend layerwise"] = _system(
        "transformer", norm="pre", decoder={"attend": "layerwise"}
    )
    for name, options in COORDINATED.items():
        for norm in ("post", "pre"):
            found[f"coordinated, {norm}-norm, {name}"] = _system(
                "coordinated", norm=norm, **options
            )
    for name, options in RECURRENT.items():
        found[f"recurrent, {name}"] = _system("recurrent", **options)
    both = {
        side: {"depth": 2, "fuse": {"kind": "attention", **ATTENTION, "layer_embedding": True}}
        for side in ("encoder", "decoder")
    }
    found["recurrent, attention fusions over the depth"] = _system("recurrent", **both)
    summed["fuse"] = {"kind": "ffn", "hidden": 6}
    for share in (True, False):
        found[f"coordinated, summaries, a fusion above them, weights shared: {share}"] = _system(
            "coordinated", share_weights=share, stack=summed
        )
    return found


SYSTEMS = _systems()
