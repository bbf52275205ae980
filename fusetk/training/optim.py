"""Optimisers: the rules by which gradients change parameters.

The functions import torch, this module does not: the check of a config needs the configs only.
"""

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from fusetk.config import ComponentConfig, outside_error, resolve
from fusetk.errors import ConfigError, FusetkError

if TYPE_CHECKING:
    import torch
    from torch import nn

DecayRate = Annotated[float, Field(ge=0, lt=1)]
Builder = Callable[[Any, "Iterable[nn.Parameter]"], "torch.optim.Optimizer"]


class AdamConfig(ComponentConfig):
    """Adam (Kingma and Ba 2015)."""

    kind: str = "adam"
    betas: tuple[DecayRate, DecayRate] = (0.9, 0.98)
    """Decay rates of the moving averages of the gradient and of its square."""
    eps: float = Field(1e-9, gt=0)
    """Term that is added to the root of the mean square."""
    weight_decay: float = Field(0.0, ge=0)
    """Weight decay. `adam` adds decay * weight to the gradient. `adamw` subtracts rate * decay *
    weight from the weight."""


class NAGConfig(ComponentConfig):
    """Nesterov's accelerated gradient."""

    kind: str = "nag"
    momentum: float = Field(0.99, gt=0, lt=1)
    """Decay rate of the velocity."""
    weight_decay: float = Field(0.0, ge=0)
    """Weight decay: decay * weight is added to the gradient."""
    rescale_velocity: bool = True
    """At a change of the rate, multiply the velocity by the ratio of the rates, as fairseq for
    Python does. With `false` the velocity keeps its length, as in Sutskever et al. 2013 and fairseq
    for Lua."""


class SGDConfig(ComponentConfig):
    """Stochastic gradient descent."""

    kind: str = "sgd"
    momentum: DecayRate = 0.0
    """Decay rate of the velocity; 0 is no momentum."""
    weight_decay: float = Field(0.0, ge=0)
    """Weight decay: decay * weight is added to the gradient."""


class AdafactorConfig(ComponentConfig):
    """Adafactor (Shazeer and Stern 2018)."""

    kind: str = "adafactor"
    eps: tuple[Annotated[float, Field(ge=1e-37)], Annotated[float, Field(gt=0)]] = (1e-30, 1e-3)
    """eps1 and eps2: eps1 is added to the square of the gradient; eps2 is the lower limit of
    RMS(w)."""
    clip_rms: float = Field(1.0, gt=0)
    """Maximum RMS of U (d in the paper). A tensor U with a larger RMS is scaled down. This is not
    the stage's `clip`, which limits the gradient norm."""
    decay: float = Field(0.8, gt=0, le=1)
    """Exponent in the decay rate of the mean square, which is 1 - t^-decay."""
    beta1: DecayRate = 0.0
    """Decay rate of the moving average of the steps; 0 is no average, which saves its memory."""
    scale_parameter: bool = True
    """Multiply the rate by max(eps2, RMS(w)). Otherwise the rate is not relative to the weights."""


def configured_by(config: type[ComponentConfig]) -> Callable[[Builder], Builder]:
    """Attach the config class that belongs to a function that builds an optimiser."""

    def attach(builder: Any) -> Builder:
        builder.Config = config
        return builder

    return attach


@configured_by(AdamConfig)
def adam(config: AdamConfig, parameters: "Iterable[nn.Parameter]") -> "torch.optim.Optimizer":
    """m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; w -= lr m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps)
    (Kingma and Ba 2015, Algorithm 1).
    """
    import torch

    options = config.model_dump(include={"betas", "eps", "weight_decay"})
    return torch.optim.Adam(parameters, lr=0.0, fused=True, **options)


@configured_by(AdamConfig)
def adamw(config: AdamConfig, parameters: "Iterable[nn.Parameter]") -> "torch.optim.Optimizer":
    """Adam with decoupled weight decay: w -= lr * decay * w in addition to Adam's step (Loshchilov
    and Hutter 2019, Algorithm 2).
    """
    import torch

    options = config.model_dump(include={"betas", "eps", "weight_decay"})
    return torch.optim.AdamW(parameters, lr=0.0, fused=True, **options)


def _fused_if_unsharded(parameters: Iterable[Any]) -> list[Any]:
    """Return parameters or groups; a group of sharded parameters has no fused step.

    PyTorch's fused step of SGD does not support them.
    """
    from fusetk.training.sharding import sharded

    return [
        {**group, "fused": None}
        if isinstance(group, dict) and sharded(group["params"][0])
        else group
        for group in parameters
    ]


