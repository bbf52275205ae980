"""ShallowRNMT and DTMT (Meng and Zhang 2019): recurrence with deep transitions, with open sites for fusion and attention."""

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from fusetk import trace
from fusetk.config import ComponentConfig, Config, component, resolve
from fusetk.errors import ConfigError
from fusetk.fusion import FUSIONS
from fusetk.fusion.base import Fusion, FusionConfig, share_layer_embedding
from fusetk.fusion.last import Last
from fusetk.models.memory import ATTENDS, MemoryAttention
from fusetk.models.seq2seq import Memory, ModelConfig, Seq2Seq, State
from fusetk.models.transformer import check_tying
from fusetk.nn.additive import AdditiveAttention
from fusetk.nn.cells import Bottom, Cell, Transition
from fusetk.nn.dropout import Dropout
from fusetk.nn.output import OutputProjection
from fusetk.nn.packing import Packing, packing
from fusetk.nn.positions import Sinusoidal
from fusetk.nn.precision import product_dtype
from fusetk.nn.recurrence import Across, recur
from fusetk.special_tokens import PAD


class TransitionConfig(Config):
    """How a state becomes the next one."""

    cell: Bottom = "l-gru"
    """The cell at the bottom, which reads the input."""
    depth: int = Field(1, ge=0)
    """T-GRUs above it, which read the state alone; 0 is the shallow part of Table 4."""


class RecurrentEncoderConfig(TransitionConfig):
    """The source's side: two directions, each with such a transition."""

    fuse: Annotated[FusionConfig, component(FUSIONS, "a fusion", Fusion)] = FusionConfig(
        kind="last"
    )
    """What is attended to, of the embedding and the states of a time step; with `last` the highest of them."""


class RecurrentDecoderConfig(TransitionConfig):
    """The transition that reads what attention found, and the target's sites."""

    fuse: Annotated[FusionConfig, component(FUSIONS, "a fusion", Fusion)] = FusionConfig(
        kind="last"
    )
    """What a word is predicted from, of the embedding and the states of a time step, those of `query` first; the recurrence goes on
    with the highest."""
    attend: Annotated[
        ComponentConfig, component(ATTENDS, "an attention to encoder layers", MemoryAttention)
    ] = ComponentConfig(kind="top")
    """Which states of the encoder are attended to; there is one attention, so not `layerwise`."""


class RecurrentConfig(ModelConfig):
    """Sizes and choices of a recurrent model."""

    kind: str = "recurrent"
    width: int = Field(1024, ge=1)
    """Features of states, and of attention."""
    embedding: int | None = Field(None, ge=1)
    """Features of words, and of what is compared with them at the end; as `width` if not given."""
    heads: int = Field(16, ge=1)
    """Heads of the additive attention. On a GPU, kernels want them, and the features of each, to be powers of two."""
    encoder: RecurrentEncoderConfig = RecurrentEncoderConfig()
    """The source's transition."""
    query: TransitionConfig = TransitionConfig()
    """The target's transition from the word before to the state that looks for the source."""
    decoder: RecurrentDecoderConfig = RecurrentDecoderConfig()
    """The target's transition from what was found to the state that predicts the word."""
    layer_norm: bool = True
    """Normalise each gate before its sigmoid."""
    positions: Literal["sinusoidal", "none"] = "sinusoidal"
    """Sines and cosines, times 1 / sqrt(features), are added to words."""
    project_context: bool = False
    """Map what attention found to `width` before it is read, as the authors' code does; their counts of parameters say that the
    paper's systems did not."""
    embedding_dropout: float = Field(0.3, ge=0, lt=1)
    """On words."""
    candidate_dropout: float = Field(0.1, ge=0, lt=1)
    """On the candidate of every cell, before it is mixed into the state."""
    output_dropout: float = Field(0.3, ge=0, lt=1)
    """On what is compared with the words at the end."""
    tie: Literal["none", "target", "all"] = "none"
    """Share the output matrix with the target embedding, or with both embeddings (one joint vocabulary)."""
    output_bias: bool = True
    """A bias for each word of the target vocabulary."""
    init: float = Field(0.08, gt=0)
    """Matrices and embeddings begin uniform between minus this and this."""

    @model_validator(mode="after")
    def _sites_fit(self) -> "RecurrentConfig":
        encoder, decoder = self.encoder, self.decoder
        encoder.fuse.check(encoder.depth + 1)
        decoder.fuse.check(self.query.depth + decoder.depth + 2)
        attend = resolve(decoder.attend.kind, ATTENDS, MemoryAttention)
        if attend.layer_by_layer:
            raise ValueError(
                f"decoder.attend: {decoder.attend.kind} needs an attention in each layer, and a recurrent decoder has one"
            )
        if not attend.reads_top and encoder.fuse.kind != "last":
            raise ValueError(
                f"decoder.attend: {decoder.attend.kind} reads the encoder's states themselves, so of encoder.fuse: {encoder.fuse.kind} "
                "only the decoder's first state would come: take one of them away"
            )
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is no multiple of heads {self.heads}")
        return self


