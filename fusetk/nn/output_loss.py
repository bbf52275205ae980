"""The loss of an output projection and its gradients. Logits are computed in pieces of rows.

PyTorch's ``F.linear_cross_entropy`` cannot replace it: with label smoothing its chunked path falls
back to full logits, it does not also return the unsmoothed loss, and fusetk supports torch 2.4,
which does not have it.
"""

import torch
from torch import Tensor

from fusetk.nn.fused import output_loss as output_kernel
from fusetk.nn.fused import transformer as kernels
from fusetk.nn.fused.output_loss import Gradients
from fusetk.nn.output import PIECE, PIECE_GPU
from fusetk.nn.precision import product_dtype, without_autocast
from fusetk.nn.rows import row_multiple


def output_loss(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    gap: float,
    other: float,
    with_gradient: bool,
) -> tuple[Tensor, Gradients | None]:
    """Return sums over N tokens (3,) and, if asked for, the gradients of the loss.

    The sums are the log-probabilities of the targets (N,), the log-probabilities of all tokens, and
    the number of targets with the largest logit, which is not counted with gradients. The logits
    are features (N, D) times ``weight`` (V, D), plus ``bias`` (V,). The target distribution q is
    ``other`` for each token, and ``gap`` more for the target. The loss is the cross-entropy with q;
    its gradient with respect to the logits is p - q.
    """
    if output_kernel.usable(features, weight, bias):
        return output_kernel.output_loss(
            features, weight, bias, targets, gap, other, PIECE, with_gradient
        )
    return output_loss_of_products(features, weight, bias, targets, gap, other, with_gradient)


def output_loss_of_products(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    gap: float,
    other: float,
    with_gradient: bool,
) -> tuple[Tensor, Gradients | None]:
    """Compute ``output_loss`` with PyTorch's products."""
    dtype = product_dtype(features)
    multiple = row_multiple(features)
    fused = kernels.usable(features, [weight] if bias is None else [weight, bias])
    cross_entropy = kernels.cross_entropy if fused else plain_cross_entropy
    gradients = None
    if with_gradient:
        gradients = Gradients(
            torch.empty_like(features),
            torch.zeros_like(weight, dtype=torch.float32),
            None if bias is None else torch.zeros_like(bias, dtype=torch.float32),
        )
    with without_autocast(features):
        matrix = weight.to(dtype)
        sums = features.new_zeros(3, dtype=torch.float32)
        rows = _rows_in_piece(features, len(weight), multiple)
        for start in range(0, len(targets), rows):
            y = targets[start : start + rows]
            piece = _padded(features[start : start + rows].to(dtype), multiple)
            logits = piece @ matrix.T
            by_bias = None if gradients is None else gradients.bias
            sums += cross_entropy(logits[: len(y)], bias, y, gap, other, by_bias, with_gradient)
            if gradients is not None:
                logits[len(y) :] = 0
                if dtype == torch.float32:
                    gradients.weight.addmm_(logits.T, piece)
                else:
                    gradients.weight.add_(logits.T @ piece)
                gradients.features[start : start + rows] = (logits @ matrix)[: len(y)]
    return sums, gradients


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


def _rows_in_piece(features: Tensor, vocabulary: int, multiple: int) -> int:
    rows = (PIECE if features.device.type == "cpu" else PIECE_GPU) // vocabulary
    return max(multiple, rows - rows % multiple)


def _padded(x: Tensor, multiple: int) -> Tensor:
    """Append rows of zeros to x (n, D) so that n is a multiple of ``multiple``."""
    missing = -len(x) % multiple
    return torch.cat((x, x.new_zeros(missing, x.shape[1]))) if missing else x
