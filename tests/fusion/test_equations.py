"""Fusions and connections: the equations of the papers in NumPy float64, and gradients."""

from typing import Any

import numpy as np
import pytest
import torch

from fusetk.fusion import FUSIONS
from fusetk.models.connect import CONNECTIONS
from tests.contracts.systems import FUSES, variants

D, HISTORY = 6, 5  # width; the embedding and four layers


def make(kind: str, **options: Any) -> torch.nn.Module:
    """Build a fusion in float64, with noise added to every initial weight."""
    config = FUSIONS[kind].Config.model_validate({"kind": kind, **options})
    torch.manual_seed(5)
    fuse = FUSIONS[kind](config, [D] * HISTORY, D, "decoder.fuse").double().eval()
    with torch.no_grad():
        for parameter in fuse.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return fuse


def history() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    return [torch.randn(2, 3, D, dtype=torch.float64, generator=generator) for _ in range(HISTORY)]


def parameters(fuse: torch.nn.Module) -> dict[str, Any]:
    return {name: parameter.detach().numpy() for name, parameter in fuse.named_parameters()}


def check(fuse: torch.nn.Module, equation: Any) -> None:
    """Compare with ``equation(p, z)``, the formula of the paper for one position.

    p holds the parameters by name, z[i] is the vector of layer i.
    """
    layers = history()
    fused = fuse(layers).detach().numpy()
    p = parameters(fuse)
    for b in range(2):
        for t in range(3):
            expected = equation(p, [layer[b, t].numpy() for layer in layers])
            np.testing.assert_allclose(fused[b, t], expected, rtol=1e-10, atol=1e-12)


def layer_norm(p: dict[str, Any], name: str, x: Any) -> Any:
    normed = (x - x.mean()) / np.sqrt(((x - x.mean()) ** 2).mean() + 1e-5)
    return normed * p[f"{name}.weight"] + p[f"{name}.bias"]


def ffn(p: dict[str, Any], name: str, x: Any, sigma: Any = lambda u: np.maximum(u, 0)) -> Any:
    hidden_units = sigma(p[f"{name}.hidden.weight"] @ x + p[f"{name}.hidden.bias"])
    return p[f"{name}.out.weight"] @ hidden_units + p[f"{name}.out.bias"]


@pytest.mark.parametrize("embedding", [True, False])
@pytest.mark.parametrize("norm", [True, False])
def test_average(embedding: bool, norm: bool) -> None:
    def equation(p: dict[str, Any], z: list[Any]) -> Any:
        z = z if embedding else z[1:]
        mean = sum(z) / len(z)
        return layer_norm(p, "norm", mean) if norm else mean

    check(make("average", embedding=embedding, norm=norm), equation)


@pytest.mark.parametrize("embedding", [True, False])
@pytest.mark.parametrize("layer_embedding", [True, False])
@pytest.mark.parametrize("norm_layers", [True, False])
def test_ffn(embedding: bool, layer_embedding: bool, norm_layers: bool) -> None:
    def equation(p: dict[str, Any], z: list[Any]) -> Any:
        z = z if embedding else z[1:]
        if norm_layers:
            z = [layer_norm(p, f"norm_layers.{i}", z[i]) for i in range(len(z))]
        if layer_embedding:
            z = [z[i] + p["layer_embedding.weight"][i] for i in range(len(z))]
        return layer_norm(p, "norm", ffn(p, "ffn", np.concatenate(z)))

    options = {"layer_embedding": layer_embedding, "norm_layers": norm_layers}
    check(make("ffn", embedding=embedding, hidden=7, **options), equation)


SIGMAS = {"relu": lambda u: np.maximum(u, 0), "tanh": np.tanh}


def test_the_activation_of_ffn() -> None:
    options = {"embedding": False, "layer_embedding": False, "norm": False}
    fuse = make("ffn", activation="tanh", hidden=7, **options)
    check(fuse, lambda p, z: ffn(p, "ffn", np.concatenate(z[1:]), np.tanh))


