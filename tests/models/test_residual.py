"""Residual connections: equations in NumPy float64, gradients, initial function, parameters."""

from collections.abc import Callable
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fusetk import trace
from fusetk.errors import ConfigError
from fusetk.models.residual import RESIDUALS, ResidualBuilder
from fusetk.models.residual.manifold import (
    mean_of_permutations,
    permutation_matrices,
    sinkhorn,
)
from fusetk.models.residual.plain import PlainResidual
from fusetk.models.transformer import Transformer, TransformerConfig
from fusetk.models.transformer_layer import BlockStackConfig
from fusetk.nn.attention import SelfAttention
from tests.helpers.equations import layer_norm, sigmoid, softmax

D, SUBLAYERS = 6, 5
Vector = Any

# Each kind with its options, and the values of the key `norm` with which it is tested.
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("plain", {}, "post"),
    ("plain", {}, "pre"),
    ("rezero", {}, "none"),
    ("layer-scale", {}, "pre"),
    ("layer-scale", {"initial": 0.5}, "post"),
    ("deep-norm", {}, "post"),
    ("admin", {}, "post"),
    ("laurel-weights", {}, "post"),
    ("laurel-weights", {"normalize": "sigmoid"}, "pre"),
    ("laurel-low-rank", {"rank": 2}, "pre"),
    ("laurel-previous", {"rank": 2}, "post"),
    ("laurel-previous", {"rank": 2, "states": 2}, "pre"),
    ("hyper", {"streams": 3}, "pre"),
    ("hyper", {"streams": 2, "weights": "static"}, "pre"),
    ("manifold-hyper", {"streams": 3, "iterations": 4}, "pre"),
    ("manifold-hyper", {"streams": 3, "mix": "permutations"}, "pre"),
    ("attention-residual", {}, "pre"),
    ("attention-residual", {"block": 2}, "pre"),
]
each_case = pytest.mark.parametrize(("kind", "options", "norm"), CASES)


class Chain(nn.Module):
    """Sub-layers f_k(x) = tanh(x M_k) with residual connections, and the readout."""

    def __init__(self, kind: str, options: dict[str, Any], norm: Any, sublayers: int = SUBLAYERS):
        super().__init__()
        config = RESIDUALS[kind].Config.model_validate({"kind": kind, **options})
        residuals = ResidualBuilder(config, "encoder", {"encoder": sublayers}, D, norm, 0.0)
        connections = [residuals.layer(D, 1)[0] for _ in range(sublayers)]
        self.ends = residuals.ends
        self.residuals = nn.ModuleList(connections)
        self.readout = residuals.ends.readout()
        generator = torch.Generator().manual_seed(2)
        self.matrices = torch.randn(sublayers, D, D, generator=generator, dtype=torch.float64)
        self.read: list[Tensor] = []  # the input of each sub-layer, in the latest pass

    def forward(self, x: Tensor) -> Tensor:
        stream = self.ends.open(x)
        self.read = []
        for residual, matrix in zip(self.residuals, self.matrices, strict=True):
            h, stream = residual.before(stream)  # type: ignore[operator]
            self.read.append(h)
            stream = residual.after(stream, (h @ matrix).tanh())  # type: ignore[operator]
        self.state = self.ends.state(stream)
        output: Tensor = self.readout(stream)
        return output


def chain(kind: str, options: dict[str, Any], norm: str, sublayers: int = SUBLAYERS) -> Chain:
    """Build a chain in float64 with noise in every parameter."""
    torch.manual_seed(5)
    module = Chain(kind, options, norm, sublayers).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return module


def inputs() -> Tensor:
    generator = torch.Generator().manual_seed(11)
    return torch.randn(2, 3, D, dtype=torch.float64, generator=generator)


# The equations ------------------------------------------------------------------------------------


