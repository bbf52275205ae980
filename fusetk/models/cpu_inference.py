"""Transformer layers in inference on CPU, computed by the kernels of ``fusetk.nn.fused.decoding``.

The results are equal to those of the ordinary code of the layers, up to rounding. A table in
``CONTRIBUTING.md`` ("Which code computes a layer") has the conditions.

A search state holds the projections of each step. A search never copies them. Each hypothesis has
a list of rows of these projections, one for each of its tokens. A search that reorders or removes
hypotheses selects these lists and the numbers of their sentences only.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fusetk import trace
from fusetk.models.residual import Residual, Stream
from fusetk.models.residual.plain import PlainResidual
from fusetk.models.seq2seq import State
from fusetk.models.stack import Stack
from fusetk.models.transformer_layer import DecoderLayer, TransformerLayer
from fusetk.nn.attention import CrossAttention, SelfAttention
from fusetk.nn.exact import is_exactly, is_patched
from fusetk.nn.feedforward import FeedForward
from fusetk.nn.fused import decoding as fused_decoding
from fusetk.nn.grouped_attention import GroupedSelfAttention
from fusetk.nn.inference_linear import ALL, InferenceLinear, KernelLinear, linear_part
from fusetk.nn.output import PIECE
from fusetk.nn.packed_layout import PackedLayout
from fusetk.nn.value_residual import SharedValueAttention, ValueResidualAttention

# Padding is removed if the real tokens are less than this fraction. The removal copies rows.
MIN_REAL = 0.9
SELF_ATTENTIONS = (
    SelfAttention,
    GroupedSelfAttention,
    ValueResidualAttention,
    SharedValueAttention,
)

Part = tuple[slice, slice]  # sentences and positions of a tensor (B, S, ...)


class SharedState(NamedTuple):
    """The parts of a search state that all hypotheses share."""

    sentences: Tensor  # (B,), the numbers of the sentences
    keys_values: tuple[fused_decoding.SourceKeysValues, ...]  # for each layer
    # For each layer, the projections (R_t, 3D) of each step. Their bias is not included if kernels
    # compute all parts of the layer and attention to the source is a sub-layer.
    steps: tuple[tuple[Tensor, ...], ...]
    layers: tuple["StepLayer", ...]
    restart: Callable[[], State]  # returns the first state of the layers' ordinary code

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> "SharedState":
        """Return the same object: the selection of hypotheses changes ``Hypotheses`` only."""
        return self


class StepLayer(NamedTuple):
    """How the kernels compute a decoder layer."""

    in_kernels: bool
    """Whether kernels compute all parts of the layer; otherwise they compute its attention only."""
    arguments: fused_decoding.DecoderLayerArguments | None
    """The arguments of the call, if one call computes all parts."""


class Hypotheses(NamedTuple):
    """The data of R hypotheses in a search state; a sentence may have any number of them."""

    sentences: Tensor  # (R,) the numbers of their sentences
    ancestors: Tensor  # (R, t); see ``fused_decoding.attend_history``
    shared: SharedState

    @property
    def is_at_start(self) -> bool:
        """Whether ``start`` returned these hypotheses, which have no tokens yet.

        The ordinary code can continue from these only, because it stores other caches.
        """
        return self.sentences is self.shared.sentences and not self.ancestors.shape[1]


def ordinary_code_is_better(layers: Sequence[DecoderLayer], tgt_in: Tensor) -> bool:
    """Whether the ordinary code of decoder layers should read the tokens ``tgt_in`` (R, T).

    Only this code reads several tokens at once and records the weights of self-attention.
    """
    return tgt_in.shape[1] > 1 or any(
        trace.is_listening_for(layer.attention.name) for layer in layers
    )


def restarted_if_better(
    state: State, layers: Callable[[], Sequence[DecoderLayer]], tgt_in: Tensor
) -> State:
    """Return the first state of the ordinary code, if it should read the tokens ``tgt_in`` (R, T).

    Otherwise return ``state``. ``layers`` returns the decoder layers. It is called only at the
    start of a search.
    """
    hypotheses = state.per_hypothesis
    if (
        isinstance(hypotheses, Hypotheses)
        and hypotheses.is_at_start
        and ordinary_code_is_better(layers(), tgt_in)
    ):
        return hypotheses.shared.restart()
    return state


class StepContext(NamedTuple):
    """The context of a decoder layer for one token of each of R hypotheses."""

    source: fused_decoding.SourceKeysValues
    sentences: Tensor  # (R,)
    ancestors: Tensor  # (R, t + 1)
    steps: tuple[Tensor, ...]  # projections of the t earlier steps
    layer: StepLayer


def usable(layer: TransformerLayer, x: Tensor) -> bool:
    """Whether the kernels can compute ``layer`` for ``x``."""
    return not layer.training and fused_decoding.usable(x)


def start(
    layers: Sequence[DecoderLayer],
    layer_class: type[DecoderLayer],
    sources: Sequence[Sequence[Tensor]],
    mask: Tensor,
    restart: Callable[[], State],
) -> State:
    """Return the state of one empty hypothesis of each sentence.

    Each layer has n ``sources`` (B, S, width), one for each of its ``source_maps``. ``mask`` is
    (B, S). Kernels compute layers of exactly the class ``layer_class``. If they cannot compute all
    layers, the result is that of ``restart``, which ``SharedState`` describes.
    """
    if not all(is_exactly(layer, layer_class) for layer in layers):
        return restart()
    first_sources = (tensors[0] for tensors in sources)
    if not all(map(_kernels_can_compute, layers, first_sources)):
        return restart()
    width = max(layer.width for layer in layers)
    groups = _groups(mask.sum(1).tolist(), PIECE // (2 * width))
    parts = [(part, _layout(mask[part])) for part in groups]
    keys_values = tuple(
        _source_keys_values(layer, tensors, mask, parts)
        for layer, tensors in zip(layers, sources, strict=True)
    )
    sentences = torch.arange(len(mask))
    steps = ((),) * len(keys_values)
    step_layers = tuple(map(_step_layer, layers))
    shared = SharedState(sentences, keys_values, steps, step_layers, restart)
    return State(None, Hypotheses(sentences, sentences.new_empty(len(mask), 0), shared), 0)


def _source_keys_values(
    layer: DecoderLayer,
    sources: Sequence[Tensor],
    mask: Tensor,
    parts: Sequence[tuple[Part, PackedLayout | None]],
) -> fused_decoding.SourceKeysValues:
    """Compute the keys and values of the ``sources`` of a layer; see ``start``.

    They are bf16 if the weights are bf16, because a search reads them at each step, and those of
    many sentences do not fit into a processor's cache. With weights of int8 they are float32, so
    that the logits of a search are equal to those of forced decoding.
    """
    project = layer.attention.project if layer.cross is None else layer.cross.project[0]
    is_bf16 = isinstance(project, InferenceLinear) and project.matrix.dtype == torch.bfloat16
    stored = fused_decoding.SourceKeysValues.empty(
        len(sources),
        mask.shape[1],
        layer.width,
        layer.attention.heads,
        mask.sum(1),
        dtype=torch.bfloat16 if is_bf16 else torch.float32,
    )
    for n, (source_map, source) in enumerate(zip(layer.source_maps, sources, strict=True)):
        for part, layout in parts:
            keys, values = source_map(_rows(source[part], layout)).chunk(2, 1)
            stored.store(keys, values, _first_rows(mask[part], layout), n, part[0].start)
    return stored


def decode_in_steps(
    stack: Stack, embed: Callable[[Tensor, int], Tensor], tgt_in: Tensor, state: State
) -> tuple[Tensor, State]:
    """Read target tokens (R, T) one by one; return the output of ``stack`` (R, T, D) and the state.

    ``embed`` maps tokens and the position of the first one to the input of ``stack``.
    """
    hypotheses, step = state.per_hypothesis, state.step
    assert isinstance(hypotheses, Hypotheses)
    sentences, ancestors, shared = hypotheses
    rows = torch.arange(len(ancestors))[:, None]
    steps = shared.steps
    outputs = []
    for tokens in tgt_in.split(1, dim=1):
        ancestors = torch.cat((ancestors, rows), 1)
        contexts = [
            StepContext(source, sentences, ancestors, earlier, layer)
            for source, earlier, layer in zip(shared.keys_values, steps, shared.layers, strict=True)
        ]
        result = stack(embed(tokens, step), stack.per_module(contexts))
        steps = result.layer_states
        outputs.append(result.output)
        step += 1
    hypotheses = Hypotheses(sentences, ancestors, shared._replace(steps=steps))
    return torch.cat(outputs, 1), State(None, hypotheses, step)


def run_decoder_layer(
    layer: DecoderLayer, x: Stream, context: StepContext
) -> tuple[Stream, tuple[Tensor, ...]]:
    """Compute a decoder layer: (R, 1, input width) -> (R, 1, D), or streams of such tensors.

    Also return the projections of all steps.
    """
    if not context.layer.in_kernels:
        return _attention_in_kernels(layer, x, context)
    shape = x.shape
    x = _input_rows(layer, x)
    arguments = context.layer.arguments
    if arguments is not None and not trace.is_listening_for(layer.source_name):
        out, projections = fused_decoding.run_decoder_layer(
            arguments, x, context.steps, context.ancestors, context.source, context.sentences
        )
        return out.view(*shape[:-1], layer.width), (*context.steps, projections)
    attention = layer.attention
    before = _before(layer.attention_residual, x)
    mixed = layer.cross_residual is None
    projections = attention.project(before) if mixed else _product(attention.project, before)
    steps = (*context.steps, projections)
    bias = None if mixed else attention.project.bias
    y = _product(attention.out, _attend(layer, steps, context, bias))
    gated = layer.gate is not None
    if gated:
        y = _with_bias(attention.out, y)
    x = _after(layer.attention_residual, x, y, None if gated else attention.out.bias)
    if layer.cross_residual is not None:
        query, out_map = _cross_maps(layer)
        queries = _product(query, _before(layer.cross_residual, x), slice(layer.width))
        query_bias = None if query.bias is None else query.bias[: layer.width]
        z = _product(out_map, _attend_source(layer, queries, query_bias, context))
        if layer.gate is None:
            x = _after(layer.cross_residual, x, z, out_map.bias)
        else:
            z = layer.gate(y, _with_bias(out_map, z))
            x = _after(layer.cross_residual, x, z, None)
    return _feed_forward(layer, x).view(*shape[:-1], layer.width), steps


def _attention_in_kernels(
    layer: DecoderLayer, x: Stream, context: StepContext
) -> tuple[Stream, tuple[Tensor, ...]]:
    """Compute ``run_decoder_layer`` with kernels for the attention only."""
    steps = context.steps

    def attend(projections: Tensor) -> Tensor:
        nonlocal steps
        steps = (*steps, projections)
        return _attend(layer, steps, context)

    x, stream = layer.attention_residual.before(layer.input_projection(x))
    y = layer.attention.single_step(x, attend, len(steps))
    stream = layer.attention_residual.after(stream, y)
    if layer.cross_residual is not None:
        x, stream = layer.cross_residual.before(stream)
        query, out = _cross_maps(layer)
        queries = query(x) if layer.cross else linear_part(query, x, slice(layer.width))
        z = out(_attend_source(layer, queries.flatten(0, 1), None, context).view(x.shape))
        if layer.gate is not None:
            z = layer.gate(y, z)
        stream = layer.cross_residual.after(stream, z)
    return layer.feed_forward(stream), steps


def _step_layer(layer: DecoderLayer) -> StepLayer:
    residuals = layer.attention_residual, layer.cross_residual, layer.ffn_residual
    in_kernels = _is_plain(layer, *residuals) and _are_linear(*_cross_maps(layer))
    return StepLayer(in_kernels, _kernel_arguments(layer) if in_kernels else None)


def _kernel_arguments(layer: DecoderLayer) -> fused_decoding.DecoderLayerArguments | None:
    """Return the arguments of the kernel for a whole layer; None: it does not know the layer."""
    attention, ffn = layer.attention, layer.ffn
    query, cross_out = _cross_maps(layer)
    assert isinstance(ffn, FeedForward)
    maps: list[nn.Module] = [attention.project, attention.out, query, cross_out]
    maps += [ffn.hidden, ffn.out]
    blocked = all(isinstance(linear, KernelLinear) and linear.has_product for linear in maps)
    if not blocked or layer.gate is not None or ffn.activation is not torch.relu_:
        return None
    mixed = layer.cross_residual is None
    residuals = layer.attention_residual, layer.cross_residual, layer.ffn_residual
    return fused_decoding.DecoderLayerArguments(
        fused_decoding.DecoderLayerMaps(
            project=_blocked_map(attention.project),
            self_out=_blocked_map(attention.out),
            query=None if mixed else _blocked_map(query, layer.width),
            cross_out=None if mixed else _blocked_map(cross_out),
            hidden=_blocked_map(ffn.hidden),
            ffn_out=_blocked_map(ffn.out),
        ),
        [None if residual is None else _norm(residual) for residual in residuals],
        attention.heads,
        layer.attention_residual.pre,
    )


def _cross_maps(layer: DecoderLayer) -> tuple[nn.Linear, nn.Linear]:
    """Return the maps of attention to the source.

    The first D outputs of the first map are the queries.
    """
    if layer.cross is None:
        return layer.attention.project, layer.attention.out
    return layer.cross.query, layer.cross.out


def _blocked_map(linear: nn.Module, outputs: int | None = None) -> fused_decoding.BlockedMap:
    """Return the first ``outputs`` outputs of a map, by default all."""
    assert isinstance(linear, KernelLinear)
    blocked, bias = linear.blocked, linear.bias
    if outputs is not None:
        blocked = blocked.part(0, outputs)
        bias = None if bias is None else bias[:outputs]
    return fused_decoding.BlockedMap(blocked, bias)


def run_encoder_layer(layer: TransformerLayer, x: Tensor, mask: Tensor) -> Tensor:
    """Compute an encoder layer for (B, S, input width) and the mask (B, S) -> (B, S, D).

    It computes groups of sentences, so that the hidden units of a group fit into a processor's
    cache. The results after the longest sentence of a group are 0.
    """
    assert isinstance(layer.ffn, FeedForward)
    groups = _groups(mask.sum(1).tolist(), PIECE // layer.ffn.hidden.out_features)
    if len(groups) == 1:
        return _encode(layer, x, mask)
    out = x.new_zeros(*mask.shape, layer.width)
    for part in groups:
        out[part] = _encode(layer, x[part], mask[part])
    return out


def _groups(lengths: Sequence[int], max_tokens: int) -> list[Part]:
    """Divide sentences into groups of at most ``max_tokens`` tokens with padding, or one sentence.

    The positions of a group are those of its longest sentence.
    """
    groups = []
    first = 0
    longest = 0
    for i, length in enumerate(lengths):
        if i > first and (i + 1 - first) * max(longest, length) > max_tokens:
            groups.append((slice(first, i), slice(longest)))
            first = i
            longest = 0
        longest = max(longest, length)
    return [*groups, (slice(first, len(lengths)), slice(longest))]


def _layout(mask: Tensor) -> PackedLayout | None:
    """Return the layout of the real tokens; None: few positions are padding, so all remain.

    With the layout, the rows (N, D) of sentences are their real tokens. Without it, they are all
    positions. ``mask`` is (B, S).
    """
    places = mask.flatten().nonzero()[:, 0]
    return PackedLayout.of(places, mask.shape) if len(places) < MIN_REAL * mask.numel() else None


def _rows(x: Tensor, layout: PackedLayout | None) -> Tensor:
    """(B, S, D) -> (N, D)"""
    return x.flatten(0, 1) if layout is None else layout.pack(x)[0]


def _first_rows(mask: Tensor, layout: PackedLayout | None) -> Tensor:
    """Return the row of the first token of each sentence (B,)."""
    return torch.arange(0, mask.numel(), mask.shape[1]) if layout is None else layout.offsets[:-1]


def _encode(layer: TransformerLayer, x: Tensor, mask: Tensor) -> Tensor:
    layout = _layout(mask)
    width = layer.width
    x = _input_rows(layer, _rows(x, layout))
    attention = layer.attention
    projections = _product(attention.project, _before(layer.attention_residual, x))
    bias = attention.project.bias
    # The bias of the keys adds the same number to all scores, so it has no effect.
    source = fused_decoding.SourceKeysValues.empty(
        1,
        mask.shape[1],
        width,
        attention.heads,
        mask.sum(1),
        None if bias is None else bias[2 * width :],
    )
    queries, keys, values = projections.split(width, 1)
    source.store(keys, values, _first_rows(mask, layout))
    places = torch.arange(mask.numel()) if layout is None else layout.places
    y = fused_decoding.attend_source(queries, bias, source, places // mask.shape[1])
    x = _after(layer.attention_residual, x, _product(attention.out, y), attention.out.bias)
    out = _feed_forward(layer, x)
    return out.view(*mask.shape, -1) if layout is None else layout.unpack(out[None])


def encoder_layer_is_usable(layer: TransformerLayer, x: Tensor) -> bool:
    """Whether ``run_encoder_layer`` can compute the layer; it records no attention weights."""
    return (
        _is_plain(layer, layer.attention_residual, layer.ffn_residual)
        and usable(layer, x)
        and not trace.is_listening_for(layer.attention.name)
    )


def _kernels_can_compute(layer: DecoderLayer, x: Tensor) -> bool:
    """Whether ``run_decoder_layer`` can compute a layer.

    ``x`` has the device and type of its input.
    """
    return (
        usable(layer, x)
        and type(layer.attention) in SELF_ATTENTIONS
        and not is_patched(layer.attention)
        and (layer.cross is None or is_exactly(layer.cross, CrossAttention))
    )


def _is_plain(layer: TransformerLayer, *residuals: Residual | None) -> bool:
    """Whether a layer has the usual sub-layers, residual sums and normalisation, without hooks."""
    attention, ffn = layer.attention, layer.ffn
    return (
        type(attention) is SelfAttention
        and type(ffn) is FeedForward
        and ffn.hidden.bias is not None
        and _are_linear(attention.project, attention.out, ffn.hidden, ffn.out)
        and all(
            type(residual) is PlainResidual and type(residual.norm) is nn.LayerNorm
            for residual in residuals
            if residual is not None
        )
        and not any(map(is_patched, layer.modules()))
    )


def _are_linear(*modules: nn.Module) -> bool:
    return all(type(m) is nn.Linear or isinstance(m, InferenceLinear) for m in modules)


def _attend(
    layer: DecoderLayer,
    steps: Sequence[Tensor],
    context: StepContext,
    bias: Tensor | None = None,
) -> Tensor:
    """Return self-attention or mixed attention (R, D).

    ``bias`` is that of the projections; None: they include it, as always in mixed attention.
    """
    heads = layer.attention.heads
    if layer.cross_residual is not None:
        return fused_decoding.attend_history(steps, context.ancestors, heads, bias)
    weights = None
    if trace.is_listening_for(layer.source_name):
        length = context.source.length + len(steps)
        weights = steps[-1].new_empty(len(steps[-1]), heads, length)
    y = fused_decoding.attend_mixed(
        steps, context.ancestors, context.source, context.sentences, weights
    )
    if weights is not None:
        trace.record(layer.source_name, weights[:, :, None])
    return y


def _attend_source(
    layer: DecoderLayer, queries: Tensor, bias: Tensor | None, context: StepContext
) -> Tensor:
    """Return the attention to the source (R, D) of queries without ``bias``."""
    source = context.source
    weights = None
    if trace.is_listening_for(layer.source_name):
        sources = source.keys_values.shape[1]
        weights = queries.new_empty(len(queries), sources * source.heads, source.length)
    y = fused_decoding.attend_source(queries, bias, source, context.sentences, weights)
    if weights is not None:
        trace.record(layer.source_name, weights[:, :, None])
    return y


def _feed_forward(layer: TransformerLayer, x: Tensor) -> Tensor:
    ffn = layer.ffn
    assert isinstance(ffn, FeedForward)
    before = _before(layer.ffn_residual, x)
    relu = ffn.activation is torch.relu_
    linear: nn.Linear | InferenceLinear = ffn.hidden
    if isinstance(linear, InferenceLinear):
        hidden = linear.hidden_units(before, relu)
    else:
        hidden = fused_decoding.add_bias(_product(linear, before), linear.bias, relu)
    if not relu:
        hidden = ffn.activation(hidden)
    return _after(layer.ffn_residual, x, _product(ffn.out, hidden), ffn.out.bias)


def _input_rows(layer: TransformerLayer, x: Tensor) -> Tensor:
    """Return the layer's input as contiguous rows (R, D)."""
    return layer.input_projection(x).reshape(-1, layer.width).contiguous()


def _product(linear: nn.Linear | InferenceLinear, x: Tensor, part: slice = ALL) -> Tensor:
    """Return the outputs ``part`` of x W^T, without the bias."""
    if isinstance(linear, InferenceLinear):
        return linear.product(x, part=part)
    return torch.mm(x, linear.weight[part].t())


def _with_bias(linear: nn.Linear, x: Tensor) -> Tensor:
    return x if linear.bias is None else x + linear.bias


def _before(residual: Residual, x: Tensor) -> Tensor:
    return fused_decoding.add_norm(x, None, None, _norm(residual)) if residual.pre else x


def _after(residual: Residual, x: Tensor, y: Tensor, bias: Tensor | None) -> Tensor:
    return fused_decoding.add_norm(x, y, bias, None if residual.pre else _norm(residual))


def _norm(residual: Residual) -> nn.LayerNorm:
    assert isinstance(residual.norm, nn.LayerNorm)
    return residual.norm
