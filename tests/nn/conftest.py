"""Fixtures of the tests of kernels."""

from collections.abc import Iterator

import pytest

from tests.helpers.threads import torch_threads


@pytest.fixture
def two_threads() -> Iterator[None]:
    """The kernels share rows between two threads, which sum gradients of parameters apart."""
    with torch_threads(2):
        yield
