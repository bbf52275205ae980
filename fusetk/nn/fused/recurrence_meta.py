"""The kernels of the recurrence on the device `meta`, for the estimate of memory and multiply-adds.

Tensors on `meta` have no values. So the kernels execute only the matrix products of the attention,
whose multiply-adds are counted.
"""

import torch
from torch import Tensor

from fusetk.nn.fused.recurrence_buffers import BackwardBuffers, ForwardBuffers


class MetaKernels:
    """The computations between the products of a recurrence, without values."""

    norm_parts = 1
    vector_parts = 1

    def __init__(self, buffers: ForwardBuffers):
        self.buffers = buffers

    def cell(self, c: int, t: int) -> None:
        pass

    def attention(self, t: int) -> None:
        self._multiply_weights_and_values(t)

    def begin_backward(self, gradients: BackwardBuffers) -> None:
        pass

    def cell_backward(self, c: int, t: int) -> None:
        pass

    def attention_backward(self, t: int) -> None:
        self._multiply_weights_and_values(t)  # the gradient of the weights needs as many

    def values_backward(self, value_grads: Tensor) -> None:
        for t in range(len(self.buffers.spec.sizes)):
            self._multiply_weights_and_values(t)  # and so does the gradient of the values

    def _multiply_weights_and_values(self, t: int) -> None:
        """Multiply attention weights (rows * H, 1, n * S) by values (rows * H, n * S, C / H)."""
        attention = self.buffers.attention
        assert attention is not None
        _, positions, heads = attention.weights.shape
        products = self.buffers.spec.sizes[t] * heads
        weights = attention.values.new_empty(products, 1, positions)
        values = weights.new_empty(products, positions, attention.values.shape[-1] // heads)
        torch.bmm(weights, values)
