"""Parameters without initial values."""

import math

import torch
from torch import nn


def unset_parameter(*shape: int) -> nn.Parameter:
    """Return a parameter whose values are NaN until the model initialises it.

    Without NaN, a model that does not initialise it would train with arbitrary weights.
    """
    return nn.Parameter(torch.full(shape, math.nan))
