"""Cross-entropy with label smoothing from features. The logits are computed in pieces of rows.

PyTorch's ``F.linear_cross_entropy`` cannot replace it: with label smoothing its chunked path falls
back to full logits, it does not also return the unsmoothed loss, and fusetk supports torch 2.4,
which does not have it.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusetk.nn.output import PIECE, PIECE_GPU, OutputProjection
from fusetk.nn.precision import product_dtype, without_autocast
from fusetk.nn.weightnorm import NormedLinear

# In bf16 on CPU, the number of rows of a piece is a multiple of this number. A matrix product of a
# new shape is compiled first, so shapes should recur.
ROW_MULTIPLE = 32


class Loss(NamedTuple):
    """Sums over tokens, in natural logarithms."""

    smoothed: Tensor  # (), the loss with label smoothing, which is minimised
    nll: Tensor  # (), -log p(y), which is reported
    correct: Tensor  # (), number of tokens whose most probable prediction is y; -1 in training


def loss(
    features: Tensor, output: OutputProjection | NormedLinear, targets: Tensor, smoothing: float
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

    With the target distribution q, d loss / d logits = p - q. The sum of log-probabilities over the
    vocabulary and the constant part of q are linear in the logits, so both follow from the column
    sum of the weight, without a pass over the vocabulary.
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
        with without_autocast(features):
            gradients = None
            if with_gradient:
                gradients = _Gradients(features, weight, bias, smoothing, dtype)
            log_p_all, log_p_target, correct = _sums(
                features, weight, bias, targets, dtype, gradients
            )
            if gradients is not None:
                ctx.gradients = gradients.finish(features, targets)
        other, gap = _target_probabilities(smoothing, len(weight))
        return -(gap * log_p_target + other * log_p_all), -log_p_target, correct

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        gradients = ctx.gradients
        ctx.gradients = None  # scaled in place below, so they are valid for one backward pass
        return *(None if g is None else g.mul_(grad) for g in gradients), None, None, None


def _target_probabilities(smoothing: float, vocabulary: int) -> tuple[float, float]:
    """Return the target probability of each other token, and its difference to that of y."""
    other = smoothing / (vocabulary - 1)
    return other, 1 - smoothing - other


class _Gradients:
    """The gradients of features, weight and bias, accumulated over pieces."""

    def __init__(
        self,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        smoothing: float,
        dtype: torch.dtype,
    ):
        self.dtype = dtype
        self.other, self.gap = _target_probabilities(smoothing, len(weight))
        self.matrix = weight.to(dtype)
        self.column_sum = weight.sum(0, dtype=torch.float32)  # (D,)
        self.features = torch.empty_like(features)
        self.weight = torch.zeros_like(weight, dtype=torch.float32)
        self.bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)

    def add(self, start: int, features: Tensor, p: Tensor, targets: Tensor) -> None:
        """Add the gradients of n rows from row ``start``.

        The rows have padded features, probabilities p (n, V) and targets (n,).

        ``p`` is overwritten.
        """
        rows = len(targets)
        if self.bias is not None:
            self.bias += p.sum(0)
        p.scatter_add_(1, targets[:, None], p.new_full((rows, 1), -self.gap))
        grad_logits = _padded(p, self.dtype)
        if self.dtype == torch.float32:
            self.weight.addmm_(grad_logits.T, features)
        else:
            self.weight.add_(grad_logits.T @ features)
        grad_features = (grad_logits @ self.matrix)[:rows]
        grad_features.sub_(self.other * self.column_sum.to(self.dtype))
        self.features[start : start + rows] = grad_features

    def finish(self, features: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Add the terms that are constant over the pieces, and return the gradients."""
        self.weight -= self.other * features.sum(0, dtype=torch.float32)
        if self.bias is not None:
            gaps = torch.full_like(targets, -self.gap, dtype=torch.float32)
            self.bias.index_add_(0, targets, gaps).sub_(self.other * len(targets))
        return self.features, self.weight, self.bias


def _sums(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    dtype: torch.dtype,
    gradients: _Gradients | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sum of all log-probabilities, the sum for the targets, and the correct tokens.

    Add each piece to ``gradients``. With ``gradients``, correct tokens are not counted (-1).
    """
    matrix = weight.to(dtype) if gradients is None else gradients.matrix
    column_sum = weight.sum(0, dtype=torch.float32)  # (D,)
    bias_sum = bias.sum(dtype=torch.float32) if bias is not None else 0.0
    log_p_all = features.new_zeros((), dtype=torch.float32)
    log_p_target = features.new_zeros((), dtype=torch.float32)
    correct = features.new_zeros((), dtype=torch.float32)
    rows = _rows_in_piece(features, len(weight), dtype)
    for start in range(0, len(targets), rows):
        h = features[start : start + rows]
        y = targets[start : start + rows]
        padded = _padded(h, dtype)
        if bias is None:
            logits = padded @ matrix.T
        else:
            logits = torch.addmm(bias.to(dtype), padded, matrix.T)
        logits = logits[: len(h)]
        target_logits = logits.gather(1, y[:, None]).float()
        log_p = torch.log_softmax(logits, dim=1, dtype=torch.float32)  # (n, V)
        piece_log_p_target = log_p.gather(1, y[:, None])
        log_z = target_logits - piece_log_p_target
        logit_sum = (h.sum(0, dtype=torch.float32) @ column_sum) + len(h) * bias_sum
        log_p_all += logit_sum - len(weight) * log_z.sum()
        log_p_target += piece_log_p_target.sum()
        if gradients is None:
            correct += (log_p.argmax(1) == y).sum()
        else:
            gradients.add(start, padded, log_p.exp_(), y)
    if gradients is not None:
        correct.fill_(-1.0)
    return log_p_all, log_p_target, correct


def _rows_in_piece(features: Tensor, vocabulary: int, dtype: torch.dtype) -> int:
    rows = max(1, (PIECE if features.device.type == "cpu" else PIECE_GPU) // vocabulary)
    if _compiles_shapes(features, dtype):
        rows = max(ROW_MULTIPLE, rows - rows % ROW_MULTIPLE)
    return rows


def _compiles_shapes(x: Tensor, dtype: torch.dtype) -> bool:
    return x.device.type == "cpu" and dtype == torch.bfloat16


def _padded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert x (n, D). For bf16 on CPU, append rows of zeros up to a multiple of ROW_MULTIPLE."""
    if not _compiles_shapes(x, dtype) or len(x) % ROW_MULTIPLE == 0:
        return x.to(dtype)
    padded = x.new_zeros(len(x) + -len(x) % ROW_MULTIPLE, x.shape[1], dtype=dtype)
    padded[: len(x)] = x
    return padded
