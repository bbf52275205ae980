"""The number of threads of torch, which is 1 in other tests (`tests/conftest.py`)."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Compute with a number of threads within this context."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
