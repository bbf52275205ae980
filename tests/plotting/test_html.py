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


class ParsedPage(HTMLParser):
    """The content of a page for a browser: its tags, its title and the text of each script."""

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


def test_the_page_contains_the_numbers_of_the_panels() -> None:
    pages = [
        Page([panel(), panel(4, 1, "b", np.float64)], 1, "ein Satz", "a sentence"),
        Page([panel(3, 5)], 2),
    ]
    pages[0].panels[0].matrix[0, 0] = np.nan
    data = ParsedPage(render(pages, "a run")).data()
    assert data["title"] == "a run" and [page["number"] for page in data["pages"]] == [1, 2]
    for page, stored in zip(pages, data["pages"], strict=True):
        assert (stored["source"], stored["target"]) == (page.source, page.target)
        for expected, entry in zip(page.panels, stored["panels"], strict=True):
            matrix = np.array(
                [[np.nan if v is None else v for v in row] for row in entry["matrix"]]
            )
            np.testing.assert_array_equal(
                matrix.astype(np.float32), expected.matrix.astype(np.float32)
            )
            assert (entry["name"], entry["title"], entry["x"], entry["y"], entry["up"]) == (
                expected.name,
                expected.title,
                expected.x,
                expected.y,
                True,
            )
    [scale] = data["scales"].values()
    every = np.concatenate([panel.matrix.ravel() for page in pages for panel in page.panels])
    largest = np.nanmax(abs(every))
    assert largest <= scale["high"] == -scale["low"] < 1.5 * largest
    assert (
        all(0 <= level <= 255 for stop in scale["colors"] for level in stop)
        and len(scale["colors"]) == 17
    )


def test_the_dividing_line_is_stored(tmp_path: Path) -> None:
    divided = Panel("a", "a", np.eye(2, 3), list("xyz"), list("ab"), cut=2)
    assert [
        entry.get("cut")
        for entry in ParsedPage(render([Page([divided, panel()])], "a")).data()["pages"][0][
            "panels"
        ]
    ] == [2, None]
    save([Page([divided])], tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))["panels"][0]["cut"] == 2


def test_words_cannot_change_the_page() -> None:
    nasty = Panel(
        "</script>", "<b>&", np.eye(len(NASTY)), NASTY, NASTY, measure="<i>", axes=("<", ">")
    )
    plain = ParsedPage(render([Page([panel(2, 2)], 1)], "a run"))
    parsed = ParsedPage(
        render(
            [Page([nasty], 1, "</script><script>alert(1)</script>", "&<>\"' @data@")],
            '<b>@data@ & "</title>',
        )
    )
    assert [tag for tag, _ in parsed.tags] == [tag for tag, _ in plain.tags]
    assert parsed.title == '<b>@data@ & "</title>' and parsed.scripts[1] == plain.scripts[1]
    data = parsed.data()
    assert data["pages"][0]["panels"][0]["x"] == NASTY and "<i>" in data["scales"]
    assert data["pages"][0]["source"] == "</script><script>alert(1)</script>"
    assert not re.search("[<>&]", parsed.scripts[0])


def test_the_page_has_no_external_resources() -> None:
    text = render([Page([panel()])], "a run")
    parsed = ParsedPage(text)
    assert not any(name in ("src", "href") for _, attributes in parsed.tags for name in attributes)
    assert (
        "http:" not in text
        and "https:" not in text
        and "@import" not in text
        and "url(" not in text
    )
    assert any(
        "default-src 'none'" in (attributes.get("content") or "") for _, attributes in parsed.tags
    )
    assert "innerHTML =" not in text and "document.write" not in text


