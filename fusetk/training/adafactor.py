"""Adafactor's step; ``optim.Adafactor`` has the formula."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class AdafactorOptimizer(torch.optim.Optimizer):
    """Shazeer and Stern 2018, Algorithms 4 and 5. Not torch's, which caps the rate at t^-0.5 and puts eps1 elsewhere.

    Row and column are means, not sums as in the paper, which is the same in V. They are never multiplied with each other: eps1 squared
    is 0 in float32.
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
        """As in ``AdafactorConfig``; the rate is set before each step."""
        super().__init__(parameters, {"lr": 0.0})
        self.eps, self.clip, self.decay, self.beta1, self.scale_parameter = (
            eps,
            clip,
            decay,
            beta1,
            scale_parameter,
        )

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Change every parameter that has a gradient. Nothing is asked of the device, so that it need not be waited for."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._change(parameter, parameter.grad, self.state[parameter], group["lr"])

    def _change(
        self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], rate: float
    ) -> None:
        if not state:
            self._begin(parameter, state)
        state["step"] = state["step"].cpu() + 1  # a checkpoint may have put it on the device
        new = float(state["step"]) ** -self.decay
        square = gradient.square().add_(self.eps[0])
        if parameter.dim() > 1:
            row = state["row"].lerp_(square.mean(-1, keepdim=True), new)
            column = state["column"].lerp_(square.mean(-2, keepdim=True), new)
            update = (gradient * (row.rsqrt() * row.mean(-2, keepdim=True).sqrt())).mul_(
                column.rsqrt()
            )
        else:
            update = gradient * state["square"].lerp_(square, new).rsqrt()
        update /= (rms(update) / self.clip).clamp_(min=1)
        if self.scale_parameter:
            update *= rms(parameter).clamp_(min=self.eps[1])
        update *= rate
        if self.beta1:
            update = state["mean"].lerp_(update, 1 - self.beta1)
        parameter -= update

    def _begin(self, parameter: Tensor, state: dict[str, Any]) -> None:
        state["step"] = torch.tensor(0)
        if parameter.dim() > 1:
            state["row"] = torch.zeros_like(parameter[..., :1])
            state["column"] = torch.zeros_like(parameter[..., :1, :])
        else:
            state["square"] = torch.zeros_like(parameter)
        if self.beta1:
            state["mean"] = torch.zeros_like(parameter)


def rms(x: Tensor) -> Tensor:
    """Root of the mean square."""
    return x.square().mean().sqrt()
