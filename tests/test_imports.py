"""Imports point down only, and fast commands do not import torch."""

import ast
import subprocess
import sys
from pathlib import Path

from tools.layout import ENTRY_POINTS, ROOT, imported, modules

# The packages and modules that each one may import, lowest first. All may import EVERYWHERE.
ALLOWED = {
    "errors": set(),
    "special_tokens": set(),
    "trace": set(),
    "files": set(),
    "config": set(),
    "papers": set(),
    "runs": set(),
    "processes": set(),
    "nn": set(),
    "machine": {"nn"},
    "doctor": {"machine", "nn"},
    "weights": {"runs"},
    "data": set(),
    "fusion": {"nn"},
    "models": {"fusion", "nn"},
    "decoding": {"models", "nn", "data", "processes"},
    "evaluation": {"decoding", "data"},
    "plotting": {"decoding", "models", "fusion", "nn", "data", "runs"},
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
    "recipe": {"papers", "training", "decoding", "models", "data"},
    "system": {"recipe", "weights", "runs", "machine", "decoding", "models", "nn", "data"},
    "ctranslate2": {"system", "runs", "models", "nn"},
    "serving": {"system", "decoding"},
    "exploring": {"serving", "system", "recipe", "plotting", "decoding", "models", "data"},
    "datasets": {"data"},
    "experiment": {"recipe", "training", "runs", "data", "datasets"},
    "estimate": {"system", "recipe", "training", "models", "data", "machine"},
    "reporting": {
        "plotting",
        "system",
        "recipe",
        "papers",
        "evaluation",
        "decoding",
        "runs",
        "data",
    },
    "demo": {
        "experiment",
        "reporting",
        "plotting",
        "system",
        "recipe",
        "data",
        "runs",
    },
    "resume": {"recipe", "training", "data", "machine", "runs", "weights"},
    "train": {
        "resume",
        "system",
        "recipe",
        "training",
        "models",
        "data",
        "machine",
        "processes",
        "runs",
        "weights",
    },
}
EVERYWHERE = {"config", "errors", "trace", "files", "special_tokens", "__version__", "DEVICE"}


def test_imports_point_down_only() -> None:
    known = modules()
    wrong = []
    for name, path in known.items():
        top = name.split(".")[0]
        if top in (*ENTRY_POINTS, "cli"):
            continue
        assert top in ALLOWED, f"{top} is not in the table of this test"
        names = {other.split(".")[0] for other in imported(path, known)}
        wrong += [f"{name} imports {other}" for other in names - ALLOWED[top] - EVERYWHERE - {top}]
    assert not wrong


def test_no_import_cycle_of_files() -> None:
    """Imports inside functions and for type checking count, too."""
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
    assert not imports, f"import cycle; these files are in it or import it: {sorted(imports)}"


def test_decoding_imports_only_the_interface_of_models() -> None:
    for path in (ROOT / "decoding").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fusetk.models"):
                assert node.module == "fusetk.models.seq2seq", path


def test_help_and_pipes_do_not_import_torch() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from fusetk.cli.main import main\n"
        "assert CliRunner().invoke(main, ['--help']).exit_code == 0\n"
        "assert CliRunner().invoke(main, ['text', 'tokenize', '--help']).exit_code == 0\n"
        "assert CliRunner().invoke(main, ['score', '--help']).exit_code == 0\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_prep_of_nothing_new_imports_neither_torch_nor_sacremoses(toy: Path) -> None:
    for overrides, status, imported_torch in (
        ([], 0, False),
        (["--set", "data.sorce=de"], 2, False),
        (["--set", "data.folder=other", "--set", "model.kind=nothing"], 2, True),
    ):
        code = (
            "import sys; from click.testing import CliRunner; from fusetk.cli.main import main\n"
            f"result = CliRunner().invoke(main, ['prep', {str(toy)!r}, *{overrides}])\n"
            f"assert result.exit_code == {status}, result.output\n"
            f"assert ('torch' in sys.modules) == {imported_torch}\n"
            "assert 'sacremoses' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", code], check=True, cwd=toy.parent)
        assert not (toy.parent / "other" / "manifest.json").exists()
