"""Each mutation of tests/mutations.py fits the code."""

import pytest

from tests.mutations import MUTATIONS, Mutation, misfit


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_fits_the_code(mutation: Mutation) -> None:
    assert not misfit(mutation)
