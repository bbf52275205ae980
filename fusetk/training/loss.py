"""Cross-entropy with label smoothing."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusetk.nn.output import OutputProjection
from fusetk.nn.output_loss import output_loss
from fusetk.nn.weightnorm import NormedLinear


class Loss(NamedTuple):
    """Sums over tokens, in natural logarithms."""

    smoothed: Tensor  # (), the loss with label smoothing, which is minimised
    nll: Tensor  # (), -log p(y), which is reported
    correct: Tensor  # (), number of tokens whose most probable prediction is y; -1 in training


def loss(
    features: Tensor,
    output: OutputProjection | NormedLinear,
    targets: Tensor,
    smoothing: float,
) -> Loss:
    """Return the loss of N tokens, given their features (N, D), without padding, and targets (N,).

    With smoothing e, the target distribution is 1 - e for the target y and e / (V - 1) for each
    other token (Szegedy et al. 2016, with the normalisation of Vaswani et al. 2017 and fairseq).
    The constant entropy of this distribution is not subtracted.
    """
    with_gradient = torch.is_grad_enabled()
    smoothed, nll, correct = _SmoothedCrossEntropy.apply(
        features, output.weight, output.bias, targets, smoothing, with_gradient
    )
    return Loss(smoothed, nll, correct)


class _SmoothedCrossEntropy(torch.autograd.Function):
    """Cross-entropy whose gradients are computed with the loss, so logits need not be stored."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        with_gradient: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        other = smoothing / (len(weight) - 1)  # target probability of each other token
        gap = 1 - smoothing - other  # its difference to that of y
        sums, ctx.gradients = output_loss(
            features, weight, bias, targets, gap, other, with_gradient
        )
        log_p, log_p_all, correct = sums
        if with_gradient:
            correct = torch.full_like(correct, -1.0)
        return -(gap * log_p + other * log_p_all), -log_p, correct

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        gradients = ctx.gradients
        ctx.gradients = None  # scaled in place below, so they are valid for one backward pass
        return *(None if g is None else g.mul_(grad) for g in gradients), None, None, None
