"""Attention of packed sentences: fused kernels against padded tensors and against PyTorch."""

import pytest
import torch
from torch.nn import functional as F

from fusetk.nn.dropout_mask import DropoutMask
from fusetk.nn.fused import products
from fusetk.nn.fused import transformer as fused_transformer
from fusetk.nn.packed_attention import plain_packed_attention
from fusetk.nn.packed_layout import ROW_MULTIPLE, AttentionLayout, PackedLayout, row_multiple

fused = pytest.mark.skipif(
    not fused_transformer.usable(torch.zeros(1)), reason="there is no C++ compiler"
)
HEADS = 3
pytestmark = pytest.mark.usefixtures("two_threads")  # the kernels use both above 1024 numbers


def layout_of(lengths: list[int], padding: int = 2, multiple: int = 1) -> PackedLayout:
    """Return the layout of sentences of these lengths, with ``padding`` empty columns."""
    length = max(lengths) + padding
    mask = torch.arange(length) < torch.tensor(lengths)[:, None]
    return PackedLayout.of(mask.flatten().nonzero()[:, 0], mask.shape, multiple)


def inputs(own: bool, with_source: bool, causal: bool, size: int, lengths: list[int]):
    queries = layout_of(lengths)
    source = layout_of([n % 5 + 1 for n in lengths]) if with_source else None
    width = HEADS * size
    layout = AttentionLayout(width, HEADS, queries, own, causal, source)
    torch.manual_seed(size)
    projected = torch.randn(1, sum(lengths), 3 * width if own else width, requires_grad=True)
    if source is None:
        return layout, projected, None
    return layout, projected, torch.randn(1, len(source.places), 2 * width, requires_grad=True)


CASES = [
    (True, False, True, 12),
    (True, False, False, 64),
    (False, True, False, 32),
    (True, True, True, 16),
    (True, True, True, 20),
    (False, True, True, 20),
]


@fused
@pytest.mark.parametrize("dropout_mask", [None, DropoutMask(-(2**62) - 5, 20_000)])
@pytest.mark.parametrize("lengths", [[3, 1, 9], [70, 1, 0, 131]])
@pytest.mark.parametrize("case", CASES)
def test_kernels_equal_padded_tensors(case, lengths, dropout_mask) -> None:
    layout, projected, keys_values = inputs(*case, lengths)
    tensors = [projected] if keys_values is None else [projected, keys_values]
    plain = plain_packed_attention(layout, projected, keys_values, dropout_mask)
    result = fused_transformer.attend(layout, projected, keys_values, dropout_mask)
    torch.testing.assert_close(result, plain, rtol=1e-5, atol=1e-5)
    grad = torch.randn_like(plain)
    expected = torch.autograd.grad(plain, tensors, grad)
    gradients = torch.autograd.grad(result, tensors, grad)
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=2e-5)


@fused
@pytest.mark.parametrize("size", [16, 32])
def test_very_large_scores_select_one_key(size) -> None:
    """The rounding of large scores does not change the exponent of the largest one, 0."""
    layout, projected, _ = inputs(True, False, True, size, [9, 2])
    projected = (projected.detach() * 1e6).requires_grad_()
    result = fused_transformer.attend(layout, projected, None, None)
    expected = plain_packed_attention(layout, projected, None, None)
    torch.testing.assert_close(result, expected)
    values = projected[0, :, 2 * layout.width :].unflatten(-1, (HEADS, -1))
    grad = torch.randn_like(result)
    [gradient] = torch.autograd.grad(result, [projected], grad)
    assert (
        gradient[..., : 2 * layout.width].abs().max() < 1e-9
    )  # a weight of 0 or 1 does not change
    for position, context in enumerate(result[0].unflatten(-1, (HEADS, -1))):
        distances = (values - context).norm(dim=-1)
        assert (distances.amin(0) <= 1e-6 * context.norm(dim=-1)).all(), position


