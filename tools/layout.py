"""Drawing of the layout from the imports: ``python -m tools.layout CONTRIBUTING.md``.

The command replaces the text between two markers in a Markdown file by a Mermaid graph of the
packages and modules of ``fusetk``.
"""

import argparse
import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent / "fusetk"
BEGIN = "<!-- layout: made by `make layout`, do not edit -->"
END = "<!-- layout: end -->"
ENTRY_POINTS = ("__init__", "__main__")


def modules() -> dict[str, Path]:
    """Return the path of every module of the package, by its dotted name below ``fusetk``."""
    paths = {}
    for path in ROOT.rglob("*.py"):
        name = path.relative_to(ROOT).with_suffix("").as_posix()
        paths[name.removesuffix("/__init__").replace("/", ".")] = path
    return paths


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules of ``fusetk`` that a file imports anywhere, as names like in ``known``.

    A name that is not a module, such as ``DEVICE`` of ``from fusetk import DEVICE``, is included.
    """
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fusetk":
            module = ".".join((node.module or "").split(".")[1:])
            members = {f"{module}.{alias.name}".strip(".") for alias in node.names}
            names |= {name if name in known or not module else module for name in members}
        elif isinstance(node, ast.Import):
            names |= {alias.name[7:] for alias in node.names if alias.name.startswith("fusetk.")}
    return names


def packages() -> dict[str, set[str]]:
    """Return the imports between the top-level packages and modules."""
    known = modules()
    imports: dict[str, set[str]] = {
        name.split(".")[0]: set() for name in known if name not in ENTRY_POINTS
    }
    for name, path in known.items():
        top = name.split(".")[0]
        if top in imports:
            others = {other.split(".")[0] for other in imported(path, known)}
            imports[top] |= others & imports.keys() - {top}
    return imports


def reduce(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    """Remove each import that a path of other imports implies. The imports must be acyclic."""

    def reachable(name: str) -> set[str]:
        others = set(imports[name])
        for other in imports[name]:
            others |= reachable(other)
        return others

    return {
        name: {
            other
            for other in others
            if not any(other in reachable(between) for between in others - {other})
        }
        for name, others in imports.items()
    }


def mermaid() -> str:
    """Return the graph as a Mermaid block of Markdown."""
    arrows = [
        f"    {name} --> {other}"
        for name, others in sorted(reduce(packages()).items())
        for other in sorted(others)
    ]
    return "\n".join(["```mermaid", "graph TD", *arrows, "```"])


def update(text: str) -> str:
    """Replace the text between the markers. Raises ValueError if a marker is missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the text does not contain {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{mermaid()}\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description="draw the layout in a Markdown file")
    parser.add_argument("file", type=Path)
    file = parser.parse_args().file
    file.write_text(update(file.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
