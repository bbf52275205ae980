"""Imports point down only, and fast commands do not import torch."""

import ast
import subprocess
import sys
from pathlib import Path

from tools.layout import ENTRY_POINTS, ROOT, imported, modules

# The packages and modules that each one may import, lowest first. All may import EVERYWHERE.
ALLOWED = {
    "errors": set(),
    "display": set(),
    "special_tokens": set(),
    "trace": set(),
    "files": set(),
    "config": set(),
    "papers": set(),
    "runs": set(),
    "parent": set(),
    "processes": {"parent"},
    "priority": set(),
    "processor": set(),
    "spinning": set(),
    "nn": {"processor"},
    "ways": {"models", "nn"},
    "machine": {"ways", "nn", "processor", "spinning"},
    "doctor": {"machine", "nn", "processor", "ways"},
    "weights": {"runs"},
    "data": set(),
    "fusion": {"nn"},
    "models": {"fusion", "nn"},
    "decoding": {"models", "nn", "data", "processes"},
    "evaluation": {"decoding", "models", "fusion", "nn", "data"},
    "plotting": {"evaluation", "decoding", "models", "fusion", "data", "runs"},
    "training": {
        "evaluation",
        "decoding",
        "models",
        "fusion",
        "data",
        "nn",
        "processes",
        "runs",
        "weights",
        "ways",
    },
    "sections": {"papers", "training", "decoding", "data"},
    "recipe": {"sections", "models", "data"},
    "system": {"recipe", "weights", "runs", "machine", "ways", "decoding", "models", "nn", "data"},
    "ctranslate2": {"system", "runs", "models", "nn", "data"},
    "serving": {"system", "decoding"},
    "exploring": {"serving", "system", "plotting", "evaluation", "decoding", "models", "data"},
    "datasets": {"data"},
    "experiment": {
        "parent",
        "machine",
        "resume",
        "recipe",
        "sections",
        "papers",
        "training",
        "runs",
        "data",
        "datasets",
        "evaluation",
    },
    "estimate": {"system", "recipe", "training", "models", "data", "machine"},
    "reporting": {
        "plotting",
        "system",
        "recipe",
        "papers",
        "evaluation",
        "models",
        "runs",
        "data",
    },
    "demo": {
        "experiment",
        "reporting",
        "plotting",
        "evaluation",
        "system",
        "recipe",
        "models",
        "data",
        "runs",
        "resume",
    },
    "resume": {"recipe", "training", "data", "machine", "runs", "weights"},
    "train": {
        "resume",
        "system",
        "recipe",
        "sections",
        "training",
        "models",
        "data",
        "machine",
        "processor",
        "processes",
        "runs",
        "ways",
    },
}
EVERYWHERE = {
    "config",
    "display",
    "errors",
    "trace",
    "files",
    "special_tokens",
    "__version__",
    "DEVICE",
    "PRECISIONS",
}


def test_imports_point_down_only() -> None:
    known = modules()
    wrong = []
    used: dict[str, set[str]] = {top: set() for top in ALLOWED}
    for name, path in known.items():
        top = name.split(".")[0]
        if top in (*ENTRY_POINTS, "cli"):
            continue
        assert top in ALLOWED, f"{top} is not in the table of this test"
        names = {other.split(".")[0] for other in imported(path, known)}
        used[top] |= names
        wrong += [f"{name} imports {other}" for other in names - ALLOWED[top] - EVERYWHERE - {top}]
    wrong += [
        f"nothing in {top} imports {other}, so it need not be allowed"
        for top, allowed in ALLOWED.items()
        for other in allowed - used[top]
    ]
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


def test_the_help_of_every_command_imports_neither_torch_nor_matplotlib() -> None:
    code = (
        "import sys; from click.testing import CliRunner\n"
        "from fusetk.cli.main import COMMANDS, main\n"
        "for words in ([], ['text', 'tokenize'], *([name] for name in COMMANDS)):\n"
        "    assert CliRunner().invoke(main, [*words, '--help']).exit_code == 0, words\n"
        "    assert not {'torch', 'matplotlib'} & set(sys.modules), words"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_validators_of_configs_are_built_at_their_first_use() -> None:
    code = (
        "from fusetk import sections\n"
        "from fusetk.data.config import DataConfig\n"
        "from fusetk.training.schedule import SCHEDULES\n"
        "classes = [DataConfig, *(schedule.Config for schedule in SCHEDULES.values())]\n"
        "assert not any(config.__pydantic_complete__ for config in classes), classes"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_most_config_errors_do_not_import_torch(toy: Path) -> None:
    """Only errors in the section model need its classes, which import torch."""
    for command, overrides, status, imported_torch in (
        ("prep", [], 0, False),
        ("prep", ["data.sorce=de"], 2, False),
        ("prep", ["data.folder=other", "training.seed=x"], 2, False),
        ("prep", ["data.folder=other", "model.kind=nothing"], 2, True),
        ("train", ["training.stages.0.optimizer=adm"], 2, False),
        ("train", ["decoding.beam=0", "modell.width=3"], 2, False),
        ("describe", ["training.seed"], 2, False),
        ("estimate", ["data.train=3"], 2, False),
        ("run", ["training.validation.metric=blue"], 2, False),
    ):
        arguments = [command, str(toy), *(["--raw", "."] if command == "run" else [])]
        arguments += [word for override in overrides for word in ("--set", override)]
        code = (
            "import sys; from click.testing import CliRunner; from fusetk.cli.main import main\n"
            f"result = CliRunner().invoke(main, {arguments})\n"
            f"assert result.exit_code == {status}, result.output\n"
            f"assert ('torch' in sys.modules) == {imported_torch}, result.output\n"
            "assert 'sacremoses' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", code], check=True, cwd=toy.parent)
        assert not (toy.parent / "other" / "manifest.json").exists()
