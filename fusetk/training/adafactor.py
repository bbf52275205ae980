"""Adafactor's step. The formula is in ``optim.adafactor``."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class Adafactor(torch.optim.Optimizer):
    """The optimiser Adafactor (Shazeer and Stern 2018, Algorithms 4 and 5).

    ``torch.optim.Adafactor`` differs: it limits the rate to t^-0.5 and uses eps1 elsewhere.

    The state of a matrix holds the means of rows and columns; the paper has sums, which give the
    same V. Means are never multiplied with each other, because eps1 squared is 0 in float32.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        eps: tuple[float, float],
        clip: float,
        decay: float,
        beta1: float,
        scale_parameter: bool,
    ):
        """The arguments are those of ``AdafactorConfig``. The rate is set before each step."""
        super().__init__(parameters, {"lr": 0.0})
        self.eps = eps
        self.clip = clip
        self.decay = decay
        self.beta1 = beta1
        self.scale_parameter = scale_parameter

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient, without a synchronisation with the device."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._change(parameter, parameter.grad, self.state[parameter], group["lr"])

    def _change(
        self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], rate: float
    ) -> None:
        if not state:
            self._initialize(parameter, state)
        state["step"] = state["step"].cpu() + 1  # loading a checkpoint may move it to the device
        new_weight = float(state["step"]) ** -self.decay
        square = gradient.square().add_(self.eps[0])
        if parameter.dim() > 1:
            row = state["row"].lerp_(square.mean(-1, keepdim=True), new_weight)
            column = state["column"].lerp_(square.mean(-2, keepdim=True), new_weight)
            update = gradient * (row.rsqrt() * row.mean(-2, keepdim=True).sqrt())
            update.mul_(column.rsqrt())
        else:
            update = gradient * state["square"].lerp_(square, new_weight).rsqrt()
        update /= (rms(update) / self.clip).clamp_(min=1)
        if self.scale_parameter:
            update *= rms(parameter).clamp_(min=self.eps[1])
        update *= rate
        if self.beta1:
            update = state["mean"].lerp_(update, 1 - self.beta1)
        parameter -= update

    def _initialize(self, parameter: Tensor, state: dict[str, Any]) -> None:
        state["step"] = torch.tensor(0)
        if parameter.dim() > 1:
            state["row"] = torch.zeros_like(parameter[..., :1])
            state["column"] = torch.zeros_like(parameter[..., :1, :])
        else:
            state["square"] = torch.zeros_like(parameter)
        if self.beta1:
            state["mean"] = torch.zeros_like(parameter)


def rms(x: Tensor) -> Tensor:
    """Return the root mean square of all elements."""
    return x.square().mean().sqrt()
