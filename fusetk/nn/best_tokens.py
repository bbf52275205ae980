"""The best next tokens for any class of output projection, computed by the kernels."""

from typing import Any

import torch
from torch import Tensor

from fusetk.nn.exact import is_patched
from fusetk.nn.fused import decoding as fused_decoding
from fusetk.nn.inference_linear import KernelLinear
from fusetk.nn.int8 import Int8Linear
from fusetk.nn.output import OutputProjection


def best_tokens_of_output(
    output: Any, features: Tensor, forbidden: Tensor, only: Tensor | None, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``fused_decoding.best_tokens`` of the logits ``output(features)``.

    ``output`` is the module of the output projection. ``features`` are (R, D), float32 or bf16, and
    the other arguments are those of ``best_tokens``. A hook on ``output`` sees the features, and
    the hook's result is used.
    """
    if not is_patched(output):
        if type(output) is OutputProjection and features.dtype == torch.float32:
            logits = features @ output.weight.t()
            return fused_decoding.best_tokens(logits, output.bias, forbidden, only, count)
        if isinstance(output, KernelLinear) and output.has_product:
            return fused_decoding.best_tokens_of_map(
                features.float(), output.blocked, output.bias, forbidden, only, count
            )
        if isinstance(output, Int8Linear):
            sums, scales = output.sums(features)
            sums = sums.to(torch.int32)
            return fused_decoding.best_tokens(sums, output.bias, forbidden, only, count, scales)
    return fused_decoding.best_tokens(output(features).float(), None, forbidden, only, count)
