"""Fused kernels of recurrences, convolutions, connections and Transformers, and matrix products.

The kernels for training have hand-written gradients.
"""

import os

# Numbers of the cells in the kernels.
CELL_NUMBERS = {"gru": 0, "t-gru": 1, "l-gru": 2, "lau": 3}


def enabled() -> bool:
    """Whether the fused kernels are enabled; FUSETK_KERNELS=off disables them."""
    return os.environ.get("FUSETK_KERNELS", "").lower() not in ("off", "0", "no", "false")
