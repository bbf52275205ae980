"""Export of a plain Transformer to CTranslate2, a library for fast translation."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fusetk.data.text import cannot_write
from fusetk.errors import ConfigError, DataError, one_line
from fusetk.models.block_model import TransformerEmbedding
from fusetk.models.transformer import (
    Transformer,
    TransformerConfig,
    TransformerDecoderLayer,
)
from fusetk.models.transformer_layer import TransformerLayer
from fusetk.nn.attention import SelfAttention
from fusetk.nn.feedforward import FeedForward
from fusetk.nn.positions import Learned, sinusoids
from fusetk.runs import TEXT, run_and_checkpoint
from fusetk.special_tokens import BOS, EOS, SPECIAL, UNK
from fusetk.system import Loaded

MISSING = "the export needs the library ctranslate2: pip install 'fusetk[ctranslate2]'"

# Names of the activations in CTranslate2.
ACTIVATIONS: Mapping[str, str] = {
    "relu": "RELU",
    "gelu": "GELU",
    "swish": "SWISH",
    "tanh": "Tanh",
}
# The kinds that CTranslate2 has, for the keys of a stack, and the values for keys of the model.
STACK_KEYS = {"connect": "last", "fuse": "last", "residual": "plain", "self_attention": "plain"}
MODEL_KEYS = {
    "context_gate": ("none",),
    "positions": ("sinusoidal", "learned"),
    "norm": ("pre", "post"),
    "normalization": ("layer",),
    "activation": tuple(ACTIVATIONS),
}


def export(loaded: Loaded, output: Path, quantization: str | None = None) -> None:
    """Write a model in the format of CTranslate2, and its text pipeline in the subfolder `text`.

    ``quantization`` is a type of weights in CTranslate2; None keeps float32. Raises ConfigError if
    CTranslate2 cannot compute the model or is not installed, and DataError if ``output`` exists or
    cannot be written.
    """
    reasons = unsupported(loaded)
    if reasons:
        raise ConfigError(f"CTranslate2 cannot compute {', '.join(reasons)}: decode with fusetk")
    if output.exists():
        raise DataError(f"{output} exists already: remove it, or choose another folder")
    specs = _library()
    spec = _specification(loaded, specs)
    spec.validate()
    spec.optimize(quantization=quantization)
    aside = output.with_name(f".{output.name}.{os.getpid()}.new")
    try:
        aside.mkdir(parents=True)
        spec.save(str(aside))
        run, _ = run_and_checkpoint(loaded.checkpoint)
        shutil.copytree(run / TEXT, aside / TEXT)
        aside.rename(output)
    except OSError as error:
        raise cannot_write(output, error) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def unsupported(loaded: Loaded) -> list[str]:
    """Return the parts of a model that CTranslate2 does not have."""
    config = loaded.recipe.model
    if type(loaded.model) is not Transformer or not isinstance(config, TransformerConfig):
        return [f"kind: {config.kind} (model.kind)"]
    reasons = []
    for name, side in (("encoder", config.encoder), ("decoder", config.decoder)):
        for key, plain in STACK_KEYS.items():
            kind = getattr(side, key).kind
            if kind != plain:
                reasons.append(f"{key}: {kind} (model.{name}.{key})")
    if config.decoder.attend.kind != "top":
        reasons.append(f"attend: {config.decoder.attend.kind} (model.decoder.attend)")
    for key, values in MODEL_KEYS.items():
        value = getattr(config, key)
        if value not in values:
            reasons.append(f"{key}: {value} (model.{key})")
    if config.kv_heads not in (None, config.heads):
        reasons.append(f"kv_heads: {config.kv_heads} (model.kv_heads)")
    return reasons


def _library() -> Any:
    try:
        from ctranslate2 import specs
    except ImportError as error:
        if error.name == "ctranslate2" and isinstance(error, ModuleNotFoundError):
            raise ConfigError(MISSING) from None
        raise ConfigError(
            f"ctranslate2 cannot be imported ({one_line(error)}): install the module that is "
            "missing, or another version of ctranslate2"
        ) from None
    return specs


def _specification(loaded: Loaded, specs: Any) -> Any:
    """Return the model as a specification of CTranslate2."""
    config, model = loaded.recipe.model, loaded.model
    assert isinstance(config, TransformerConfig) and isinstance(model, Transformer)
    activation = specs.common_spec.Activation[ACTIVATIONS[config.activation]]
    spec = specs.TransformerSpec.from_config(
        (config.encoder.layers, config.decoder.layers),
        config.heads,
        pre_norm=config.norm == "pre",
        activation=activation,
    )
    search = loaded.recipe.decoding
    longest = int(search.max_source_length * max(1, search.max_length_factor))
    positions = longest + search.max_length_extra + 1
    _set_embedding(spec.encoder, spec.encoder.embeddings[0], model.source, positions)
    _set_embedding(spec.decoder, spec.decoder.embeddings, model.target, positions)
    for into, layer in zip(spec.encoder.layer, model.encoder.layers, strict=True):
        _set_layer(into, layer)
    for into, layer in zip(spec.decoder.layer, model.decoder.layers, strict=True):
        _set_layer(into, layer)
        assert isinstance(layer, TransformerDecoderLayer)
        cross = layer.cross
        _set_linear(into.attention.linear[0], cross.query)
        _set_linear(into.attention.linear[1], cross.project[0])
        _set_linear(into.attention.linear[2], cross.out)
        _set_layer_norm(into.attention.layer_norm, layer.cross_residual.norm)
    if config.norm == "pre":
        _set_layer_norm(spec.encoder.layer_norm, model.source_norms[0])
        _set_layer_norm(spec.decoder.layer_norm, model.decoder_norm)
    spec.decoder.projection.weight = _array(model.output.weight)
    if model.output.bias is not None:
        spec.decoder.projection.bias = _array(model.output.bias)
    spec.register_source_vocabulary(loaded.pipeline.source_vocab.tokens)
    spec.register_target_vocabulary(loaded.pipeline.target_vocab.tokens)
    spec.config.bos_token = spec.config.decoder_start_token = SPECIAL[BOS]
    spec.config.eos_token = SPECIAL[EOS]
    spec.config.unk_token = SPECIAL[UNK]
    spec.config.add_source_eos = True
    return spec


def _set_embedding(stack: Any, tokens: Any, module: TransformerEmbedding, positions: int) -> None:
    tokens.weight = _array(module.tokens.weight)
    width = module.tokens.weight.shape[1]
    learned = module.positions.weight if isinstance(module.positions, Learned) else None
    table = sinusoids(positions, width) if learned is None else learned
    stack.position_encodings.encodings = _array(table)


def _set_layer(into: Any, layer: nn.Module) -> None:
    """Set self-attention and the feed-forward network of a layer."""
    assert isinstance(layer, TransformerLayer) and isinstance(layer.ffn, FeedForward)
    attention: SelfAttention = layer.attention
    _set_linear(into.self_attention.linear[0], attention.project)  # queries, keys, values
    _set_linear(into.self_attention.linear[1], attention.out)
    _set_layer_norm(into.self_attention.layer_norm, layer.attention_residual.norm)
    _set_linear(into.ffn.linear_0, layer.ffn.hidden)
    _set_linear(into.ffn.linear_1, layer.ffn.out)
    _set_layer_norm(into.ffn.layer_norm, layer.ffn_residual.norm)


def _set_linear(into: Any, linear: nn.Module) -> None:
    assert isinstance(linear, nn.Linear)
    into.weight = _array(linear.weight)
    if linear.bias is not None:
        into.bias = _array(linear.bias)


def _set_layer_norm(into: Any, norm: Any) -> None:
    into.gamma = _array(norm.weight)
    into.beta = _array(norm.bias)


def _array(tensor: torch.Tensor) -> NDArray[np.float32]:
    """Return a copy: CTranslate2 changes the numbers in place to reduce their bits."""
    return np.array(tensor.detach().float().cpu().numpy(), order="C")
