"""Two small trained runs for all tests of the explorer."""

from pathlib import Path

import pytest

from tests.exploring.runs import trained


@pytest.fixture(scope="session")
def runs(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The folders of a Transformer, and of a model with a fusion and connections."""
    return trained(toy, tmp_path_factory.mktemp("explorer"))
