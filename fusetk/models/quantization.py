"""Conversion of models to linear maps of 8 bits."""

from typing import Any

from torch import nn

from fusetk.errors import ConfigError
from fusetk.models.seq2seq import Seq2Seq
from fusetk.models.transformer import Transformer
from fusetk.nn.int8 import Int8Linear
from fusetk.nn.output import OutputProjection


def to_int8(model: Seq2Seq) -> Seq2Seq:
    """Replace the linear maps of the layers, and the output projection, by maps of 8 bits.

    Embeddings, normalisations and fusions stay float32. Raises ConfigError if the model is not a
    Transformer on CPU.
    """
    device = next(model.parameters()).device.type
    if device != "cpu":
        raise ConfigError(
            f"precision int8 needs the device cpu, not {device}: choose cpu or the precision bf16"
        )
    if not isinstance(model, Transformer):
        raise ConfigError(
            "precision int8 needs the backbone transformer, and this model has another one: "
            "choose fp32 or bf16"
        )
    for layer in model.layers():
        for parent in list(layer.modules()):
            for name, child in parent.named_children():
                if isinstance(child, nn.Linear):
                    setattr(parent, name, Int8Linear(child.weight, child.bias))
    assert isinstance(model.output, OutputProjection)
    output: Any = Int8Linear(model.output.weight, model.output.bias)
    model.output = output
    return model
