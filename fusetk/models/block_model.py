"""The base of ``transformer`` and ``coordinated``: embeddings and output projection."""

from torch import Tensor, nn

from fusetk.models.initialise import INITIALISERS, initialise_parts
from fusetk.models.seq2seq import Seq2Seq, check_tying
from fusetk.models.transformer_layer import BlockConfig
from fusetk.nn.dropout import Dropout
from fusetk.nn.output import OutputProjection
from fusetk.nn.packed_layout import PackedLayout
from fusetk.nn.positions import Learned, Sinusoidal
from fusetk.nn.projection import projection_or_identity


class TransformerEmbedding(nn.Module):
    """Token embeddings times sqrt(D), plus positions, plus a language vector, with dropout."""

    def __init__(
        self,
        config: BlockConfig,
        vocabulary: int,
        tied: nn.Embedding | None = None,
        language: bool = False,
    ):
        """``tied``: token embeddings to share.

        ``language``: whether to add one learned vector to all positions.
        """
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, config.width) if tied is None else tied
        self.positions: Sinusoidal | Learned | None = None
        if config.positions == "learned":
            self.positions = Learned(config.width, config.max_positions)
        elif config.positions == "sinusoidal":
            self.positions = Sinusoidal(config.width)
        self.language = nn.Embedding(1, config.width) if language else None
        rate = config.dropout if config.embedding_dropout is None else config.embedding_dropout
        self.dropout = Dropout(rate)
        self.scale = config.width**0.5

    def forward(self, ids: Tensor, start: int = 0, layout: PackedLayout | None = None) -> Tensor:
        """Ids (B, T) of positions start .. start + T - 1 -> (B, T, D).

        With ``layout``, the result is packed: (1, N, D).
        """
        x = self.tokens(ids if layout is None else layout.pack(ids)) * self.scale
        if self.positions is not None:
            vectors = self.positions(start, ids.shape[1])
            if layout is not None:
                # The gradient of vectors[layout.positions] depends on the order of the threads.
                vectors = vectors.index_select(0, layout.positions)
            x = x + vectors
        if self.language is not None:
            x = x + self.language.weight
        return self.dropout(x)

    @property
    def max_positions(self) -> int | None:
        """Length of the longest sentence, in tokens with EOS; None: no limit."""
        return None if self.positions is None else self.positions.max_positions


class BlockModel(Seq2Seq):
    """A model of Transformer layers.

    ``__init__`` builds the embeddings. A subclass then builds its stacks and calls
    ``_build_output``. The initial weights depend on this order.
    """

    converts_maps = True

    def __init__(
        self, config: BlockConfig, source_size: int, target_size: int, language: bool = False
    ):
        """Vocabulary sizes include the special tokens.

        ``language`` is that of ``TransformerEmbedding``. Raises ConfigError if the sizes do not
        allow ``tie``.
        """
        super().__init__()
        self.config = config
        check_tying(config.tie, source_size, target_size)
        self.source = TransformerEmbedding(config, source_size, language=language)
        tied = self.source.tokens if config.tie == "all" else None
        self.target = TransformerEmbedding(config, target_size, tied, language)
        self.max_positions = self.source.max_positions

    def _build_output(self, width: int, target_size: int) -> None:
        """Build the modules above the decoder, and set the initial weights of the model.

        ``width`` is that of the result of the decoder.
        """
        config = self.config
        self.to_output = projection_or_identity(width, config.width)
        matrix = None if config.tie == "none" else self.target.tokens.weight
        self.output = OutputProjection(config.width, target_size, config.output_bias, matrix)
        INITIALISERS[config.init](self)
        initialise_parts(self)
