"""Attributes of base classes that a subclass outside fusetk must not replace."""

from collections.abc import Iterator
from typing import Any

from torch import nn


def reserve(module: nn.Module, base: type, *names: str) -> None:
    """Reserve attributes of a module that ``base`` has set and will read in the forward pass.

    A subclass that stores something else under such a name would change the computation of
    ``base``. ``replaced_attributes`` finds such attributes.
    """
    reserved: dict[str, tuple[type, Any]] = vars(module).setdefault("_reserved", {})
    reserved.update((name, (base, getattr(module, name))) for name in names)


def replaced_attributes(module: nn.Module) -> Iterator[tuple[str, type]]:
    """Yield the name and the base class of each attribute that a subclass replaced.

    The attribute is reserved and has another value, or it is a module with the name of a class
    attribute. Such a module cannot be read, because Python finds the class attribute first. A
    property may return the module.
    """
    for name, (base, value) in vars(module).get("_reserved", {}).items():
        new = getattr(module, name, None)
        equal = isinstance(value, str | int) and type(new) is type(value) and new == value
        if new is not value and not equal:
            yield name, base
    for name, part in module._modules.items():
        if getattr(module, name, None) is part:
            continue
        for base in type(module).__mro__:
            if name in vars(base):
                yield name, base
                break