@pytest.mark.parametrize("embedding", [True, False])
@pytest.mark.parametrize("layer_embedding", [True, False])
@pytest.mark.parametrize("independent_w1", [True, False, "hops"])
@pytest.mark.parametrize("feature_wise", [True, False])
@pytest.mark.parametrize("activation", SIGMAS)
@pytest.mark.parametrize("hops", [1, 3])
def test_attention(
    embedding: bool,
    layer_embedding: bool,
    independent_w1: bool | str,
    feature_wise: bool,
    activation: str,
    hops: int,
) -> None:
    """MLRF Equations 4 to 7 and the network after them, hop by hop and layer by layer."""
    sigma = SIGMAS[activation]

    def equation(p: dict[str, Any], z: list[Any]) -> Any:
        z = z if embedding else z[1:]
        if layer_embedding:
            z = [z[i] + p["layer_embedding.weight"][i] for i in range(len(z))]  # Equation 4
        s = []
        for hop in range(hops):
            index = {False: 0, "hops": hop}
            w1 = [p[f"w1.{index.get(independent_w1, i)}.weight"] for i in range(len(z))]
            rows = slice(hop * D, hop * D + D) if feature_wise else slice(hop, hop + 1)
            e = np.array(
                [p["w2.weight"][rows] @ sigma(w1[i] @ z[i]) for i in range(len(z))]
            )  # Equation 5: (L, 1 or D)
            a = np.exp(e) / np.exp(e).sum(0)  # Equation 6
            s.append(sum(a[i] * z[i] for i in range(len(z))))  # Equation 7
        return layer_norm(p, "norm", ffn(p, "ffn", np.concatenate(s), sigma))

    options = {
        "embedding": embedding,
        "layer_embedding": layer_embedding,
        "independent_w1": independent_w1,
    }
    sizes = {"hops": hops, "attention_hidden": 5, "hidden": 7}
    check(
        make("attention", feature_wise=feature_wise, activation=activation, **options, **sizes),
        equation,
    )


def test_the_w1_of_a_single_hop_is_the_shared_one() -> None:
    config = FUSIONS["attention"].Config(kind="attention", hops=1, independent_w1="hops")
    with pytest.raises(ValueError, match="no effect with hops: 1"):
        config.check(HISTORY)


@pytest.mark.parametrize("normalize", ["none", "softmax"])
@pytest.mark.parametrize("norm_layers", [True, False])
@pytest.mark.parametrize("aggregation", ["none", "ewp-ffn"])
def test_linear(normalize: str, norm_layers: bool, aggregation: str) -> None:
    def equation(p: dict[str, Any], z: list[Any]) -> Any:
        if norm_layers:
            z = [layer_norm(p, f"norm_layers.{i}", z[i]) for i in range(len(z))]
        w = p["combine.weight"]
        if normalize == "softmax":
            w = np.exp(w) / np.exp(w).sum()
        s = sum(w[i] * z[i] for i in range(len(z)))
        if aggregation == "ewp-ffn":
            s = ffn(p, "refine.ffn", layer_norm(p, "refine.norm", s)) + s
        return layer_norm(p, "norm", s)

    hidden = {"hidden": 7} if aggregation == "ewp-ffn" else {}
    check(
        make(
            "linear",
            normalize=normalize,
            norm_layers=norm_layers,
            aggregation=aggregation,
            **hidden,
        ),
        equation,
    )


def test_linear_with_matrices() -> None:
    """Dou et al. 2018: sum_l W_l h_l."""

    def equation(p: dict[str, Any], z: list[Any]) -> Any:
        w = p["combine.weight.weight"]
        return sum(w[:, i * D : i * D + D] @ z[i] for i in range(len(z)))

    check(make("linear", weights="matrix", norm=False), equation)


def aggregate(p: dict[str, Any], kind: str, node: int, a: Any, b: Any) -> Any:
    """RTAL Equations 7 to 10."""
    if kind == "mean":
        return 0.5 * (a + b)
    if kind == "concat-ffn":
        return ffn(p, f"nodes.{node}.ffn", np.concatenate([a, b]))
    s = (a + b) * p[f"nodes.{node}.beta"]
    return ffn(p, f"nodes.{node}.refine.ffn", layer_norm(p, f"nodes.{node}.refine.norm", s)) + s


def hidden(kind: str) -> dict[str, Any]:
    """The option for the hidden units, for aggregations with a feed-forward network."""
    return {} if kind == "mean" else {"hidden": 7}


aggregations = pytest.mark.parametrize("kind", ["mean", "concat-ffn", "ewp-ffn"])


