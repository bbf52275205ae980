"""ShallowRNMT and DTMT (Meng and Zhang 2019): recurrence with deep transitions.

Fusions and attention are configurable.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from fusetk import trace
from fusetk.config import ComponentConfig, Config
from fusetk.errors import ConfigError
from fusetk.fusion import AnyFusionConfig, build_fusion
from fusetk.fusion.base import FusionConfig, share_layer_embedding
from fusetk.models.attend import (
    AnyAttendConfig,
    OutputSource,
    attended_sources_class,
    build_attended_sources,
)
from fusetk.models.initialise import initialise_parts
from fusetk.models.seq2seq import Memory, ModelConfig, Seq2Seq, State, check_tying
from fusetk.models.stack import MOST_LAYERS
from fusetk.nn import additional_loss
from fusetk.nn.additive import AdditiveAttention
from fusetk.nn.cells import Cell, InputCell, Transition
from fusetk.nn.derived import DerivedTensor
from fusetk.nn.dropout import Dropout
from fusetk.nn.output import OutputProjection
from fusetk.nn.positions import Sinusoidal
from fusetk.nn.precision import product_dtype
from fusetk.nn.recurrence import DecoderAttention, run_recurrence
from fusetk.nn.step_layout import StepLayout
from fusetk.special_tokens import PAD


class TransitionConfig(Config):
    """A deep transition: the cells that compute the next state from the previous one."""

    cell: InputCell = "l-gru"
    """The lowest cell, which reads the input."""
    depth: int = Field(1, ge=0, le=MOST_LAYERS)
    """Number of T-GRU cells above the lowest cell, which read the state only. With 0 and `cell:
    gru`, this part of the model is that of ShallowRNMT (Table 4 of the paper)."""


class RecurrentEncoderConfig(TransitionConfig):
    """The encoder: two directions, each with its own transition."""

    fuse: AnyFusionConfig = FusionConfig(kind="last")
    """How the output of the encoder is made from the embedding and the states of a time step.
    `last`: the highest state."""


class RecurrentDecoderConfig(TransitionConfig):
    """The transition after attention, and the decoder's fusion and attention."""

    fuse: AnyFusionConfig = FusionConfig(kind="last")
    """How the representation that predicts the next word is made from the embedding and the states
    of a time step, the states of `query` first. The recurrence continues with the highest state in
    any case."""
    attend: AnyAttendConfig = ComponentConfig(kind="top")
    """Which states of the encoder the decoder attends to. The decoder has one attention, so
    `layerwise` is not allowed."""


