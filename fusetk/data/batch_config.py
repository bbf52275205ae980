"""The key ``batch`` of a stage of training. This module does not import numpy."""

from typing import Literal

from pydantic import Field

from fusetk.config import Config

UNITS = {
    "tokens": "target tokens",
    "sentences": "pairs",
    "longest": "tokens of the longer side, padded",
    "both": "tokens of both sides, padded",
}


class BatchConfig(Config):
    """Size of a batch, and number of batches in an update."""

    size: int = Field(4096, ge=1)
    """Largest size of a batch, in `unit`. Tokens include EOS."""
    unit: Literal["tokens", "sentences", "longest", "both"] = "tokens"
    """Unit of `size`. `tokens`: target tokens without padding. `sentences`: sentence pairs.
    `longest`: pairs times the length of the longest sentence of either side, as tensor2tensor and
    THUMT count. `both`: pairs times the largest sum of source and target length, as
    for sentences that are concatenated and padded (He et al. 2018, section 4.3)."""
    accumulate: int = Field(1, ge=1)
    """Number of batches whose gradients are summed for one update."""