class Reference:
    """The equations of the papers for one position.

    ``p(k, name)`` is a parameter of sub-layer k; ``f(k, x)`` and ``norm(k, x)`` are functions.
    """

    def __init__(self, module: Chain, options: dict[str, Any], norm: str):
        parameters = {name: p.detach().numpy() for name, p in module.named_parameters()}
        self.p = lambda k, name: parameters[f"residuals.{k}.{name}"]
        self.top = {name.split(".")[-1]: p for name, p in parameters.items() if "readout" in name}
        self.matrices = module.matrices.numpy()
        self.options = options
        self.place = norm

    def norm(self, k: int, x: Vector) -> Vector:
        return layer_norm(x) * self.p(k, "norm.weight") + self.p(k, "norm.bias")

    def f(self, k: int, x: Vector) -> Vector:
        """The sub-layer with its pre-norm, if it has one."""
        return np.tanh((self.norm(k, x) if self.place == "pre" else x) @ self.matrices[k])

    def summed(self, x: Vector, join: Callable[[int, Vector, Vector, list[Vector]], Any]) -> Vector:
        """Residual connections of the form ``join(k, x, f(x), earlier states)``."""
        states: list[Vector] = []
        for k in range(SUBLAYERS):
            states.insert(0, x)
            x = join(k, x, self.f(k, x), states)
            x = self.norm(k, x) if self.place == "post" else x
        return x

    def plain(self, x: Vector) -> Vector:
        return self.summed(x, lambda k, x, y, _: x + y)

    def rezero(self, x: Vector) -> Vector:
        return self.summed(x, lambda k, x, y, _: x + self.p(k, "factor") * y)

    layer_scale = rezero

    def deep_norm(self, x: Vector) -> Vector:
        return self.summed(x, lambda k, x, y, _: (2 * SUBLAYERS) ** 0.25 * x + y)

    def admin(self, x: Vector) -> Vector:
        return self.summed(x, lambda k, x, y, _: self.p(k, "factor") * x + y)

    def laurel_weights(self, x: Vector) -> Vector:
        squash = sigmoid if self.options.get("normalize") == "sigmoid" else softmax

        def join(k: int, x: Vector, y: Vector, _: list[Vector]) -> Vector:
            a, b = squash(self.p(k, "weight"))
            return a * y + b * x

        return self.summed(x, join)

    def laurel_low_rank(self, x: Vector) -> Vector:
        return self.summed(x, lambda k, x, y, _: y + x + self.low_rank(k, x))

    def low_rank(self, k: int, x: Vector) -> Vector:
        return self.p(k, "map.b") @ (self.p(k, "map.a") @ x)

    def laurel_previous(self, x: Vector) -> Vector:
        def join(k: int, x: Vector, y: Vector, states: list[Vector]) -> Vector:
            g = self.p(k, "factors")
            assert len(g) == min(k + 1, self.options.get("states", 3))
            return y + x + sum(g[j] * self.low_rank(k, states[j]) for j in range(len(g)))

        return self.summed(x, join)

    def hyper(self, x: Vector) -> Vector:
        n = self.options["streams"]
        streams = np.stack([x] * n)
        for k in range(SUBLAYERS):
            read, write, mix = (self.p(k, name) for name in ("read", "write", "mix"))
            if self.options.get("weights") != "static":
                w = self.p(k, "project")
                normed = layer_norm(streams)
                scale = self.p(k, "input_scale")
                read = read + scale * np.tanh(normed @ w[:, 0])
                write = write + self.p(k, "output_scale") * np.tanh(normed @ w[:, 1])
                mix = mix + scale * np.tanh(normed @ w[:, 2:])
            y = self.f(k, read @ streams)
            streams = np.outer(write, y) + mix.T @ streams
        return streams.sum(0)

    def manifold_hyper(self, x: Vector) -> Vector:
        n = self.options["streams"]
        streams = np.stack([x] * n)
        for k in range(SUBLAYERS):
            flat = streams.flatten()
            scores = flat / np.sqrt((flat**2).mean() + 1e-6) @ self.p(k, "project")
            a, b = self.p(k, "scale"), self.p(k, "bias")
            pre = sigmoid(a[0] * scores[:n] + b[:n])
            post = 2 * sigmoid(a[1] * scores[n : 2 * n] + b[n : 2 * n])
            logits = a[2] * scores[2 * n :] + b[2 * n :]
            if self.options.get("mix") == "permutations":
                orders = permutations(range(n))
                res = sum(
                    w * np.eye(n)[list(o)] for w, o in zip(softmax(logits), orders, strict=True)
                )
            else:
                res = np.exp(logits.reshape(n, n))
                for _ in range(self.options["iterations"]):
                    res = res / res.sum(0, keepdims=True)
                    res = res / res.sum(1, keepdims=True)
            streams = res @ streams + np.outer(post, self.f(k, pre @ streams))
        return streams.mean(0)

    def attention_residual(self, x: Vector) -> Vector:
        def mixed(sources: list[Vector], query: Vector, gain: Vector) -> Vector:
            keys = [gain * v / np.sqrt((v**2).mean() + 1e-6) for v in sources]
            weights = softmax(np.array([query @ key for key in keys]))
            return sum(w * v for w, v in zip(weights, sources, strict=True))

        size = self.options.get("block", 1)
        blocks, outputs = [x], []
        for k in range(SUBLAYERS):
            partial = [sum(outputs)] if outputs else []
            h = mixed([*blocks, *partial], self.p(k, "depth.query"), self.p(k, "depth.gain"))
            outputs.append(self.f(k, h))
            if len(outputs) == size:
                blocks.append(sum(outputs))
                outputs = []
        partial = [sum(outputs)] if outputs else []
        return mixed([*blocks, *partial], self.top["query"], self.top["gain"])


