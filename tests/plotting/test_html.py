import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusetk.plotting.html import render
from fusetk.plotting.panel import Page, Panel
from fusetk.plotting.save import save

NASTY = [
    "</script>",
    "<!--",
    "]]>",
    '&<>"',
    "&amp;",
    "'",
    "\\",
    "</SCRIPT >",
    "\u2028",
    "\x00",
    "@data@",
    "@title@",
]
NASTY += ["他", "שלום", "$&", "😀"]


class Page_(HTMLParser):
    """What a browser would find: tags, the text in each script, and text outside of elements that are not shown."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.title = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        tag = self.tags[-1][0] if self.tags else ""
        if tag == "script":
            self.scripts[-1] += data
        elif tag == "title" and not self.title:
            self.title = data

    def data(self) -> Any:
        return json.loads(self.scripts[0])


def panel(rows: int = 2, columns: int = 3, name: str = "a", dtype: Any = np.float32) -> Panel:
    weights = np.random.default_rng(rows).normal(size=(rows, columns)).astype(dtype)
    words = [f"x{i}" for i in range(columns)], [f"y{i}" for i in range(rows)]
    return Panel(name, f"title of {name}", weights, *words, axes=("source", "layer"), up=True)


def test_the_numbers_inside_are_those_of_the_panels() -> None:
    pages = [
        Page([panel(), panel(4, 1, "b", np.float64)], 1, "ein Satz", "a sentence"),
        Page([panel(3, 5)], 2),
    ]
    pages[0].panels[0].matrix[0, 0] = np.nan
    data = Page_(render(pages, "a run")).data()
    assert data["title"] == "a run" and [page["number"] for page in data["pages"]] == [1, 2]
    for page, found in zip(pages, data["pages"], strict=True):
        assert (found["source"], found["target"]) == (page.source, page.target)
        for one, shown in zip(page.panels, found["panels"], strict=True):
            matrix = np.array(
                [[np.nan if v is None else v for v in row] for row in shown["matrix"]]
            )
            np.testing.assert_array_equal(matrix.astype(np.float32), one.matrix.astype(np.float32))
            assert (shown["name"], shown["title"], shown["x"], shown["y"], shown["up"]) == (
                one.name,
                one.title,
                one.x,
                one.y,
                True,
            )
    [scale] = data["scales"].values()
    every = np.concatenate([one.matrix.ravel() for page in pages for one in page.panels])
    assert scale["high"] == -scale["low"] == pytest.approx(np.nanmax(abs(every)))
    assert (
        all(0 <= level <= 255 for stop in scale["colors"] for level in stop)
        and len(scale["colors"]) == 17
    )


def test_the_dividing_line_is_in_the_numbers(tmp_path: Path) -> None:
    one = Panel("a", "a", np.eye(2, 3), list("xyz"), list("ab"), cut=2)
    assert [
        shown.get("cut")
        for shown in Page_(render([Page([one, panel()])], "a")).data()["pages"][0]["panels"]
    ] == [2, None]
    save([Page([one])], tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))["panels"][0]["cut"] == 2


def test_words_cannot_break_the_page() -> None:
    nasty = Panel(
        "</script>", "<b>&", np.eye(len(NASTY)), NASTY, NASTY, measure="<i>", axes=("<", ">")
    )
    plain = Page_(render([Page([panel(2, 2)], 1)], "a run"))
    found = Page_(
        render(
            [Page([nasty], 1, "</script><script>alert(1)</script>", "&<>\"' @data@")],
            '<b>@data@ & "</title>',
        )
    )
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in plain.tags]
    assert found.title == '<b>@data@ & "</title>' and found.scripts[1] == plain.scripts[1]
    data = found.data()
    assert data["pages"][0]["panels"][0]["x"] == NASTY and "<i>" in data["scales"]
    assert data["pages"][0]["source"] == "</script><script>alert(1)</script>"
    assert not re.search("[<>&]", found.scripts[0])


def test_it_needs_nothing_from_elsewhere() -> None:
    text = render([Page([panel()])], "a run")
    found = Page_(text)
    assert not any(name in ("src", "href") for _, attributes in found.tags for name in attributes)
    assert (
        "http:" not in text
        and "https:" not in text
        and "@import" not in text
        and "url(" not in text
    )
    assert any(
        "default-src 'none'" in (attributes.get("content") or "") for _, attributes in found.tags
    )
    assert "innerHTML =" not in text and "document.write" not in text


def test_pages_come_out_the_same_twice(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save([Page([panel()], 1), Page([panel()], 2)], tmp_path / f"{name}.html", title="Größe")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert b"Gr\xc3\xb6\xc3\x9fe" in (tmp_path / "a.html").read_bytes()


# A document that remembers what was drawn, for want of a browser.
STUB = r"""
const text = %s, drawn = [], handlers = {};
const width = (t) => ({ width: 6 * t.length });
const pen = new Proxy({}, { get: (_, key) => key === "measureText" ? width : (...a) => { drawn.push([key, ...a]); }, set: () => true });
function element(tag) {
  const on = {};
  return { tag, style: {}, children: [], textContent: "", offsetWidth: 0, offsetHeight: 0, on, append(...c) { this.children.push(...c); },
    replaceChildren() { this.children = []; }, remove() {}, setAttribute() {}, getContext: () => pen,
    addEventListener: (n, f) => { on[n] = f; }, getBoundingClientRect: () => ({ left: 0, top: 0 }) };
}
const known = {};
const get = (query) => known[query] ??= Object.assign(element(query), query === "data" ? { textContent: text } : {});
globalThis.document = { getElementById: get, querySelector: get, querySelectorAll: () => [], createElement: element, body: element("body"),
  addEventListener: (n, f) => { handlers[n] = f; } };
