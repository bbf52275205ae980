"""What every translation model is: the interfaces between encoder, decoder, training and search.

Names and shapes, here and everywhere: B sentences, K hypotheses a sentence, S source length, T target length, D width,
V vocabulary. Batch first. Masks are True at real tokens. Models know nothing of devices, processes, precision or files.
"""

from typing import NamedTuple

from pydantic import Field
from torch import Tensor, nn

from fusetk.config import ComponentConfig
from fusetk.nn.nested import NestedTensors
from fusetk.nn.output import OutputProjection
from fusetk.nn.weightnorm import NormedLinear


class Memory(NamedTuple):
    """What the encoder hands to the decoder."""

    # Each (B, S, D_i): the embedding (or the last summary), then the outputs of the layers above it, where somebody reads them.
    history: tuple[Tensor, ...]
    top: Tensor  # (B, S, D): the fused output, or the highest where nothing is fused
    mask: Tensor  # (B, S)
    embedded: Tensor | None = (
        None  # (B, S, E): words and positions as they were, where the decoder wants them
    )
    attended: tuple[
        Tensor, ...
    ] = ()  # each (B, S, ...): what each decoder layer attends to, where the encoder's layers made it


class State(NamedTuple):
    """All that decoding remembers, as a value: returned, never kept on a module. Axis 0 of every tensor is the batch."""

    fixed: NestedTensors  # per sentence (B, ...): projected keys and values, mask. Never repeated for K hypotheses
    moving: NestedTensors  # per hypothesis (B * K, ...): caches, windows, hidden states. The search selects rows of it
    step: int  # target positions read so far


class ModelConfig(ComponentConfig):
    """What every backbone's config has."""

    width: int = Field(512, ge=1)
    """d_model: embeddings, layer outputs; some learning-rate schedules go by it."""


class Seq2Seq(nn.Module):
    """A translation model. Subclasses build ``output`` and write ``encode``, ``start`` and ``decode``."""

    Config: type[ModelConfig]
    max_positions: int | None = (
        None  # longest sentence that can be read, in tokens, the end mark counted
    )
    output: (
        OutputProjection | NormedLinear
    )  # (..., D) -> (..., V), the unnormalised log-probabilities

    def encode(self, src: Tensor, src_mask: Tensor) -> Memory:
        """Source ids (B, S) and their mask (B, S), every row with at least one real token, all at the left."""
        raise NotImplementedError

    def start(self, memory: Memory) -> State:
        """The state before the first target token, one hypothesis a sentence (K = 1)."""
        raise NotImplementedError

    def decode(self, tgt_in: Tensor, state: State) -> tuple[Tensor, State]:
        """Read the next T target tokens (B * K, T): features (B * K, T, D) that ``output`` maps to the vocabulary.

        T is the whole sentence in training and 1 in search: one code path. Behind the words of a row PAD fills it up, and what comes
        out there is rubbish. K is what ``tgt_in`` says, B what ``state.fixed`` says; hypotheses of one sentence stand together.
        """
        raise NotImplementedError

    def forward(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        """Features (B, T, D) of a whole batch. What training calls, and what a data-parallel wrapper wraps."""
        features, _ = self.decode(tgt_in, self.start(self.encode(src, src_mask)))
        return features