@each_case
def test_a_chain_computes_the_equations_of_the_papers(
    kind: str, options: dict[str, Any], norm: str
) -> None:
    module = chain(kind, options, norm)
    x = inputs()
    output = module(x).detach().numpy()
    equation = getattr(Reference(module, options, norm), kind.replace("-", "_"))
    for b in range(2):
        for t in range(3):
            expected = equation(x[b, t].numpy())
            np.testing.assert_allclose(output[b, t], expected, rtol=1e-9, atol=1e-11)


@each_case
def test_any_leading_shape_and_single_positions(
    kind: str, options: dict[str, Any], norm: str
) -> None:
    module = chain(kind, options, norm)
    x = inputs()
    output = module(x)
    torch.testing.assert_close(module(x.view(1, 6, D)).view(2, 3, D), output)
    for t in range(3):
        torch.testing.assert_close(module(x[:, t : t + 1]), output[:, t : t + 1])


@each_case
def test_gradients_are_those_of_finite_differences(
    kind: str, options: dict[str, Any], norm: str
) -> None:
    module = chain(kind, options, norm, sublayers=2)
    names = [name for name, _ in module.named_parameters()]

    def run(x: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x,))

    x = inputs()[:1, :1].clone().requires_grad_()
    parameters = [p.detach().requires_grad_() for p in module.parameters()]
    assert torch.autograd.gradcheck(run, (x, *parameters), fast_mode=True)


# The initial function -----------------------------------------------------------------------------


def model(norm: str = "pre", encoder: Any = None, decoder: Any = None, **more: Any) -> Transformer:
    """Build a Transformer in float64 whose layer normalisations have an epsilon of 0."""
    sizes = {"kind": "transformer", "width": 8, "heads": 2, "ffn": 12, "norm": norm, **more}
    config = TransformerConfig.model_validate(
        {
            **sizes,
            "encoder": {"layers": 3, **(encoder or {})},
            "decoder": {"layers": 2, **(decoder or {})},
        }
    )
    torch.manual_seed(3)
    built = Transformer(config, 13, 11).double().eval()
    for module in built.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 0.0
    return built


def logits(transformer: Transformer) -> Tensor:
    src, tgt = torch.tensor([[4, 7, 5, 3], [6, 3, 4, 4]]), torch.tensor([[2, 6, 9], [2, 5, 5]])
    return transformer.output(transformer(src, src > 0, tgt))


