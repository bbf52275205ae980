"""Conversion of models to a lower precision for inference."""

import copy
from typing import Any

import torch
from torch import nn

from fusetk.errors import ConfigError
from fusetk.models.seq2seq import Seq2Seq
from fusetk.models.transformer import Transformer
from fusetk.nn.int8 import Int8Linear
from fusetk.nn.output import OutputProjection
from fusetk.nn.rounded import Bf16Linear, Bf16Projection, in_kernels


def to_bf16(model: Seq2Seq) -> Seq2Seq:
    """Convert the weights to bf16.

    The logits stay float32. In bf16 they would have 8 significant bits, so different logits would
    become equal. This would cause most of the loss of accuracy. The weights of the output
    projection are converted on CPU, if its product with float32 results is faster than that of
    float32 factors on this machine. In a Transformer on CPU, only linear maps are converted,
    because the kernels for inference compute in float32. The embeddings and norms stay float32.
    """
    on_cpu = _device(model) == "cpu"
    output: Any = model.output
    if on_cpu and in_kernels["projection"] and isinstance(output, OutputProjection):
        output = Bf16Projection(output.weight, output.bias)
    if on_cpu and isinstance(model, Transformer):
        _replace_maps(model, Bf16Linear)
    else:
        if not isinstance(output, Bf16Projection):
            output = copy.deepcopy(output)  # a copy is not tied to the embedding
            output.register_forward_pre_hook(lambda module, arguments: (arguments[0].float(),))
        model.to(torch.bfloat16)
    model.output = output
    return model


def to_int8(model: Seq2Seq) -> Seq2Seq:
    """Replace the linear maps of the layers, and the output projection, by maps of 8 bits.

    Embeddings, normalisations and fusions stay float32. Raises ConfigError if the model is not a
    Transformer on CPU.
    """
    device = _device(model)
    if device != "cpu":
        raise ConfigError(
            f"precision int8 needs the device cpu, not {device}: choose cpu or the precision bf16"
        )
    if not isinstance(model, Transformer):
        raise ConfigError(
            "precision int8 needs the backbone transformer, and this model has another one: "
            "choose fp32 or bf16"
        )
    _replace_maps(model, Int8Linear)
    assert isinstance(model.output, OutputProjection)
    output: Any = Int8Linear(model.output.weight, model.output.bias)
    model.output = output
    return model


def _device(model: Seq2Seq) -> str:
    return next(model.parameters()).device.type


def _replace_maps(model: Transformer, kind: type[Bf16Linear] | type[Int8Linear]) -> None:
    """Replace the linear maps of the layers by maps of this kind."""
    for layer in model.layers():
        for parent in list(layer.modules()):
            for name, child in parent.named_children():
                if isinstance(child, nn.Linear):
                    setattr(parent, name, kind(child.weight, child.bias))