class Embedding(nn.Module):
    """Words plus a bias plus positions times 1 / sqrt(E), with dropout."""

    def __init__(self, config: RecurrentConfig, vocabulary: int, tied: nn.Embedding | None = None):
        super().__init__()
        size = config.embedding or config.width
        self.tokens = nn.Embedding(vocabulary, size) if tied is None else tied
        self.bias = nn.Parameter(torch.zeros(size))
        self.positions = Sinusoidal(size) if config.positions == "sinusoidal" else None
        self.dropout = Dropout(config.embedding_dropout)

    def forward(self, ids: Tensor, start: int = 0) -> Tensor:
        """Ids (B, T) of positions start .. start + T - 1 -> (B, T, E)."""
        found = self.tokens(ids) + self.bias
        if self.positions is not None:
            found = found + self.positions(start, ids.shape[1]) * found.shape[-1] ** -0.5
        return self.dropout(found)


class Recurrent(Seq2Seq):
    """A bidirectional encoder, and a decoder of two transitions with attention between them."""

    Config = RecurrentConfig

    def __init__(self, config: RecurrentConfig, source_size: int, target_size: int):
        """Vocabulary sizes count the special tokens. Raises ConfigError when they, or the heads, do not fit."""
        super().__init__()
        check_tying(config.tie, source_size, target_size)
        width, norm = config.width, config.layer_norm
        size = config.embedding or width
        self.source = Embedding(config, source_size)
        self.target = Embedding(
            config, target_size, self.source.tokens if config.tie == "all" else None
        )
        encoder, query, decoder = config.encoder, config.query, config.decoder
        self.encoder = Transition(encoder.cell, encoder.depth, size, width, 2, norm)
        encoder_widths = [size] + [2 * width] * (encoder.depth + 1)
        self.encoder_fuse = build_fusion(encoder.fuse, encoder_widths, "encoder.fuse")
        self.attend: MemoryAttention = resolve(decoder.attend.kind, ATTENDS, MemoryAttention)(
            decoder.attend, encoder_widths, self.encoder_fuse.out_width
        )
        widths = self.attend.widths
        context = widths[0] if len(widths) == 1 else 2 * width
        if context % config.heads:
            raise ConfigError(
                f"model.decoder.attend: there are {context} features to attend to, no multiple of heads {config.heads}"
            )
        self.keys = nn.ModuleList(nn.Linear(found, width, bias=False) for found in widths)
        self.values = nn.ModuleList(
            nn.Identity() if found == context else nn.Linear(found, context, bias=False)
            for found in widths
        )
        self.initial = nn.Linear(self.encoder_fuse.out_width, width)
        self.query = Transition(query.cell, query.depth, size, width, norm=norm)
        self.attention = AdditiveAttention(width, config.heads, len(widths))
        self.project = nn.Linear(context, width, bias=False) if config.project_context else None
        self._projected: Tensor | None = None
        self.context_width = width if config.project_context else context
        self.decoder = Transition(decoder.cell, decoder.depth, self.context_width, width, norm=norm)
        states = [width] * (query.depth + decoder.depth + 2)
        self.decoder_fuse = build_fusion(decoder.fuse, [size, *states], "decoder.fuse")
        share_layer_embedding(self.encoder_fuse, self.decoder_fuse)
        self.readout = nn.Linear(size + self.decoder_fuse.out_width + self.context_width, size)
        self.candidate_dropout, self.output_dropout = (
            Dropout(config.candidate_dropout),
            Dropout(config.output_dropout),
        )
        self.output = OutputProjection(
            size,
            target_size,
            config.output_bias,
            None if config.tie == "none" else self.target.tokens.weight,
        )
        self.name = f"decoder.layer{query.depth + 1}.cross"
        uniform(self, config.init)

    def encode(self, src: Tensor, src_mask: Tensor) -> Memory:
        words = self.source(src)
        packed = packing(src_mask.sum(1), src.shape[1], _multiple(words))
        read = packed.pack(words)
        x = torch.stack((read, read.index_select(0, packed.mirrored))) @ self.encoder.input
        nothing = words.new_zeros(2, packed.sizes[0], self.encoder.width, dtype=_state_dtype(words))
        states = recur(self.encoder, x, nothing, packed.sizes, self.candidate_dropout).states
        if isinstance(self.encoder_fuse, Last) and self.attend.reads_top:
            states = states[-1:]
        found = [
            packed.unpack(torch.cat((there, back.index_select(0, packed.mirrored)), -1)).to(
                words.dtype
            )
            for there, back in states
        ]
        history = (words, *found)
        return Memory(history, self.encoder_fuse(history), src_mask)

    def start(self, memory: Memory) -> State:
        sources = self.attend.sources(memory)
        keys = torch.cat(
            [project(source) for project, source in zip(self.keys, sources, strict=True)], 1
        )
        values = torch.cat(
            [project(source) for project, source in zip(self.values, sources, strict=True)], 1
        )
        if len(sources) > 1:
            values = values * len(sources) ** -0.5
        mask = memory.mask[..., None]
        mean = (memory.top * mask).sum(1) / mask.sum(1)
        return State(
            (keys, values, memory.mask), (torch.tanh(self.initial(mean)).to(_state_dtype(mean)),), 0
        )

    def decode(self, tgt_in: Tensor, state: State) -> tuple[Tensor, State]:
        keys, values, mask = state.fixed
        [before] = state.moving
        words = self.target(tgt_in, state.step)
        if not state.step:  # what stands before the first word is nothing
            words = torch.cat((torch.zeros_like(words[:, :1]), words[:, 1:]), 1)
        packed = self._packing(tgt_in, len(keys), words)
        read = words[:, 0] if packed is None else packed.pack(words)
        if packed is not None:
            before = before.index_select(0, packed.order)
            if len(keys) == len(words):  # one hypothesis a sentence
                keys, values, mask = (
                    tensor.index_select(0, packed.order) for tensor in (keys, values, mask)
                )
        across = Across(self.attention, self.decoder, self._input(), keys, values, mask)
        sizes = [len(words)] if packed is None else packed.sizes
        wanted = trace.wanted(self.name)
        states, contexts, weights = recur(
            self.query,
            (read @ self.query.input[0])[None],
            before[None],
            sizes,
            self.candidate_dropout,
            across,
            wanted,
        )
        assert contexts is not None
        if isinstance(self.decoder_fuse, Last):
            states = states[-1:]

        def unpacked(x: Tensor) -> Tensor:
            return x[:, None] if packed is None else packed.unpack(x)

        last = unpacked(states[-1][0])[:, -1]
        if wanted and weights is not None:
            self._record(unpacked(weights), len(state.fixed[0]))
        found = [read, *(one[0].to(words.dtype) for one in states), contexts]
        if not self.training:  # whoever watches a fusion wants to see sentences
            found = [unpacked(one) for one in found]
        *history, context = found
        if self.project is not None:
            context = self.project(context)
        features = torch.tanh(
            self.readout(torch.cat((history[0], self.decoder_fuse(history), context), -1))
        )
        features = self.output_dropout(features)
        return unpacked(features) if self.training else features, State(
            state.fixed, (last,), state.step + tgt_in.shape[1]
        )

    def _input(self) -> Tensor:
        """What maps what attention found to the columns that the decoder reads; without gradients it is made once."""
        if self.project is None:
            return self.decoder.input[0]
        if self.training or torch.is_grad_enabled():
            return self.project.weight.mT @ self.decoder.input[0]
        if self._projected is None:
            self._projected = self.project.weight.mT @ self.decoder.input[0]
        return self._projected

    def train(self, mode: bool = True) -> "Recurrent":
        self._projected = None
        super().train(mode)
        return self

    def _packing(self, tgt_in: Tensor, sentences: int, words: Tensor) -> Packing | None:
        """None for a single step; of several, the steps of each row up to its last word."""
        rows, steps = tgt_in.shape
        if steps == 1:
            return None
        last = torch.arange(1, steps + 1, device=tgt_in.device)
        if rows != sentences:  # hypotheses of a sentence stay together
            return packing(last[-1:].expand(rows), steps)
        return packing((last * (tgt_in != PAD)).amax(1).clamp_min(1), steps, _multiple(words))

    def _record(self, weights: Tensor, sentences: int) -> None:
        """Weights (B * K, T, n * S, H)."""
        found = weights.reshape(
            sentences,
            -1,
            self.attention.sources,
            weights.shape[2] // self.attention.sources,
            self.attention.heads,
        )
        trace.record(self.name, found.permute(0, 2, 4, 1, 3).flatten(1, 2))  # (B, n * H, K * T, S)


