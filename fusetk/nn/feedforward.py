"""The position-wise feed-forward network with one hidden layer."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fusetk.nn.dropout import Dropout
from fusetk.nn.exact import is_exactly
from fusetk.nn.fused import transformer as fused_transformer

Activation = Literal["relu", "gelu", "swish", "tanh"]
# An activation may overwrite its input, because only the activation reads the layer's output.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,
    "gelu": F.gelu,
    "swish": F.silu,
    "tanh": torch.tanh,
}


class FeedForward(nn.Module):
    """f(x W1 + b1) W2 + b2: (..., width) -> (..., out).

    With f = ReLU it is Equation 2 of Vaswani et al. 2017.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        out: int,
        activation: Activation = "relu",
        dropout: float = 0.0,
    ):
        """``dropout`` is applied to the hidden layer."""
        super().__init__()
        self.hidden = nn.Linear(width, hidden)
        self.out = nn.Linear(hidden, out)
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        if (
            self.activation is torch.relu_
            and is_exactly(self.hidden, nn.Linear)
            and is_exactly(self.out, nn.Linear)
            and self.hidden.bias is not None
            and self.out.bias is not None
            and fused_transformer.usable(x, self._weights())
        ):
            return fused_transformer.feed_forward(x, self.hidden, self.out, self.dropout.draw())
        return self.out(self.dropout(self.activation(self.hidden(x))))

    def _weights(self) -> list[Tensor]:
        return [self.hidden.weight, self.hidden.bias, self.out.weight, self.out.bias]


class GatedFeedForward(nn.Module):
    """(swish(x W) * x V) W2 with biases: (..., width) -> (..., out), "SwiGLU" (Shazeer 2020).

    One product computes x W and x V.
    """

    def __init__(self, width: int, hidden: int, out: int, dropout: float = 0.0):
        """``hidden`` is the number of hidden units; ``dropout`` is applied to them."""
        super().__init__()
        self.hidden = nn.Linear(width, 2 * hidden)
        self.out = nn.Linear(hidden, out)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.hidden(x).chunk(2, -1)
        return self.out(self.dropout(F.silu(gate) * value))
