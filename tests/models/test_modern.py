"""Options of today's Transformers: equations in NumPy float64."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fusetk.models.transformer import Transformer, TransformerConfig
from fusetk.nn.attention import SelfAttention, causal_mask
from fusetk.nn.cache import Cache
from fusetk.nn.feedforward import GatedFeedForward
from fusetk.nn.grouped_attention import AttentionInputs, GroupedSelfAttention, rotate
from fusetk.nn.norm import build_norm

D, HEADS = 12, 3


def attention(groups: int | None = None, rotary: bool = False) -> GroupedSelfAttention:
    torch.manual_seed(3)
    module = GroupedSelfAttention(D, HEADS, 0.0, "self", groups=groups, rotary=rotary)
    return module.double().eval()


def inputs(seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 5, D, dtype=torch.float64, generator=generator)


def rotation(position: int, size: int) -> Any:
    """The block-diagonal matrix of RoFormer, Equation 15."""
    matrix = np.zeros((size, size))
    for i in range(size // 2):
        angle = position * 10000 ** (-2 * i / size)
        cos, sin = np.cos(angle), np.sin(angle)
        matrix[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[cos, -sin], [sin, cos]]
    return matrix


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("rotary", [True, False])
def test_grouped_and_rotary_attention(groups: int, rotary: bool) -> None:
    module = attention(groups, rotary)
    x = inputs()[0].numpy()
    w, b = (p.detach().numpy() for p in (module.project.weight, module.project.bias))
    size = D // HEADS
    assert len(w) == D + 2 * groups * size
    projected = x @ w.T + b
    q, k, v = np.split(projected, [D, D + groups * size], -1)
    contexts = np.zeros((5, D))
    for head in range(HEADS):
        group = head * groups // HEADS
        query = q[:, head * size : (head + 1) * size]
        key, value = (t[:, group * size : (group + 1) * size] for t in (k, v))
        for t in range(5):
            scores = np.zeros(t + 1)
            for s in range(t + 1):
                turn = rotation(t, size).T @ rotation(s, size) if rotary else np.eye(size)
                scores[s] = query[t] @ turn @ key[s] / np.sqrt(size)
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            contexts[t, head * size : (head + 1) * size] = weights @ value[: t + 1]
    out = module.out
    expected = contexts @ out.weight.detach().numpy().T + out.bias.detach().numpy()
    mask = causal_mask(5, 0, torch.device("cpu"))
    y, cache = module.step(inputs(), Cache(torch.empty(2, 0, 2 * D), 0), mask)
    np.testing.assert_allclose(y[0].detach().numpy(), expected, rtol=1e-12, atol=1e-14)
    assert cache.read().shape == (2, 5, 2 * groups * size)


def test_steps_of_one_position_are_attention_to_all() -> None:
    module = attention(1, rotary=True)
    empty = Cache(torch.empty(2, 0, 2 * D, dtype=torch.float64), 0)
    y, _ = module.step(inputs(), empty, causal_mask(5, 0, torch.device("cpu")))
    cache = empty
    with torch.no_grad():
        for t in range(5):
            step, cache = module.step(inputs()[:, t : t + 1], cache, None, start=t)
            torch.testing.assert_close(step, y[:, t : t + 1].detach())


def test_rotated_scores_depend_on_the_distance() -> None:
    q, k = inputs(2)[:1, None, :1], inputs(3)[:1, None, :1]

    def score(t: int, s: int) -> Tensor:
        return (rotate(q, torch.tensor([t])) * rotate(k, torch.tensor([s]))).sum()

    torch.testing.assert_close(score(7, 3), score(104, 100), rtol=1e-10, atol=1e-12)
    assert not torch.isclose(score(7, 3), score(7, 4))


def test_bf16_rotates_by_exact_positions() -> None:
    """bf16 has no number between 512 and 516."""
    x = inputs()[:, None].bfloat16()
    positions = torch.arange(510, 515)
    expected = rotate(x.double(), positions)
    torch.testing.assert_close(rotate(x, positions).double(), expected, rtol=0.01, atol=0.01)


def test_one_group_for_each_head_is_the_usual_attention() -> None:
    module = attention()
    plain = SelfAttention(D, HEADS, 0.0, "self").double().eval()
    plain.load_state_dict(module.state_dict())
    x, mask = inputs(), torch.rand(2, 1, 1, 5) > 0.2
    torch.testing.assert_close(module(x, mask), plain(x, mask))
    torch.testing.assert_close(module(AttentionInputs(x, x, x), mask), plain(x, mask))


def test_separate_inputs_make_queries_keys_and_values() -> None:
    module = attention()
    q, k, v = (inputs(seed) for seed in (4, 5, 6))
    y, keys_values = module.with_keys_values(AttentionInputs(q, k, v), None, "self")
    parts = [module.project(x).chunk(3, -1) for x in (q, k, v)]
    torch.testing.assert_close(keys_values, torch.cat((parts[1][1], parts[2][2]), -1))
    scores = [
        q_h @ k_h.mT / 2
        for q_h, k_h in zip(parts[0][0].split(4, -1), parts[1][1].split(4, -1), strict=True)
    ]
    contexts = [
        s.softmax(-1) @ v_h for s, v_h in zip(scores, parts[2][2].split(4, -1), strict=True)
    ]
    torch.testing.assert_close(y, module.out(torch.cat(contexts, -1)))


def test_gated_feed_forward() -> None:
    torch.manual_seed(1)
    module = GatedFeedForward(D, 7, D).double()
    x = inputs()[0].numpy()
    p = {name: value.detach().numpy() for name, value in module.named_parameters()}
    hidden = x @ p["hidden.weight"].T + p["hidden.bias"]
    gate, value = hidden[:, :7], hidden[:, 7:]
    expected = (gate / (1 + np.exp(-gate)) * value) @ p["out.weight"].T + p["out.bias"]
    np.testing.assert_allclose(module(inputs()[0]).detach().numpy(), expected, rtol=1e-10)


def test_root_mean_square_norm() -> None:
    norm = build_norm("rms", D).double()
    with torch.no_grad():
        norm.weight.normal_()
    x = inputs()[0].numpy()
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * norm.weight.detach().numpy()
    np.testing.assert_allclose(norm(inputs()[0]).detach().numpy(), expected, rtol=1e-10)
    assert [name for name, _ in norm.named_parameters()] == ["weight"]


def count(**options: Any) -> int:
    sizes = {"width": 12, "heads": 3, "ffn": 9, "encoder": {"layers": 2}, "decoder": {"layers": 1}}
    config = TransformerConfig.model_validate({"kind": "transformer", **sizes, **options})
    return sum(p.numel() for p in Transformer(config, 9, 9).parameters())


def test_parameter_counts() -> None:
    """3 attentions to the own sentence, 3 feed-forward layers, 7 norms and 2 final ones."""
    plain = count(norm="pre")
    assert count(norm="pre", normalization="rms") == plain - (7 + 2) * 12
    assert count(norm="pre", positions="rotary") == plain
    assert count(norm="pre", kv_heads=1) == plain - 3 * 2 * (2 * 4) * (12 + 1)
    assert count(norm="pre", kv_heads=3) == plain
    assert count(norm="pre", activation="swiglu") == plain + 3 * 9 * (12 + 1)
    assert count(norm="none") == plain - (7 + 2) * 2 * 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_heads": 2}, "heads 3 is not a multiple of kv_heads 2"),
        ({"heads": 4, "positions": "rotary"}, "positions: rotary needs heads of even width"),
        ({"norm": "none", "normalization": "rms"}, "normalization has no effect with norm: none"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        count(**options)


def test_higher_feed_forward_layers_are_wider() -> None:
    """MUDDFormer, Equation 9: from 0.5 to 1.5 times the usual width, with the same sum."""

    def widths(layers: int, growth: float, ffn: int = 512) -> list[int]:
        side = {"layers": layers, "ffn_growth": growth}
        config = TransformerConfig.model_validate(
            {"width": 8, "heads": 2, "ffn": ffn, "encoder": side, "decoder": {"layers": 1}}
        )
        return [layer.ffn.hidden.out_features for layer in Transformer(config, 9, 9).encoder.layers]

    assert widths(6, 0.5) == [256, 358, 461, 563, 666, 768]
    assert widths(3, 0.25) == [384, 512, 640]
    assert widths(2, 0.0) == [512, 512]
    for layers in (5, 24):
        assert sum(widths(layers, 0.5)) == layers * 512
    assert sum(widths(4, 0.5, 9)) == 4 * 9  # two widths are halves
    assert sum(widths(12, 0.5, 341)) == 12 * 341  # halves that are not exact in floating point
    assert widths(2, 0.9, 3) == [1, 5]  # a layer has at least one hidden unit
    with pytest.raises(ValueError, match="ffn_growth has no effect on a stack of one layer"):
        widths(1, 0.5)
