"""Each mutation of tests/mutations.py fits the code."""

import re

import pytest

from tests.mutations import COPIED, MUTATIONS, ROOT, Mutation, misfit

IMPORT = re.compile(r"^(?:from|import) (\w+)", re.MULTILINE)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_fits_the_code(mutation: Mutation) -> None:
    assert not misfit(mutation)


def test_the_packages_that_tests_import_are_copied() -> None:
    names: set[str] = set()
    for path in (ROOT / "tests").rglob("*.py"):
        names.update(IMPORT.findall(path.read_text(encoding="utf-8")))
    packages = {name for name in names if (ROOT / name).is_dir()}
    assert {"fusetk", "tests"} <= packages <= set(COPIED)
