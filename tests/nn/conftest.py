"""Fixtures of the tests of kernels."""

from collections.abc import Iterator

import pytest

from tests.helpers.threads import torch_threads


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Compute with two threads.

    The kernels divide the rows between them. Each thread sums the gradients of parameters over its
    rows.
    """
    with torch_threads(2):
        yield