class RecurrentConfig(ModelConfig):
    """Sizes and options of a recurrent model."""

    kind: str = "recurrent"
    width: int = Field(1024, ge=1)
    """Features of states and of attention."""
    embedding: int | None = Field(None, ge=1)
    """Features of embeddings and of the input of the output projection; by default `width`."""
    heads: int = Field(16, ge=1)
    """Number of heads of the additive attention. On a GPU, the fused kernels need a power of two
    for this number and for `width` / `heads`."""
    encoder: RecurrentEncoderConfig = RecurrentEncoderConfig()
    """The encoder's transition."""
    query: TransitionConfig = TransitionConfig()
    """The decoder's transition from the previous word to the query of attention."""
    decoder: RecurrentDecoderConfig = RecurrentDecoderConfig()
    """The decoder's transition from the result of attention to the state that predicts the
    word."""
    layer_norm: bool = True
    """Apply layer normalisation to each gate before its sigmoid."""
    linear_bias: bool = True
    """Add a bias to the linear map H of L-GRU and LAU. H(x) = W x has none in Meng and Zhang 2019
    (Equation 15) and in the authors' code, but the paper's parameter counts need one. False is an
    error if all cells that read an input are GRUs, which have no such map."""
    positions: Literal["sinusoidal", "none"] = "sinusoidal"
    """Add sines and cosines, times 1 / sqrt(features), to embeddings."""
    first_target_position: Literal[0, 1] = 1
    """Position of the first target word. The decoder reads this word after BOS. The paper does not
    give the position. With 1, BOS has position 0. With 0, the first word has position 0, as in the
    authors' code. The key has no effect with `positions: none`."""
    project_context: bool = False
    """Project the result of attention to `width` before the decoder reads it, as the authors' code
    does (there with a bias). The paper's parameter counts imply that its systems do not."""
    embedding_dropout: float = Field(0.3, ge=0, lt=1)
    """Dropout on embeddings."""
    candidate_dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout on the candidate state of every cell."""
    output_dropout: float = Field(0.3, ge=0, lt=1)
    """Dropout on the input of the output projection."""
    tie: Literal["none", "target", "all"] = "none"
    """Share the output matrix with the target embedding, or with both embeddings (`all` needs one
    joint vocabulary)."""
    output_bias: bool = True
    """Add a bias for each entry of the target vocabulary."""
    init: float = Field(0.08, gt=0, le=1000)
    """Initial matrices and embeddings are uniform between -init and init."""
    init_biases: Literal["zero", "uniform"] = "zero"
    """Initial biases: zero, or drawn like matrices. "The parameters are initialized uniformly"
    (section "Training Details") and the authors' code include the biases, but not the shift of
    layer normalisation."""

    @model_validator(mode="after")
    def _options_fit_together(self) -> "RecurrentConfig":
        encoder, decoder = self.encoder, self.decoder
        for side, fuse, states in (
            ("encoder", encoder.fuse, encoder.depth + 1),
            ("decoder", decoder.fuse, self.query.depth + decoder.depth + 2),
        ):
            try:
                fuse.check(states)
            except ValueError as error:
                raise ValueError(f"{side}: {error}") from error
        attend = attended_sources_class(decoder.attend)
        if attend.layer_by_layer:
            raise ValueError(
                f"decoder.attend: {decoder.attend.kind} needs an attention in each layer, but a "
                "recurrent decoder has only one: choose another kind"
            )
        if not attend.reads_output and encoder.fuse.kind != "last":
            raise ValueError(
                f"decoder.attend: {decoder.attend.kind} reads the states of the encoder, so only "
                f"the first state of the decoder would depend on encoder.fuse: "
                f"{encoder.fuse.kind}: remove one of the two options"
            )
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if not self.linear_bias and encoder.cell == self.query.cell == decoder.cell == "gru":
            raise ValueError(
                "linear_bias: false has no effect with cell: gru in encoder, query and decoder, "
                "which has no linear map H: remove linear_bias, or choose another cell"
            )
        return self


class RecurrentEmbedding(nn.Module):
    """Token embeddings of size E plus a bias plus positions times 1 / sqrt(E), with dropout."""

    def __init__(
        self,
        config: RecurrentConfig,
        vocabulary: int,
        tied: nn.Embedding | None = None,
        begins_with_bos: bool = False,
    ):
        """``begins_with_bos``: the position of the second token is ``first_target_position``."""
        super().__init__()
        self.shift = 1 - config.first_target_position if begins_with_bos else 0
        size = config.embedding or config.width
        self.tokens = nn.Embedding(vocabulary, size) if tied is None else tied
        self.bias = nn.Parameter(torch.zeros(size))
        self.positions = Sinusoidal(size) if config.positions == "sinusoidal" else None
        self.dropout = Dropout(config.embedding_dropout)

    def forward(self, ids: Tensor, start: int = 0) -> Tensor:
        """Ids (B, T) of positions start .. start + T - 1 -> (B, T, E)."""
        x = self.tokens(ids) + self.bias
        if self.positions is not None:
            vectors = self.positions(max(start - self.shift, 0), ids.shape[1])
            if start < self.shift:  # BOS gets any vector, since it is read as zeros
                vectors = vectors.roll(1, 0)
            x = x + vectors * x.shape[-1] ** -0.5
        return self.dropout(x)


class Recurrent(DerivedTensor, Seq2Seq):
    """A bidirectional encoder, and a decoder of two transitions with attention between them.

    ShallowRNMT and DTMT (Meng and Zhang 2019) are such models.
    """

    Config = RecurrentConfig
    operations_depend_on_lengths = True

    def __init__(self, config: RecurrentConfig, source_size: int, target_size: int):
        """Vocabulary sizes include the special tokens.

        Raises ConfigError if they do not allow ``tie``, or if the width of the encoder states
        that are attended to is not a multiple of the heads.
        """
        super().__init__()
        self.config = config
        check_tying(config.tie, source_size, target_size)
        width, norm, bias = config.width, config.layer_norm, config.linear_bias
        size = config.embedding or width
        self.source = RecurrentEmbedding(config, source_size)
        tied = self.source.tokens if config.tie == "all" else None
        self.target = RecurrentEmbedding(config, target_size, tied, begins_with_bos=True)
        encoder, query, decoder = config.encoder, config.query, config.decoder
        self.encoder = Transition(encoder.cell, encoder.depth, size, width, 2, norm, bias)
        encoder_widths = [size] + [2 * width] * (encoder.depth + 1)
        self.encoder_fuse = build_fusion(encoder.fuse, encoder_widths, 2 * width, "encoder.fuse")
        self.attend = build_attended_sources(
            decoder.attend, encoder_widths, self.encoder_fuse.out_width, layers=1
        )
        source_widths = self.attend.widths
        context_width = source_widths[0] if len(source_widths) == 1 else 2 * width
        if context_width % config.heads:
            raise ConfigError(
                f"model.decoder.attend: the {context_width} features that are attended to are not "
                f"a multiple of heads {config.heads}: change heads or the widths"
            )
        self.keys = nn.ModuleList(
            nn.Linear(source_width, width, bias=False) for source_width in source_widths
        )
        self.values = nn.ModuleList(
            nn.Identity()
            if source_width == context_width
            else nn.Linear(source_width, context_width, bias=False)
            for source_width in source_widths
        )
        self.initial = nn.Linear(self.encoder_fuse.out_width, width)
        self.query = Transition(query.cell, query.depth, size, width, 1, norm, bias)
        self.attention = AdditiveAttention(width, config.heads, len(source_widths))
        self.project = None
        if config.project_context:
            self.project = nn.Linear(context_width, width, bias=False)
        input_width = width if config.project_context else context_width
        self.decoder = Transition(decoder.cell, decoder.depth, input_width, width, 1, norm, bias)
        decoder_widths = [size] + [width] * (query.depth + decoder.depth + 2)
        self.decoder_fuse = build_fusion(decoder.fuse, decoder_widths, width, "decoder.fuse")
        share_layer_embedding(self.encoder_fuse, self.decoder_fuse)
        self.readout = nn.Linear(size + self.decoder_fuse.out_width + input_width, size)
        self.candidate_dropout = Dropout(config.candidate_dropout)
        self.output_dropout = Dropout(config.output_dropout)
        matrix = None if config.tie == "none" else self.target.tokens.weight
        self.output = OutputProjection(size, target_size, config.output_bias, matrix)
        self.cross_name = f"decoder.layer{query.depth + 1}.cross"
        initialise_uniform(self, config.init, config.init_biases == "uniform")
        initialise_parts(self)

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor,
        tgt_in: Tensor,
        tokens: Tensor | None = None,
        lengths: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        cls = type(self)
        # A subclass overrides the public methods, which have no argument for the lengths.
        if cls.encode is not Recurrent.encode or cls.decode is not Recurrent.decode:
            return super().forward(src, src_mask, tgt_in, tokens, lengths)
        source_lengths, target_lengths = lengths or (None, None)
        state = self.start(self._encode(src, src_mask, source_lengths))
        features, _ = self._decode(tgt_in, state, target_lengths)
        return features if tokens is None else features.flatten(0, 1)[tokens]

    def encode(self, src: Tensor, src_mask: Tensor) -> Memory:
        return self._encode(src, src_mask, None)

    def _encode(self, src: Tensor, src_mask: Tensor, lengths: Tensor | None) -> Memory:
        embedding = self.source(src)
        lengths = src_mask.sum(1) if lengths is None else lengths
        layout = StepLayout.of(
            lengths, src.shape[1], _step_size_multiple(embedding), embedding.device
        )
        forwards = layout.to_slots(embedding)
        backwards = forwards.index_select(0, layout.mirrored)
        x = torch.stack((forwards, backwards)) @ self.encoder.input_weight
        rows = layout.sizes[0]
        zeros = embedding.new_zeros(2, rows, self.encoder.width, dtype=_state_dtype(embedding))
        states = run_recurrence(self.encoder, x, zeros, layout.sizes, self.candidate_dropout).states
        if self.encoder_fuse.reads_top_input and type(self.attend) is OutputSource:
            states = states[-1:]  # nothing reads the lower states
        history = [embedding]
        for forward, backward in states:
            both = torch.cat((forward, backward.index_select(0, layout.mirrored)), -1)
            history.append(layout.from_slots(both).to(embedding.dtype))
        return Memory(tuple(history), self.encoder_fuse(history), src_mask)

    def start(self, memory: Memory) -> State:
        sources = self.attend.checked_sources(memory)
        keys, values = (
            torch.cat([project(source) for project, source in zip(maps, sources, strict=True)], 1)
            for maps in (self.keys, self.values)
        )
        if len(sources) > 1:
            values = values * len(sources) ** -0.5
        mask = memory.mask[..., None]
        mean = (memory.output * mask).sum(1) / mask.sum(1)
        hidden = torch.tanh(self.initial(mean)).to(_state_dtype(mean))
        return State((keys, values, memory.mask), (hidden,), 0)

    def decode(self, tgt_in: Tensor, state: State) -> tuple[Tensor, State]:
        return self._decode(tgt_in, state, None)

    def _decode(self, tgt_in: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        keys, values, mask = state.per_sentence
        [hidden] = state.per_hypothesis
        sentences = len(keys)
        embedding = self.target(tgt_in, state.step)
        if state.step == 0:  # the first token, BOS, is read as zeros
            embedding = torch.cat((torch.zeros_like(embedding[:, :1]), embedding[:, 1:]), 1)
        layout = self._step_layout(tgt_in, lengths, sentences, embedding)
        additional_loss.set_layout(layout)
        if layout is None:
            sizes: Sequence[int] = [len(embedding)]
            x = embedding[:, 0]
        else:
            sizes = layout.sizes
            x = layout.to_slots(embedding)
            hidden = hidden.index_select(0, layout.order)
            if sentences == len(embedding):  # one hypothesis for each sentence
                keys, values, mask = (
                    tensor.index_select(0, layout.order) for tensor in (keys, values, mask)
                )
        decoder_attention = DecoderAttention(
            self.attention, self.decoder, self._decoder_input(), keys, values, mask
        )
        traced = trace.is_listening_for(self.cross_name)
        states, contexts, weights = run_recurrence(
            self.query,
            (x @ self.query.input_weight[0])[None],
            hidden[None],
            sizes,
            self.candidate_dropout,
            decoder_attention,
            traced,
        )
        assert contexts is not None
        if self.decoder_fuse.reads_top_input:
            states = states[-1:]  # nothing reads the lower states
        if traced and weights is not None:
            self._record(_from_slots(weights, layout), sentences)
        hidden = _from_slots(states[-1][0], layout)[:, -1]
        history = [x, *(layer[0].to(embedding.dtype) for layer in states)]
        if self.training:
            features = _from_slots(self._features(history, contexts), layout)
        else:  # a trace of the fusion needs sentences, not slots
            padded = [_from_slots(layer, layout) for layer in history]
            features = self._features(padded, _from_slots(contexts, layout))
        step = state.step + tgt_in.shape[1]
        return features, State(state.per_sentence, (hidden,), step)

    def _features(self, history: Sequence[Tensor], context: Tensor) -> Tensor:
        """Return the input of the output projection; ``history`` begins with the embedding."""
        if self.project is not None:
            context = self.project(context)
        fused = self.decoder_fuse(history)
        features = torch.tanh(self.readout(torch.cat((history[0], fused, context), -1)))
        return self.output_dropout(features)

    def _decoder_input(self) -> Tensor:
        """Return the matrix that projects the result of attention for the decoder's lowest cell."""
        return self.decoder.input_weight[0] if self.project is None else self.derived

    def _derived_from(self) -> tuple[Tensor, Tensor]:
        assert self.project is not None
        return self.project.weight, self.decoder.input_weight

    def _derive(self) -> Tensor:
        """Return ``_decoder_input`` for ``project_context``, the product of two matrices."""
        assert self.project is not None
        return self.project.weight.mT @ self.decoder.input_weight[0]

    def _step_layout(
        self, tgt_in: Tensor, lengths: Tensor | None, sentences: int, embedding: Tensor
    ) -> StepLayout | None:
        """Return the layout of each row up to its last token; None for a single step."""
        rows, steps = tgt_in.shape
        device = tgt_in.device
        if steps == 1:
            return None
        if rows != sentences:  # hypotheses of a sentence must stay together
            return StepLayout.of(torch.full((rows,), steps), steps, device=device)
        if lengths is None:
            numbers = torch.arange(1, steps + 1, device=device)
            lengths = (numbers * (tgt_in != PAD)).amax(1).clamp_min(1)
        return StepLayout.of(lengths, steps, _step_size_multiple(embedding), device)

    def _record(self, weights: Tensor, sentences: int) -> None:
        """Record attention weights (B * K, T, n * S, H) as (B, n * H, K * T, S)."""
        sources, heads = self.attention.sources, self.attention.heads
        positions = weights.shape[2] // sources
        weights = weights.reshape(sentences, -1, sources, positions, heads)
        trace.record(self.cross_name, weights.permute(0, 2, 4, 1, 3).flatten(1, 2))


