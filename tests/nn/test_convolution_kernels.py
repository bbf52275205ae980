"""The kernels of gated convolutions: equal to the plain computation, with their gradients."""

import copy

import pytest
import torch
from torch import Tensor

from fusetk.nn.conv import GatedConvolution
from fusetk.nn.fused import convolution as fused_convolution

pytestmark = [
    pytest.mark.skipif(
        not fused_convolution.usable(torch.ones(1)), reason="there are no compiled kernels"
    ),
    pytest.mark.usefixtures("two_threads"),  # the kernels use both above 8192 numbers
]
WIDTH, OUT = 19, 11


def values_and_gradients(conv: GatedConvolution, x: Tensor, *arguments: object) -> list[Tensor]:
    """Return a result, and the gradients of a random function of it."""
    torch.manual_seed(3)  # dropout
    x = x.detach().requires_grad_()
    # A layer of a stack with dense connections reads the first columns of a wider tensor.
    wide = torch.cat((x, torch.zeros_like(x)), -1)
    y = conv(wide[..., : x.shape[-1]], *arguments)
    torch.manual_seed(4)
    inputs = (x, *conv.parameters())
    return [y, *torch.autograd.grad((y.double() * torch.randn(y.shape).double()).sum(), inputs)]


@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("length", [1, 2, 250])
@pytest.mark.parametrize("kernel, before", [(1, 0), (2, 0), (3, 1), (3, 2), (5, 4)])
def test_a_convolution_equals_that_of_float64(
    kernel: int, before: int, length: int, rate: float
) -> None:
    torch.manual_seed(1)
    conv = GatedConvolution(WIDTH, OUT, kernel, rate)
    x = torch.randn(3, length, WIDTH)
    mask = torch.arange(length) < torch.tensor([length, 1, (length + 1) // 2])[:, None]
    earlier = torch.randn(3, before, WIDTH)
    exact = copy.deepcopy(conv).double()
    assert not fused_convolution.usable(x.double())
    for arguments in ((before, None, mask), (before, earlier, None), (before,)):
        results = values_and_gradients(conv, x, *arguments)
        in_double = [a.double() if a is earlier else a for a in arguments]
        expected = values_and_gradients(exact, x.double(), *in_double)
        for result, right in zip(results, expected, strict=True):
            torch.testing.assert_close(result, right.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_a_mask_may_have_another_type_or_be_the_same_for_all_sentences(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    conv = GatedConvolution(WIDTH, OUT, 3, 0.0)
    x, mask = torch.randn(2, 5, WIDTH), torch.tensor([[True, True, True, False, False]])
    expected = conv(x, 1, None, mask.expand(2, 5).contiguous())
    for other in (mask, mask.expand(2, 5)):
        torch.testing.assert_close(conv(x, 1, None, other.to(dtype)), expected)


@pytest.mark.parametrize("shape", [(2, 1, WIDTH), (1, 2, WIDTH), (2, 2, WIDTH - 1)])
def test_earlier_positions_of_another_shape_are_an_error(shape: tuple[int, ...]) -> None:
    conv = GatedConvolution(WIDTH, OUT, 3, 0.0)
    with pytest.raises(RuntimeError):
        conv(torch.randn(2, 5, WIDTH), 2, torch.randn(shape))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bf16_equals_the_plain_computation(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The input is float32, or bf16 as in dense connections."""
    torch.manual_seed(1)
    conv = GatedConvolution(WIDTH, OUT, 3, 0.25)  # bf16 rounds the scale 4 / 3
    x = torch.randn(3, 6, WIDTH).to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        results = values_and_gradients(conv, x, 1, None, torch.ones(3, 6, dtype=torch.bool))
        monkeypatch.setattr(fused_convolution, "usable", lambda x: False)
        expected = values_and_gradients(conv, x, 1, None, torch.ones(3, 6, dtype=torch.bool))
    for result, right in zip(results, expected, strict=True):
        assert result.dtype == right.dtype
        torch.testing.assert_close(result, right, rtol=0.05, atol=0.05)


def test_earlier_positions_receive_gradients() -> None:
    conv = GatedConvolution(WIDTH, OUT, 3, 0.0)
    earlier = torch.randn(2, 2, WIDTH, requires_grad=True)
    conv(torch.randn(2, 4, WIDTH), 2, earlier).sum().backward()
    assert earlier.grad is not None and earlier.grad.any()


@pytest.mark.parametrize("checkpoint", [False, True])
def test_hooks_of_saved_tensors(checkpoint: bool) -> None:
    """Gradient checkpointing and hooks make new tensors for the backward pass."""
    torch.manual_seed(1)
    inputs = [torch.randn(2, 5, 32), *torch.randn(2, 2, 3, 5, 32)]
    lengths = torch.tensor([5, 2])
    conv = GatedConvolution(32, 32, 3, 0.2)

    def compute(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return conv(fused_convolution.attend(q, keys, values, lengths), 1)

    def gradients(hooks: bool) -> tuple[Tensor, ...]:
        torch.manual_seed(2)
        leaves = [x.clone().requires_grad_() for x in inputs]
        if hooks and checkpoint:
            y = torch.utils.checkpoint.checkpoint(compute, *leaves, use_reentrant=False)
        elif hooks:
            with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
                y = compute(*leaves)
        else:
            y = compute(*leaves)
        return torch.autograd.grad(y.square().sum(), leaves)

    for one, other in zip(gradients(False), gradients(True), strict=True):
        assert torch.equal(one, other)


def plain_attention(q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
    scores = torch.einsum("bqe, bnse -> bnqs", q, keys)
    padding = torch.arange(keys.shape[2]) >= lengths[:, None, None, None]
    weights = scores.masked_fill(padding, float("-inf")).softmax(-1)
    return torch.einsum("bnqs, bnse -> bqe", weights, values)


@pytest.mark.parametrize("queries", [0, 1, 7, 90])  # the kernel computes 64 queries at a time
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_to_some_of_the_sources(queries: int, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    q = torch.randn(3, queries, 32, requires_grad=True)
    keys, values = torch.randn(2, 3, 4, 18, 32).requires_grad_().unbind()
    lengths = torch.tensor([18, 1, 7])
    exact = [x.detach().to(dtype).double().requires_grad_() for x in (q, keys, values)]
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        result = fused_convolution.attend(q, keys[:, 1:3], values[:, 1:3], lengths)
    assert result.dtype == dtype
    expected = plain_attention(exact[0], exact[1][:, 1:3], exact[2][:, 1:3], lengths)
    grad = torch.randn(result.shape)
    grads = torch.autograd.grad(result, (q, keys, values), grad.to(dtype))
    expected_grads = torch.autograd.grad(expected, exact, grad.double())
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    for got, right in zip((result, *grads), (expected, *expected_grads), strict=True):
        torch.testing.assert_close(got.float(), right.float(), rtol=tolerance, atol=tolerance)


def test_conditions_of_the_attention_kernel() -> None:
    prefix = torch.tensor([[True, True, False], [True, False, False]])
    assert fused_convolution.can_attend(torch.ones(2, 5, 32), prefix)
    assert not fused_convolution.can_attend(torch.ones(2, 5, 32), prefix.flip(1))
    assert not fused_convolution.can_attend(torch.ones(2, 5, 24), prefix)
    assert not fused_convolution.can_attend(torch.ones(2, 5, 32, dtype=torch.float64), prefix)
