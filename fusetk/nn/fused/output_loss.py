"""The loss of an output projection with its gradients on CPU: calls of ``output_loss.cpp``."""

import ctypes
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusetk.nn.fused import transformer
from fusetk.nn.fused.build import library
from fusetk.nn.fused.decoding import BLOCK_ROWS
from fusetk.nn.fused.structs import FLOAT, INT, POINTER, address, struct
from fusetk.nn.precision import product_dtype

in_use = False  # whether the kernel computes the loss; ``fusetk.machine`` sets it

# The struct has the same members in the same order as in output_loss.cpp.
_OutputLoss = struct(
    "_OutputLoss",
    ("threads rows width vocabulary training piece", INT),
    ("x weight bias targets", POINTER),
    ("gap other", FLOAT),
    ("log_p log_p_all correct by_x by_weight by_bias", POINTER),
)


class Gradients(NamedTuple):
    """The gradients of features (N, D), weight (V, D) and bias (V,)."""

    features: Tensor
    weight: Tensor
    bias: Tensor | None


def usable(features: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Return whether the kernel is in use and can compute the loss: on CPU, in float32."""
    return (
        in_use
        and product_dtype(features) == torch.float32
        and transformer.usable(features, [weight] if bias is None else [weight, bias])
        and library("output_loss") is not None
    )


def output_loss(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    gap: float,
    other: float,
    piece: int,
    training: bool,
) -> tuple[Tensor, Gradients | None]:
    """Compute ``fusetk.nn.output_loss.output_loss`` in pieces of about ``piece`` logits."""
    rows, width = features.shape
    vocabulary = len(weight)
    x = features.contiguous()
    targets = transformer.checked_targets(targets, vocabulary)
    matrix = weight.contiguous()
    threads = torch.get_num_threads()
    blocks = max(1, piece // (vocabulary * BLOCK_ROWS * threads))  # of each thread
    sums = torch.zeros(3, rows)
    gradients = None
    if training:
        by_bias = None if bias is None else torch.zeros_like(bias)
        gradients = Gradients(torch.zeros_like(x), torch.zeros_like(matrix), by_bias)
    arguments: Any = _OutputLoss(
        *(threads, rows, width, vocabulary, training, blocks * BLOCK_ROWS * threads),
        *(address(x), address(matrix), address(bias), address(targets), gap, other),
        *(address(sums, i) for i in range(3)),
        *(map(address, gradients) if gradients else (None, None, None)),
    )
    kernels = library("output_loss")
    assert kernels is not None
    kernels.output_loss(ctypes.byref(arguments))
    return sums.sum(1), gradients
