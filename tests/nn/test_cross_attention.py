"""Attention of the decoder to the encoder."""

import torch

from fusetk.nn.attention import CrossAttention


def test_attention_to_four_equal_sources_is_twice_the_attention_to_one() -> None:
    """The sum over n sources is scaled by sqrt(1/n)."""
    single = CrossAttention(8, [8], 2, 0.0, "cross", bias=False)
    several = CrossAttention(8, [8] * 4, 2, 0.0, "cross", bias=False)
    weights = single.state_dict()
    for i in range(4):
        weights[f"project.{i}.weight"] = weights["project.0.weight"]
    several.load_state_dict(weights)
    x, memory = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    mask = torch.ones(2, 5, dtype=torch.bool)
    expected = 2 * single(x, single.keys_values([memory]), mask)
    torch.testing.assert_close(several(x, several.keys_values([memory] * 4), mask), expected)
