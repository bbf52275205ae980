"""The kernels of connections: equal to the plain computation in float64, with their gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fusetk.models.connect.cross import CrossMix
from fusetk.models.residual.manifold import sinkhorn
from fusetk.nn.combine import add_weighted_sums, weighted_sums
from fusetk.nn.feature_buffer import FeatureBuffer
from fusetk.nn.fused import streams as fused_streams

pytestmark = [
    pytest.mark.skipif(
        not fused_streams.usable(torch.ones(1)), reason="there are no compiled kernels"
    ),
    pytest.mark.usefixtures("two_threads"),  # the kernels use both above 64 positions
]
D = 37


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


def assert_equal(
    kernel: Callable[..., Tensor], plain: Callable[..., Tensor], *inputs: Tensor
) -> None:
    """Compare values and gradients for the inputs in float32 and in float64."""
    torch.manual_seed(2)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    output, expected = kernel(*inputs), plain(*exact)
    torch.testing.assert_close(output, expected.float(), rtol=1e-5, atol=1e-5)
    grad = torch.randn_like(output)
    grads = torch.autograd.grad(output, inputs, grad)
    expected_grads = torch.autograd.grad(expected, exact, grad.double())
    for got, right in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(got, right.float(), rtol=1e-4, atol=1e-4)


def plain_sums(weights: Tensor, x: Tensor, write: Tensor, y: Tensor) -> Tensor:
    return weights @ x + write.unsqueeze(-1) * y.unsqueeze(-2)


@pytest.mark.parametrize("leading", [(70,), (2, 40), (1, 0), (3,)])
@pytest.mark.parametrize("same", [False, True], ids=["by position", "same"])
def test_weighted_sums(leading: tuple[int, ...], same: bool) -> None:
    torch.manual_seed(1)
    before = () if same else leading
    x, y = normal(*leading, 4, D), normal(*leading, D)
    weights, write = normal(*before, 3, 4), normal(*before, 3)
    assert_equal(fused_streams.weighted_sums, torch.matmul, weights, x)
    assert_equal(fused_streams.weighted_sums, plain_sums, weights, x, write, y)


@pytest.mark.parametrize("shape", [(2, 1, D), (2, 5, 1)])
def test_an_output_of_another_shape_is_broadcast(shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    x, y, weights, write = normal(2, 5, 4, D), normal(*shape), normal(3, 4), normal(3)
    assert_equal(add_weighted_sums, plain_sums, weights, x, write, y)


@pytest.mark.parametrize("columns", [3, 5])
def test_another_number_of_weights_than_of_layers_is_an_error(columns: int) -> None:
    x, y, weights, write = normal(2, 5, 4, D), normal(2, 5, D), normal(2, columns), normal(2)
    with pytest.raises(RuntimeError):
        weighted_sums(weights, x)
    with pytest.raises(RuntimeError):
        add_weighted_sums(weights, x, write, y)
    with pytest.raises(RuntimeError):
        add_weighted_sums(weights[:, :1].expand(2, 4), x, normal(columns), y)


def test_one_weight_of_the_output_is_broadcast() -> None:
    torch.manual_seed(1)
    inputs = normal(3, 4), normal(2, 5, 4, D), normal(1), normal(2, 5, D)
    assert_equal(add_weighted_sums, plain_sums, *inputs)


def test_sources_of_different_shapes_are_broadcast() -> None:
    torch.manual_seed(1)
    mix = CrossMix(D, 3, ["a"], 1.0)
    sources = [torch.randn(2, 5, D), torch.randn(2, 1, D), torch.randn(2, 5, D)]
    expected = mix(tuple(source.expand(2, 5, D) for source in sources))
    torch.testing.assert_close(mix(tuple(sources)), expected, rtol=1e-5, atol=1e-5)


def test_feature_sums_of_another_number_of_sources_and_of_another_width() -> None:
    torch.manual_seed(1)
    mix = CrossMix(D, 3, ["a", "b"], 1.0)
    mix.static.data.normal_()
    sources = tuple(torch.randn(2, 5, D) for _ in range(4))
    expected = mix.double()(tuple(source.double() for source in sources[:2]))
    for result, right in zip(mix.float()(sources[:2]), expected, strict=True):
        torch.testing.assert_close(result, right.float(), rtol=1e-5, atol=1e-5)
    with pytest.raises(IndexError):
        mix(sources)
    with pytest.raises(RuntimeError):
        mix(tuple(source[..., :8] for source in sources[:3]))


def test_weighted_sums_of_views() -> None:
    """The layers are a part of a buffer, equal streams, or transposed; weights are transposed."""
    torch.manual_seed(1)
    parts = [normal(2, 5, D) for _ in range(3)]
    weights = normal(2, 5, 2, 3)

    def summed(weights: Tensor, *parts: Tensor) -> Tensor:
        buffer = FeatureBuffer.empty(parts[0], 5 * D)
        for part in parts:
            buffer = buffer.append(part)
        return fused_streams.weighted_sums(weights, buffer.layers(D))

    assert_equal(summed, lambda weights, *parts: weights @ torch.stack(parts, -2), weights, *parts)
    x = normal(2, 5, 1, D)
    assert_equal(
        lambda weights, x: fused_streams.weighted_sums(weights, x.expand(2, 5, 3, D)),
        lambda weights, x: weights @ x.expand(2, 5, 3, D),
        *(weights, x),
    )
    square = normal(6, 4, 4)
    assert_equal(
        lambda weights, x: fused_streams.weighted_sums(weights.mT, x.mT),
        lambda weights, x: weights.mT @ x.mT,
        *(square, normal(6, 8, 4)),
    )


@pytest.mark.parametrize("centred", [True, False], ids=["layer norm", "RMSNorm"])
def test_normed_products(centred: bool) -> None:
    torch.manual_seed(1)
    x = (torch.randn(3, 40, D) + 2).requires_grad_()

    def plain(x: Tensor, weights: Tensor) -> Tensor:
        if centred:
            return torch.nn.functional.layer_norm(x, (D,), eps=0.01) @ weights
        return torch.nn.functional.rms_norm(x, (D,), eps=0.01) @ weights

    assert_equal(
        lambda x, weights: fused_streams.normed_products(x, weights, 0.01, centred),
        plain,
        *(x, normal(D, 6)),
    )


@pytest.mark.parametrize(("count", "size"), [(1, 4), (33, 3), (300, 4), (5, 1)])
def test_sinkhorn(count: int, size: int) -> None:
    torch.manual_seed(1)
    logits = (3 * torch.randn(count, size, size) + 10 * torch.eye(size)).requires_grad_()
    assert fused_streams.sinkhorn_is_usable(logits)
    # Float64 is computed with logarithms.
    assert_equal(
        lambda x: fused_streams.sinkhorn(x, 20), lambda x: sinkhorn(x, 20).reshape(x.shape), logits
    )


def test_sinkhorn_of_distant_logits_uses_logarithms() -> None:
    logits = torch.tensor([[[0.0, -200.0], [0.0, -300.0]], [[1.0, 2.0], [3.0, 4.0]]])
    assert not fused_streams.sinkhorn_is_usable(logits)
    torch.testing.assert_close(sinkhorn(logits, 5), sinkhorn(logits.double(), 5).float())
    assert sinkhorn(logits * torch.nan, 2).isnan().all()


def test_feature_sums() -> None:
    torch.manual_seed(1)
    sources = [normal(2, 40, D) for _ in range(3)]
    mix = CrossMix(D, 3, ["a", "b"], 1.0).double()
    dynamic = (torch.randn(2, D) * 0.3).requires_grad_()

    def plain(fixed: Tensor, dynamic: Tensor, *sources: Tensor) -> Tensor:
        parameters = {"static": fixed, "dynamic": dynamic}
        return torch.stack(torch.func.functional_call(mix, parameters, (sources,)))

    assert_equal(
        lambda fixed, dynamic, *sources: torch.stack(
            fused_streams.feature_sums(sources, fixed, dynamic)
        ),
        plain,
        *(normal(2, 3, D), dynamic, *sources),
    )


@pytest.mark.parametrize("with_last", [False, True])
def test_depth_attention(with_last: bool) -> None:
    torch.manual_seed(1)
    x, last, query = normal(3, 40, 4, D), normal(3, 40, D), normal(D)
    scales = torch.rand(3, 40, 4 + with_last, requires_grad=True)

    def plain(x: Tensor, scales: Tensor, query: Tensor, *last: Tensor) -> Tensor:
        sources = torch.cat((x, *(part.unsqueeze(-2) for part in last)), -2)
        weights = ((sources @ query) * scales).softmax(-1)
        return (weights.unsqueeze(-1) * sources).sum(-2)

    assert_equal(
        lambda x, scales, query, *last: fused_streams.depth_attention(
            x, last[0] if last else None, scales, query
        ),
        plain,
        *(x, scales, query),
        *([last] if with_last else []),
    )