def with_weights_of(transformer: Transformer, plain: Transformer) -> Transformer:
    """Give a model the weights of the plain model; its own parameters keep their values."""
    names = transformer.state_dict()
    weights = {
        # Layers with separate inputs have the residual connection of self-attention inside another.
        name if name in names else name.replace("_residual.", "_residual.inner."): weight
        for name, weight in plain.state_dict().items()
    }
    missing, unexpected = transformer.load_state_dict(weights, strict=False)
    assert not unexpected and missing
    return transformer


EQUAL: list[tuple[dict[str, Any], str]] = [
    ({"residual": "hyper"}, "pre"),
    ({"residual": {"kind": "hyper", "streams": 2, "weights": "static"}}, "pre"),
    ({"residual": "manifold-hyper"}, "pre"),
    ({"residual": {"kind": "manifold-hyper", "mix": "permutations"}}, "pre"),
    ({"residual": "attention-residual"}, "pre"),
    ({"residual": {"kind": "attention-residual", "block": 2}}, "pre"),
    ({"residual": {"kind": "attention-residual", "block": 4}}, "pre"),
    ({"residual": "laurel-low-rank"}, "post"),
    ({"residual": "laurel-previous"}, "post"),
    ({"connect": "depth-weighted"}, "post"),
    ({"connect": {"kind": "depth-weighted", "dilation": 2}}, "pre"),
    ({"connect": {"kind": "mudd", "streams": 1}}, "post"),
    ({"connect": "mudd"}, "post"),
    ({"connect": "mudd"}, "pre"),
    ({"connect": {"kind": "cross", "initial_std": 1e-30}}, "pre"),
    ({"connect": {"kind": "cross", "initial_std": 1e-30, "last": 1}}, "post"),
]


@pytest.mark.parametrize(("side", "norm"), EQUAL, ids=str)
def test_new_models_compute_the_function_of_the_plain_model(
    side: dict[str, Any], norm: str
) -> None:
    plain = model(norm)
    # A decoder of two layers is too shallow for a sum of layers between.
    decoder = {} if "last" in side.get("connect", {}) else side
    successor = with_weights_of(model(norm, side, decoder), plain)
    torch.testing.assert_close(logits(successor), logits(plain), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("init", "fuse", "is_equal"),
    [
        ("xavier", {"kind": "ffn", "layer_embedding": False}, True),
        ("mlrf", {"kind": "ffn", "layer_embedding": False}, False),
        ("mlrf", {"kind": "ffn", "layer_embedding": False, "norm_layers": True}, True),
        ("xavier", {"kind": "ffn"}, False),
        ("xavier", {"kind": "ffn", "norm_layers": True}, True),
        ("xavier", {"kind": "attention"}, False),
        ("xavier", {"kind": "attention", "norm_layers": True}, True),
        ("xavier", {"kind": "iterative", "aggregation": "concat-ffn"}, True),
        ("mlrf", {"kind": "iterative", "aggregation": "concat-ffn"}, False),
        ("xavier", {"kind": "iterative", "aggregation": "ewp-ffn"}, False),
        ("xavier", {"kind": "iterative", "aggregation": "ewp-ffn", "norm_layers": True}, True),
    ],
    ids=str,
)
def test_fusions_of_new_hyper_connected_models(
    init: str, fuse: dict[str, Any], is_equal: bool
) -> None:
    """Some fusions need ``norm_layers``, because each layer's output is n times the plain one."""
    plain = model(encoder={"fuse": fuse}, init=init)
    successor = with_weights_of(
        model(encoder={"fuse": fuse, "residual": "hyper"}, init=init), plain
    )
    difference = (logits(successor) - logits(plain)).abs().max()
    assert (difference < 1e-9) == is_equal


def test_equal_weights_are_the_mean_of_the_sources() -> None:
    """Attention residuals with a query of 0, in any model."""
    module = Chain("attention-residual", {}, "pre").double()
    x = inputs()
    output = module(x)
    torch.testing.assert_close(output * (SUBLAYERS + 1), module.state)


# Parameters ---------------------------------------------------------------------------------------


def extra_parameters(side: dict[str, Any], norm: str = "pre") -> int:
    """Return the parameters that options of the encoder add to a plain model."""
    successor = model(norm, encoder=side)
    return sum(p.numel() for p in successor.parameters()) - sum(
        p.numel() for p in model(norm).parameters()
    )


