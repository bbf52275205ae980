"""Compilation of layers by torch: the operations between matrix products become a few kernels.

Each layer is compiled, not the full model. So equal layers share the compiled code, and
recomputation and sharding, which wrap a layer, still work. Parameter names do not change.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fusetk.errors import ConfigError, class_name, first_line
from fusetk.models.seq2seq import Seq2Seq
from fusetk.nn import additional_loss
from fusetk.nn.dropout import Dropout
from fusetk.nn.dropout_mask import DropoutMask


class CompilationFailed(ConfigError):
    """torch cannot compile the layers."""


MAX_VARIANTS = 64  # compiled variants of one kind of layer: different widths, a batch of one pair


def compile_layers(model: Seq2Seq, backend: str = "inductor") -> None:
    """Compile every layer for training. In evaluation, layers run uncompiled.

    Sequence lengths and batch sizes are symbolic, so new ones need no compilation.
    Raises ConfigError for a model without layers.
    """
    layers = model.layers()
    if not layers:
        raise ConfigError(
            "training.compile has nothing to compile in this model: it compiles layers, and the "
            f"model {class_name(model)} lists none; remove training.compile"
        )
    settings = torch._dynamo.config
    # The limit had another name before torch 2.7.
    name = "recompile_limit" if hasattr(settings, "recompile_limit") else "cache_size_limit"
    setattr(settings, name, max(getattr(settings, name), MAX_VARIANTS))
    additional_loss.run_uncompiled()
    for layer in layers:
        for module in layer.modules():
            if type(module) is Dropout:
                module.__class__ = _CompilableDropout
        layer.forward = _in_training(layer, layer.forward, backend)


def _in_training(layer: nn.Module, plain: Callable[..., Any], backend: str) -> Callable[..., Any]:
    compiled = torch.compile(plain, dynamic=True, backend=backend)

    def forward(*args: Any) -> Any:
        # A validation of training pairs with dropout is not compiled either.
        in_update = layer.training and not torch.is_inference_mode_enabled()
        return compiled(*args) if in_update else plain(*args)

    return forward


class _UndrawnMask(NamedTuple):
    """A ``DropoutMask`` in compiled code, whose seed is drawn when its bits are computed."""

    units: int

    def random_bits(self, shape: Sequence[int]) -> Tensor:
        return torch.ops.fusetk.random_bits(torch.empty(shape, dtype=torch.int16))


class _CompilableDropout(Dropout):
    """A ``Dropout`` that draws its random bits by an operator in compiled code.

    It is a class because torch would compile each layer again if each module had its own function
    ``forward``.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.units or x.device.type != "cpu":
            return super().forward(x)
        random_bits: Tensor = torch.ops.fusetk.random_bits(x.detach())
        return x * self.factors(random_bits, x.dtype)

    def draw(self) -> DropoutMask | _UndrawnMask | None:  # type: ignore[override]
        if not torch.compiler.is_compiling():
            return super().draw()
        return _UndrawnMask(self.units) if self.training and self.units else None


# Not `torch.library.custom_op`: it takes no tags before torch 2.7.
OPERATOR = "fusetk::random_bits"
torch.library.define(OPERATOR, "(Tensor x) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))


@torch.library.impl(OPERATOR, "default")
def _random_bits(x: Tensor) -> Tensor:
    """Draw the random bits of ``Dropout.random_bits`` as an operator that is not inlined.

    The result does not depend on the values of ``x``, but ``x`` must be an argument: the compiler
    merges calls with equal arguments. With the shape as argument, all dropouts of a layer would
    zero the same elements.
    """
    return Dropout(0.0).random_bits(x.shape, x.device)


@torch.library.register_fake(OPERATOR)
def _(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=torch.int16, device=x.device)


def compile_failure(error: RuntimeError) -> str | None:
    """Return the message for an error of torch's compiler; None for any other error."""
    if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        return None
    reason = first_line(error)
    return (
        f"training.compile: torch cannot compile the layers here ({reason}): it needs a working "
        "C++ compiler (g++, or the one in CXX) and, on a GPU, Triton; or remove training.compile"
    )