def test_pages_are_reproducible(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save([Page([panel()], 1), Page([panel()], 2)], tmp_path / f"{name}.html", title="Größe")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert b"Gr\xc3\xb6\xc3\x9fe" in (tmp_path / "a.html").read_bytes()


# A replacement for a browser: a document that records the drawing operations.
STUB = r"""
const text = %s;
const drawn = [];
const handlers = {};
const measureText = (t) => ({ width: 6 * t.length });
const record = (name) => (...values) => { drawn.push([name, ...values]); };
const pen = new Proxy({}, {
  get: (_, name) => name === "measureText" ? measureText : record(name),
  set: () => true,
});
function element(tag) {
  const on = {};
  return {
    tag, on, style: {}, children: [], textContent: "", offsetWidth: 0, offsetHeight: 0,
    append(...children) { this.children.push(...children); },
    replaceChildren() { this.children = []; },
    remove() {},
    setAttribute() {},
    getContext: () => pen,
    addEventListener: (name, handler) => { on[name] = handler; },
    getBoundingClientRect: () => ({ left: 0, top: 0 }),
  };
}
const known = { data: Object.assign(element("data"), { textContent: text }) };
const get = (query) => known[query] ??= element(query);
globalThis.document = {
  getElementById: get,
  querySelector: get,
  querySelectorAll: () => [],
  createElement: element,
  body: element("body"),
  addEventListener: (name, handler) => { handlers[name] = handler; },
};
globalThis.window = {
  devicePixelRatio: 1,
  innerWidth: 1000,
  innerHeight: 1000,
  matchMedia: () => ({ addEventListener() {} }),
};
globalThis.getComputedStyle = () => ({ getPropertyValue: () => "#000" });
%s
const displayedWords = () => get("dl").children.map((child) => child.textContent);
const operations = (name) => drawn.filter((call) => call[0] === name).map((call) => call.slice(1));
const first = displayedWords();
handlers.keydown({ key: "ArrowRight" });
const canvas = get("#panels").children[0].children[0];
canvas.on.pointermove({ clientX: 6 * 2 + 25 + 22 * 1 + 3, clientY: 6 * 2 + 25 + 22 * 0 + 3 });
console.log(JSON.stringify({
  first,
  second: displayedWords(),
  tip: get("#tip").textContent.split("\n"),
  texts: operations("fillText").map((values) => values[0]),
  output: get("output").textContent,
  filled: operations("fillRect"),
}));
"""


def run_script(pages: list[Page], tmp_path: Path) -> Any:
    """Run the page's script on the second page, with the pointer on the first row, second column.

    Return the displayed texts and the drawing operations.
    """
    parsed = ParsedPage(render(pages, "a run"))
    script = tmp_path / "page.js"
    script.write_text(
        STUB % (json.dumps(parsed.scripts[0]), parsed.scripts[1].replace('"use strict";', "")),
        encoding="utf-8",
    )
    done = subprocess.run(["node", str(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


needs_node = pytest.mark.skipif(
    shutil.which("node") is None, reason="needs node, to run the page's script"
)


@needs_node
def test_words_after_the_line_are_counted_from_1(tmp_path: Path) -> None:
    divided = Panel(
        "a",
        "a",
        np.eye(1, 3),
        ["x0", "x1", "x2"],
        ["y0"],
        axes=("source | target read", "target"),
        cut=1,
    )
    displayed = run_script([Page([panel()]), Page([divided])], tmp_path)
    assert displayed["tip"][1:3] == ["target read: x1 (1)", "target: y0 (1)"]
    assert [12 + 25 + 22 - 1, 12 + 25 - 5, 2, 22 + 5] in displayed["filled"]


@needs_node
def test_the_script_draws_the_panels(tmp_path: Path) -> None:
    pages = [Page([panel(2, 3)], 4, "<b>eins", "one"), Page([panel(3, 3)], 9, "zwei", "two")]
    displayed = run_script(pages, tmp_path)
    assert displayed["first"] == ["source", "<b>eins", "target", "one"] and displayed["second"] == [
        "source",
        "zwei",
        "target",
        "two",
    ]
    assert displayed["output"] == "sentence 9 (2 of 2)"
    labels = {"x0", "x1", "x2", "y0", "y1", "y2"}
    assert labels | {"source", "layer"} <= set(displayed["texts"])
    value = (
        pages[1].panels[0].matrix[2, 1]
    )  # the first row from the top is the last one of the matrix
    assert displayed["tip"][:3] == ["title of a", "source: x1 (2)", "layer: y2"]
    assert float(displayed["tip"][3].removeprefix("weight: ")) == pytest.approx(value, rel=1e-3)