@configured_by(NAGConfig)
def nag(config: NAGConfig, parameters: "Iterable[nn.Parameter]") -> "torch.optim.Optimizer":
    """u = mu c u - lr g; w += mu u - lr g, Nesterov's momentum (Sutskever et al. 2013).

    c is lr / lr_before with ``rescale_velocity``, and 1 without it. fairseq for Python has the
    first rule, that for Lua the second one. Only the weight decay of fairseq for Python differs: it
    subtracts lr * decay * w in addition to the step.

    The first rule is computed as PyTorch's SGD with ``nesterov``, whose v = -u / lr does not depend
    on the rate: v = mu v + g; w -= lr (g + mu v). Both give the same weights for all rates above 0.
    """
    import torch

    from fusetk.training.nesterov import NAG

    rule = torch.optim.SGD if config.rescale_velocity else NAG
    return rule(
        _fused_if_unsharded(parameters),
        lr=0.0,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        nesterov=True,
        fused=True,
    )


@configured_by(SGDConfig)
def sgd(config: SGDConfig, parameters: "Iterable[nn.Parameter]") -> "torch.optim.Optimizer":
    """w -= lr g (Robbins and Monro 1951). With momentum: v = mu v + g; w -= lr v (Polyak 1964),
    where v does not depend on the rate.
    """
    import torch

    return torch.optim.SGD(
        _fused_if_unsharded(parameters),
        lr=0.0,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        fused=True,
    )


@configured_by(AdafactorConfig)
def adafactor(
    config: AdafactorConfig, parameters: "Iterable[nn.Parameter]"
) -> "torch.optim.Optimizer":
    """U = g / sqrt(V); w -= lr max(eps2, RMS(w)) U / max(1, RMS(U) / d), with b = 1 - t^-decay and

        for matrices: R = b R + (1-b) mean of each row of g^2 + eps1, C likewise for each column,
        V = R C / mean(R);
        for vectors and scalars: V = b V + (1-b) (g^2 + eps1)

    (Shazeer and Stern 2018, Algorithms 4 and 5; defaults from Algorithm 6). A tensor with more
    dimensions is a set of matrices over its last two. RMS is taken over the full tensor. With
    `beta1`, the step s (including the rate) is replaced by m = beta1 m + (1-beta1) s, as in the
    authors' code.

    The rate comes from the schedule alone, relative to RMS(w) unless `scale_parameter: false`. The
    paper's rate, min(0.01, t^-0.5), is `{kind: inverse-sqrt, peak: 0.01, start: 0.01, warmup:
    10000}`.
    """
    from fusetk.training.adafactor import Adafactor

    return Adafactor(
        parameters,
        config.eps,
        config.clip_rms,
        config.decay,
        config.beta1,
        config.scale_parameter,
    )


OPTIMIZERS: dict[str, Any] = {
    "adam": adam,
    "adamw": adamw,
    "nag": nag,
    "sgd": sgd,
    "adafactor": adafactor,
}


def builder(kind: str) -> Builder:
    """Return the function that builds the optimiser of this kind.

    It is a function outside fusetk, or the static method ``build`` of a class outside fusetk.
    Raises ValueError if there is none.
    """
    component = resolve(kind, OPTIMIZERS)
    function: Builder | None = getattr(component, "build", None)
    if function is None and isinstance(component, type):
        raise ValueError(
            f"{kind!r} is a class without a static method build(config, parameters): "
            "add it, or name a function"
        )
    return function or component


def build(config: ComponentConfig, parameters: Iterable[Any]) -> "torch.optim.Optimizer":
    """Build the optimiser that ``config.kind`` names, for parameters or parameter groups.

    Raises ConfigError if a function outside fusetk fails, or does not return a
    ``torch.optim.Optimizer`` of all trainable parameters whose method ``step`` needs no closure.
    """
    import torch

    all_parameters = list(parameters)
    build_optimizer = builder(config.kind)
    try:
        optimizer = build_optimizer(config, all_parameters)
    except FusetkError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"the optimiser {config.kind} cannot be built with (config, parameters): "
            f"{outside_error(error)}"
        ) from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            f"{config.kind} returned {type(optimizer).__name__}, which is not an optimiser: return "
            "a torch.optim.Optimizer"
        )
    groups = [group["params"] if isinstance(group, dict) else [group] for group in all_parameters]
    trainable = {id(each) for group in groups for each in group if each.requires_grad}
    updated = {id(each) for group in optimizer.param_groups for each in group["params"]}
    if missing := len(trainable - updated):
        raise ConfigError(
            f"the optimiser of {config.kind} lacks {missing} of the {len(trainable)} trainable "
            "parameters, so they would not be trained: give it all parameters"
        )
    try:
        inspect.signature(optimizer.step).bind()
    except TypeError as error:
        raise ConfigError(
            f"the method step of the optimiser of {config.kind} cannot be called without arguments "
            f"({error}): training gives no closure; choose an optimiser whose step needs none"
        ) from None
    return optimizer
