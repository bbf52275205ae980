"""The mask of dropout as an argument of the kernels; see ``dropout.h``."""

import ctypes
from typing import Any

from fusetk.nn.dropout_mask import DropoutMask, scale, threshold
from fusetk.nn.fused.structs import FLOAT, INT, struct

DropoutArgument = struct(
    "DropoutArgument", ("seed", ctypes.c_uint64), ("threshold", INT), ("scale", FLOAT)
)


def dropout_argument(mask: DropoutMask | None) -> Any:
    """Return the struct of a mask; None drops nothing."""
    if mask is None:
        return DropoutArgument(0, 0, 0.0)
    return DropoutArgument(mask.seed % 2**64, threshold(mask.units), scale(mask.units))
