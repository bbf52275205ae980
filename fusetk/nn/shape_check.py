"""Check of the shape of the output of a part of a model; its error names the part."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from fusetk.errors import ConfigError, class_name


def check_shape(output: Any, positions: Sequence[int], width: int, part: nn.Module) -> None:
    """Raise ConfigError unless the part returned a tensor of the shape (*positions, width).

    The kernels read this number of rows. An attribute ``name`` of the part, such as
    ``encoder.connect``, is its place in the model.
    """
    shape = (*positions, width)
    if isinstance(output, Tensor) and output.shape == shape:
        return
    returned = f"the type {type(output).__name__}"
    if isinstance(output, Tensor):
        returned = f"the shape {tuple(output.shape)}"
    name = getattr(part, "name", "")
    place = f" ({name})" if isinstance(name, str) and name else ""
    raise ConfigError(
        f"{class_name(part)}{place} returned {returned}; it must return a tensor of the shape "
        f"{shape}"
    )


def is_outside(part: nn.Module) -> bool:
    """Whether the class of a part is outside fusetk and PyTorch."""
    return type(part).__module__.partition(".")[0] not in ("fusetk", "torch")
