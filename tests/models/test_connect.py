"""Connections by weights of layers: equations in NumPy float64, and gradients."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fusetk.errors import ConfigError
from fusetk.models.connect import CONNECTIONS, LayerInputs
from fusetk.models.connect.base import SummaryMode
from fusetk.models.connect.linear import LinearConnection, LinearConnectionConfig
from fusetk.models.stack import StackConfig
from fusetk.models.transformer import Transformer, TransformerConfig

D, LAYERS = 6, 4
OPTIONS: list[dict[str, Any]] = [
    {"kind": "depth-weighted"},
    {"kind": "depth-weighted", "dilation": 2},
    {"kind": "depth-weighted", "dilation": 2, "period": 3},
    {"kind": "mudd", "streams": 1},
    {"kind": "mudd"},
    {"kind": "cross"},
    {"kind": "cross", "last": 1},
]
each_option = pytest.mark.parametrize("options", OPTIONS, ids=str)


class ConnectedChain(nn.Module):
    """Layers x -> x + tanh(x M_k), or with separate inputs r + tanh((q + 2 k + 3 v) M_k)."""

    def __init__(self, options: dict[str, Any], layers: int = LAYERS):
        super().__init__()
        config = CONNECTIONS[options["kind"]].Config.model_validate(options)
        self.connect = CONNECTIONS[options["kind"]](config, "decoder.connect")
        for i in range(layers):
            self.connect.register_output(D, starts_block=i == 0)
            assert self.connect.register_input() == D
        self.connect.register_output(D, starts_block=False)
        assert self.connect.register_top_input() == D
        generator = torch.Generator().manual_seed(2)
        self.matrices = torch.randn(layers, D, D, generator=generator, dtype=torch.float64) / 3

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.connect.append(None, x)
        for matrix in self.matrices:
            read = self.connect(outputs)
            q, k, v, r = read if isinstance(read, LayerInputs) else (read, 0, 0, read)
            outputs = self.connect.append(outputs, r + ((q + 2 * k + 3 * v) @ matrix).tanh(), read)
        top_input: Tensor = self.connect.top_input(outputs)
        return top_input


def chain(options: dict[str, Any], layers: int = LAYERS) -> ConnectedChain:
    torch.manual_seed(5)
    module = ConnectedChain(options, layers).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return module


def inputs() -> Tensor:
    generator = torch.Generator().manual_seed(11)
    return torch.randn(2, 3, D, dtype=torch.float64, generator=generator)


def gelu(x: Any) -> Any:
    return np.vectorize(lambda u: u * (1 + math.erf(u / math.sqrt(2))) / 2)(x)


def readings(p: dict[str, Any], options: dict[str, Any], sources: list[Any], top: bool) -> Any:
    """The inputs q, k, v and r of the layer above the given outputs, for one position.

    ``sources`` are the embedding and the outputs of the layers; for ``cross`` the embedding and the
    differences between the outputs and the inputs of the layers.
    """
    i = len(sources) - 1
    if options["kind"] == "depth-weighted":
        weight = p.get(f"weights.{i}")
        if weight is None:
            return [sources[i], 0, 0, sources[i]]
        read = sources[i % options.get("dilation", 1) :: options.get("dilation", 1)]
        mix = sum(w * source for w, source in zip(weight, read, strict=True))
        return [mix, 0, 0, mix]
    if options["kind"] == "mudd":
        normed = sources[i] / np.sqrt((sources[i] ** 2).mean() + 1e-6)
        hidden = gelu(normed @ p[f"aggregate.{i}.w1"])
        static = p[f"aggregate.{i}.static"]
        weights = (hidden @ p[f"aggregate.{i}.w2"]).reshape(static.shape) + static
        assert len(weights) == (1 if top else options.get("streams", 4))
        mixes = list(weights @ np.stack(sources))
        return mixes if len(mixes) == 4 else [mixes[0], 0, 0, mixes[0]]
    last = options.get("last")
    if last is not None and len(sources) > last + 2:
        sources = [sources[0], sum(sources[1:-last]), *sources[-last:]]
    static, dynamic = p[f"mix.{i}.static"], p[f"mix.{i}.dynamic"]
    assert len(static) == (1 if top else 3)
    mixes = [
        sum(g * (b + max(w @ g, 0)) for g, b in zip(sources, bias, strict=True))
        for bias, w in zip(static, dynamic, strict=True)
    ]
    return [*mixes, mixes[0]]


@each_option
def test_a_chain_computes_the_equations_of_the_papers(options: dict[str, Any]) -> None:
    module = chain(options)
    prefix = "connect."
    p = {name.removeprefix(prefix): v.detach().numpy() for name, v in module.named_parameters()}
    output = module(inputs()).detach().numpy()
    for b in range(2):
        for t in range(3):
            sources = [inputs()[b, t].numpy()]
            for matrix in module.matrices.numpy():
                q, k, v, r = readings(p, options, sources, top=False)
                result = np.tanh((q + 2 * k + 3 * v) @ matrix)
                sources.append(result if options["kind"] == "cross" else r + result)
            expected = readings(p, options, sources, top=True)[0]
            np.testing.assert_allclose(output[b, t], expected, rtol=1e-9, atol=1e-11)


@each_option
def test_gradients_are_those_of_finite_differences(options: dict[str, Any]) -> None:
    module = chain(options, layers=3)
    names = [name for name, _ in module.named_parameters()]

    def run(x: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x,))

    x = inputs()[:1, :1].clone().requires_grad_()
    parameters = [p.detach().requires_grad_() for p in module.parameters()]
    assert torch.autograd.gradcheck(run, (x, *parameters), fast_mode=True)


@each_option
def test_any_leading_shape_and_single_positions(options: dict[str, Any]) -> None:
    module = chain(options)
    output = module(inputs())
    torch.testing.assert_close(module(inputs().view(1, 6, D)).view(2, 3, D), output)
    for t in range(3):
        torch.testing.assert_close(module(inputs()[:, t : t + 1]), output[:, t : t + 1])


def test_a_period_needs_an_input_that_is_read() -> None:
    side = {"layers": 2, "connect": {"kind": "depth-weighted", "period": 2}}
    for attend, allowed in (("top", True), ("transparent", False)):
        config = {"width": 8, "heads": 2, "encoder": side}
        config["decoder"] = {"layers": 2, "attend": attend}
        if allowed:
            TransformerConfig.model_validate(config)
            continue
        with pytest.raises(ValueError, match=r"period 2 has no effect, .* has only 1 input "):
            TransformerConfig.model_validate(config)


@pytest.mark.parametrize("kind", sorted(CONNECTIONS.keys() - {"last"}))
def test_a_connection_without_layers_to_connect_is_refused(kind: str) -> None:
    side = {"layers": 1, "connect": {"kind": kind, **({"growth": 8} if kind == "dense" else {})}}
    sizes = {"width": 8, "heads": 2, "ffn": 8}
    for encoder, attend, is_read in (
        (side, "top", True),
        (side, "transparent", False),
        ({**side, "fuse": "average"}, "top", False),
    ):
        config = {**sizes, "encoder": encoder, "decoder": {"layers": 1, "attend": attend}}
        if is_read:
            model = Transformer(TransformerConfig.model_validate(config), 9, 9)
            assert len(model.encoder.input_widths) == 1 and model.encoder.uses_top_input
            continue
        with pytest.raises(ValueError, match=f"connect: {kind} has no layers to connect"):
            TransformerConfig.model_validate(config)


@pytest.mark.parametrize("fuse", ["last", "average"])
def test_a_number_of_layers_that_leaves_none_to_sum_is_refused(fuse: str) -> None:
    inputs = 5 if fuse == "last" else 4  # of a stack of 4 layers
    for last in range(1, 5):
        side = {"layers": 4, "fuse": fuse, "connect": {"kind": "cross", "last": last}}
        config = {"width": 8, "heads": 2, "encoder": side, "decoder": {"layers": 2}}
        if last <= inputs - 3:
            mixes = Transformer(TransformerConfig.model_validate(config), 9, 9).encoder.connect.mix
            assert max(mix.merged for mix in mixes) > 1
        else:
            with pytest.raises(ValueError, match=f"last: {last} has no effect"):
                TransformerConfig.model_validate(config)


def test_a_period_above_the_depth_is_refused() -> None:
    connect = {"kind": "depth-weighted", "period": 3}
    with pytest.raises(ValueError, match=r"period 3 has no effect, .* has only 2 inputs "):
        StackConfig.model_validate({"layers": 2, "connect": connect})
    for layers, refused in ((3, True), (4, False)):  # `average` does not read the input after them
        values = {"layers": layers, "connect": connect, "fuse": "average"}
        if refused:
            with pytest.raises(ValueError, match="give at most 2"):
                StackConfig.model_validate(values)
        else:
            StackConfig.model_validate(values)


@pytest.mark.parametrize(
    ("layers", "options", "highest"),
    [(3, {"dilation": 4}, 3), (3, {"dilation": 3, "period": 2}, 2), (3, {"fuse": "average"}, 2)],
)
def test_a_dilation_that_reaches_no_other_layer_is_refused(
    layers: int, options: dict[str, Any], highest: int
) -> None:
    connect = {"kind": "depth-weighted", "dilation": 3, "period": 1, **options}
    fuse = {"fuse": connect.pop("fuse")} if "fuse" in connect else {}
    message = f"dilation {connect['dilation']} has no effect.*give at most {highest}"
    with pytest.raises(ValueError, match=message):
        StackConfig.model_validate({"layers": layers, "connect": connect, **fuse})
    connect["dilation"] = highest
    StackConfig.model_validate({"layers": layers, "connect": connect, **fuse})


def test_separate_inputs_need_layers_that_read_them() -> None:
    with pytest.raises(ValueError, match="only the layers of kind: transformer read"):
        StackConfig.model_validate({"layers": 2, "connect": "mudd"})


class WithSummary(LinearConnectionConfig):
    def summary(self, layer: int, layers: int) -> SummaryMode:
        return "added" if layer == 0 else "no"


class LinearWithSummary(LinearConnection):
    Config = WithSummary


def test_combinations_of_layers_refuse_summary_layers() -> None:
    side = {"layers": 3, "connect": f"{__name__}:LinearWithSummary"}
    config = {"width": 8, "heads": 2, "ffn": 8, "encoder": side, "decoder": {"layers": 1}}
    with pytest.raises(ConfigError, match=r"\(encoder.connect\) cannot have summary layers"):
        Transformer(TransformerConfig.model_validate(config), 13, 11)
