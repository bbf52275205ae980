"""The key ``batch`` of a stage of training. This module does not import numpy."""

from typing import Literal

from pydantic import Field, model_validator

from fusetk.config import Config

MOST_IN_BATCH = 10_000_000  # tokens or sentences of a batch, and batches of an update

UNITS = {
    "tokens": "target tokens",
    "sentences": "pairs",
    "longest": "tokens of the longer side, padded",
    "both": "tokens of both sides, padded",
}


class BatchConfig(Config):
    """Size of a batch, and number of batches in an update."""

    size: int = Field(4096, ge=1, le=MOST_IN_BATCH)
    """Largest size of a batch, in `unit`. Tokens include EOS."""
    unit: Literal["tokens", "sentences", "longest", "both"] = "tokens"
    """Unit of `size`. `tokens`: target tokens without padding. `sentences`: sentence pairs.
    `longest`: pairs times the length of the longest sentence of either side, as tensor2tensor and
    THUMT count. `both`: pairs times the largest sum of source and target length, as
    for sentences that are concatenated and padded (He et al. 2018, section 4.3)."""
    accumulate: int = Field(1, ge=1, le=MOST_IN_BATCH)
    """Number of batches whose gradients are summed for one update."""
    token_limit: int | None = Field(None, ge=1, le=MOST_IN_BATCH)
    """With `unit: sentences`, the limit of the tokens of a batch: pairs times the length of the
    longest sentence of either side. A batch with more tokens is split into parts of equal size, as
    in fairseq for Lua (`-maxbatch`): the number of pairs is halved until a part fits, or until it
    has one pair. By default batches are not split."""

    @model_validator(mode="after")
    def _limits_sentences(self) -> "BatchConfig":
        if self.token_limit is not None and self.unit != "sentences":
            raise ValueError(
                f"token_limit is a limit of batches in sentences, and with unit: {self.unit} "
                "`size` limits the tokens: remove token_limit"
            )
        return self
