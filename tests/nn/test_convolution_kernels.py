"""The kernels of gated convolutions: equal to the plain computation, with their gradients."""

import copy

import pytest
import torch
from torch import Tensor

from fusetk.nn.conv import GatedConvolution
from fusetk.nn.fused import convolution as fused_convolution

pytestmark = pytest.mark.skipif(
    not fused_convolution.usable(torch.ones(1)), reason="there are no compiled kernels"
)
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
@pytest.mark.parametrize("length", [1, 2, 9])
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bf16(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The input is float32, or bf16 as in dense connections."""
    torch.manual_seed(1)
    conv = GatedConvolution(WIDTH, OUT, 3, 0.25)  # bf16 can represent the scale 4 / 3 only rounded
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