@fused
def test_nan_is_in_the_same_results() -> None:
    layout, projected, _ = inputs(True, False, True, 16, [9, 2])
    projected = projected.detach().clone()
    projected[0, 4, 3] = torch.nan  # a query
    projected[0, 6, layout.width + 20] = torch.nan  # a key
    result = fused_transformer.attend(layout, projected, None, None)
    expected = plain_packed_attention(layout, projected, None, None)
    assert result.isnan().any() and not result.isnan().all()
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


@fused
def test_bf16_differs_by_rounding_only() -> None:
    layout, projected, keys_values = inputs(True, True, True, 20, [5, 17])
    exact = fused_transformer.attend(layout, projected, keys_values, None)
    rounded = fused_transformer.attend(layout, projected.bfloat16(), keys_values.bfloat16(), None)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), exact, rtol=0.02, atol=0.02)


def test_each_sentence_is_attended_alone() -> None:
    layout, projected, _ = inputs(True, False, True, 8, [4, 6])
    result = plain_packed_attention(layout, projected, None, None)
    start = 0
    for length in (4, 6):
        sentence = projected[:, start : start + length]
        q, k, v = (x.unflatten(-1, (HEADS, -1)).transpose(1, 2) for x in sentence.chunk(3, -1))
        expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.testing.assert_close(
            result[:, start : start + length], expected.transpose(1, 2).flatten(2)
        )
        start += length


def test_layout_packs_and_unpacks() -> None:
    layout = layout_of([2, 3, 1])
    x = torch.randn(3, 5, 4)
    packed = layout.pack(x)
    assert packed.shape == (1, 6, 4)
    assert layout.offsets.tolist() == [0, 2, 5, 6]
    assert layout.positions.tolist() == [0, 1, 0, 1, 2, 0]
    assert torch.equal(layout.unpack(packed), x * layout.mask[..., None])


def test_repetitions_of_the_last_token_change_nothing() -> None:
    """The number of rows is rounded up, for products whose shapes should recur."""
    alone = layout_of([2, 3, 1])
    padded = layout_of([2, 3, 1], multiple=4)
    x = torch.randn(3, 5, 4)
    assert alone.tokens == padded.tokens == 6 and padded.pack(x).shape == (1, 8, 4)
    assert torch.equal(padded.unpack(padded.pack(x)), alone.unpack(alone.pack(x)))
    assert torch.equal(padded.offsets, alone.offsets)


@fused
@pytest.mark.parametrize("case", CASES)
def test_kernels_leave_zeros_at_repetitions(case) -> None:
    layout, projected, keys_values = inputs(*case, [3, 1, 5])
    expected = fused_transformer.attend(layout, projected, keys_values, None)
    rounded = layout._replace(queries=layout_of([3, 1, 5], multiple=8))
    more = torch.cat((projected.detach(), torch.randn(1, 7, projected.shape[-1])), 1)
    more.requires_grad_()
    result = fused_transformer.attend(rounded, more, keys_values, None)
    assert torch.equal(result[:, :9], expected) and not result[:, 9:].any()
    [gradient] = torch.autograd.grad(result, [more], torch.ones_like(result))
    assert gradient[:, :9].any() and not gradient[:, 9:].any()


@pytest.mark.parametrize(("precision", "multiple"), [("highest", 1), ("medium", ROW_MULTIPLE)])
def test_float32_rows_are_rounded_where_onednn_computes_products(precision, multiple) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        assert row_multiple(torch.ones(1)) == multiple
        assert row_multiple(torch.ones(1, dtype=torch.bfloat16)) == ROW_MULTIPLE
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_not_rounded_where_kernels_replace_onednn(dtype: torch.dtype) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    undo = products.replace(dtype)
    try:
        for other in (torch.float32, torch.bfloat16):
            assert row_multiple(torch.ones(1, dtype=other)) == (
                1 if other == dtype else ROW_MULTIPLE
            )
    finally:
        undo()
        torch.set_float32_matmul_precision(before)
