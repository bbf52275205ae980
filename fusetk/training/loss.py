"""Cross-entropy with label smoothing, from features, with the logits held in pieces and never twice."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusetk.nn.output import PIECE, PIECE_GPU, OutputProjection
from fusetk.nn.precision import product_dtype
from fusetk.nn.weightnorm import NormedLinear

ROWS = 32  # of a piece, or a multiple, for bf16 on CPU, where each new shape of a product is compiled first


class Loss(NamedTuple):
    """Sums over tokens, natural logarithms."""

    smoothed: Tensor  # (), what is minimised
    nll: Tensor  # (), -log p(y), what is reported
    correct: Tensor  # (), tokens for which y was the most probable word; -1 in training, where nobody looks


def loss(
    features: Tensor, output: OutputProjection | NormedLinear, targets: Tensor, smoothing: float
) -> Loss:
    """Features (N, D) of real tokens, their words (N,) -> sums over the N tokens.

    With smoothing e, the target distribution is 1 - e for the word y and e / (V - 1) for each other word (Szegedy et al.
    2016; as Vaswani et al. 2017 and fairseq have it). Its constant entropy is not subtracted.
    """
    learning = torch.is_grad_enabled()
    smoothed, nll, correct = _SmoothedCrossEntropy.apply(
        features, output.weight, output.bias, targets, smoothing, learning
    )
    return Loss(smoothed, nll, correct)


class _SmoothedCrossEntropy(torch.autograd.Function):
    """The gradient is made together with the loss, piece by piece, in the memory of the piece's log-probabilities.

    With q the target distribution, d loss / d logits = p - q. Both the sum of log-probabilities over the vocabulary and
    the constant part of q are linear in the logits, so they cost a vector each and no pass over the vocabulary.
    """

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        learning: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype = product_dtype(features)
        with torch.autocast(features.device.type, enabled=False):
            return _forward(ctx, features, weight, bias, targets, smoothing, learning, dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        found = ctx.found
        ctx.found = None
        return *(None if g is None else g.mul_(grad) for g in found), None, None, None


def _rounds(x: Tensor, dtype: torch.dtype) -> bool:
    return x.device.type == "cpu" and dtype == torch.bfloat16


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """(n, D) in another type; for bf16 on CPU with rows of zeros up to a multiple of ROWS."""
    if not _rounds(x, dtype) or len(x) % ROWS == 0:
        return x.to(dtype)
    found = x.new_zeros(len(x) + -len(x) % ROWS, x.shape[1], dtype=dtype)
    found[: len(x)] = x
    return found


def _forward(
    ctx: Any,
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    smoothing: float,
    learning: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    vocabulary = len(weight)
    other = smoothing / (vocabulary - 1)  # probability of each wrong word
    gap = 1 - smoothing - other  # what the right one has more
    matrix = weight.to(dtype)
    column_sum = weight.sum(0, dtype=torch.float32)  # (D,)
    bias_sum = bias.sum(dtype=torch.float32) if bias is not None else 0.0
    sums = features.new_zeros(
        3, dtype=torch.float32
    )  # all log-probabilities, those of the right words, hits
    grad_features = torch.empty_like(features) if learning else None
    grad_weight = torch.zeros_like(weight, dtype=torch.float32) if learning else None
    grad_bias = (
        torch.zeros_like(bias, dtype=torch.float32) if learning and bias is not None else None
    )
    rows = max(1, (PIECE if features.device.type == "cpu" else PIECE_GPU) // vocabulary)
    if _rounds(features, dtype):
        rows = max(ROWS, rows - rows % ROWS)
    for start in range(0, len(targets), rows):
        h, y = features[start : start + rows], targets[start : start + rows]
        low = _rounded(h, dtype)
        logits = (
            low @ matrix.T if bias is None else torch.addmm(bias.to(dtype), low, matrix.T)
        )  # (n, V), and rows that are not wanted
        logits = logits[: len(h)]
        right = logits.gather(1, y[:, None]).float()
        log_p = torch.log_softmax(logits, dim=1, dtype=torch.float32)
        log_p_right = log_p.gather(1, y[:, None])
        log_z = right - log_p_right
        logit_sum = (h.sum(0, dtype=torch.float32) @ column_sum) + len(h) * bias_sum
        sums[0] += logit_sum - vocabulary * log_z.sum()
        sums[1] += log_p_right.sum()
        if grad_features is None or grad_weight is None:
            sums[2] += (log_p.argmax(1) == y).sum()
            continue
        p = log_p.exp_()
        if grad_bias is not None:
            grad_bias += p.sum(0)
        p.scatter_add_(1, y[:, None], p.new_full((len(y), 1), -gap))
        low_p = _rounded(p, dtype)
        grad_weight.addmm_(low_p.T, low) if dtype == torch.float32 else grad_weight.add_(
            low_p.T @ low
        )
        grad_features[start : start + rows] = (low_p @ matrix)[: len(h)].sub_(
            other * column_sum.to(dtype)
        )
    if grad_features is not None and grad_weight is not None:
        grad_weight -= other * features.sum(0, dtype=torch.float32)
        if grad_bias is not None:
            grad_bias.index_add_(
                0, targets, torch.full_like(targets, -gap, dtype=torch.float32)
            ).sub_(other * len(targets))
    ctx.found = (grad_features, grad_weight, grad_bias)
    if learning:
        sums[2] = -1.0
    nll = -sums[1]
    smoothed = -(gap * sums[1] + other * sums[0])
    return smoothed, nll, sums[2].clone()