@aggregations
@pytest.mark.parametrize("embedding", [True, False])
def test_iterative(kind: str, embedding: bool) -> None:
    def equation(p: dict[str, Any], z: list[Any]) -> Any:
        h = z if embedding else z[1:]
        n = h[0]
        for i in range(1, len(h)):
            n = aggregate(p, kind, i - 1, h[i], n)
        return n

    check(make("iterative", aggregation=kind, embedding=embedding, **hidden(kind)), equation)


def test_beta_may_have_a_number_for_each_feature() -> None:
    fuse = make("iterative", beta="vector", hidden=7)
    assert parameters(fuse)["nodes.0.beta"].shape == (D,)

    def equation(p: dict[str, Any], z: list[Any]) -> Any:
        n = z[1]
        for i in range(2, HISTORY):
            n = aggregate(p, "ewp-ffn", i - 2, z[i], n)
        return n

    check(fuse, equation)


@aggregations
@pytest.mark.parametrize("residual", ["preceding", "none"])
@pytest.mark.parametrize("embedding", [True, False])
def test_tree_of_four(kind: str, residual: str, embedding: bool) -> None:
    """The leaves are h1 to h4. h0 is the input of the lowest leaf, whatever ``embedding`` says."""

    def equation(p: dict[str, Any], h: list[Any]) -> Any:
        n1 = aggregate(p, kind, 0, h[1], h[2])
        n2 = aggregate(p, kind, 1, h[3], h[4])
        if residual == "preceding":
            n1 = n1 + h[0]
            n2 = n2 + n1
        return aggregate(p, kind, 2, n1, n2)

    check(
        make("tree", aggregation=kind, residual=residual, embedding=embedding, **hidden(kind)),
        equation,
    )


@aggregations
def test_tree_whose_lowest_leaf_is_the_embedding(kind: str) -> None:
    """The lowest leaf has no input, so the first node adds nothing."""
    config = FUSIONS["tree"].Config.model_validate(
        {"kind": "tree", "aggregation": kind, "embedding": True, **hidden(kind)}
    )
    fuse = FUSIONS["tree"](config, [D] * 4, D, "encoder.fuse").double()
    h = [layer[0, 0] for layer in history()[:4]]
    p, z = parameters(fuse), [layer.numpy() for layer in h]
    n1 = aggregate(p, kind, 0, z[0], z[1])
    n2 = aggregate(p, kind, 1, z[2], z[3]) + n1
    np.testing.assert_allclose(fuse(h).detach().numpy(), aggregate(p, kind, 2, n1, n2), rtol=1e-10)


@pytest.mark.parametrize("residual", ["preceding", "none"])
def test_tree_of_eight(residual: str) -> None:
    """A node adds the node before its leftmost leaf in post-order.

    Post-order: h1 h2 a1 h3 h4 a2 b1 h5 h6 a3 h7 h8 a4 b2 root.
    """
    config = FUSIONS["tree"].Config.model_validate(
        {"kind": "tree", "leaves": 8, "residual": residual, "hidden": 7}
    )
    fuse = FUSIONS["tree"](config, [D] * 10, D, "encoder.fuse").double()
    generator = torch.Generator().manual_seed(1)
    layers = [torch.randn(D, dtype=torch.float64, generator=generator) for _ in range(10)]
    p = parameters(fuse)
    h = [layer.numpy() for layer in layers[1:]]  # h[0] is layer 1, the input of the lowest leaf
    add = residual == "preceding"
    a1 = aggregate(p, "ewp-ffn", 0, h[1], h[2]) + add * h[0]
    a2 = aggregate(p, "ewp-ffn", 1, h[3], h[4]) + add * a1
    b1 = aggregate(p, "ewp-ffn", 2, a1, a2) + add * h[0]
    a3 = aggregate(p, "ewp-ffn", 3, h[5], h[6]) + add * b1
    a4 = aggregate(p, "ewp-ffn", 4, h[7], h[8]) + add * a3
    b2 = aggregate(p, "ewp-ffn", 5, a3, a4) + add * b1
    np.testing.assert_allclose(
        fuse(layers).detach().numpy(), aggregate(p, "ewp-ffn", 6, b1, b2), rtol=1e-10
    )


