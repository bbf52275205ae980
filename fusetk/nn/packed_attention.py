"""Attention of packed sentences, for training on CPU."""

import math

import torch
from torch import Tensor

from fusetk.nn.dropout import Dropout
from fusetk.nn.dropout_mask import DropoutMask, scale, threshold
from fusetk.nn.fused import transformer as fused_transformer
from fusetk.nn.heads import join_heads, split_heads
from fusetk.nn.packed_layout import AttentionLayout


def packed_attention(
    layout: AttentionLayout, projected: Tensor, keys_values: Tensor | None, dropout: Dropout
) -> Tensor:
    """Return the contexts (1, N, D) of packed queries (see ``PackedLayout``).

    ``projected`` (1, N, D or 3D) holds the queries, and with ``layout.own`` their keys and values.
    ``keys_values`` (1, M, 2D) has the layout ``layout.source``.
    """
    dropout_mask = dropout.draw()
    if fused_transformer.usable(projected):
        return fused_transformer.attend(layout, projected, keys_values, dropout_mask)
    return plain_packed_attention(layout, projected, keys_values, dropout_mask)


def plain_packed_attention(
    layout: AttentionLayout,
    projected: Tensor,
    keys_values: Tensor | None,
    dropout_mask: DropoutMask | None,
) -> Tensor:
    """Compute ``packed_attention`` with padded sentences."""
    queries, source, width = layout.queries, layout.source, layout.width
    padded = queries.unpack(projected)  # (B, T, D or 3D)
    sentences, length = padded.shape[:2]
    columns = []  # keys and values
    masks = []  # (B, T, keys)
    numbers = []  # of the keys within their sentence, without padding, (B, keys)
    before = torch.zeros(sentences, 1, dtype=torch.int64)
    if source is not None and keys_values is not None:
        columns.append(source.unpack(keys_values))
        masks.append(source.mask[:, None, :].expand(-1, length, -1))
        numbers.append(torch.arange(source.length).expand(sentences, -1))
        before = source.offsets.diff()[:, None]
    if layout.own:
        columns.append(padded[..., width:])
        visible = queries.mask[:, None, :].expand(-1, length, -1)
        masks.append(visible.tril() if layout.causal else visible)
        numbers.append(before + torch.arange(length))
    k, v = torch.cat(columns, 1).chunk(2, -1)
    q, k, v = (split_heads(x, layout.heads) for x in (padded[..., :width], k, v))
    scores = (q * (width // layout.heads) ** -0.5) @ k.mT  # (B, H, T, keys)
    weights = scores.masked_fill(~torch.cat(masks, 2)[:, None], -math.inf).softmax(-1)
    if dropout_mask is not None:
        stride = layout.random_stride
        count = projected.shape[1]
        bits = dropout_mask.random_bits((1, count, layout.heads, stride))
        bits = queries.unpack(bits).transpose(1, 2)  # (B, H, T, stride)
        number = torch.cat(numbers, 1).clamp_max(stride - 1)[:, None, None]
        bits = bits.gather(-1, number.expand(-1, layout.heads, length, -1))
        weights = weights * (bits >= threshold(dropout_mask.units)) * scale(dropout_mask.units)
    return queries.pack(join_heads(weights.to(v.dtype) @ v))
