"""The interface of every translation model: ``Seq2Seq``, ``Memory`` and ``State``.

Training and search use a model only through the interface in this file:

    memory = model.encode(src, src_mask)             # encode a batch of sentences, once
    state = model.start(memory)                      # the state before the first target token
    features, state = model.decode(tgt_in, state)    # read the next T target tokens
    logits = model.output(features)                  # (B * K, T, V)

Training calls ``decode`` once with complete targets. Search calls it once for each target position,
with the state that the previous call returned.

Symbols in shapes, here and in all other files: B sentences, K hypotheses of each sentence, S source
positions, T target positions, D features (width), V vocabulary entries. The batch is axis 0. Masks
are True at real tokens and False at padding. Models do not deal with devices, processes, precision
or files.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import Field
from torch import Tensor, nn

from fusetk.config import ComponentConfig
from fusetk.errors import ConfigError
from fusetk.nn.nested import NestedTensors
from fusetk.nn.output import OutputProjection
from fusetk.nn.packed_layout import PackedLayout, row_multiple
from fusetk.nn.weightnorm import NormedLinear


class Memory(NamedTuple):
    """The encoder's result, which the decoder reads."""

    history: Sequence[Tensor]
    """The embedding (or the output of the last summary layer, if there is one), and the outputs of
    the layers above it, each (B, S, D_i). Layers that the decoder does not read may be missing."""
    output: Tensor
    """The output of the encoder (B, S, D): the fused layers, or the highest layer. In
    ``coordinated`` it is the output of the layer below the highest one, because nothing reads the
    output of the highest layer."""
    mask: Tensor
    """True at real source tokens (B, S)."""
    embedding: Tensor | None = None
    """The source embeddings (B, S, E), for decoders that attend to them too (``conv``)."""
    layer_sources: tuple[Tensor, ...] = ()
    """For each decoder layer, a tensor (B, S, D_i): its source keys and values, or the input from
    which it computes them. Only ``coordinated`` sets it."""


class State(NamedTuple):
    """All data that ``decode`` needs besides the next target tokens.

    A state is immutable: ``decode`` returns a new one, and no module stores a part of it. Axis 0 of
    every tensor is the batch. Search selects rows of ``per_sentence`` and of ``per_hypothesis``
    separately. If ``per_sentence`` is None, each row of ``per_hypothesis`` has the index of its
    sentence. Then a search may select any rows, so that sentences have different numbers of
    hypotheses.
    """

    per_sentence: NestedTensors
    """Tensors with one row for each sentence (B, ...), which its K hypotheses share: the keys and
    values of the source, the source mask, and the self-attention caches. A cache grows with every
    call; its slots hold the tokens of all hypotheses of the sentence."""
    per_hypothesis: NestedTensors
    """Tensors with one row for each hypothesis (B * K, ...): its convolution windows, or its hidden
    state. Transformer layers have one of two kinds. With ``per_sentence``, it is one tensor: the
    cache slots that hold the tokens of each hypothesis (``fusetk.nn.attention.no_slots``). If
    ``per_sentence`` is None, it is ``fusetk.models.cpu_inference.Hypotheses``, which the kernels
    for inference read."""
    step: int
    """Number of target positions read so far."""


class ModelConfig(ComponentConfig):
    """Options that every backbone has."""

    width: int = Field(512, ge=1)
    """d_model: features of embeddings and layer outputs. Some learning-rate schedules depend on
    it."""