def test_parameter_counts_are_those_of_the_papers() -> None:
    d, layers, sublayers = 8, 3, 6
    assert extra_parameters({"residual": "attention-residual"}) == 2 * d * (sublayers + 1)
    for n in (1, 2, 4):
        hyper = {"kind": "hyper", "streams": n}
        static = extra_parameters({"residual": {**hyper, "weights": "static"}})
        assert static == sublayers * n * (n + 2)
        dynamic = extra_parameters({"residual": hyper})
        assert dynamic == sublayers * (d * (n + 2) + n * (n + 2) + 2)
    n = 4
    manifold = sublayers * (n * d * (n**2 + 2 * n) + n**2 + 2 * n + 3)
    assert extra_parameters({"residual": "manifold-hyper"}) == manifold
    lite = {"kind": "manifold-hyper", "streams": 3, "mix": "permutations"}
    columns = 3 + 3 + 6  # 3! permutations
    assert extra_parameters({"residual": lite}) == sublayers * (3 * d * columns + columns + 3)
    r = 16
    assert extra_parameters({"residual": "laurel-weights"}) == 2 * sublayers
    assert extra_parameters({"residual": "laurel-low-rank"}) == 2 * r * d * sublayers
    previous = extra_parameters({"residual": "laurel-previous"})  # two sub-layers see fewer states
    assert previous == (2 * r * d + 3) * sublayers - 3
    assert extra_parameters({"residual": "layer-scale"}) == d * sublayers
    assert extra_parameters({"residual": "rezero"}) == sublayers
    assert extra_parameters({"residual": "admin"}, "post") == d * sublayers
    assert extra_parameters({"residual": "deep-norm"}, "post") == 0
    assert extra_parameters({"connect": "depth-weighted"}) == layers * (layers + 3) // 2
    norms = 2 * 2 * d * layers  # of keys and values, with separate inputs
    for streams in (1, 4):
        count = norms if streams == 4 else 0
        for i in range(layers + 1):
            c = 1 if i == layers else streams
            k = c * (i + 1)
            count += d * k + k * c * (i + 1) + c * (i + 1)
        assert extra_parameters({"connect": {"kind": "mudd", "streams": streams}}) == count

    cross = norms
    for i in range(layers + 1):
        t = i + 1
        cross += (1 if i == layers else 3) * (d * t + d)
    assert extra_parameters({"connect": "cross"}) == cross


def test_hyper_connections_have_the_parameters_of_the_papers_models() -> None:
    """OLMo-1B has 32 sub-layers of width 2048, and norms without parameters."""
    for weights, count in (("static", 768), ("dynamic", 394_048)):
        config = RESIDUALS["hyper"].Config.model_validate({"kind": "hyper", "weights": weights})
        residuals = ResidualBuilder(config, "decoder", {"decoder": 16}, 2048, "pre", 0.0)
        connections = [c for _ in range(16) for c in residuals.layer(2048, 2)]
        norms = sum(p.numel() for c in connections for p in c.norm.parameters())
        assert sum(p.numel() for c in connections for p in c.parameters()) - norms == count


# Parameters without a gradient at the first update, and those that never have one. The streams
# below the first sub-layer are equal, and its input is normalised. So the weights with which it
# reads the streams have no effect. With one source, the query of attention residuals has no
# gradient. The bias of the norm of the keys adds the same number to all scores of a softmax.
FIRST_GRADIENTS: list[tuple[dict[str, Any], set[str], str | None]] = [
    (
        {"residual": "hyper"},
        {"read", "input_scale", "output_scale"},
        ".layers.0.attention_residual.read",
    ),
    ({"residual": "manifold-hyper"}, {"scale"}, None),
    ({"residual": {"kind": "manifold-hyper", "mix": "permutations"}}, {"scale"}, None),
    (
        {"residual": "attention-residual"},
        {"depth.gain", "readout.gain", "layers.0.attention_residual.depth.query"},
        ".layers.0.attention_residual.depth.",
    ),
    ({"residual": "laurel-low-rank"}, {"map.a"}, None),
    ({"residual": "laurel-previous"}, {"map.a", "factors"}, None),
    ({"connect": {"kind": "mudd", "streams": 1}}, {"w1"}, None),
    ({"connect": "mudd"}, {"w1", "key_norm.bias"}, ".key_norm.bias"),
    ({"connect": "cross"}, {"key_norm.bias"}, ".key_norm.bias"),
    ({"connect": "depth-weighted"}, set(), None),
]


