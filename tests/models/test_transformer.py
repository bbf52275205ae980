"""The Transformer: parameter counts of papers, equations in NumPy float64, options, errors."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn

from fusetk import trace
from fusetk.errors import ConfigError
from fusetk.models.block_model import TransformerEmbedding
from fusetk.models.stack import Layer
from fusetk.models.transformer import (
    Transformer,
    TransformerConfig,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
)
from fusetk.nn.attention import CrossAttention, SelfAttention
from fusetk.nn.packed_layout import PackedLayout
from fusetk.nn.positions import Learned, Sinusoidal, sinusoids
from tests.helpers.equations import layer_norm, sigmoid, softmax
from tests.helpers.threads import torch_threads


def config(**options: Any) -> TransformerConfig:
    sizes = {"width": 8, "heads": 2, "ffn": 12, "encoder": {"layers": 2}, "decoder": {"layers": 2}}
    return TransformerConfig.model_validate({"kind": "transformer", **sizes, **options})


def count_parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("layers", "parameters"), [(3, 10_974_748), (4, 12_817_948), (6, 16_504_348)]
)
def test_mlrf_baselines_have_the_parameter_counts_of_the_paper(
    layers: int, parameters: int
) -> None:
    sizes = config(
        width=256, heads=4, ffn=1024, encoder={"layers": layers}, decoder={"layers": layers}
    )
    with torch.device("meta"):
        assert count_parameters(Transformer(sizes, 8389, 6428)) == parameters


def test_tying_shares_matrices() -> None:
    none, target, both = (
        count_parameters(Transformer(config(tie=tie), 20, 20)) for tie in ("none", "target", "all")
    )
    assert none - target == target - both == 20 * 8
    for sizes in ((20, 21), (21, 20)):
        with pytest.raises(ConfigError, match="one vocabulary"):
            Transformer(config(tie="all"), *sizes)


@pytest.mark.parametrize("bias", [True, False])
def test_attention_bias_applies_to_all_maps_of_attention(bias: bool) -> None:
    model = Transformer(config(attention_bias=bias), 20, 20)
    attentions = [m for m in model.modules() if isinstance(m, SelfAttention | CrossAttention)]
    maps = [m for each in attentions for m in each.modules() if isinstance(m, torch.nn.Linear)]
    assert {m.bias is not None for m in maps} == {bias}


def test_a_subclass_replaces_the_layers_by_two_methods() -> None:
    class Doubling(TransformerDecoderLayer):
        def forward(self, x: torch.Tensor, context: Any) -> Any:
            y, cache = super().forward(x, context)
            return 2 * y, cache

    class Identity(Layer):
        width = 8

        def forward(self, x: torch.Tensor, context: Any) -> Any:
            return x, None

    class Changed(Transformer):
        def encoder_layer(
            self, config: Any, residuals: Any, planned: Any, name: str, input_width: int
        ) -> Layer:
            return Identity()

        def decoder_layer(
            self, config: Any, residuals: Any, planned: Any, name: str, input_width: int
        ) -> Layer:
            return Doubling(config, name, input_width, planned.width, [8], residuals)

    model = Changed(config(dropout=0), 9, 9).eval()
    plain = Transformer(config(dropout=0), 9, 9).eval()
    plain.load_state_dict(model.state_dict(), strict=False)
    source, target = torch.tensor([[4, 5, 2]]), torch.tensor([[1, 6]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    memory = model.encode(source, mask)
    assert torch.equal(memory.output, model.source(source))
    features, _ = model.decode(target, model.start(memory))
    half, _ = plain.decode(target, plain.start(memory))
    assert features.shape == half.shape and not torch.allclose(features, half)


class ScaledCross(CrossAttention):
    def forward(self, *args: Any, **options: Any) -> torch.Tensor:
        return 5 * super().forward(*args, **options)


class ScaledKeys(CrossAttention):
    def keys_values(self, sources: Sequence[torch.Tensor]) -> torch.Tensor:
        return 5 * super().keys_values(sources)


class ScaledLinear(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 5 * super().forward(x)


class ScaledDecoderLayer(TransformerDecoderLayer):
    def feed_forward(self, stream: Any) -> Any:
        return 5 * super().feed_forward(stream)


class ScaledEncoderLayer(TransformerEncoderLayer):
    def feed_forward(self, stream: Any) -> Any:
        return 5 * super().feed_forward(stream)


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("decoder.layers.0", ScaledDecoderLayer),
        ("encoder.layers.0", ScaledEncoderLayer),
        ("decoder.layers.0.cross", ScaledCross),
        ("decoder.layers.0.cross", ScaledKeys),
        ("decoder.layers.0.cross.query", ScaledLinear),
        ("encoder.layers.0.attention.out", ScaledLinear),
        ("decoder.layers.0.ffn.hidden", ScaledLinear),
        ("decoder.layers.0.ffn", None),
        ("decoder.layers.0.attention.out", None),
        ("encoder.layers.0.attention.project", None),
        ("decoder.layers.0.ffn", "patch"),
        ("decoder.layers.0.cross", "patch"),
        ("encoder.layers.0.attention.out", "patch"),
    ],
)
def test_inference_computes_changed_modules_and_hooks(
    place: str, kind: type[nn.Module] | Literal["patch"] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    model = Transformer(config(dropout=0), 9, 9).eval()
    module = model.get_submodule(place)
    source, target = torch.tensor([[4, 5, 2]]), torch.tensor([[1, 6, 7]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    unchanged = model(source, mask, target).detach()
    if kind is None:
        module.register_forward_hook(lambda module, args, result: 5 * result)
    elif kind == "patch":
        forward = module.forward
        monkeypatch.setattr(module, "forward", lambda *inputs: 5 * forward(*inputs))
    else:
        module.__class__ = kind
    expected = model(source, mask, target).detach()  # with gradients: the ordinary code
    assert not torch.allclose(expected, unchanged, atol=1e-3)
    with torch.inference_mode():
        state = model.start(model.encode(source, mask))
        for t in range(3):
            features, state = model.decode(target[:, t : t + 1], state)
            torch.testing.assert_close(features[:, 0], expected[:, t], atol=1e-5, rtol=1e-4)


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(ValueError, match="not a multiple of heads"):
        config(heads=3)


def test_sinusoids_follow_the_formula_of_the_paper() -> None:
    table = sinusoids(7, 6)
    for t in range(7):
        for i in range(3):
            assert table[t, 2 * i] == pytest.approx(math.sin(t / 10000 ** (2 * i / 6)), abs=1e-6)
            assert table[t, 2 * i + 1] == pytest.approx(
                math.cos(t / 10000 ** (2 * i / 6)), abs=1e-6
            )


def test_gradients_of_learned_positions_do_not_depend_on_the_order_of_threads() -> None:
    """The positions of a packed batch occur once for each sentence."""
    size, sentences, length = 64, 40, 30
    embedding = TransformerEmbedding(config(width=size, positions="learned", dropout=0.0), 20)
    ids = torch.randint(4, 20, (sentences, length))
    layout = PackedLayout.of(torch.arange(sentences * length), ids.shape)
    weights = torch.randn(1, sentences * length, size)
    gradients = []
    with torch_threads(2):
        for _ in range(40):
            embedding.zero_grad()
            (embedding(ids, layout=layout) * weights).sum().backward()
            gradients.append([parameter.grad for parameter in embedding.parameters()])
    for others in gradients[1:]:
        assert all(map(torch.equal, gradients[0], others))


def test_only_learned_positions_have_a_longest_sentence() -> None:
    positions = Sinusoidal(6, rows=4)
    with torch.inference_mode():
        assert torch.equal(positions(2, 9), sinusoids(11, 6)[2:])
    assert len(positions.table) == 16 and not positions.table.is_inference()
    assert torch.equal(positions(0, 16), sinusoids(16, 6))
    assert torch.equal(positions(16, 1), sinusoids(17, 6)[16:]), "a step of decoding"
    assert Learned(6, 4)(2, 2).shape == (2, 6)
    with pytest.raises(ValueError, match="max_positions"):
        Learned(6, 4)(2, 3)


def weights(module: torch.nn.Module) -> dict[str, Any]:
    return {name: p.detach().double().numpy() for name, p in module.named_parameters()}


def heads(q: Any, k: Any, v: Any, hide: Any) -> Any:
    """Attention with two heads, computed head by head."""
    results = []
    for h in range(2):
        part = slice(4 * h, 4 * h + 4)
        scores = q[:, part] @ k[:, part].T / 2.0  # sqrt(4)
        results.append(softmax(np.where(hide, -1e9, scores)) @ v[:, part])
    return np.concatenate(results, -1)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_model_computes_the_equations_of_the_paper(norm: str) -> None:
    torch.manual_seed(3)
    model = (
        Transformer(config(norm=norm, encoder={"layers": 1}, decoder={"layers": 1}), 13, 11)
        .double()
        .eval()
    )
    src, tgt = [4, 7, 5, 3], [2, 6, 9]
    w = weights(model)

    def linear(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def sublayer(x: Any, f: Any) -> Any:
        return layer_norm(x + f(x)) if norm == "post" else x + f(layer_norm(x))

    def self_attention(name: str, causal: bool) -> Any:
        def f(x: Any) -> Any:
            q, k, v = np.split(linear(x, f"{name}.project"), 3, -1)
            return linear(
                heads(q, k, v, np.triu(np.ones((len(x), len(x))), 1) * causal > 0), f"{name}.out"
            )

        return f

    def ffn(name: str) -> Any:
        return lambda x: linear(np.maximum(linear(x, f"{name}.hidden"), 0), f"{name}.out")

    x = w["source.tokens.weight"][src] * math.sqrt(8) + sinusoids(4, 8).double().numpy()
    x = sublayer(x, self_attention("encoder.layers.0.attention", False))
    memory = sublayer(x, ffn("encoder.layers.0.ffn"))
    memory = layer_norm(memory) if norm == "pre" else memory

    def cross(x: Any) -> Any:
        name = "decoder.layers.0.cross"
        k, v = np.split(linear(memory, f"{name}.project.0"), 2, -1)
        return linear(heads(linear(x, f"{name}.query"), k, v, np.zeros((3, 4)) > 0), f"{name}.out")

    y = w["target.tokens.weight"][tgt] * math.sqrt(8) + sinusoids(3, 8).double().numpy()
    y = sublayer(y, self_attention("decoder.layers.0.attention", True))
    y = sublayer(sublayer(y, cross), ffn("decoder.layers.0.ffn"))
    y = layer_norm(y) if norm == "pre" else y
    expected = linear(y, "output")

    ids = torch.tensor([src])
    logits = model.output(model(ids, torch.ones_like(ids, dtype=torch.bool), torch.tensor([tgt])))[
        0
    ]
    np.testing.assert_allclose(logits.detach().numpy(), expected, rtol=1e-6, atol=1e-6)


def test_a_trace_changes_no_result_and_records_every_layer() -> None:
    torch.manual_seed(3)
    model = Transformer(config(), 13, 11).eval()
    src = torch.tensor([[4, 7, 5, 3], [6, 3, 0, 0]])
    mask, tgt = src != 0, torch.tensor([[2, 6, 9], [2, 5, 5]])
    plain = model(src, mask, tgt)
    with trace.listen() as recorded:
        torch.testing.assert_close(model(src, mask, tgt), plain)
    sides = [f"encoder.layer{i}.self" for i in (1, 2)] + [
        f"decoder.layer{i}.{what}" for i in (1, 2) for what in ("self", "cross")
    ]
    assert sorted(recorded) == sorted(sides)
    cross = recorded["decoder.layer2.cross"][0]
    assert cross.shape == (2, 2, 3, 4)  # (B, H, T, S)
    torch.testing.assert_close(cross.sum(-1), torch.ones(2, 2, 3))
    assert (cross[1, :, :, 2:] == 0).all()
    assert (recorded["decoder.layer1.self"][0].triu(1) == 0).all()
    model(src, mask, tgt)
    assert len(recorded["decoder.layer2.cross"]) == 1


def is_uniform_to(weight: torch.Tensor, bound: float) -> bool:
    """Whether the largest values of a matrix are those of U(-bound, bound)."""
    return 0.95 * bound < float(weight.detach().abs().max()) <= bound


def test_mlrf_initialises_everything_except_embeddings_uniformly() -> None:
    torch.manual_seed(1)
    model = Transformer(config(width=64, heads=2, ffn=256, init="mlrf"), 500, 500)
    ffn = model.encoder.layers[0].ffn
    assert is_uniform_to(ffn.hidden.weight, 1 / 8) and is_uniform_to(ffn.out.weight, 1 / 16)
    assert is_uniform_to(model.output.weight, 1 / 8) and is_uniform_to(model.output.bias, 1 / 8)
    assert float(model.source.tokens.weight.detach().std()) == pytest.approx(1 / 8, rel=0.03)
    tied = Transformer(config(width=64, heads=2, init="mlrf", tie="target"), 500, 500)
    assert not is_uniform_to(tied.output.weight, 1 / 8)


def test_xavier_treats_queries_keys_and_values_as_one_matrix() -> None:
    torch.manual_seed(1)
    layer = Transformer(config(width=64, heads=2, init="xavier"), 50, 50).decoder.layers[0]
    bound = math.sqrt(6 / (64 + 3 * 64))
    assert all(
        is_uniform_to(module.weight, bound)
        for module in (layer.attention.project, layer.cross.query, layer.cross.project[0])
    )
    assert (
        is_uniform_to(layer.cross.out.weight, math.sqrt(6 / 128))
        and not layer.cross.query.bias.any()
    )


@pytest.mark.parametrize("kv_heads", [None, 1])
def test_tensor2tensor_treats_queries_keys_and_values_as_three_matrices(
    kv_heads: int | None,
) -> None:
    torch.manual_seed(1)
    options = config(width=64, heads=2, ffn=256, init="tensor2tensor", kv_heads=kv_heads)
    layer = Transformer(options, 50, 50).decoder.layers[0]
    square = math.sqrt(6 / (64 + 64))
    keys = 64 if kv_heads is None else 32
    q, k, v = layer.attention.project.weight.split((64, keys, keys))
    assert is_uniform_to(q, square)
    assert all(is_uniform_to(matrix, math.sqrt(6 / (64 + keys))) for matrix in (k, v))
    for matrix in (layer.cross.query.weight, *layer.cross.project[0].weight.chunk(2)):
        assert is_uniform_to(matrix, square)
    assert is_uniform_to(layer.ffn.hidden.weight, math.sqrt(6 / (64 + 256)))
    assert not layer.attention.project.bias.any()


@pytest.mark.parametrize(("kind", "gates"), [("scalar", 1), ("vector", 8)])
def test_a_context_gate_weighs_source_against_target(kind: str, gates: int) -> None:
    model: Any = Transformer(config(context_gate=kind), 13, 11).double()
    gate = model.decoder.layers[0].gate
    nn.init.normal_(gate.map.bias)
    t, s = np.random.default_rng(1).normal(size=(2, 5, 8))
    w = weights(gate.map)
    assert w["weight"].shape == (gates, 2 * 8)
    g = sigmoid(t @ w["weight"][:, :8].T + s @ w["weight"][:, 8:].T + w["bias"])
    gated = gate(torch.tensor(t), torch.tensor(s)).detach().numpy()
    np.testing.assert_allclose(gated, (1 - g) * t + g * s, rtol=1e-12)


def test_an_open_context_gate_is_the_plain_transformer() -> None:
    gated: Any = Transformer(config(context_gate="scalar"), 13, 11).eval()
    plain = Transformer(config(), 13, 11).eval()
    plain.load_state_dict(
        {name: value for name, value in gated.state_dict().items() if ".gate." not in name}
    )
    for layer in gated.decoder.layers:
        nn.init.constant_(layer.gate.map.bias, 1e3)
    src, tgt = torch.tensor([[4, 7, 5, 3]]), torch.tensor([[2, 6, 9]])
    torch.testing.assert_close(gated(src, src > 0, tgt), plain(src, src > 0, tgt))


def test_layerwise_attention_reads_the_encoder_layer_of_the_same_height() -> None:
    """Only the highest decoder layer reads the output of the highest encoder layer."""
    model: Any = Transformer(config(decoder={"layers": 2, "attend": "layerwise"}), 13, 11).eval()
    sources_read: list[Any] = []
    for layer in model.decoder.layers:
        layer.cross.keys_values = lambda sources, original=layer.cross.keys_values: (
            sources_read.append(sources),
            original(sources),
        )[1]
    src = torch.tensor([[4, 7, 5, 3]])
    memory = model.encode(src, src > 0)
    model.start(memory)
    assert [len(sources) for sources in sources_read] == [1, 1]
    assert torch.equal(sources_read[0][0], memory.history[1])
    assert torch.equal(sources_read[1][0], memory.history[2])


def test_layerwise_attention_needs_stacks_of_one_depth() -> None:
    for layers in (1, 3):
        message = f"as many encoder layers as decoder layers, but there are 2 and {layers}"
        with pytest.raises(ValueError, match=message):
            config(decoder={"layers": layers, "attend": "layerwise"})
    encoder = {"layers": 2, "connect": {"kind": "dense", "growth": 4, "summary_every": 1}}
    with pytest.raises(ValueError, match="hide some of them"):
        config(encoder=encoder, decoder={"layers": 2, "attend": "layerwise"})