def _from_slots(x: Tensor, layout: StepLayout | None) -> Tensor:
    """Return the values of slots as (B * K, T, ...); without a layout T is 1."""
    return x[:, None] if layout is None else layout.from_slots(x)


def _step_size_multiple(embedding: Tensor) -> int:
    """Return the multiple to which a ``StepLayout`` rounds up its sizes.

    For bf16 on CPU, oneDNN compiles a product for each new shape, and rounding avoids new shapes.
    """
    on_cpu = embedding.device.type == "cpu"
    return 16 if on_cpu and product_dtype(embedding) == torch.bfloat16 else 1


def _state_dtype(embedding: Tensor) -> torch.dtype:
    """Return the type of the states, at least float32.

    A lower precision would round away the small changes of a state in each step.
    """
    return torch.promote_types(embedding.dtype, torch.float32)


def initialise_uniform(model: nn.Module, bound: float, biases: bool) -> None:
    """Initialise the weights like Meng and Zhang 2019.

    Matrices, embeddings and the vector of attention are uniform in [-bound, bound]. Biases are
    uniform, too, with ``biases``, and otherwise 0. Gains of layer normalisation are 1, its shifts
    are 0.
    """
    for module in model.modules():
        weights, module_biases = _weights_and_biases(module)
        for weight in weights:
            nn.init.uniform_(weight, -bound, bound)
        for bias in module_biases:
            if biases and isinstance(bias, nn.Parameter):  # a bias of H may be a constant zero
                nn.init.uniform_(bias, -bound, bound)
            elif bias is not None:
                nn.init.zeros_(bias)


def _weights_and_biases(
    module: nn.Module,
) -> tuple[Sequence[Tensor], Sequence[Tensor | None]]:
    """Return the parameters of a module that ``initialise_uniform`` sets; not of submodules."""
    if isinstance(module, Cell):
        weights = [module.state] if module.input is None else [module.state, module.input]
        return weights, [module.bias, module.linear_bias]
    if isinstance(module, AdditiveAttention):
        return [module.query, module.vector], []
    if isinstance(module, nn.Embedding):
        return [module.weight], []
    if isinstance(module, nn.Linear | OutputProjection):
        return [module.weight], [module.bias]
    if isinstance(module, RecurrentEmbedding):
        return [], [module.bias]
    return [], []
