"""The recurrence of ``nn/recurrence.py`` with kernels of its own, and its gradients by hand."""

import os

KINDS = {"gru": 0, "t-gru": 1, "l-gru": 2, "lau": 3}  # as the kernels know them


def wanted() -> bool:
    """Whether the environment does not say otherwise."""
    return os.environ.get("FUSETK_KERNELS", "").lower() not in ("off", "0", "no", "false")
