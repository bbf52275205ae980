"""Conversion of the linear maps of models for inference: other kernels or a lower precision."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fusetk.errors import ConfigError
from fusetk.fusion.base import Fusion
from fusetk.models.seq2seq import Seq2Seq
from fusetk.nn.attention import KeysValues
from fusetk.nn.exact import is_exactly
from fusetk.nn.inference_linear import (
    Bf16Linear,
    InferenceLinear,
    KernelLinear,
    screens,
    uses_kernels,
)
from fusetk.nn.int8 import Int8KernelLinear, Int8Linear, ScreenedLinear
from fusetk.nn.output import OutputProjection
from fusetk.nn.shape_check import is_outside
from fusetk.nn.weightnorm import NormedLinear


def to_kernels(model: Seq2Seq) -> Seq2Seq:
    """Replace float32 maps by maps in kernels, where they are faster on this machine.

    These are the maps of layers and fusions, and the output projection, on CPU. Subclasses of the
    usual maps and maps with hooks stay. Only the rounding of results changes.
    """
    if _device(model) != "cpu" or next(model.parameters()).dtype != torch.float32:
        return model
    if model.converts_maps and uses_kernels(torch.float32, "maps"):
        _replace_maps(model, KernelLinear)
    if projection := _projection(model, torch.float32):
        model.output = projection
    return model


def to_bf16(model: Seq2Seq) -> Seq2Seq:
    """Convert the weights to bf16.

    The logits stay float32. In bf16 they would have 8 significant bits, so different logits would
    become equal. This would cause most of the loss of accuracy. The weights of the output
    projection are converted only on CPU, and only if this machine computes the product of bf16 in
    kernels faster than the float32 product. On CPU, if ``converts_maps`` of the model is True, only
    linear maps are converted, because the kernels for inference compute in float32. The embeddings
    and norms stay float32, and so do subclasses of the usual maps and maps with hooks.
    """
    on_cpu = _device(model) == "cpu"
    output: Any = _projection(model, torch.bfloat16) if on_cpu else None
    if on_cpu and model.converts_maps:
        _replace_maps(model, _kernel_bf16 if uses_kernels(torch.bfloat16, "maps") else Bf16Linear)
        output = output or _projection(model, torch.float32) or model.output
    else:
        if output is None:
            output = copy.deepcopy(model.output)  # a copy is not tied to the embedding
            output.register_forward_pre_hook(_in_float32)
        model.to(torch.bfloat16)
    model.output = output
    return model


def to_int8(model: Seq2Seq) -> Seq2Seq:
    """Replace the maps of layers and fusions, and the output projection, by maps of 8 bits.

    Embeddings and normalisations stay float32, and so do subclasses of the usual maps and maps with
    hooks. Raises ConfigError on another device than CPU, and if ``converts_maps`` of the model is
    False.
    """
    device = _device(model)
    if device != "cpu":
        raise ConfigError(
            f"precision int8 needs the device cpu, not {device}: choose cpu or the precision bf16"
        )
    if not model.converts_maps:
        raise ConfigError(
            "precision int8 needs the backbone transformer or coordinated, and this model has "
            "another one: choose fp32 or bf16"
        )
    _replace_maps(model, Int8KernelLinear if uses_kernels(torch.int8, "maps") else Int8Linear)
    if is_exactly(model.output, OutputProjection):
        in_kernels = uses_kernels(torch.int8, "projection")
        map_class: Any = Int8KernelLinear if in_kernels else Int8Linear
        model.output = map_class(model.output.weight, model.output.bias)
    return model


CONVERSIONS = {torch.float32: to_kernels, torch.bfloat16: to_bf16, torch.int8: to_int8}
"""The function that converts a model, by the type of the weights."""


def _in_float32(module: nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor]:
    """Return the arguments of the output projection in float32."""
    return (arguments[0].float(),)


def _device(model: Seq2Seq) -> str:
    return next(model.parameters()).device.type


def _projection(model: Seq2Seq, dtype: torch.dtype) -> Any:
    """Return the output projection in the kernels with weights of this type.

    Return None if another way is faster on this machine, or if the model has another projection.
    """
    output = model.output
    replaceable = is_exactly(output, OutputProjection) or is_exactly(output, NormedLinear)
    if not replaceable or not uses_kernels(dtype, "projection"):
        return None
    map_class = ScreenedLinear if screens[dtype] else KernelLinear
    return map_class(output.weight.to(dtype), output.bias)


def _kernel_bf16(weight: Tensor, bias: Tensor | None) -> KernelLinear:
    return KernelLinear(weight.bfloat16(), bias)


def _replace_maps(
    model: Seq2Seq, convert: Callable[[Tensor, Tensor | None], InferenceLinear]
) -> None:
    """Replace the linear maps of layers and fusions; ``convert`` gets a map's weight and bias.

    Maps in modules outside fusetk remain, because these modules may read the weights.
    """
    fusions = [module for module in model.modules() if isinstance(module, Fusion)]
    for part in (*model.layers(), *fusions):
        outside = [module for module in part.modules() if is_outside(module)]
        contained = {
            inner
            for module in outside
            for child in module.children()
            if type(child).__module__.startswith("torch.")
            for inner in child.modules()
        }
        for parent in list(part.modules()):
            if parent in outside or parent in contained:
                continue
            for name, child in parent.named_children():
                if is_exactly(child, nn.Linear) or is_exactly(child, KeysValues):
                    setattr(parent, name, convert(child.weight, child.bias))
