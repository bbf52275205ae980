"""Optimisers: how a gradient becomes a step."""

from collections.abc import Iterable
from typing import Annotated

import torch
from pydantic import Field
from torch import nn

from fusetk.config import Kind

Decay = Annotated[float, Field(ge=0, lt=1)]


class AdamConfig(Kind):
    """Adam (Kingma and Ba 2015)."""

    kind: str = "adam"
    betas: tuple[Decay, Decay] = (0.9, 0.98)
    """Decay rates of the means of the gradient and of its square."""
    eps: float = Field(1e-9, gt=0)
    """Added to the root of the mean square."""
    weight_decay: float = Field(0.0, ge=0)
    """Times the weight, added to the gradient (`adamw`: subtracted from the weight, times the rate)."""


class NAGConfig(Kind):
    """Nesterov's accelerated gradient."""

    kind: str = "nag"
    momentum: float = Field(0.99, gt=0, lt=1)
    """Decay rate of the velocity."""
    weight_decay: float = Field(0.0, ge=0)
    """Times the weight, added to the gradient."""


class Adam:
    """m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; w -= lr m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps) (Kingma and Ba 2015, Algorithm 1)."""

    Config = AdamConfig

    @staticmethod
    def build(config: AdamConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.0, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay, fused=True)


class AdamW:
    """Adam with decoupled weight decay: w -= lr * decay * w beside Adam's step (Loshchilov and Hutter 2019, Algorithm 2)."""

    Config = AdamConfig

    @staticmethod
    def build(config: AdamConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=0.0, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay, fused=True)


class NAG:
    """v = mu v + g; w -= lr (g + mu v): Nesterov's momentum (Sutskever et al. 2013) as in Torch's SGD with ``nesterov``.

    fairseq's ``nag`` keeps u = -lr v and writes, with c = lr / lr_before,

        w += mu^2 c u - (1 + mu) lr g;  u = mu c u - lr g

    which is the same for any rates above 0; only its weight decay is another one, w -= lr * decay * w beside the step. As v knows
    nothing of the rate, it is all that a checkpoint must hold.
    """

    Config = NAGConfig

    @staticmethod
    def build(config: NAGConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.0, momentum=config.momentum, weight_decay=config.weight_decay, nesterov=True)


OPTIMIZERS: dict[str, type] = {"adam": Adam, "adamw": AdamW, "nag": NAG}
