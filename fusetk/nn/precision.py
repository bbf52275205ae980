"""The number type of matrix products.

Autocast does not know the device `meta`, whose tensors have shapes but no values.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor


def product_dtype(x: Tensor) -> torch.dtype:
    """Return autocast's type if autocast is enabled on the device of ``x``, else its own type."""
    device = x.device.type
    if device == "meta":
        return x.dtype
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def without_autocast(x: Tensor) -> AbstractContextManager[None]:
    """Return a context without autocast on the device of ``x``."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


@contextmanager
def float32_by_default() -> Iterator[None]:
    """Within this context, new tensors are float32, also if the program has another default."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def uses_onednn(dtype: torch.dtype) -> bool:
    """Whether PyTorch computes products of this type on CPU with oneDNN; see ``fusetk.ways``."""
    if dtype == torch.float32:
        return torch.get_float32_matmul_precision() == "medium"
    return dtype == torch.bfloat16