@pytest.mark.parametrize(
    ("side", "first", "never"), FIRST_GRADIENTS, ids=[str(side) for side, _, _ in FIRST_GRADIENTS]
)
def test_parameters_without_a_gradient_at_the_first_update(
    side: dict[str, Any], first: set[str], never: str | None
) -> None:
    transformer = model("pre", side, side)

    def without_gradient() -> list[str]:
        transformer.zero_grad()
        logits(transformer).log_softmax(-1)[..., 3].sum().backward()
        return [
            name
            for name, p in transformer.named_parameters()
            if p.grad is None or not (p.grad.abs() > 1e-12).any()
        ]

    every = [name for name, _ in transformer.named_parameters()]
    endings = tuple(f".{end}" for end in first)
    assert without_gradient() == [name for name in every if name.endswith(endings)]
    for _ in range(2):
        torch.optim.SGD(transformer.parameters(), lr=0.01).step()
        names = without_gradient()
    assert names == [name for name in every if never is not None and never in name]


# Properties ---------------------------------------------------------------------------------------


def test_mixing_matrices_are_nearly_doubly_stochastic() -> None:
    torch.manual_seed(1)
    matrices = sinkhorn(torch.randn(50, 4, 4), 20)
    assert (matrices >= 0).all()
    torch.testing.assert_close(matrices.sum(-1), torch.ones(50, 4), rtol=0, atol=1e-6)
    torch.testing.assert_close(matrices.sum(-2), torch.ones(50, 4), rtol=0, atol=1e-3)
    assert torch.linalg.matrix_norm(matrices, 2).max() < 1 + 1e-3
    product = matrices[0]
    for matrix in matrices[1:]:
        product = product @ matrix
    torch.testing.assert_close(product.sum(-1), torch.ones(4), rtol=0, atol=1e-4)
    streams = torch.randn(50, 4, 8)
    torch.testing.assert_close((matrices @ streams).mean(1), streams.mean(1), rtol=0, atol=1e-3)


@pytest.mark.parametrize("autocast", [False, True])
def test_means_of_permutations_are_doubly_stochastic(autocast: bool) -> None:
    torch.manual_seed(1)
    permuted = permutation_matrices(4)
    assert len(permuted.flatten(1).unique(dim=0)) == 24
    torch.testing.assert_close(permuted[0], torch.eye(4))
    logits = 20 * torch.randn(50, 24)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        matrices = mean_of_permutations(logits, permuted)
    assert (matrices >= 0).all()
    for dimension in (-1, -2):
        torch.testing.assert_close(matrices.sum(dimension), torch.ones(50, 4), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("hyper", {}), ("manifold-hyper", {}), ("manifold-hyper", {"mix": "permutations"})],
)
def test_streams_are_equal_at_first_and_differ_after_updates(
    kind: str, options: dict[str, Any]
) -> None:
    module = Chain(kind, options, "pre").double()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)

    def spread() -> float:
        """The largest difference between the streams below the highest sub-layer."""
        stream = module.ends.open(inputs())
        for residual, matrix in zip(module.residuals, module.matrices, strict=True):
            h, stream = residual.before(stream)  # type: ignore[operator]
            stream = residual.after(stream, (h @ matrix).tanh())  # type: ignore[operator]
        return float((stream - stream[..., :1, :]).detach().abs().max())

    assert spread() < 1e-12
    for _ in range(2):
        optimizer.zero_grad()
        module(inputs()).square().mean().backward()
        optimizer.step()
    assert spread() > 1e-4


