"""Products of float32 matrices for training on CPU: calls of ``products.cpp``.

``replaced`` makes PyTorch use them for its own operators. On some processors they are faster than
those of PyTorch's libraries; ``fusetk.machine`` measures it.
"""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from fusetk.nn.fused.build import library
from fusetk.nn.fused.structs import INT, POINTER

# PyTorch computes smaller products, because the call of the kernel takes some microseconds.
MIN_ROWS, MIN_COLUMNS = 64, 32

in_training = False
"""Whether trainings use the kernels for large products."""


def available() -> bool:
    """Return whether the kernels are compiled."""
    return library("products") is not None


def usable(a: Tensor, b: Tensor) -> bool:
    """Return whether the kernels can and should compute a b, for two tensors on CPU."""
    return (
        a.dtype == b.dtype == torch.float32
        and a.dim() == b.dim() == 2
        and len(a) >= MIN_ROWS
        and b.shape[1] >= MIN_COLUMNS
        and a.shape[1] == len(b) > 0
        and 1 in a.stride()
        and 1 in b.stride()
    )


def matmul(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return a b + ``bias`` (N,) for ``usable`` a (M, K) and b (K, N)."""
    out = torch.empty(len(a), b.shape[1])
    _call(a, b, bias, False, out)
    return out


def add_matmul(out: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a b to ``out`` (M, N), which is contiguous; see ``matmul``."""
    _call(a, b, None, True, out)


def _call(a: Tensor, b: Tensor, bias: Tensor | None, add: bool, out: Tensor) -> None:
    kernels = library("products")
    assert kernels is not None
    kernels.matmul(
        *map(INT, (torch.get_num_threads(), *out.shape, len(b))),
        *(POINTER(a.data_ptr()), *map(INT, a.stride())),
        *(POINTER(b.data_ptr()), *map(INT, b.stride())),
        *(POINTER(None if bias is None else bias.data_ptr()), INT(add)),
        *(POINTER(out.data_ptr()), INT(out.stride(0))),
    )


# PyTorch's operators ------------------------------------------------------------------------------


def replace() -> Callable[[], None]:
    """Use the kernels in PyTorch's products of large matrices; return a function that undoes it.

    PyTorch's own products have the form ``out=``, which is not replaced. Compiled code uses this
    form.
    """
    operators = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():  # PyTorch warns of replaced operators
        warnings.simplefilter("ignore")
        for function in (mm, addmm, addmm_):
            operators.impl(function.__name__, function, "CPU")
    return operators._destroy


def mm(a: Tensor, b: Tensor) -> Tensor:
    return matmul(a, b) if usable(a, b) else torch.mm(a, b, out=a.new_empty(0))


def addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    is_plain = beta == alpha == 1 and bias.dtype == torch.float32 and bias.is_contiguous()
    if is_plain and bias.shape == b.shape[1:] and usable(a, b):
        return matmul(a, b, bias)
    return torch.addmm(bias, a, b, beta=beta, alpha=alpha, out=a.new_empty(0))


def addmm_(out: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    is_plain = beta == alpha == 1 and out.dtype == torch.float32 and out.is_contiguous()
    if is_plain and usable(a, b) and out.shape == (len(a), b.shape[1]):
        add_matmul(out, a, b)
        return out
    return torch.addmm(out, a, b, beta=beta, alpha=alpha, out=out)
