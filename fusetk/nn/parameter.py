"""Parameters without initial values."""

import math

import torch
from torch import nn


def unset_parameter(*shape: int) -> nn.Parameter:
    """Return a parameter of NaN: the model sets its initial values.

    Memory that is not initialised would give arbitrary weights if a model forgot this.
    """
    return nn.Parameter(torch.full(shape, math.nan))
