"""C structs and addresses for calls of the compiled kernels."""

import ctypes
from typing import Any

import torch
from torch import Tensor

from fusetk.nn.fused.build import library
from fusetk.nn.precision import product_dtype

LANES = 16  # numbers in a vector (vectors.h), and outputs in a GROUP (blocked_products.h)
INT, POINTER, FLOAT = ctypes.c_int64, ctypes.c_void_p, ctypes.c_float
# Modes of the functions that have several passes; only the attention of a recurrence has the third.
FORWARD, BACKWARD, VALUES_BACKWARD = range(3)


def struct(name: str, *fields: tuple[str, Any]) -> type[ctypes.Structure]:
    """Define a C struct. Each item of ``fields`` has the names of members and their type.

    A struct has no other attributes: setting one raises AttributeError.
    """
    members = [(member, kind) for names, kind in fields for member in names.split()]
    return type(name, (ctypes.Structure,), {"_fields_": members, "__slots__": ()})


def fill(arguments: Any, **members: Any) -> Any:
    """Set members of a struct and return it. For a tensor, the member is its address.

    The struct does not keep the tensors: the caller keeps them until the kernel has returned.
    """
    for name, value in members.items():
        setattr(arguments, name, address(value) if isinstance(value, Tensor) else value)
    return arguments


def call(source: str, function: str, arguments: Any, *mode: int) -> None:
    """Call a function of the kernels in ``source``.cpp, with all threads of PyTorch."""
    kernels = library(source)
    assert kernels is not None
    arguments.threads = torch.get_num_threads()
    getattr(kernels, function)(ctypes.byref(arguments), *mode)


def transformed(*tensors: Tensor) -> bool:
    """Whether PyTorch transforms or records operations on these tensors.

    Kernels cannot read the tensors that ``torch.func`` and forward-mode derivatives wrap, nor fake
    tensors, which have no values. ``torch.jit.trace`` and ``make_fx`` cannot record kernels.
    """
    return (
        torch.autograd.forward_ad._current_level >= 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._is_tracing()
        or (torch._C._len_torch_dispatch_stack() > 0 and _is_recording())
        or any(type(x).__torch_dispatch__ is not Tensor.__torch_dispatch__ for x in tensors)
    )


def _is_recording() -> bool:
    """Whether a mode of PyTorch makes fake tensors or records the operations."""
    modes = torch._C._TorchDispatchModeKey
    return any(torch._C._get_dispatch_mode(mode) for mode in (modes.FAKE, modes.PROXY))


def computes(source: str, x: Tensor) -> bool:
    """Whether the kernels in ``source``.cpp compute on ``x``: on CPU, in float32 or bf16."""
    types = (torch.float32, torch.bfloat16)
    return (
        x.device.type == "cpu"
        and x.dtype in types
        and product_dtype(x) in types
        and not torch.compiler.is_compiling()
        and not transformed(x)
        and library(source) is not None
    )


def address(tensor: Tensor | None, row: int = 0) -> int | None:
    """Return the address of a row; None for None. The last dimension of the tensor is a row."""
    if tensor is None:
        return None
    return tensor.data_ptr() + row * tensor.shape[-1] * tensor.element_size()
