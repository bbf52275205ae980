"""Names: every class name of the package has one meaning, and no variable has a catch-all name."""

import ast
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tools.layout import ROOT, modules

# Class names that several modules may share: the name, and the reason.
SHARED_CLASSES: dict[str, str] = {}
# Names that do not say what a value is.
CATCH_ALL = set("found given kept made mine one shown theirs there told wanted".split())
LINES = 3  # the last use of a catch-all name may be this many lines below its binding

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def test_every_class_name_is_unique() -> None:
    places = defaultdict(list)
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{name}, line {node.lineno}")
    repeated = {name: where for name, where in places.items() if len(where) > 1}
    wrong = {name: where for name, where in repeated.items() if name not in SHARED_CLASSES}
    assert not wrong, "class names with several meanings:\n" + "\n".join(
        f"{name}: {'; '.join(where)}" for name, where in sorted(wrong.items())
    )
    assert set(SHARED_CLASSES) == set(repeated), "SHARED_CLASSES lists a name that is not shared"


def own_nodes(function: Function) -> Iterator[ast.AST]:
    """Yield the nodes of a function, except those of functions and classes that it defines."""
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Function | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)


def catch_alls(source: str) -> list[tuple[str, int, int]]:
    """Return each catch-all name that lives too long: name, line of the binding, last use.

    A parameter is bound in the first line of its function. Uses in nested functions count.
    """
    names = []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, Function):
            continue
        bound: dict[str, int] = {}
        for node in own_nodes(function):
            name = ""
            if isinstance(node, ast.arg):
                name = node.arg
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name = node.id
            if name in CATCH_ALL:
                bound[name] = min(bound.get(name, node.lineno), node.lineno)
        last: dict[str, int] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and node.id in bound:
                last[node.id] = max(last.get(node.id, 0), node.lineno)
        names += [
            (name, line, last.get(name, line))
            for name, line in bound.items()
            if last.get(name, line) - line > LINES
        ]
    return names


def test_no_catch_all_name_lives_long() -> None:
    wrong = [
        f"{path.relative_to(ROOT.parent)}, line {first}: {name}, used until line {last}"
        for folder in ("fusetk", "recipes", "tests", "tools")
        for path in (ROOT.parent / folder).rglob("*.py")
        for name, first, last in catch_alls(path.read_text(encoding="utf-8"))
    ]
    assert not wrong, f"{len(wrong)} catch-all names:\n" + "\n".join(sorted(wrong))


@pytest.mark.parametrize(
    ("lines", "long"),
    [
        (["found = 1", "return found"], False),
        (["found = 1", "a = 1", "b = 1", "return found"], False),
        (["found = 1", "a = 1", "b = 1", "c = 1", "return found"], True),
        (["names = 1", "a = 1", "b = 1", "c = 1", "return names"], False),
        (["for one in x:", "    a = 1", "    b = 1", "    c = 1", "    one()"], True),
        (["def g(found):", "    a = 1", "    b = 1", "    c = 1", "    return found"], True),
        (
            ["with x as made:", "    def g():", "        a = 1", "        b = 1", "        made()"],
            True,
        ),
    ],
)
def test_a_long_life_is_recognised(lines: list[str], long: bool) -> None:
    source = "\n".join(["def f(x):", *(f"    {line}" for line in lines)])
    assert bool(catch_alls(source)) == long
