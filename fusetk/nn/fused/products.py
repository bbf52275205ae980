"""Products of matrices of float32 or bf16 for training on CPU: calls of ``products.cpp``.

``replace`` makes PyTorch's operators use them. On some processors they are faster than PyTorch's
library; ``fusetk.ways`` measures it.
"""

import threading
import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from fusetk.nn.fused.build import library
from fusetk.nn.fused.structs import INT, POINTER

# PyTorch computes smaller products, because the call of the kernel takes some microseconds.
MIN_ROWS, MIN_COLUMNS = 64, 32

used_in_training = {torch.float32: False, torch.bfloat16: False}
"""Whether trainings use the kernels for products of a type."""


def available(dtype: torch.dtype = torch.float32) -> bool:
    """Whether the kernels for factors of ``dtype`` are compiled.

    Those of bf16 need a processor with AVX-512 instructions for bf16.
    """
    kernels = library("products")
    names = {torch.float32: "float32_matmul", torch.bfloat16: "bf16_matmul"}
    return kernels is not None and dtype in names and hasattr(kernels, names[dtype])


def usable(a: Tensor, b: Tensor) -> bool:
    """Whether the kernels should compute a b, for tensors on CPU.

    They compute products of matrices a (M, K) and b (K, N) of float32 or of bf16 that are stored by
    rows or by columns, if M and N are large enough.
    """
    return (
        a.dtype == b.dtype
        and a.dtype in used_in_training
        and a.dim() == b.dim() == 2
        and a.shape[0] >= MIN_ROWS
        and b.shape[1] >= MIN_COLUMNS
        and a.shape[1] == b.shape[0] > 0
        and 1 in a.stride()
        and 1 in b.stride()
    )


def matmul(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return a b + ``bias`` (N,) for ``usable`` a (M, K) and b (K, N), in their type.

    The bias is float32 and contiguous. Sums are float32.
    """
    out = a.new_empty(a.shape[0], b.shape[1])
    _call(a, b, bias, False, out)
    return out


def add_matmul(out: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a b to ``out`` (M, N) for ``usable`` a (M, K) and b (K, N).

    ``out`` is float32, also for factors of bf16. It is contiguous, and shares no memory with a and
    b.
    """
    _call(a, b, None, True, out)


def _call(a: Tensor, b: Tensor, bias: Tensor | None, add: bool, out: Tensor) -> None:
    kernels = library("products")
    assert kernels is not None
    in_float32 = a.dtype == torch.float32
    types = () if in_float32 else (INT(out.dtype == torch.bfloat16),)
    (kernels.float32_matmul if in_float32 else kernels.bf16_matmul)(
        *map(INT, (torch.get_num_threads(), *out.shape, b.shape[0])),
        *(POINTER(a.data_ptr()), *map(INT, a.stride())),
        *(POINTER(b.data_ptr()), *map(INT, b.stride())),
        *(POINTER(None if bias is None else bias.data_ptr()), INT(add), *types),
        *(POINTER(out.data_ptr()), INT(out.stride(0))),
    )


def replaced(dtype: torch.dtype) -> bool:
    """Whether PyTorch uses the kernels for ``usable`` products of this type."""
    return _users.get(dtype, 0) > 0


def in_use(a: Tensor, b: Tensor) -> bool:
    """Whether PyTorch uses the kernels for a b."""
    return replaced(a.dtype) and a.is_cpu and usable(a, b)


def unrounded_matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return a b in float32. PyTorch, but not the kernels, rounds it to the type of a and b first.

    The result has no gradient.
    """
    if not in_use(a, b):
        return (a @ b).float()
    out = a.new_empty(len(a), b.shape[1], dtype=torch.float32)
    _call(a, b, None, False, out)
    return out


def matmul_into(out: Tensor, a: Tensor, b: Tensor) -> None:
    """Write a b to ``out`` (M, N), which is contiguous and shares no memory with a and b.

    It uses the kernels if ``in_use(a, b)``. The result is that of ``a @ b``.
    """
    if in_use(a, b):
        _call(a, b, None, False, out)
    else:
        torch.mm(a, b, out=out)


# PyTorch's operators ------------------------------------------------------------------------------

_users = dict.fromkeys(used_in_training, 0)  # calls of ``replace`` that are not undone
_operators: torch.library.Library | None = None
_lock = threading.Lock()


def replace(dtype: torch.dtype = torch.float32) -> Callable[[], None]:
    """Use the kernels in PyTorch's products of this type; return a function that ends it.

    This holds for the whole process. No other thread may compute products during this call and the
    call of the returned function. PyTorch still computes products that are not ``usable``: the
    replacements call the ``out=`` variants of the operators, which are not replaced. Code that
    ``torch.compile`` made calls these variants, too, so it does not use the kernels.
    """
    global _operators
    with _lock:
        _users[dtype] += 1
        if _operators is None:
            _operators = torch.library.Library("aten", "IMPL")
            with warnings.catch_warnings():  # PyTorch warns of replaced operators
                warnings.simplefilter("ignore")
                for function in (mm, addmm, addmm_):
                    _operators.impl(function.__name__, function, "CPU")
    return partial(_end_use, dtype)


def _end_use(dtype: torch.dtype) -> None:
    global _operators
    with _lock:
        _users[dtype] -= 1
        if not any(_users.values()) and _operators is not None:
            _operators._destroy()
            _operators = None


def mm(a: Tensor, b: Tensor) -> Tensor:
    """Compute ``torch.mm`` of tensors on CPU, in the kernels if ``in_use(a, b)``."""
    return matmul(a, b) if in_use(a, b) else torch.mm(a, b, out=a.new_empty(0))


def addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Compute ``torch.addmm`` of tensors on CPU, in the kernels if ``in_use(a, b)``."""
    supported = beta == alpha == 1 and bias.dtype == a.dtype and bias.is_contiguous()
    if supported and bias.shape == b.shape[1:] and in_use(a, b):
        return matmul(a, b, bias.float())
    return torch.addmm(bias, a, b, beta=beta, alpha=alpha, out=a.new_empty(0))


def addmm_(out: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Compute ``Tensor.addmm_`` of tensors on CPU, in the kernels if ``in_use(a, b)``.

    Raises RuntimeError if ``out`` does not have the shape of the product.
    """
    if a.dim() == b.dim() == 2 and out.shape != (len(a), b.shape[1]):
        raise RuntimeError(
            f"addmm_ adds a product of the shape {(len(a), b.shape[1])} to a tensor of the shape "
            f"{tuple(out.shape)}"
        )
    supported = beta == alpha == 1 and out.dtype == a.dtype == torch.float32
    supported = supported and out.is_contiguous() and in_use(a, b)
    if supported and not (_share_memory(out, a) or _share_memory(out, b)):
        add_matmul(out, a, b)
        return out
    return torch.addmm(out, a, b, beta=beta, alpha=alpha, out=out)


def _share_memory(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