def test_the_order_of_hyper_connected_streams_has_no_effect() -> None:
    module = chain("hyper", {"streams": 3}, "pre")
    output = module(inputs())
    order = torch.tensor([2, 0, 1])
    with torch.no_grad():
        for residual in module.residuals:
            for name in ("read", "write"):
                getattr(residual, name).copy_(getattr(residual, name)[order].clone())
            residual.mix.copy_(residual.mix[order][:, order].clone())  # type: ignore[operator, union-attr, index]
            columns = torch.cat((torch.arange(2), 2 + order))
            residual.project.copy_(residual.project[:, columns].clone())  # type: ignore[operator, union-attr, index]
    torch.testing.assert_close(module(inputs()), output)


def test_weights_of_sources_do_not_depend_on_their_scale() -> None:
    module = chain("attention-residual", {}, "pre", sublayers=1)
    with trace.listen("*.output") as recorded:
        module(inputs() * 1e3)
        module(inputs() * 2e3)
    first, second = recorded["encoder.residual.output"]
    assert (first > 0).all()
    torch.testing.assert_close(first.sum(-1), torch.ones(2, 3, dtype=torch.float64))
    torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-6)


def test_deep_norm_has_the_factors_of_the_paper_and_scales_initial_weights() -> None:
    plain = model("post")
    deep = model("post", {"residual": "deep-norm"}, {"residual": "deep-norm"})
    n, m = 3, 2
    alpha, beta = 0.81 * (n**4 * m) ** (1 / 16), 0.87 * (n**4 * m) ** (-1 / 16)
    assert deep.encoder.layers[0].ffn_residual.alpha == pytest.approx(alpha)
    assert deep.decoder.layers[0].cross_residual.alpha == pytest.approx((3 * m) ** 0.25)
    scales = {
        "encoder.layers.1.ffn.hidden.weight": beta,
        "encoder.layers.1.attention.out.weight": beta,
        "decoder.layers.1.cross.out.weight": (12 * m) ** -0.25,
        "source.tokens.weight": 1.0,
    }
    weights, scaled = plain.state_dict(), deep.state_dict()
    for name, scale in scales.items():
        torch.testing.assert_close(scaled[name], weights[name] * scale)
    for name, parts in (("encoder.layers.1.attention", 3), ("decoder.layers.1.cross", 2)):
        key = f"{name}.project.weight" if parts == 3 else f"{name}.project.0.weight"
        scale = beta if parts == 3 else (12 * m) ** -0.25
        *same, value = weights[key].chunk(parts)
        *scaled_same, scaled_value = scaled[key].chunk(parts)
        torch.testing.assert_close(scaled_same, same)
        torch.testing.assert_close(scaled_value, value * scale)


def test_layer_scale_begins_smaller_in_deeper_stacks() -> None:
    factors = [
        Chain("layer-scale", {}, "pre", layers).residuals[0].factor[0].item()  # type: ignore[union-attr, index, operator]
        for layers in (18, 19, 25)
    ]
    assert factors == pytest.approx([0.1, 1e-5, 1e-6])
    assert all(a > b for a, b in pairwise(factors))


def test_a_new_rezero_chain_is_the_identity() -> None:
    x = inputs()
    torch.testing.assert_close(Chain("rezero", {}, "none").double()(x), x)


@pytest.mark.parametrize("normalize", ["softmax", "sigmoid"])
def test_new_laurel_weights_give_half_to_state_and_sublayer(normalize: str) -> None:
    """Both numbers are 0 at first. The norm after the sum cancels the common factor."""
    x = inputs()
    plain, laurel = (
        Chain(kind, options, "post").double()
        for kind, options in (("plain", {}), ("laurel-weights", {"normalize": normalize}))
    )
    torch.testing.assert_close(laurel(x), plain(x), rtol=1e-3, atol=1e-3)  # eps of the norm
    assert laurel.residuals[0].weight.tolist() == [0, 0]  # type: ignore[union-attr, operator]


