"""Cross-entropy with label smoothing from features. The logits are computed in pieces of rows.

PyTorch's ``F.linear_cross_entropy`` cannot replace it: with label smoothing its chunked path falls
back to full logits, it does not also return the unsmoothed loss, and fusetk supports torch 2.4,
which does not have it.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusetk.nn.fused import products
from fusetk.nn.fused import transformer as fused_transformer
from fusetk.nn.output import OutputProjection, rows_in_piece
from fusetk.nn.packed_layout import row_multiple
from fusetk.nn.precision import product_dtype, without_autocast
from fusetk.nn.weightnorm import NormedLinear


class Loss(NamedTuple):
    """Sums over tokens, in natural logarithms."""

    smoothed: Tensor  # (), the loss with label smoothing
    nll: Tensor  # (), -log p(y), which is reported
    correct: Tensor  # (), number of tokens whose most probable prediction is y; -1 in training
    additional: Mapping[str, Tensor] = {}  # (), the additional losses

    @property
    def objective(self) -> Tensor:
        """The loss that is minimised: ``smoothed`` and the additional losses, ()."""
        return sum(self.additional.values(), self.smoothed)

    def detach(self) -> "Loss":
        """Return the values without their gradients."""
        additional = {name: value.detach() for name, value in self.additional.items()}
        return Loss(self.smoothed.detach(), self.nll.detach(), self.correct.detach(), additional)


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
    """Cross-entropy whose gradients are computed with the loss, in the memory of a piece's logits.

    With the target distribution q, d loss / d logits = p - q.
    """

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
        dtype = product_dtype(features)
        multiple = row_multiple(features)
        other = smoothing / (len(weight) - 1)  # target probability of each other token
        gap = 1 - smoothing - other  # its difference to that of y
        parameters = [weight] if bias is None else [weight, bias]
        in_kernels = fused_transformer.usable(features, parameters)
        cross_entropy = fused_transformer.cross_entropy if in_kernels else plain_cross_entropy
        with without_autocast(features):
            matrix = weight.to(dtype)
            gradients = _Gradients(features, weight, bias, in_kernels) if with_gradient else None
            bias_grad = None if gradients is None else gradients.bias
            sums = features.new_zeros(3, dtype=torch.float32)
            rows = rows_in_piece(len(weight), features.device)
            rows = max(multiple, rows - rows % multiple)
            # One buffer: the system maps and clears the memory of each large new tensor.
            buffer = matrix.new_empty(min(rows, len(targets) + multiple), len(matrix))
            for start in range(0, len(targets), rows):
                y = targets[start : start + rows]
                piece = _padded(features[start : start + rows].to(dtype), multiple)
                logits = buffer[: len(piece)]
                products.matmul_into(logits, piece, matrix.T)
                sums += cross_entropy(
                    logits[: len(y)], bias, y, gap, other, bias_grad, with_gradient
                )
                if gradients is not None:
                    logits[len(y) :] = 0
                    gradients.add(start, len(y), piece, logits, matrix)
            ctx.gradients = gradients
        log_p, log_p_all, correct = sums
        if with_gradient:
            correct = torch.full_like(correct, -1.0)
        return -(gap * log_p + other * log_p_all), -log_p, correct

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        gradients = ctx.gradients
        if gradients is None:
            raise RuntimeError("the loss allows one backward pass only: compute it again")
        ctx.gradients = None  # scaled in place below, so they are valid for one backward pass
        return *(None if g is None else g.mul_(grad) for g in gradients), None, None, None


class _Gradients:
    """The gradients of features, weight and bias, accumulated over pieces."""

    def __init__(self, features: Tensor, weight: Tensor, bias: Tensor | None, in_kernels: bool):
        self._in_kernels = in_kernels
        self.features = torch.empty_like(features)
        self.weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        self.bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)

    def add(
        self, start: int, rows: int, features: Tensor, grad_logits: Tensor, matrix: Tensor
    ) -> None:
        """Add the gradients of n ``rows`` from row ``start`` on, given those of the logits.

        The arguments ``features`` and ``grad_logits`` may have more rows, of zeros.
        """
        if products.in_use(grad_logits.T, features):
            products.add_matmul(self.weight, grad_logits.T, features)
        elif grad_logits.dtype == torch.float32:
            self.weight.addmm_(grad_logits.T, features)
        elif self._in_kernels:
            fused_transformer.add(self.weight, grad_logits.T @ features)
        else:
            self.weight.add_(grad_logits.T @ features)
        self.features[start : start + rows] = (grad_logits @ matrix)[:rows]

    def __iter__(self) -> Iterator[Tensor | None]:
        return iter((self.features, self.weight, self.bias))


def plain_cross_entropy(
    logits: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    gap: float,
    other: float,
    bias_grad: Tensor | None,
    training: bool,
) -> Tensor:
    """Compute ``cross_entropy`` of the fused kernels with PyTorch's operations."""
    summed = logits.float() if bias is None else logits + bias.float()
    log_p = torch.log_softmax(summed, dim=1)
    at_target = targets[:, None]
    sums = torch.stack((log_p.gather(1, at_target).sum(), log_p.sum(), log_p.new_zeros(())))
    if not training:
        sums[2] = (log_p.argmax(1) == targets).sum()
        return sums
    grad = log_p.exp_().sub_(other)
    grad.scatter_add_(1, at_target, grad.new_full((1, 1), -gap).expand(len(targets), 1))
    logits.copy_(grad)
    if bias_grad is not None:
        bias_grad += grad.sum(0)
    return sums


def _padded(x: Tensor, multiple: int) -> Tensor:
    """Append rows of zeros to x (n, D) so that n is a multiple of ``multiple``."""
    missing = -len(x) % multiple
    return torch.cat((x, x.new_zeros(missing, x.shape[1]))) if missing else x