def _multiple(words: Tensor) -> int:
    """What numbers of rows are rounded up to a multiple of: for bf16 on CPU each new shape of a product is compiled first."""
    return 16 if words.device.type == "cpu" and product_dtype(words) == torch.bfloat16 else 1


def _state_dtype(words: Tensor) -> torch.dtype:
    """States are float32 at least: what is added to them step by step would be lost in less."""
    return torch.promote_types(words.dtype, torch.float32)


def build_fusion(config: FusionConfig, widths: Sequence[int], name: str) -> Fusion:
    """A fusion of the states of a time step; ``widths`` of the history, the embedding's first."""
    built: Fusion = resolve(config.kind, FUSIONS, Fusion)(config, widths, widths[-1], name)
    return built


def uniform(model: nn.Module, bound: float) -> None:
    """Matrices, embeddings and the vector of attention U(-bound, bound) (Meng and Zhang 2019); biases 0, gains 1."""
    for module in model.modules():
        if isinstance(module, Cell):
            drawn: list[Tensor] = [module.state, *([] if module.input is None else [module.input])]
        elif isinstance(module, AdditiveAttention):
            drawn = [module.query, module.vector]
        elif isinstance(module, nn.Linear | nn.Embedding | OutputProjection):
            drawn = [module.weight]
        else:
            continue
        for weight in drawn:
            nn.init.uniform_(weight, -bound, bound)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