def test_admin_begins_with_the_factor_of_its_package() -> None:
    """At first w^2 + 1 = (L + 1) / ln(L + 1) for L sub-layers."""
    residual = Chain("admin", {}, "post", 12).residuals[3]
    factor = (13 / np.log(13) - 1) ** 0.5
    torch.testing.assert_close(residual.factor, torch.full((D,), factor, dtype=torch.float32))


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_streams_in_bf16(norm: str) -> None:
    """The stream is bf16 in a model in bf16, and with autocast in layers that project it."""
    module = chain("plain", {}, norm).float()
    module.matrices = module.matrices.float()
    expected = module(inputs().float())
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(
            module(inputs().bfloat16()).float(), expected, rtol=0.1, atol=0.1
        )
    module.bfloat16()
    module.matrices = module.matrices.bfloat16()
    output = module(inputs().bfloat16())
    torch.testing.assert_close(output.float(), expected, rtol=0.1, atol=0.1)


def test_sums_of_a_block_are_float32_in_mixed_precision() -> None:
    module = chain("attention-residual", {"block": 6}, "pre").float()
    stream = module.ends.open(inputs().float())
    for residual in list(module.residuals)[:2]:
        h, stream = residual.before(stream)
        stream = residual.after(stream, h.bfloat16())
        assert stream.partial.dtype == torch.float32


# Errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["hyper", "manifold-hyper", "attention-residual"])
def test_streams_need_pre_norm(kind: str) -> None:
    with pytest.raises(ValueError, match=f"{kind} needs norm: pre, .*the model has norm: post"):
        model("post", {"residual": kind})


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"iterations": 5}, "residual.iterations has no effect with mix: permutations"),
        ({"streams": 7}, "7 streams have too many permutations: give at most 6"),
    ],
)
def test_options_that_do_not_fit_permutations_are_refused(
    options: dict[str, Any], error: str
) -> None:
    with pytest.raises(ValueError, match=error):
        model("pre", {"residual": {"kind": "manifold-hyper", "mix": "permutations", **options}})


@pytest.mark.parametrize("kind", ["deep-norm", "admin"])
def test_factors_of_the_state_need_post_norm(kind: str) -> None:
    with pytest.raises(ValueError, match=f"{kind} needs norm: post, .*the model has norm: pre"):
        model("pre", {"residual": kind})


def test_a_connection_of_layers_with_streams_is_refused() -> None:
    with pytest.raises(ValueError, match="connect: linear would have no effect"):
        BlockStackConfig.model_validate({"layers": 2, "residual": "hyper", "connect": "linear"})


class OwnAttention(SelfAttention):
    """Another self-attention."""


class OwnAttentionResidual(PlainResidual):
    attention_class = OwnAttention


class HalfInput(PlainResidual):
    def before(self, stream: Tensor) -> tuple[Tensor, Tensor]:
        return self.normed_input(stream) / 2, stream


@pytest.mark.parametrize(
    ("kind", "options", "side", "error"),
    [
        (OwnAttentionResidual, {"positions": "rotary"}, {}, "model.positions: rotary needs"),
        (OwnAttentionResidual, {"kv_heads": 1}, {}, "model.kv_heads: 1 needs"),
        (OwnAttentionResidual, {}, {"connect": "cross"}, r"sublayer1\) has its own method before"),
        (HalfInput, {}, {"connect": "mudd"}, "encoder.connect with separate queries"),
    ],
)
def test_own_parts_that_a_model_would_not_use_are_refused(
    kind: type, options: dict[str, Any], side: dict[str, Any], error: str
) -> None:
    encoder = {"layers": 2, "residual": f"{__name__}:{kind.__name__}"}
    config = {"width": 8, "heads": 2, "ffn": 8, "decoder": {"layers": 2}, "encoder": encoder}
    layer = Transformer(TransformerConfig.model_validate(config), 13, 11).encoder.layers[0]
    assert type(layer.attention_residual) is kind
    assert type(layer.attention) is layer.attention_residual.attention_class
    config |= {"encoder": {**encoder, **side}, **options}
    with pytest.raises(ConfigError, match=error):
        Transformer(TransformerConfig.model_validate(config), 13, 11)
