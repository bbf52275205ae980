"""Value residual learning: the equation in NumPy float64, gradients, parameters, and its plot."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fusetk import trace
from fusetk.models import MODELS
from fusetk.models.transformer import Transformer, TransformerConfig
from tests.helpers.equations import layer_norm, softmax

WIDTH, HEADS, LAYERS = 8, 2, 3


# Constant-, Learnable- and Sparse-ResFormer, and SVFormer.
CONSTANT = {"kind": "value-residual", "first": 2.0, "own": 1.0}
LEARNED = {"kind": "value-residual", "learned": True}
SPARSE = {"kind": "value-residual", "first": 5.0, "own": 1.0, "from_layer": 3}
SHARED = {"kind": "value-residual", "first": 1.0, "own": 0}


def build(residual: str | Mapping[str, Any], norm: str, **options: Any) -> Transformer:
    """Build a model in float64 with noise in every parameter."""
    side = {"layers": LAYERS, "residual": residual}
    config = TransformerConfig.model_validate(
        {"width": WIDTH, "heads": HEADS, "ffn": 12, "norm": norm, "encoder": side, "decoder": side}
        | options
    )
    torch.manual_seed(4)
    model = Transformer(config, 13, 11).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def features(model: Transformer) -> Tensor:
    src, tgt = torch.tensor([[4, 7, 5, 3], [6, 3, 4, 4]]), torch.tensor([[2, 6, 9], [2, 5, 5]])
    return model(src, src > 0, tgt)


def equation(model: Transformer, x: np.ndarray, norm: str) -> np.ndarray:
    """The encoder for the embedding x (T, D) of one sentence, with V = a V_1 + b V_n."""
    config = model.config.encoder.residual
    p = {name: value.detach().numpy() for name, value in model.encoder.named_parameters()}

    def normed(name: str, x: np.ndarray) -> np.ndarray:
        return layer_norm(x) * p[f"{name}.norm.weight"] + p[f"{name}.norm.bias"]

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    first = None
    for i in range(LAYERS):
        at = f"layers.{i}"

        def attention(x: np.ndarray, at: str = at) -> np.ndarray:
            nonlocal first
            q, k, v = np.split(linear(f"{at}.attention.project", x), [WIDTH, 2 * WIDTH], -1)
            first = v if first is None else first
            if int(at.removeprefix("layers.")) + 1 >= config.from_layer:
                a, b = p.get(f"{at}.attention_residual.weights", (config.first, config.own))
                v = a * first + b * v if b else a * first
            contexts = []
            for head in range(HEADS):
                part = slice(head * WIDTH // HEADS, (head + 1) * WIDTH // HEADS)
                scores = q[:, part] @ k[:, part].T / np.sqrt(WIDTH // HEADS)
                contexts.append(softmax(scores) @ v[:, part])
            return linear(f"{at}.attention.out", np.concatenate(contexts, -1))

        def feed_forward(x: np.ndarray, at: str = at) -> np.ndarray:
            return linear(f"{at}.ffn.out", np.maximum(linear(f"{at}.ffn.hidden", x), 0))

        for name, f in (("attention", attention), ("ffn", feed_forward)):
            residual = f"{at}.{name}_residual"
            if norm == "pre":
                x = x + f(normed(residual, x))
            else:
                x = normed(residual, x + f(x))
    return x


@pytest.mark.parametrize("residual", ["value-residual", CONSTANT, LEARNED, SPARSE, SHARED], ids=str)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_encoder_is_that_of_the_equation(residual: str | Mapping[str, Any], norm: str) -> None:
    model = build(residual, norm)
    src = torch.tensor([[4, 7, 5, 3]])
    expected = equation(model, model.source(src)[0].detach().numpy(), norm)
    output = model.encode(src, src > 0).output[0].detach().numpy()
    np.testing.assert_allclose(output, expected, rtol=1e-9, atol=1e-11)


def test_gradients_are_those_of_finite_differences() -> None:
    side = {"layers": 2, "residual": LEARNED}
    model = build(LEARNED, "pre", encoder=side, decoder=side)
    names = [
        "encoder.layers.0.attention.project.weight",
        "decoder.layers.0.attention.project.bias",
        "decoder.layers.1.attention_residual.weights",
    ]
    parameters = dict(model.named_parameters())

    def run(*values: Tensor) -> Tensor:
        given = dict(zip(names, values, strict=True))
        src, tgt = torch.tensor([[4, 7, 5]]), torch.tensor([[2, 6]])
        return torch.func.functional_call(model, given, (src, src > 0, tgt))

    values = [parameters[name].detach().requires_grad_() for name in names]
    assert torch.autograd.gradcheck(run, values, fast_mode=True)


def test_it_has_the_parameters_of_the_plain_model_but_another_function() -> None:
    plain, model = build("plain", "pre"), build("value-residual", "pre")
    model.load_state_dict(plain.state_dict())
    assert (features(model) - features(plain)).abs().max() > 1e-2


def test_one_layer_is_refused_because_it_would_be_the_plain_model() -> None:
    side = {"layers": 1, "residual": "value-residual"}
    with pytest.raises(ValueError, match="value-residual has no effect on a stack of one layer"):
        build("value-residual", "post", encoder=side, decoder=side)


def test_layers_with_shared_values_have_no_map_of_values() -> None:
    model = build(SHARED | {"from_layer": 3}, "pre", kv_heads=1)
    rows = [len(layer.attention.project.weight) for layer in model.encoder.layers]
    assert rows == [WIDTH + 2 * WIDTH // HEADS, WIDTH + 2 * WIDTH // HEADS, WIDTH + WIDTH // HEADS]


def test_shared_values_have_no_learned_weight() -> None:
    with pytest.raises(ValueError, match="own: 0 has no values of its own, so it cannot"):
        build(SHARED | {"learned": True}, "pre")


def test_a_start_above_the_highest_layer_is_refused() -> None:
    with pytest.raises(ValueError, match="no effect with from_layer: 4 on a stack of 3 layers"):
        build(SPARSE | {"from_layer": LAYERS + 1}, "pre")


def test_learned_weights_start_with_the_constants_and_belong_to_layers_that_use_them() -> None:
    side = {"layers": LAYERS, "residual": SPARSE | {"learned": True}}
    config = TransformerConfig.model_validate(
        {"width": WIDTH, "heads": HEADS, "ffn": 12, "norm": "pre", "encoder": side, "decoder": side}
    )
    weights = {
        name: value.tolist()
        for name, value in Transformer(config, 13, 11).named_parameters()
        if name.endswith("residual.weights")
    }
    assert weights == {
        f"{stack}.layers.2.attention_residual.weights": [5.0, 1.0]
        for stack in ("encoder", "decoder")
    }


def test_layers_with_equal_values_compute_the_function_of_the_plain_model() -> None:
    """Without projected values, V_n = V_1 = the bias in every layer, and the mean changes none."""
    plain, model = build("plain", "pre"), build("value-residual", "pre")
    with torch.no_grad():
        for module in plain.modules():
            if isinstance(module, nn.Linear) and module.out_features == 3 * WIDTH:
                module.weight[2 * WIDTH :] = 0
                module.bias[2 * WIDTH :] = 1.5
    model.load_state_dict(plain.state_dict())
    torch.testing.assert_close(features(model), features(plain), rtol=1e-12, atol=1e-12)


def test_recorded_weights_are_those_of_the_inputs_of_the_values() -> None:
    with trace.listen("decoder.connect.*") as recorded:
        features(build("value-residual", "pre"))
    weights = {name: values[0].tolist() for name, values in recorded.items()}
    assert weights == {
        "decoder.connect.layer1.value": [1.0],
        "decoder.connect.layer2.value": [0.5, 0.5],
        "decoder.connect.layer3.value": [0.5, 0.0, 0.5],
    }
    with trace.listen("encoder.connect.*") as recorded:
        features(build(SPARSE, "pre"))
    weights = {name: values[0].tolist() for name, values in recorded.items()}
    assert weights == {
        "encoder.connect.layer1.value": [1.0],
        "encoder.connect.layer2.value": [0.0, 1.0],
        "encoder.connect.layer3.value": [5.0, 0.0, 1.0],
    }


def test_other_readers_of_self_attention_are_rejected() -> None:
    with pytest.raises(ValueError, match="context_gate: scalar reads the output of the usual"):
        build("value-residual", "pre", context_gate="scalar")
    stack = {"layers": 2, "residual": "value-residual"}
    with pytest.raises(ValueError, match=r"stack\.residual: value-residual needs a self-attention"):
        MODELS["coordinated"].Config.model_validate({"kind": "coordinated", "stack": stack})