globalThis.window = { devicePixelRatio: 1, innerWidth: 1000, innerHeight: 1000, matchMedia: () => ({ addEventListener() {} }) };
globalThis.getComputedStyle = () => ({ getPropertyValue: () => "#000" });
%s
const shownWords = () => get("dl").children.map((c) => c.textContent);
const first = shownWords();
handlers.keydown({ key: "ArrowRight" });
const canvas = get("#panels").children[0].children[0];
canvas.on.pointermove({ clientX: 6 * 2 + 10 + 22 * 1 + 3, clientY: 6 * 2 + 10 + 22 * 0 + 3 });
console.log(JSON.stringify({ first, second: shownWords(), tip: get("#tip").textContent.split("\n"),
  texts: drawn.filter((d) => d[0] === "fillText").map((d) => d[1]), output: get("output").textContent,
  filled: drawn.filter((d) => d[0] === "fillRect").map((d) => d.slice(1)) }));
"""


def run_script(pages: list[Page], tmp_path: Path) -> Any:
    """What the page's script shows of the second page, with the pointer at the upper row and the second column."""
    found = Page_(render(pages, "a run"))
    script = tmp_path / "page.js"
    script.write_text(
        STUB % (json.dumps(found.scripts[0]), found.scripts[1].replace('"use strict";', "")),
        encoding="utf-8",
    )
    done = subprocess.run(["node", str(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


needs_node = pytest.mark.skipif(
    shutil.which("node") is None, reason="needs node, to run the page's script"
)


@needs_node
def test_words_behind_the_line_are_counted_anew(tmp_path: Path) -> None:
    one = Panel(
        "a",
        "a",
        np.eye(1, 3),
        ["x0", "x1", "x2"],
        ["y0"],
        axes=("source | target read", "target"),
        cut=1,
    )
    seen = run_script([Page([panel()]), Page([one])], tmp_path)
    assert seen["tip"][1:3] == ["target read: x1 (1)", "target: y0 (1)"]
    assert [12 + 10 + 22 - 1, 12 + 10 - 5, 2, 22 + 5] in seen["filled"]


@needs_node
def test_the_script_draws_and_tells(tmp_path: Path) -> None:
    pages = [Page([panel(2, 3)], 4, "<b>eins", "one"), Page([panel(3, 3)], 9, "zwei", "two")]
    seen = run_script(pages, tmp_path)
    assert seen["first"] == ["source", "<b>eins", "target", "one"] and seen["second"] == [
        "source",
        "zwei",
        "target",
        "two",
    ]
    assert seen["output"] == "sentence 9 (2 of 2)"
    assert {"x0", "x1", "x2", "y0", "y1", "y2"} <= set(seen["texts"])
    value = pages[1].panels[0].matrix[2, 1]  # the upper row is the last
    assert seen["tip"][:3] == ["title of a", "source: x1 (2)", "layer: y2"]
    assert float(seen["tip"][3].removeprefix("weight: ")) == pytest.approx(value, rel=1e-3)
