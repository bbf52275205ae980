"""The backbones. To add one, write its file and name it here, or name ``package.module:Name`` in the config."""

from fusetk.models.conv import Conv
from fusetk.models.coordinated import Coordinated
from fusetk.models.recurrent import Recurrent
from fusetk.models.seq2seq import Memory, Seq2Seq, State
from fusetk.models.transformer import Transformer

MODELS: dict[str, type[Seq2Seq]] = {
    "transformer": Transformer,
    "conv": Conv,
    "coordinated": Coordinated,
    "recurrent": Recurrent,
}

__all__ = ["MODELS", "Memory", "Seq2Seq", "State"]
