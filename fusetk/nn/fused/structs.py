"""C structs and addresses for calls of the compiled kernels."""

import ctypes
from typing import Any

from torch import Tensor

INT, POINTER, FLOAT = ctypes.c_int64, ctypes.c_void_p, ctypes.c_float


def struct(name: str, *fields: tuple[str, Any]) -> type[ctypes.Structure]:
    """Define a C struct. Each item of ``fields`` has the names of members and their type."""
    members = [(member, kind) for names, kind in fields for member in names.split()]
    return type(name, (ctypes.Structure,), {"_fields_": members})


def address(tensor: Tensor | None, row: int = 0) -> int | None:
    """Return the address of a row; None for None. The last dimension of the tensor is a row."""
    if tensor is None:
        return None
    return tensor.data_ptr() + row * tensor.shape[-1] * tensor.element_size()