@pytest.mark.parametrize(("groups", "embedding"), [(2, True), (2, False), (1, True)])
def test_groups(groups: int, embedding: bool) -> None:
    """GTrans: the highest layer of each group of the four layers."""

    def equation(p: dict[str, Any], z: list[Any]) -> Any:
        layers = ([z[0]] if embedding else []) + z[4 // groups :: 4 // groups]
        weights = 1 / (1 + np.exp(-p["weight"]))
        mean = sum(w * h for w, h in zip(weights, layers, strict=True)) / len(layers)
        return layer_norm(p, "norm", mean)

    check(make("groups", groups=groups, embedding=embedding), equation)


@pytest.mark.parametrize("normalize", ["none", "softmax"])
@pytest.mark.parametrize("where", ["layers", "sum"])
def test_dynamic_linear_combination(normalize: str, where: str) -> None:
    """Wang et al. 2019, section 3, pre-norm and post-norm: the input of every layer."""
    options = {"norm_layers": where == "layers", "norm": where == "sum", "normalize": normalize}
    config = CONNECTIONS["linear"].Config.model_validate({"kind": "linear", **options})
    connect: Any = CONNECTIONS["linear"](config, "decoder.connect")
    for i in range(4):
        connect.register_output(D, starts_block=i == 0)
        assert connect.register_input() == D
    connect = connect.double()
    with torch.no_grad():
        for parameter in connect.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    p, layers = parameters(connect), history()
    stream = None
    for i in range(4):  # the input of layer i + 1
        stream = connect.append(stream, layers[i])
        y = [layer[1, 2].numpy() for layer in layers[: i + 1]]
        if where == "layers":
            y = [layer_norm(p, f"norm_layers.{k}", y[k]) for k in range(i + 1)]
        w = p.get(f"combine.{i}.weight", np.zeros(1))
        if normalize == "softmax":
            w = np.exp(w) / np.exp(w).sum()
        expected = sum(w[k] * y[k] for k in range(i + 1))
        if where == "sum":
            expected = layer_norm(p, f"norm.{i}", expected)
        np.testing.assert_allclose(connect(stream)[1, 2].detach().numpy(), expected, rtol=1e-10)


ALL = [option for kind in FUSIONS for option in variants(kind, FUSES)]


@pytest.mark.parametrize("option", ALL, ids=str)
def test_gradients_agree_with_numerical_ones(option: dict[str, Any]) -> None:
    """Compare analytic with numerical gradients of every layer and parameter in float64."""
    fuse = make(**option)
    names = [name for name, _ in fuse.named_parameters()]
    layers = [layer[:1, :2].clone().requires_grad_() for layer in history()]

    def run(*tensors: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(
            fuse, dict(zip(names, tensors[HISTORY:], strict=True)), (tensors[:HISTORY],)
        )

    assert torch.autograd.gradcheck(
        run, (*layers, *(p.detach().requires_grad_() for p in fuse.parameters())), fast_mode=True
    )


@pytest.mark.parametrize("option", ALL, ids=str)
def test_a_fusion_reads_one_position(option: dict[str, Any]) -> None:
    """Position t of the output depends only on position t of the layers."""
    fuse, layers = make(**option), history()
    fused = fuse(layers)
    assert fused.shape == (2, 3, fuse.out_width)
    for t in range(3):
        torch.testing.assert_close(
            fuse([layer[:, t : t + 1] for layer in layers]), fused[:, t : t + 1]
        )


@pytest.mark.parametrize("option", [option for option in ALL if option["kind"] != "last"], ids=str)
def test_layers_of_other_widths_are_projected(option: dict[str, Any]) -> None:
    widths = [4, D, 8, D, 4]
    config = FUSIONS[option["kind"]].Config.model_validate(option)
    fuse: Any = FUSIONS[option["kind"]](config, widths, D, "encoder.fuse")
    same = FUSIONS[option["kind"]](config, [D] * 5, D, "encoder.fuse")
    same.load_state_dict(fuse.state_dict(), strict=False)
    layers = [torch.randn(2, 3, width) for width in widths]
    mapped = [torch.zeros(2, 3, D)] * fuse.first + [
        fuse.project[i](layer) for i, layer in enumerate(layers[fuse.first :])
    ]
    torch.testing.assert_close(fuse(layers), same(mapped))