class Seq2Seq(nn.Module):
    """A translation model.

    Subclasses set ``config`` and ``output``, and implement ``encode``, ``start``, ``decode`` and
    ``layers``.
    """

    Config: type[ModelConfig] = ModelConfig
    config: Any
    """The options, an object of the class ``Config``."""
    packs = False
    """Whether the model implements ``decode_packed``. It is False by default for a subclass that
    overrides ``encode``, ``start`` or ``decode`` and not ``decode_packed``, so that training
    calls the overridden methods."""
    converts_maps = False
    """Whether other kinds of linear maps may replace those of the layers for inference on CPU
    (``fusetk.models.quantization``). Then the rest of the model remains float32."""
    operations_depend_on_lengths = False
    """Whether the operations of a pass, and not only their values, depend on the lengths of the
    sentences. Then ``training.cuda_graphs`` is refused."""
    max_positions: int | None = None
    """Length of the longest sentence that the model can read, in tokens with EOS; None: no
    limit."""
    output: OutputProjection | NormedLinear
    """The output projection (..., D) -> (..., V). It returns logits. For inference on CPU, an
    ``InferenceLinear`` may replace it."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for parent in cls.__mro__:  # a mixin may override them, too
            own = vars(parent).keys()
            if own & {"decode_packed", "packs"}:
                return
            if own & {"encode", "start", "decode"}:
                cls.packs = False
                return

    def encode(self, src: Tensor, src_mask: Tensor) -> Memory:
        """Encode source ids (B, S) with their mask (B, S).

        Every row is padded on the right and has at least one real token.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method encode")

    def start(self, memory: Memory) -> State:
        """Return the state before the first target token, with K = 1 hypothesis per sentence."""
        raise NotImplementedError(f"{type(self).__name__} has no method start")

    def decode(self, tgt_in: Tensor, state: State) -> tuple[Tensor, State]:
        """Read the next T target tokens (B * K, T); return their features (B * K, T, D).

        ``output`` maps the features to logits. T is the length of the target in training and 1 in
        search. Rows are padded on the right with PAD; features at padding are undefined. B is the
        number of rows in ``state.per_sentence``; the K hypotheses of a sentence are consecutive
        rows of ``tgt_in``.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method decode")

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor,
        tgt_in: Tensor,
        tokens: Tensor | None = None,
        lengths: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Return the features (B, T, D) of complete targets (B, T). Training calls this method.

        ``tokens`` (N,) are the indices of the real target tokens in (B * T). With them, the result
        is the features of these tokens (N, D), and on CPU a model with ``packs`` skips padding.
        ``lengths`` are the source and target lengths (B,) in the memory of the host. A model whose
        computation depends on lengths reads them there, and does not wait for the device.
        """
        if tokens is not None and len(tokens) and self.packs and src.device.type == "cpu":
            multiple = row_multiple(self.output.weight)
            source_tokens = src_mask.flatten().nonzero()[:, 0]
            source_layout = PackedLayout.of(source_tokens, src_mask.shape, multiple)
            target_layout = PackedLayout.of(tokens, tgt_in.shape, multiple)
            features = self.decode_packed(src, source_layout, tgt_in, target_layout)
            return features[0, : target_layout.tokens]
        features, _ = self.decode(tgt_in, self.start(self.encode(src, src_mask)))
        return features if tokens is None else features.flatten(0, 1)[tokens]

    def decode_packed(
        self, src: Tensor, source_layout: PackedLayout, tgt_in: Tensor, target_layout: PackedLayout
    ) -> Tensor:
        """Return the features (1, N, D) of the rows of ``target_layout``.

        The ids ``src`` (B, S) and ``tgt_in`` (B, T) are padded. ``source_layout`` and
        ``target_layout`` are the layouts of their real tokens. Only models with ``packs`` implement
        this method.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method decode_packed")

    def layers(self) -> list[nn.Module]:
        """Return the layers, which may be compiled or sharded one by one; by default an empty list.

        In training, the model calls only ``forward`` of a layer, with two exceptions. Before a
        layer runs, the model may call the modules ``project`` of its ``CrossAttention``, and the
        method ``source_keys_values`` of a ``CoordinatedLayer``. ``fusetk.training.sharding``
        depends on this.
        """
        return []


def check_tying(tie: str, source_size: int, target_size: int) -> None:
    """Raise ConfigError if the vocabulary sizes do not allow ``tie``."""
    if tie == "all" and source_size != target_size:
        raise ConfigError(
            "model.tie: all needs one vocabulary for both sides, and there are "
            f"{source_size} source and {target_size} target entries: "
            "set data.vocabulary.joint, or tie: target"
        )
