"""Nesterov's momentum with a velocity that is not rescaled. The formula is in ``optim.nag``."""

from collections.abc import Iterable

import torch
from torch import nn


class NAG(torch.optim.Optimizer):
    """Nesterov's momentum with a velocity that includes the rate of each step.

    Sutskever et al. 2013, Equations 3 and 4.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], momentum: float, weight_decay: float):
        """The arguments are those of ``NAGConfig``. The rate is set before each step."""
        super().__init__(parameters, {"lr": 0.0})
        self.momentum = momentum
        self.weight_decay = weight_decay

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            gradients = [p.grad for p in parameters]
            velocities = []
            for p in parameters:
                state = self.state[p]
                if "velocity" not in state:
                    state["velocity"] = torch.zeros_like(p)
                velocities.append(state["velocity"])
            if self.weight_decay:
                gradients = list(torch._foreach_add(gradients, parameters, alpha=self.weight_decay))
            torch._foreach_mul_(velocities, self.momentum)
            torch._foreach_add_(velocities, gradients, alpha=-group["lr"])
            torch._foreach_add_(parameters, velocities, alpha=self.momentum)
            torch._foreach_add_(parameters, gradients, alpha=-group["lr"])
