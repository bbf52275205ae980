"""Nesterov's momentum with a velocity that is not rescaled. The formula is in ``optim.nag``."""

import torch


class NAG(torch.optim.SGD):
    """Nesterov's momentum with a velocity that includes the rate of each step.

    Sutskever et al. 2013, Equations 3 and 4. It is PyTorch's step with the rate 1 and gradients
    that are multiplied by the rate. A step changes the gradients.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        options = [(group["lr"], group["weight_decay"]) for group in self.param_groups]
        for group, (rate, decay) in zip(self.param_groups, options, strict=True):
            gradients = [p.grad for p in group["params"] if p.grad is not None]
            if gradients:
                torch._foreach_mul_(gradients, rate)
            group.update(lr=1.0, weight_decay=decay * rate)
        super().step()
        for group, (rate, decay) in zip(self.param_groups, options, strict=True):
            group.update(lr=rate, weight_decay=decay)
