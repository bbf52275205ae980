"""Optimisers: how a gradient becomes a step."""

from collections.abc import Iterable
from typing import Annotated

import torch
from pydantic import Field
from torch import nn

from fusetk.config import ComponentConfig
from fusetk.training.adafactor import AdafactorOptimizer

Decay = Annotated[float, Field(ge=0, lt=1)]


class AdamConfig(ComponentConfig):
    """Adam (Kingma and Ba 2015)."""

    kind: str = "adam"
    betas: tuple[Decay, Decay] = (0.9, 0.98)
    """Decay rates of the means of the gradient and of its square."""
    eps: float = Field(1e-9, gt=0)
    """Added to the root of the mean square."""
    weight_decay: float = Field(0.0, ge=0)
    """Times the weight, added to the gradient (`adamw`: subtracted from the weight, times the rate)."""


class NAGConfig(ComponentConfig):
    """Nesterov's accelerated gradient."""

    kind: str = "nag"
    momentum: float = Field(0.99, gt=0, lt=1)
    """Decay rate of the velocity."""
    weight_decay: float = Field(0.0, ge=0)
    """Times the weight, added to the gradient."""


class SGDConfig(ComponentConfig):
    """Stochastic gradient descent."""

    kind: str = "sgd"
    momentum: Decay = 0.0
    """Decay rate of the velocity; 0 for none."""
    weight_decay: float = Field(0.0, ge=0)
    """Times the weight, added to the gradient."""


class AdafactorConfig(ComponentConfig):
    """Adafactor (Shazeer and Stern 2018)."""

    kind: str = "adafactor"
    eps: tuple[Annotated[float, Field(ge=1e-37)], Annotated[float, Field(gt=0)]] = (1e-30, 1e-3)
    """eps1, added to the square of the gradient; eps2, what RMS(w) counts for at least."""
    clip_rms: float = Field(1.0, gt=0)
    """d: largest RMS of U, all of a tensor scaled down to it; not the stage's `clip`, which is of the gradient."""
    decay: float = Field(0.8, gt=0, le=1)
    """How fast the decay rate of the mean square nears 1."""
    beta1: Decay = 0.0
    """Decay rate of the mean of the steps; 0 for none, and no memory for it."""
    scale_parameter: bool = True
    """The rate is relative: times max(eps2, RMS(w)). Without, it is the rate of the step itself."""


class Adam:
    """m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; w -= lr m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps) (Kingma and Ba 2015, Algorithm 1)."""

    Config = AdamConfig

    @staticmethod
    def build(config: AdamConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(
            parameters,
            lr=0.0,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=True,
        )


class AdamW:
    """Adam with decoupled weight decay: w -= lr * decay * w beside Adam's step (Loshchilov and Hutter 2019, Algorithm 2)."""

    Config = AdamConfig

    @staticmethod
    def build(config: AdamConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            parameters,
            lr=0.0,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=True,
        )


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
        return torch.optim.SGD(
            parameters,
            lr=0.0,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            nesterov=True,
        )


class SGD:
    """w -= lr g (Robbins and Monro 1951); with momentum v = mu v + g, w -= lr v (Polyak 1964), where v knows nothing of the rate."""

    Config = SGDConfig

    @staticmethod
    def build(config: SGDConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            parameters, lr=0.0, momentum=config.momentum, weight_decay=config.weight_decay
        )


class Adafactor:
    """U = g / sqrt(V); w -= lr max(eps2, RMS(w)) U / max(1, RMS(U) / d), where, with b = 1 - t^-decay,

        of matrices: R = b R + (1-b) mean of each row of g^2 + eps1, C likewise of each column, V = R C / mean(R);
        of vectors and scalars: V = b V + (1-b) (g^2 + eps1)

    (Shazeer and Stern 2018, Algorithms 4 and 5; defaults from Algorithm 6). A tensor of more dimensions is matrices over its last two;
    RMS is that of the whole tensor. With `beta1` the step s, rate and all, becomes m = beta1 m + (1-beta1) s, as in the authors' code.

    The rate is the schedule's alone, relative to RMS(w) unless `scale_parameter: false`. The paper's own, min(0.01, t^-0.5), is
    `{kind: inverse-sqrt, peak: 0.01, start: 0.01, warmup: 10000}`.
    """

    Config = AdafactorConfig

    @staticmethod
    def build(config: AdafactorConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return AdafactorOptimizer(
            parameters,
            config.eps,
            config.clip_rms,
            config.decay,
            config.beta1,
            config.scale_parameter,
        )


OPTIMIZERS: dict[str, type] = {
    "adam": Adam,
    "adamw": AdamW,
    "nag": NAG,
    "sgd": SGD,
    "adafactor": Adafactor,
}
