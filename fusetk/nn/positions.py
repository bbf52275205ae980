"""Positional encodings: vectors that are added to the embeddings."""

import math

import torch
from torch import Tensor, nn

from fusetk.nn.parameter import unset_parameter


def sinusoids(length: int, width: int) -> Tensor:
    """Return the encodings of Vaswani et al. 2017, section 3.5: (length, width).

    PE(t, 2i) = sin(t / 10000^(2i/D)), PE(t, 2i+1) = cos(t / 10000^(2i/D)). All models use them.
    THUMT, on which DTMT is built, has other exponents and another order of the features.
    """
    rates = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(10000.0) / width))
    angles = torch.arange(length, dtype=torch.float64)[:, None] * rates
    table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
    return table[:, :width].float()


class Sinusoidal(nn.Module):
    """Sinusoidal encodings, without parameters and without a limit on the length."""

    max_positions: int | None = None

    def __init__(self, width: int, rows: int = 1024):
        """``rows`` is the first size of the table, which is doubled for longer sentences."""
        super().__init__()
        self.register_buffer("table", sinusoids(rows, width), persistent=False)
        self.table: Tensor

    def forward(self, start: int, length: int) -> Tensor:
        """Return the vectors of positions start .. start + length - 1: (length, D)."""
        end = start + length
        table = self.table  # other threads may replace it
        if end > len(table):
            with torch.inference_mode(False):  # the table may be used in training later
                rows = 1 << (end - 1).bit_length()
                table = sinusoids(rows, table.shape[1]).to(table)
                self.table = table
        return table[start:end]


class Learned(nn.Module):
    """A learned vector for each position (Gehring et al. 2017).

    A sentence has at most ``max_positions`` tokens.
    """

    def __init__(self, width: int, max_positions: int):
        super().__init__()
        self.max_positions = max_positions
        self.weight = unset_parameter(max_positions, width)

    def forward(self, start: int, length: int) -> Tensor:
        """Return the vectors of positions start .. start + length - 1: (length, D).

        Raises ValueError if there are more than ``max_positions`` positions.
        """
        if start + length > self.max_positions:
            raise ValueError(
                f"the sentence has {start + length} positions, but the model has vectors for only "
                f"{self.max_positions} (model.max_positions): shorten the sentence"
            )
        return self.weight[start : start + length]
