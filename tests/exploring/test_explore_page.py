"""The page of `fusetk explore` in a real browser, with its keyboard and its pointer."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import pytest

from fusetk.exploring.explorer import Explorer, Search
from fusetk.plotting.panel import Page, Panel
from fusetk.plotting.save import save
from tests.exploring.runs import LARGEST, explorer
from tests.helpers.browser import Browser, browser, find_browser
from tests.helpers.services import ask, running

pytest.importorskip("starlette")
pytestmark = pytest.mark.skipif(find_browser() is None, reason="needs Chromium")

TEXT = "eins zwei drei"
NASTY = "<img src=x onerror=alert(1)>"
LAST = ".run:last-child"


@pytest.fixture(scope="module")
def url(runs: list[Path]) -> Iterator[str]:
    """The address of a page with both runs; the second one has a name that looks like HTML."""
    from fusetk import system
    from fusetk.exploring.app import ExploreLimits, make_explore_app

    def load(number: int) -> Explorer:
        name = ["plain", "<b>fused</b>"][number]
        return Explorer(name, system.load_model(runs[number], "cpu"), LARGEST)

    app = make_explore_app([load(0), load(1)], load, ExploreLimits(characters=100))
    with running(app) as port:
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as tab:
        tab.resize(1400, 900)
        yield tab


@pytest.fixture
def tab(opened: Browser, url: str) -> Iterator[Browser]:
    """The page without a sentence. It must not raise errors."""
    opened.open(url)
    opened.wait("document.querySelectorAll('.run').length === 2")
    yield opened
    assert opened.problems == []


def settle(tab: Browser, times: int) -> None:
    """Wait until the form was answered so many times and all heatmaps are drawn."""
    tab.wait(f"Number(document.body.dataset.done) === {times}")
    tab.wait("!document.querySelector('[aria-busy]')")


def translate(tab: Browser, text: str = TEXT) -> None:
    """Type a sentence into the field that has the focus at first, and press Enter."""
    tab.wait("document.activeElement.id === 'text'")  # the browser gives it when it draws the page
    tab.type(text)
    tab.press("Enter")
    settle(tab, 1)


def texts(tab: Browser, selector: str) -> list[str]:
    script = f"Array.from(document.querySelectorAll({json.dumps(selector)}), e => e.textContent)"
    contents: list[str] = tab.run(script)
    return contents


def test_a_typed_sentence_is_translated_and_drawn(tab: Browser, runs: list[Path]) -> None:
    translate(tab)
    for i, name in enumerate(("first", "last")):
        answer = explorer(runs[i]).translate(Search(), TEXT)
        rows = answer["translations"]
        place = f".run:{name}-child"
        assert texts(tab, f"{place} .text") == [rows[0]["text"]]
        shown = texts(tab, f"{place} .hypotheses td button")
        assert [text.split() for text in shown] == [row["text"].split() for row in rows]
        heads = texts(tab, f"{place} .hypotheses th")
        cells = texts(tab, f"{place} .hypotheses tr:first-child td")
        shown_values = dict(zip(heads, cells, strict=True))
        for head, key in (("score", "score"), ("normalised", "normalized")):
            value = float(shown_values[head].replace("\u2212", "-"))
            assert value == pytest.approx(rows[0][key], abs=0.006)
        steps = tab.run(f"document.querySelectorAll('{place} .tokens button').length")
        assert steps == len(rows[0]["steps"])
    captions = texts(tab, f"{LAST} figcaption")
    assert [text for text in captions if "fusion" in text] == [
        "decoder fusion, hop 1",
        "decoder fusion, hop 2",
    ]
    assert sum("cross-attention, mean of 2 heads" in text for text in captions) == 2
    assert texts(tab, ".run:first-child .layers .bars")[0].startswith("This model has no fusion")
    assert texts(tab, "h2")[1].startswith("<b>fused</b>, ")


def test_views_layers_and_heads_are_chosen(tab: Browser) -> None:
    translate(tab)

    def choose(kind: str, name: str, value: str) -> list[str]:
        tab.run(
            f"""(() => {{
                const select = document.querySelector("{LAST} .{kind} .{name} select");
                select.value = "{value}";
                select.dispatchEvent(new Event("change"));
            }})()"""
        )
        settle(tab, 1)
        return texts(tab, f"{LAST} .{kind} figcaption")

    assert choose("attention", "layer", "2") == [
        "decoder layer 2, cross-attention, mean of 2 heads"
    ]
    assert choose("attention", "head", "all") == [
        f"decoder layer 2, cross-attention, head {head}" for head in (1, 2)
    ]
    assert len(choose("attention", "view", "encoder-self")) == 2
    assert choose("layers", "head", "mean") == ["decoder fusion, mean of 2 hops"]
    assert choose("layers", "view", "connect") == ["encoder, weights of each layer's input"]


def test_keys_select_steps_and_cells_and_a_table_has_the_numbers(tab: Browser) -> None:
    translate(tab, "eins zwei drei vier")
    tab.run(f"document.querySelector('{LAST} .tokens button').focus()")
    tab.press("ArrowRight")
    [heading] = texts(tab, f"{LAST} .next h3")
    assert heading == "Step 2: most probable tokens"
    assert tab.run("document.activeElement.getAttribute('aria-pressed')") == "true"
    for kind in ("layers", "attention"):
        figures = tab.run(f"document.querySelectorAll('{LAST} .{kind} figure').length")
        assert tab.run(f"document.querySelectorAll('{LAST} .{kind} .step').length") == figures
    tab.run(f"document.querySelector('{LAST} .layers figure canvas').focus()")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):  # the first key selects the first cell
        tab.press(key)
    title, column, row, number = tab.run("document.querySelector('#tip').textContent").split("\n")
    assert title == "decoder fusion, hop 1" and row == "layer: l1"
    assert column.startswith("input token: ") and column.endswith(" (2)")
    tab.click(f"{LAST} .layers summary")
    tab.wait(f"document.querySelector('{LAST} .layers td')")
    assert texts(tab, f"{LAST} .layers tbody th") == ["l2", "l1", "l0"]
    cells = texts(tab, f"{LAST} .layers tbody tr:nth-child(2) td")
    assert number == "attention weight (a column sums to 1): " + cells[1]
    columns = len(texts(tab, f"{LAST} .layers thead th")) - 1
    values = list(map(float, texts(tab, f"{LAST} .layers tbody td")))
    assert [sum(values[i::columns]) for i in range(columns)] == pytest.approx(
        [1] * columns, abs=0.01
    )
    tab.press("Escape")
    assert tab.run("document.querySelector('#tip').hidden") is True


def test_the_pointer_shows_a_number(tab: Browser) -> None:
    translate(tab)
    script = f"""(() => {{
        const canvas = document.querySelector('{LAST} .attention figure canvas');
        canvas.scrollIntoView({{ block: 'center' }});
        const box = canvas.getBoundingClientRect();
        return [box.right - 8, box.bottom - 8];
    }})()"""
    tab.point(*tab.run(script))
    tip = tab.run("document.querySelector('#tip').textContent").split("\n")
    assert tip[1:3] == [
        "source: </s> (4)",
        f"target: </s> ({len(texts(tab, LAST + ' .tokens button'))})",
    ]


def test_a_click_forces_a_prefix_and_shows_the_change(tab: Browser) -> None:
    translate(tab)
    before = texts(tab, ".text")
    tokens = texts(tab, f"{LAST} .next tbody button:not(:disabled)")
    row = next(i for i, token in enumerate(tokens) if "\u2190" not in token and token[0] != "<")
    tab.run(f"document.querySelectorAll('{LAST} .next tbody button:not(:disabled)')[{row}].click()")
    settle(tab, 2)
    assert all(text.split()[0] == tokens[row] for text in texts(tab, ".text"))
    for place in (".run:first-child", LAST):
        assert len(texts(tab, f"{place} .tokens .forced")) == 1
        assert tokens[row] in texts(tab, f"{place} .changes ins")
    removed = " ".join(texts(tab, f"{LAST} .changes p:first-child del"))
    assert removed and all(word in before[1].split() for word in removed.split())
    assert tab.run("document.querySelector('#prefix').value") == tokens[row]
    # The address leads to the same page.
    address = tab.run("location.href")
    tab.open(address)
    settle(tab, 1)
    assert texts(tab, f"{LAST} .tokens .forced small")[0].startswith("forced, ")
    tab.click("#clear")
    settle(tab, 2)
    assert texts(tab, ".text") == before and not texts(tab, ".forced")


def test_a_given_translation_is_a_hypothesis(tab: Browser, url: str) -> None:
    tab.open(url + "#" + urlencode({"text": TEXT, "target": "DREI EINS"}))
    settle(tab, 1)
    tab.run(f"document.querySelector('{LAST} .hypotheses tbody tr:last-child button').click()")
    settle(tab, 1)
    assert texts(tab, f"{LAST} .text") == ["DREI EINS"]
    assert texts(tab, f"{LAST} .hypotheses tbody tr:last-child td")[0] == "given"
    assert [text[:4] for text in texts(tab, f"{LAST} .tokens button")] == [
        "DREI",
        "EINS",
        "</s>",
    ]


def test_wrong_input_is_explained(tab: Browser) -> None:
    tab.press("Enter")
    tab.wait("!document.querySelector('#message').hidden")
    assert texts(tab, "#message") == ["Type a sentence."]
    assert tab.run("document.activeElement.id") == "text"
    translate(tab, "eins " * 30)
    error = "Text has 149 characters; at most 100."
    assert texts(tab, ".messages .error:not([hidden])") == [error] * 2
    tab.run("document.querySelector('#text').value = 'eins'")
    tab.click("#translate")
    settle(tab, 2)
    assert texts(tab, ".messages .error:not([hidden])") == []
    assert len(texts(tab, ".result:not([hidden]) .text")) == 2


def test_a_beam_outside_the_limits_is_refused(tab: Browser) -> None:
    translate(tab)
    for beam in ("0", "2.5", "1000"):
        tab.run(f"form.beam.value = '{beam}'; form.text.focus()")
        tab.press("Enter")
        assert tab.run("document.activeElement.id") == "beam"
    tab.run("form.beam.value = '2'; form.text.focus()")
    tab.press("Enter")
    settle(tab, 2)
    assert len(texts(tab, f"{LAST} .hypotheses tbody tr")) == 2


def test_an_address_with_a_wrong_run_is_translated(tab: Browser, url: str) -> None:
    tab.open(url + "#" + urlencode({"text": TEXT, "tokens": '{"run": "length", "tokens": []}'}))
    settle(tab, 1)
    assert len(texts(tab, ".result:not([hidden]) .text")) == 2


def test_text_is_never_html(tab: Browser, url: str) -> None:
    tab.open(url + "#" + urlencode({"text": NASTY, "prefix": NASTY, "target": NASTY}))
    settle(tab, 1)
    assert tab.run("document.querySelectorAll('img, main b').length") == 0
    assert NASTY in texts(tab, f"{LAST} .hypotheses tbody tr:last-child")[0]
    assert "onerror=alert(1)>" in texts(tab, f"{LAST} .state")[0]


def test_a_run_that_cannot_be_loaded_is_named(tab: Browser, runs: list[Path]) -> None:
    translate(tab)
    before = texts(tab, ".text")
    hidden = runs[0].with_name("hidden")
    shutil.move(runs[0], hidden)
    try:
        tab.click(".run:first-child .reload")
        tab.wait("!document.querySelector('.run:first-child .messages .error').hidden")
        assert str(runs[0]) in texts(tab, ".run:first-child .messages .error")[0]
    finally:
        shutil.move(hidden, runs[0])
    tab.click("#translate")
    settle(tab, 2)
    assert texts(tab, ".text") == before


def test_light_dark_and_narrow_windows(tab: Browser, tmp_path: Path) -> None:
    translate(tab)
    picture = f"""document.querySelector("{LAST} .attention figure canvas").toDataURL()"""
    before = ""
    for theme, background in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(23, 25, 28)")):
        tab.use_theme(theme)
        tab.wait(f"getComputedStyle(document.body).backgroundColor === '{background}'")
        tab.wait(f"{picture} !== {json.dumps(before)}")
        before = tab.run(picture)
        tab.save_picture(tmp_path / f"{theme}.png")
    for width in (1400, 800, 420):
        tab.resize(width, 900)
        assert tab.run("document.documentElement.scrollWidth") <= width
    tab.resize(1400, 900)
    tab.use_theme("light")


def test_the_file_of_plot_attention_has_the_same_keys(opened: Browser, tmp_path: Path) -> None:
    matrix = np.array([[0.25, 1.0], [0.75, 0.0]])
    panels = [Panel("decoder.a", "a", matrix, "xy", ["l0", "l1"], up=True)]
    save([Page(panels, 1), Page(panels, 2)], tmp_path / "maps.html")
    opened.open((tmp_path / "maps.html").as_uri())
    opened.run("document.querySelector('figure canvas').focus()")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        opened.press(key)
    assert opened.run("document.querySelector('#tip').textContent").endswith("weight: 1")
    opened.click("summary")
    opened.wait("document.querySelector('figure td')")
    assert texts(opened, "figure td") == ["0.75", "0", "0.25", "1"]
    assert texts(opened, "output") == ["sentence 1 (1 of 2)"]  # the keys moved in the heatmap
    opened.run("document.activeElement.blur()")
    opened.press("ArrowRight")
    assert texts(opened, "output") == ["sentence 2 (2 of 2)"]
    assert opened.problems == []


def test_keys_reach_the_last_cell_of_a_wide_heatmap(opened: Browser, tmp_path: Path) -> None:
    columns = [f"token{i}" for i in range(40)]
    panel = Panel("decoder.a", "a", np.ones((1, 40)), columns, ["l0"])
    save([Page([panel], 1)], tmp_path / "wide.html")
    opened.open((tmp_path / "wide.html").as_uri())
    opened.resize(420, 900)
    opened.run("document.querySelector('figure canvas').focus()")
    for key in ("ArrowRight", "End"):  # the first key selects the first cell
        opened.press(key)
    assert "token39" in opened.run("document.querySelector('#tip').textContent")
    for selector, width in ((".mark", 10), ("#tip", 100)):
        box = f"document.querySelector('{selector}').getBoundingClientRect()"
        left, right = opened.run(f"[{box}.left, {box}.right]")
        assert left >= 0 and left + width <= right <= 420
    opened.resize(1400, 900)
    assert opened.problems == []


def test_the_numbers_of_a_colour_bar_are_on_its_line(opened: Browser, tmp_path: Path) -> None:
    panel = Panel("decoder.a", "a", np.ones((1, 1)), "x", "y", "attention weight (a row sums to 1)")
    save([Page([panel], 1)], tmp_path / "narrow.html")
    opened.open((tmp_path / "narrow.html").as_uri())
    for width in (420, 360, 300, 1400):
        opened.resize(width, 900)
        assert opened.run("document.querySelector('.bar').getClientRects().length") == 1
    assert texts(opened, ".bars") == ["attention weight (a row sums to 1): 01"]


def test_right_to_left_text_is_written_from_the_right(tab: Browser) -> None:
    translate(tab)
    for selector in ("#text", "#prefix", "#target", ".text", ".hypotheses button"):
        for text, direction in (("\u05e9\u05dc\u05d5\u05dd.", "rtl"), ("eins.", "ltr")):
            script = f"""(() => {{
                const element = document.querySelector({json.dumps(selector)});
                const name = element.matches("input, textarea") ? "value" : "textContent";
                element[name] = {json.dumps(text)};
                return getComputedStyle(element).direction;
            }})()"""
            assert tab.run(script) == direction, selector


def test_the_service_that_has_ended_is_named(opened: Browser, runs: list[Path]) -> None:
    from fusetk.exploring.app import ExploreLimits, make_explore_app

    app = make_explore_app([explorer(runs[0])], lambda number: explorer(runs[0]), ExploreLimits())
    with running(app) as port:
        assert ask(port, b"", "GET", "/runs")[0] == 200
        opened.open(f"http://127.0.0.1:{port}/")
        opened.wait("document.querySelectorAll('.run').length === 1")
    translate(opened)
    [error] = texts(opened, ".messages .error")
    assert error == "The service does not answer: is fusetk explore still running?"
