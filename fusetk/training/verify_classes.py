"""Search for mistakes in classes outside fusetk that are found without a forward pass.

It is a part of ``fusetk.training.verify``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor, nn

from fusetk.config import outside_error
from fusetk.errors import ConfigError, FusetkError, class_name, out_of_memory
from fusetk.fusion.base import LayerFusion
from fusetk.models.residual import Residual, StreamEnds
from fusetk.models.seq2seq import Seq2Seq
from fusetk.nn.reserved import replaced_attributes
from fusetk.nn.shape_check import is_outside
from fusetk.training.verify_training import leaves, own_attributes


@contextmanager
def outside_errors(problem: str, details: str = "") -> Iterator[None]:
    """Turn an error of a class outside fusetk into a ConfigError that begins with ``problem``.

    ``details`` follow the error. Errors of fusetk and a lack of memory are raised as they are.
    """
    try:
        yield
    except FusetkError:
        raise
    except (Exception, SystemExit) as error:
        if out_of_memory(error):
            raise
        raise ConfigError(f"{problem}: {outside_error(error)}{details}") from error


def wrong_classes(model: Seq2Seq) -> Iterator[str]:
    """Yield a message for each mistake in a class outside fusetk.

    The types of the parameters of all modules are checked.
    """
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point():
            advice = "use self.register_buffer"
            if parameter.is_complex():
                advice = "make two real parameters, for the real and the imaginary part"
            yield (
                f"the parameter {name} has numbers of the type {parameter.dtype}, and training "
                f"needs real floating-point numbers: {advice}"
            )
    parameters = {id(parameter) for parameter in model.parameters()}
    registered = parameters | {id(buffer) for buffer in model.buffers()}
    for module in filter(is_outside, model.modules()):
        yield from _wrong_overrides(module)
        yield from _unregistered(module, parameters, registered)


def wrong_attributes(model: Seq2Seq) -> Iterator[str]:
    """Yield a message for each mistake in an attribute that earlier versions did not find."""
    for module in filter(is_outside, model.modules()):
        for name, base in replaced_attributes(module):
            yield (
                f"{class_name(module)}.{name} replaces an attribute that {base.__name__} reads: "
                "give your attribute another name; to change the computation, override the method "
                "that reads it"
            )
        for name, value in own_attributes(module):
            if any(isinstance(array, np.ndarray) and array.ndim for array in leaves(value)):
                yield (
                    f"{class_name(module)}.{name} has a NumPy array, which checkpoints do not "
                    "have: make it a tensor and use self.register_buffer"
                )


def _wrong_overrides(module: nn.Module) -> Iterator[str]:
    """Yield a message for each method whose replacement needs another base class or attribute."""
    cls: Any = type(module)
    if (
        isinstance(module, LayerFusion)
        and cls.fuse is LayerFusion.fuse
        and cls.forward is not LayerFusion.forward
    ):
        yield (
            f"{class_name(module)} replaces forward of LayerFusion, so the options norm, "
            "norm_layers and add_top would have no effect: implement fuse instead, or make it a "
            "subclass of Fusion"
        )
    if (
        isinstance(module, Residual)
        and cls.Ends.open is not StreamEnds.open
        and not cls.spans_layers
    ):
        yield (
            f"{class_name(module)}.Ends has its own method open, so connections cannot read the "
            "stream: set spans_layers = True"
        )


def _unregistered(module: nn.Module, parameters: set[int], registered: set[int]) -> Iterator[str]:
    """Yield a message for each attribute with weights or tensors that are not registered.

    ``parameters`` are the ids of the model's parameters; ``registered`` includes its buffers.
    """
    for name, value in own_attributes(module):
        if any(id(weight) not in parameters for weight in _weights(value)):
            yield (
                f"{class_name(module)}.{name} has weights that are not registered, so they are "
                "neither trained nor saved: use nn.ModuleList, nn.ModuleDict, nn.Parameter or "
                "nn.ParameterList"
            )
        elif any(
            isinstance(tensor, Tensor) and tensor.dim() and id(tensor) not in registered
            for tensor in leaves(value)
        ):
            yield (
                f"{class_name(module)}.{name} has a tensor that is not registered, so "
                "checkpoints do not have it and it does not move to a GPU: use "
                "self.register_buffer"
            )


def _weights(value: Any) -> Iterator[Tensor]:
    """Yield the trainable tensors in a value, its modules, and its lists, tuples and mappings."""
    if isinstance(value, Tensor):
        if value.requires_grad and value.is_leaf:
            yield value
    elif isinstance(value, nn.Module):
        yield from (parameter for parameter in value.parameters() if parameter.requires_grad)
    elif isinstance(value, list | tuple | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _weights(part)
