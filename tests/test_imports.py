"""Imports go down only, and what must be quick imports no torch."""

import ast
import subprocess
import sys
from pathlib import Path

import fusetk

ROOT = Path(fusetk.__file__).parent

# What each package may import from fusetk, besides itself and the plain modules config, errors and trace.
ALLOWED = {
    "nn": set(),
    "data": set(),
    "fusion": {"nn"},
    "models": {"fusion", "nn"},
    "decoding": {"models", "nn", "data"},
    "evaluation": {"decoding", "data"},
    "plotting": {"decoding", "models", "fusion", "nn", "data"},
    "training": {"evaluation", "decoding", "models", "data", "nn", "processes"},
}
EVERYWHERE = {"config", "errors", "trace", "__version__"}


def imported(path: Path) -> set[str]:
    """Second part of every ``fusetk.x`` that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "fusetk":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fusetk."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("fusetk.")}
    return found


def test_imports_go_down_only() -> None:
    wrong = []
    for package, allowed in ALLOWED.items():
        files = list((ROOT / package).glob("*.py"))
        assert files, package
        for path in files:
            wrong += [f"{path.relative_to(ROOT)} imports {name}" for name in imported(path) - allowed - EVERYWHERE - {package}]
    assert not wrong


def test_decoding_knows_of_models_only_the_interface() -> None:
    for path in (ROOT / "decoding").glob("*.py"):
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
