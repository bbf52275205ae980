"""Imports go down only, and what must be quick imports no torch."""

import ast
import subprocess
import sys
from pathlib import Path

import fusetk

ROOT = Path(fusetk.__file__).parent

# The packages and modules that each may import, lowest first. All may import those in EVERYWHERE.
ALLOWED = {
    "errors": set(),
    "trace": set(),
    "files": set(),
    "config": set(),
    "runs": set(),
    "processes": set(),
    "nn": set(),
    "machine": {"nn"},
    "weights": {"runs"},
    "data": set(),
    "fusion": {"nn"},
    "models": {"fusion", "nn"},
    "decoding": {"models", "nn", "data", "processes"},
    "evaluation": {"decoding", "data"},
    "reporting": {"evaluation", "runs"},
    "plotting": {"decoding", "models", "fusion", "nn", "data"},
    "training": {
        "evaluation",
        "decoding",
        "models",
        "data",
        "nn",
        "processes",
        "runs",
        "weights",
    },
    "recipe": {"training", "decoding", "models", "data"},
    "system": {"recipe", "weights", "runs", "machine", "decoding", "models", "data"},
    "train": {"system", "recipe", "training", "models", "data", "machine", "processes", "runs"},
}
EVERYWHERE = {"config", "errors", "trace", "files", "__version__", "DEVICE"}


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name below fusetk."""
    names = {path: path.relative_to(ROOT).with_suffix("").as_posix() for path in ROOT.rglob("*.py")}
    return {name.removesuffix("/__init__").replace("/", "."): path for path, name in names.items()}


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of fusetk that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fusetk":
            module = ".".join(node.module.split(".")[1:])
            below = {f"{module}.{alias.name}".strip(".") for alias in node.names}
            names |= {name if name in known or not module else module for name in below}
        elif isinstance(node, ast.Import):
            names |= {alias.name[7:] for alias in node.names if alias.name.startswith("fusetk.")}
    return names


def test_imports_go_down_only() -> None:
    known, wrong = modules(), []
    for name, path in known.items():
        top = name.split(".")[0]
        if top in ("__init__", "__main__", "cli"):
            continue
        assert top in ALLOWED, f"{top} is not in the table of this test"
        names = {other.split(".")[0] for other in imported(path, known)}
        wrong += [f"{name} imports {other}" for other in names - ALLOWED[top] - EVERYWHERE - {top}]
    assert not wrong


def test_no_circle_of_files() -> None:
    """Also none through an import within a function or for type checking."""
    known = modules()
    imports = {
        name: imported(path, known) & known.keys()
        for name, path in known.items()
        if name != "__init__"
    }
    while leaves := [
        name for name, others in imports.items() if not others & imports.keys() - {name}
    ]:
        for name in leaves:
            del imports[name]
    assert not imports, f"these files import each other, or import such files: {sorted(imports)}"


def test_decoding_knows_of_models_only_the_interface() -> None:
    for path in (ROOT / "decoding").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fusetk.models"):
                assert node.module == "fusetk.models.seq2seq", path


def test_help_and_pipes_import_no_torch() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from fusetk.cli.main import main\n"
        "assert CliRunner().invoke(main, ['--help']).exit_code == 0\n"
        "assert CliRunner().invoke(main, ['text', 'tokenize', '--help']).exit_code == 0\n"
        "assert CliRunner().invoke(main, ['score', '--help']).exit_code == 0\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
