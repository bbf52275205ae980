"""The test whether a kernel may compute a module."""

from typing import TypeGuard, TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)


def is_exactly(module: object, cls: type[M]) -> TypeGuard[M]:
    """Whether an object is a module of exactly this class, not of a subclass, and not patched.

    Only then other code, such as a fused kernel, may compute the module.
    """
    return type(module) is cls and isinstance(module, nn.Module) and not is_patched(module)


def is_patched(module: nn.Module) -> bool:
    """Whether a module has hooks, or an attribute that replaces ``forward`` of its class."""
    return bool(
        "forward" in vars(module)
        or module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )
