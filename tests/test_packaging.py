"""Installation from a clone: metadata, requirements, tested versions, make targets."""

import ast
import configparser
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import fusetk

ROOT = Path(__file__).parent.parent
# Packages whose import name differs from their name.
IMPORTED_AS = {"pyyaml": "yaml", "subword-nmt": "subword_nmt"}
OPTIONAL = {"tensorboard", "sentencepiece", "ctranslate2", "starlette", "uvicorn", "comet"}


@pytest.fixture(scope="module")
def setup() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def requirements(text: str) -> list[Requirement]:
    return [Requirement(line) for line in text.strip().splitlines()]


def constraints() -> dict[str, Requirement]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonical(pin.name): pin for pin in pins}


def requirements_of_make_test(setup: configparser.ConfigParser) -> list[Requirement]:
    """Return the requirements that `make test` installs."""
    extras = setup["options.extras_require"]
    texts = [setup["options"]["install_requires"], extras["test"], extras["docs"]]
    return [requirement for text in texts for requirement in requirements(text)]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_metadata(setup):
    assert setup["metadata"]["name"] == "fusetk"
    assert setup["metadata"]["version"] == "attr: fusetk.__version__"
    assert setup["options"]["python_requires"] == ">=3.10"
    assert re.fullmatch(r"\d+\.\d+\.\d+", fusetk.__version__)


def test_the_command_of_the_entry_point_exists(setup):
    name, _, place = setup["options.entry_points"]["console_scripts"].strip().partition(" = ")
    module, _, function = place.partition(":")
    assert name == "fusetk" and callable(getattr(importlib.import_module(module), function))


def test_every_import_is_required_and_every_requirement_imported(setup):
    imported = set()
    folders = [ROOT / name for name in ("fusetk", "recipes", "tools")]
    for path in [path for folder in folders for path in folder.rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.split(".")[0])
    own = {"fusetk", "tools", *(path.stem for path in (ROOT / "recipes").rglob("*.py"))}
    outside = imported - own - set(sys.stdlib_module_names)
    required = {
        IMPORTED_AS.get(requirement.name, requirement.name)
        for requirement in requirements(setup["options"]["install_requires"])
    }
    # pydantic requires one version of pydantic-core; torch with CUDA requires triton; matplotlib
    # requires pillow.
    assert outside - OPTIONAL - {"pydantic_core", "triton", "PIL"} == required


def test_data_files_are_installed(setup):
    package = ROOT / "fusetk"
    patterns = setup["options.package_data"]["fusetk"].split()
    installed = {path for pattern in patterns for path in package.glob(pattern)}
    endings = (".cpp", ".css", ".html", ".js", ".sbatch", ".yaml")
    files = {path for path in package.rglob("*") if path.suffix in endings}
    assert files and files <= installed


def test_lower_bounds_are_loose_and_the_tested_versions_satisfy_them(setup):
    tested = constraints()
    for requirement in requirements_of_make_test(setup):
        assert {spec.operator for spec in requirement.specifier} <= {">="}, requirement
        (pin,) = tested[canonical(requirement.name)].specifier
        assert (
            pin.operator == "=="
            and "+" not in pin.version
            and requirement.specifier.contains(pin.version)
        ), requirement


def test_constraints_pin_indirect_requirements(setup):
    """The requirements of requirements, if they are installed on this machine."""
    from importlib.metadata import PackageNotFoundError, distribution

    tested = constraints()
    waiting = [requirement.name for requirement in requirements_of_make_test(setup)]
    seen: set[str] = set()
    while waiting:
        name = canonical(waiting.pop())
        if name in seen:
            continue
        seen.add(name)
        try:
            needed = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        for entry in map(Requirement, needed):
            if not entry.marker or entry.marker.evaluate({"extra": ""}):
                waiting.append(entry.name)
    # A CUDA build of torch requires its own versions of its vendor's packages.
    missing = {
        name
        for name in seen - set(tested)
        if not name.startswith(("nvidia-", "cuda-")) and name != "triton"
    }
    assert not missing


def test_versions_that_need_a_newer_python_say_so():
    """Python 3.10 can install with the same file."""
    from importlib.metadata import PackageNotFoundError, metadata

    from packaging.specifiers import SpecifierSet

    for name, requirement in constraints().items():
        try:
            package = metadata(name)
        except PackageNotFoundError:
            continue
        (pin,) = requirement.specifier
        if package["Version"].partition("+")[0] != pin.version:
            continue
        if not SpecifierSet(package["Requires-Python"] or "").contains("3.10.14"):
            assert requirement.marker and not requirement.marker.evaluate(
                {"python_version": "3.10"}
            ), name


@pytest.mark.parametrize("target", ["venv", "demo", "dist", "test", "man", "layout", "clean"])
def test_make_knows_its_targets(target):
    ran = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_make_test_lints_checks_types_and_runs_the_tests():
    plan = subprocess.run(
        ["make", "--dry-run", "test"], cwd=ROOT, capture_output=True, text=True
    ).stdout
    assert all(word in plan for word in ("ruff check", "mypy", "pytest"))


def test_continuous_integration_runs_make_test():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK) and script.read_text(encoding="utf-8").rstrip().endswith(
        "make test"
    )


def test_scripts_can_be_run():
    for path in (ROOT / "recipes").glob("run_*.sh"):
        assert os.access(path, os.X_OK), path
        assert "set -euo pipefail" in path.read_text(encoding="utf-8")


def test_the_citation_has_the_version_and_the_address_of_the_package(setup):
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == fusetk.__version__
    assert citation["license"] == setup["metadata"]["license"]
    assert citation["repository-code"] == setup["metadata"]["url"]
    assert len(citation["references"]) == 5 and citation["cff-version"] == "1.2.0"


def test_the_source_archive_has_everything_that_is_tracked():
    """Only settings of tools for a checkout are missing."""
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True
    ).stdout.splitlines()
    if not tracked:
        pytest.skip("not a checkout")
    manifest = (ROOT / "MANIFEST.in").read_text(encoding="utf-8")
    lines = [line.split() for line in manifest.splitlines()]
    grafted = {word for command, *words in lines if command == "graft" for word in words}
    included = {word for command, *words in lines if command == "include" for word in words}
    always = {"LICENSE", "README.md", "setup.cfg", "pyproject.toml", "MANIFEST.in"}
    missing = {
        path
        for path in tracked
        if path.split("/")[0] not in {"fusetk", *grafted} and path not in included | always
    }
    assert missing <= {".gitignore", ".ci/run"}
