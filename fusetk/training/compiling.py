"""Layers compiled by torch: what stands between their matrix products becomes few kernels.

Layers and not whole models: equal ones share what was compiled, and recomputation and sharding, which stand around a layer, know nothing of
it. Names of parameters stay as they are.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fusetk import trace
from fusetk.errors import ConfigError
from fusetk.models.seq2seq import Seq2Seq
from fusetk.nn.dropout import Dropout

VARIANTS = 64  # of a kind of layer: widths that differ, a batch of one sentence


def compile_layers(model: Seq2Seq, backend: str = "inductor") -> None:
    """Let every layer run compiled in training, and as it is in evaluation. Lengths and numbers of sentences are symbols: new ones need no
    compilation.

    Raises ConfigError for a model without layers.
    """
    layers = model.layers()
    if not layers:
        raise ConfigError(
            "training.compile has nothing to compile in this model: layers are compiled, and a recurrence has none, it runs in kernels of "
            "its own already; take training.compile away"
        )
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, VARIANTS)
    torch.compiler.assume_constant_result(trace.wanted)  # nobody listens in training
    for layer in layers:
        for module in layer.modules():
            if isinstance(module, Dropout):
                module.forward = partial(_drop_out, module)  # type: ignore[method-assign]
        layer.forward = _in_training(layer, layer.forward, backend)


def _in_training(layer: nn.Module, plain: Callable[..., Any], backend: str) -> Callable[..., Any]:
    compiled = torch.compile(plain, dynamic=True, backend=backend)
    return lambda *given: compiled(*given) if layer.training else plain(*given)


def _drop_out(dropout: Dropout, x: Tensor) -> Tensor:
    if not dropout.training or not dropout.steps or x.device.type != "cpu":
        return Dropout.forward(dropout, x)
    drawn: Tensor = _words(x.detach())
    return x * dropout.mask(drawn, x.dtype)


@torch.library.custom_op(
    "fusetk::words", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def _words(x: Tensor) -> Tensor:
    """What ``Dropout.random_bits`` draws for the elements of ``x``, in one piece that a compiler does not look into.

    Of its values nothing depends on ``x``. But a compiler takes two calls on the same tensor for one, and by shape alone all dropouts of a
    layer would zero the same elements.
    """
    return Dropout(0.0).random_bits(x.shape, x.device)


@_words.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=torch.int16, device=x.device)


def failure(error: RuntimeError) -> str | None:
    """What to tell of an error where it is that torch could not compile."""
    if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        return None
    why = next(line for line in str(error).splitlines() if line.strip())
    return (
        f"training.compile: torch cannot compile the layers here ({why}): it wants a C++ compiler that works (g++, or what CXX names), and "
        "Triton on a GPU; or take training.compile away"
    )
