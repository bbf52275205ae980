"""The page of results, and the tables in a Markdown file."""

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pydantic import ValidationError

from fusetk.cli.main import main
from fusetk.errors import DataError
from fusetk.recipe import load
from fusetk.reporting import results_page
from fusetk.reporting.formats import signed
from fusetk.reporting.gain import SeedComparison
from fusetk.reporting.measured_costs import MeasuredCosts, SystemCost, write_costs
from fusetk.reporting.parameters import count_parameters
from fusetk.reporting.result_files import (
    SavedPanel,
    SavedWeights,
    columns_bytes,
    read_columns,
    read_result,
    translations_path,
)
from fusetk.reporting.result_tables import read_tables
from fusetk.reporting.results_page import sort_value
from fusetk.reporting.runs import MeanScore
from tests.helpers.browser import browser, find_browser
from tests.helpers.results import BAD, REFERENCES, SET, SOURCES, make_recipes, write_result
from tests.helpers.rows import COUNTS_PAGE
from tools import power, system_tables
from tools import results as results_tool
from tools.power import Noise, gain_probabilities
from tools.results import END, updated

EVIL = "</script><img src=x onerror=alert(1)>"
MARKERS = "<!-- results: begin {}, made by `python -m tools.results README.md` -->\n"


def call(*words: object) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, words)])


class Parser(HTMLParser):
    """The content of the JSON element, and all attributes of all elements."""

    def __init__(self, page: Path):
        super().__init__()
        self.inside = False
        self.tags: list[str] = []
        self.attributes: dict[str, None] = {}
        self.data: Any = None
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.update(dict.fromkeys(name for name, _ in attrs))
        self.inside = ("id", "data") in attrs

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.data = json.loads(data)
            self.inside = False


def page_of(results: Path) -> Parser:
    page = results.parent / "page.html"
    result = call(results, "--html", page)
    assert result.exit_code == 0, result.output
    return Parser(page)


def test_a_page_has_everything_and_needs_no_network(results: Path) -> None:
    parser = page_of(results)
    text = (results.parent / "page.html").read_text()
    assert re.findall(r"https?://[^\"]+", text) == ["http://www.w3.org/2000/svg"]
    assert not {"link", "img", "iframe"} & set(parser.tags) and "src" not in parser.attributes
    assert "default-src 'none'" in text
    [table] = parser.data["tables"]
    assert [row[0] for row in table["table"]["rows"]] == ["plain", "fused", "other"]
    assert [other["title"] for other in table["others"]] == [
        "Systems: comparisons with the baseline",
        "Systems: validation loss by epoch",
        "Systems: other configs",
    ]
    assert [quantity["label"] for quantity in table["quantities"]] == [
        "validation loss",
        "training loss",
    ]
    [first, second] = table["systems"][0]["runs"]
    assert (first["seed"], second["seed"]) == (1, 2)
    assert first["curves"]["valid_curve"]["loss"] == [3.0, 2.0, 2.5]


def test_translations_that_differ_are_sorted_by_gain(results: Path) -> None:
    [table] = page_of(results).data["tables"]
    pairs = {pair["name"]: pair for pair in table["pairs"]}
    assert {name: pair["base"] for name, pair in pairs.items()} == {
        "fused": "plain",
        "other": "fused",
    }
    sentences = pairs["fused"]["sentences"]
    gains = [sentence["gain"] for sentence in sentences]
    assert len(gains) == 5 and gains == sorted(gains, reverse=True) and gains[-1] > 0
    for sentence in sentences:
        i = sentence["line"] - 1
        assert (sentence["source"], sentence["reference"]) == (SOURCES[i], REFERENCES[i])
        assert "".join(text for text, _ in sentence["first"]) == BAD[i]
        assert "".join(text for text, _ in sentence["second"]) == REFERENCES[i]
        first = {text for text, same in sentence["first"] if same}
        assert first == {text for text, same in sentence["second"] if same}


def test_the_largest_gains_and_losses_are_chosen(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [all_pairs] = [table["pairs"] for table in page_of(results).data["tables"]]
    monkeypatch.setattr(results_page, "MAX_SENTENCES", 2)
    [pairs] = [table["pairs"] for table in page_of(results).data["tables"]]
    everything = all_pairs[0]["sentences"]
    assert pairs[0]["sentences"] == [everything[0], everything[-1]]
    assert "5 of 5 translations differ. The 2 with" in pairs[0]["summary"]


def test_other_checkpoints_are_compared_without_translations_of_the_best_ones(
    results: Path,
) -> None:
    for path in results.glob("*.seed*.json"):
        result = read_result(path)
        file = translations_path(results, path.stem, SET)
        columns = read_columns(file)
        renamed = {name.replace("best.", "mean."): lines for name, lines in columns.items()}
        file.write_bytes(columns_bytes(renamed))
        update = {"translations": {SET: list(renamed)}, "scores": []}
        write_result(path, result, **update)
    [table] = page_of(results).data["tables"]
    assert [pair["label"].endswith(", mean") for pair in table["pairs"]] == [True, True]
    assert len(table["pairs"][0]["sentences"]) == 5


def test_a_page_without_the_test_text(results: Path) -> None:
    """The p-values are saved, so only the translations need the text, which may not be public."""
    call(results)  # computes the p-values
    shutil.rmtree(results / "texts")
    [table] = page_of(results).data["tables"]
    assert [pair["sentences"] for pair in table["pairs"]] == [[], []]
    assert all("is missing: there is no text" in pair["summary"] for pair in table["pairs"])


def test_a_missing_column_is_an_error(results: Path) -> None:
    call(results)  # computes the p-values
    for path in (results / "texts").iterdir():
        columns = {name: ["x"] for name in read_columns(path) if name != "source.raw"}
        path.write_bytes(columns_bytes(columns))
    result = call(results, "--html", results.parent / "page.html")
    assert result.exit_code == 2 and "has no column source.raw" in result.stderr


def test_layer_weights_are_those_of_the_first_seed_that_has_them(results: Path) -> None:
    path = results / "fused.seed2.json"
    result = read_result(path)
    panel = SavedPanel(
        name="a",
        title="A",
        measure="share",
        axes=["", "layer"],
        x=["1"],
        y=["l0", "l1"],
        matrix=[[0.25], [None]],
        up=True,
    )
    with pytest.raises(ValidationError, match="the matrix does not have a row for each y"):
        SavedPanel(**{**panel.model_dump(), "x": ["1", "2"]})
    weights = SavedWeights(checkpoint="best", weights="x", text="t", sentences=5, panels=[panel])
    empty = weights.model_copy(update={"panels": []})
    write_result(path, result, layer_weights=[empty, weights])
    [table] = page_of(results).data["tables"]
    plain, fused, _ = table["systems"]
    assert plain["panels"] == [] and fused["panels"][0]["matrix"] == [[0.25], [None]]
    assert fused["panels_of"].startswith("seed 2, checkpoint best; 5 sentences")


def test_no_text_can_change_the_page(results: Path) -> None:
    path = results / "other.seed1.json"
    result = read_result(path)
    write_result(path, result, row=EVIL)
    (results / "other.seed2.json").unlink()
    for stem in ("plain.seed1", "plain.seed2"):
        file = translations_path(results, stem, SET)
        columns = {name: [EVIL, *lines[1:]] for name, lines in read_columns(file).items()}
        file.write_bytes(columns_bytes(columns))
        own = read_result(results / f"{stem}.json")
        write_result(results / f"{stem}.json", own, scores=own.scores[1:2])
    parser = page_of(results)
    assert "img" not in parser.tags and parser.tags.count("script") == 2
    assert EVIL in {row[0] for row in parser.data["tables"][0]["table"]["rows"]}


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("4.35M", 4.35e6),
        ("×0.89", 0.89),
        ("1,294", 1294),
        ("39.60 ±0.41", 39.6),
        ("-0.95", -0.95),
        ("+1.02", 1.02),
        ("12 s", 12),
        ("3 min (2 of 3)", 180),
        ("1.5 h", 5400),
        ("29.3 KB", 29.3),
        ("1,043 MB", 1043),
        ("never", None),
        (", 4 hops", None),
        ("", None),
        (None, None),
    ],
)
def test_cells_are_sorted_by_their_numbers(cell: str | None, value: float | None) -> None:
    assert sort_value(cell, "x") == value
    assert sort_value(cell, "") is None  # the column of names


def test_seeds_are_counted_and_differences_by_seed_averaged() -> None:
    assert [sort_value(cell, "seeds") for cell in ("4", "2 3", "1 2 3")] == [1, 2, 3]
    by_seed = ["1: +0.50 (0.010), 2: -1.50 (-)", "2: -0.10 (0.988)"]
    assert [sort_value(cell, "BLEU, by seed") for cell in by_seed] == [-0.5, -0.1]


def test_gains_are_sorted_by_how_sure_they_are() -> None:
    cells = ["no", "open: 0 of 3 seeds", "open: 2 of 3 seeds", "yes"]
    values = [sort_value(cell, "gain") for cell in cells]
    assert values == sorted(values, key=lambda value: value or 0.0) and len(set(values)) == 4
    assert sort_value("no baseline", "gain") is None


TABLE = {
    "heads": ["", "config", "loss"],
    "rows": [["x", "b", "2.0"], ["y", "c", ""], ["z", "a", "10.0"]],
    "values": [[None, None, 2.0], [None, None, None], [None, None, 10.0]],
    "notes": [],
}


@pytest.mark.skipif(find_browser() is None, reason="needs Chromium")
def test_a_page_in_a_browser(results: Path, tmp_path: Path) -> None:
    """A click sorts columns of text and of numbers, and a narrow window shows all columns."""
    page_of(results)
    with browser(tmp_path / "profile") as tab:
        tab.open((results.parent / "page.html").as_uri())
        tab.run(f"document.querySelector('main').prepend(sortable({json.dumps(TABLE)}, null))")
        names = "Array.from(document.querySelectorAll('.rows')[0].tBodies[0].rows, r => r.cells[0])"
        for column, orders in ((1, ("xyz", "zyx")), (2, ("zxy", "yxz")), (3, ("xzy", "zxy"))):
            for order in orders:
                tab.click(f"main > :first-child th:nth-child({column}) button")
                assert tab.run(f"{names}.map((cell) => cell.textContent).join('')") == order
        tab.resize(420, 900)
        assert tab.run("document.documentElement.scrollWidth") <= 420
        assert tab.run("getComputedStyle(document.querySelector('tbody th')).position") == "static"
        tab.open((results.parent / "page.html").as_uri())
        svg = "document.querySelector('svg[role=img]')"
        scale = tab.run(f"{svg}.getBoundingClientRect().width / {svg}.viewBox.baseVal.width")
        assert scale == pytest.approx(1)  # smaller text would not be readable
        assert tab.problems == []


@pytest.mark.skipif(find_browser() is None, reason="needs Chromium")
def test_every_curve_is_visible(results: Path, tmp_path: Path) -> None:
    """The cases are a bad system among good ones, a long curve, and a single validation."""
    page_of(results)
    script = """(() => {
        const line = (n, f) => ({runs: [{seed: 1, curves: {valid_curve: {
            update: Array.from({length: n}, (_, i) => i), loss: Array.from({length: n}, f)}}}]});
        const systems = [
            ...Array.from({length: 9}, () => line(30, (_, i) => 9 / (i + 1))),
            line(30, (_, i) => 50 - i), line(150000, () => 2), line(1, () => 1.95)];
        const quantity = {curve: "valid_curve", name: "loss", label: "loss"};
        const visible = (path) => path.getAttribute("d").split(/[ML]/).slice(1)
            .filter((place) => +place.split(" ")[1] >= 24).length;
        const draw = (...shown) => chart(systems, shown, quantity);
        const many = draw(0, 1, 2, 3, 4, 5, 6, 7, 8, 9);
        return [
            Array.from(many.querySelectorAll("g path"), visible).map((n) => n >= 15),
            draw(10).querySelectorAll("g path").length,
            draw(11).querySelectorAll("g circle").length,
            Array.from(draw(11).querySelectorAll("text"), (text) => text.textContent).sort()];
    })()"""
    with browser(tmp_path / "profile") as tab:
        tab.open((results.parent / "page.html").as_uri())
        assert tab.run(script) == [[True] * 10, 1, 1, ["0", "1.95", "12", "loss", "updates"]]
        assert tab.problems == []


def test_a_page_needs_results(toy: Path, results: Path, tmp_path: Path) -> None:
    result = call(toy, "--html", tmp_path / "a.html")
    assert result.exit_code == 2 and "--html needs a folder of results" in result.stderr
    result = call(results, "--html", tmp_path / "missing" / "a.html")
    assert result.exit_code == 2 and "cannot be written" in result.stderr
    assert call(results, "--html", tmp_path / "a.html", "--csv").exit_code == 2
    own = results / "plain.seed1.json"
    before = own.read_bytes()
    result = call(results, "--html", own)
    assert result.exit_code == 2 and "ends with .html" in result.stderr
    assert own.read_bytes() == before


# Tables in a Markdown file ------------------------------------------------------------------------


ROOT = Path(results_page.__file__).parents[2]
# The tests of the recipes check the page of the printed numbers of parameters.
PAGES = [page for page in results_tool.pages() if page != COUNTS_PAGE]
READ = results_tool.reader()


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_the_pages_agree_with_the_files(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert updated(text, page.parent, READ) == text, f"run `python -m tools.results {page}`"


def test_each_measured_system_has_a_page() -> None:
    measured = set()
    for page in (ROOT / "docs" / "fusions").glob("*.md"):
        for begin in results_tool.BEGIN.finditer(page.read_text(encoding="utf-8")):
            measured.update((begin[2] or "").split()[1:])
    systems = {
        row.first.system
        for name in results_tool.TEXTS
        for table in READ(ROOT / "results" / name)
        for row in table.rows
        if row.first.system not in ("transformer", "conv_base", "recurrent_shallow")
        and not row.first.system.startswith(("pre_norm", "joint_transformer"))
    }
    assert measured == systems, "name them in the marker `measured` of pages of fusions"


def test_the_pages_of_fusions_agree_with_the_results(results: Path) -> None:
    """A system without results is left out, and a page without results is not in the index."""
    root = results.parent
    shutil.move(results, root / "all" / "multi30k")
    other = shutil.copytree(root / "all" / "multi30k", root / "all" / "iwslt14")
    for path in {*other.glob("*.seed2.json"), *other.glob("other.*.json")}:
        path.unlink()
    text = f"{MARKERS.format('all measured other missing fused')}{END}\n"
    for name, systems in (("b", "other missing fused"), ("a", "fused"), ("c", "missing")):
        (root / f"{name}.md").write_text(text.replace("other missing fused", systems))
    [table], [small] = (read_tables(root / "all" / name, {}) for name in ("multi30k", "iwslt14"))
    differences = {
        name: f"{comparison.difference:+.2f} (2 seeds)"
        for name, comparison in system_tables.comparisons_of(table).items()
    }
    with_one_seed = f"{system_tables.comparisons_of(small)['fused'].difference:+.2f} (1 seed)"

    def cells(content: str) -> list[list[str]]:
        lines = [line for line in content.splitlines() if line.startswith("| ")]
        return [line.strip("| ").split(" | ")[:4] for line in lines[2:]]

    assert cells(updated(text, root)) == [
        ["other", "fused", differences["other"], "-"],
        ["fused", "plain", differences["fused"], with_one_seed],
    ]
    index = updated(f"{MARKERS.format('all measured')}{END}\n", root)
    assert [line[0] for line in cells(index)] == ["[fused](a.md)", "[other](b.md)"]
    assert "[Measured](all/README.md)" in index


def test_the_readme_says_which_fusions_have_a_gain() -> None:
    gains = {}
    for name in ("iwslt14", "multi30k"):
        [table] = READ(ROOT / "results" / name)
        gains[name] = [row.name for row in table.rows if table.gain(row) == "yes"]
    sentences = {
        "README.md": [
            "four systems of layer fusion have three seeds. Three of the four have a *gain*",
            "eighteen systems of layer fusion have three seeds, and none has a gain.",
            "more than a GRU, which is not a gain.",
        ],
        "results/README.md": [
            "**Three systems of layer fusion have a gain** over their baseline",
            "MUDDFormer, RTAL and transparent attention. On Multi30k, eighteen systems of layer "
            "fusion have at least three seeds, and none has a gain. The other systems of the five "
            "papers have no gain there either.",
            "RTAL is significantly better than the Transformer with one of five seeds, and "
            "significantly worse with another one. No other system of layer fusion is "
            "significantly better than its baseline with any seed.",
        ],
    }
    for file, expected in sentences.items():
        text = " ".join((ROOT / file).read_text(encoding="utf-8").split())
        assert all(sentence in text for sentence in expected), "the test names other sentences"
    assert gains["iwslt14"] == ["RTAL EWP, both", "transparent attention", "MUDDFormer"]
    assert not gains["multi30k"]
    [table] = READ(ROOT / "results" / "multi30k")
    without = [row.name for row in table.rows if table.gain(row) == "no"]
    fusions = ["Enc-AVG", "Enc-FNN", "Dec-SA, 4 hops", "Both-FNN-SA, 4 hops"]
    fusions += ["Dec-SA, 4 hops, plus highest layer", "RTAL EWP, both"]
    fusions += ["RTAL, CNN-like tree", "iterative, both", "linear connections (DLCL), both"]
    fusions += ["transparent attention", "DenseFormer", "hyper-connections, static"]
    fusions += ["hyper-connections, dynamic", "MUDDFormer", "attention residuals"]
    fusions += ["Dec-SA, 4 hops, post-norm"]
    fusions += ["DenseNMT-4L-1", "DenseNMT-4L-2"]
    for name in fusions:
        [row] = [row for row in table.rows if row.name == name]
        for own, base in table.equal_configs(row):
            scores = own.compare(base, table.columns[0], table.p_values)
            if scores and not own.runs[0].changes_end:
                is_rtal = name == "RTAL EWP, both" and not own.overrides
                assert scores.better == is_rtal and (scores.worse == 1 or not is_rtal)
    others = ["layer-wise coordination, 14 layers", "layer-wise coordination, 12 layers"]
    others += ["coordination, weights not shared", "coordination, attention not mixed"]
    others += ["ShallowRNMT + L-GRU", "DTMT#1", "DTMT#2"]
    depths = ["Transformer, 3+3 layers", "Transformer, 9+9 layers"]
    assert without == [*depths, *fusions, *others]


def test_the_table_of_claims_has_the_differences_of_the_files() -> None:
    root = ROOT / "results"
    text = (root / "README.md").read_text(encoding="utf-8").partition("## The claims")[2]
    text = text.partition("\n## ")[0]
    rows = re.findall(r"^\| (?:MLRF|DenseNMT|RTAL|LWC|DTMT) \|.*", text, re.MULTILINE)
    assert len(rows) == 5, "one row for each paper"
    on_multi30k, on_iwslt14 = [], []
    for row in rows:
        here = row.split(" | ")[2].partition("on IWSLT14: ")
        for numbers, part in ((on_multi30k, here[0]), (on_iwslt14, here[2])):
            numbers += re.findall(r"(?:^|[,;] )([^;]+?) ([+-]\d+\.\d\d)", part)
    systems = {"Dec-SA": "Dec-SA, 4 hops", "Both-FNN-SA": "Both-FNN-SA, 4 hops"}
    systems["RTAL"] = "RTAL EWP, both"
    for folder, numbers in (("multi30k", on_multi30k), ("iwslt14", on_iwslt14)):
        [table] = READ(root / folder)
        comparisons = system_tables.comparisons_of(table)
        for name, difference in numbers:
            comparison = comparisons[systems.get(name.strip(), name.strip())]
            assert difference == signed(comparison.difference)
    assert (len(on_multi30k), len(on_iwslt14)) == (10, 2)


def test_the_short_table_has_no_column_of_configs() -> None:
    heads = ["", "seeds", "config", "score", "Δ", "gain", "valid loss", "training speed"]
    assert system_tables.main_columns([heads]) == [
        ["", "seeds", "score", "Δ", "gain", "training speed"]
    ]


def test_the_short_table_prefers_systems_with_enough_seeds() -> None:
    heads = ["", "score", "Δ", "gain"]
    rows = [["plain", "10", "", ""]]
    rows += [[f"open{i}", f"{20 + i}", "+9", "open: 1 of 3 seeds"] for i in range(4)]
    rows += [["low", "9", "-1", "no"], ["high", "11 ±1", "+1", "yes"]]
    names = [row[0] for row in system_tables._best(heads, rows, {})]
    assert names == ["plain", "open2", "open3", "low", "high"]


def test_tables_are_inserted_between_markers(results: Path) -> None:
    parts = [f"{MARKERS.format(results.name + main)}old\n{END}\n" for main in ("", " main")]
    new = updated(f"Before\n{parts[0]}Between\n{parts[1]}After\n", results.parent)
    assert new.startswith("Before\n<!-- results") and new.endswith(f"{END}\nAfter\n")
    assert "old" not in new and updated(new, results.parent) == new
    everything, main = new.split("Between")
    markdown = call(results, "--markdown").stdout.strip()
    assert markdown in everything and "**Systems: other configs**" in everything
    short = [line for line in main.splitlines() if line.startswith("| ")]
    rows = [line for line in markdown.splitlines() if line.startswith("| ")][: len(short)]
    assert len(short) > 2 and "**" not in main
    cells, all_cells = ([line.split(" | ") for line in lines] for lines in (short, rows))
    first = cells[0].index("gain") + 1  # the first columns, and some of the others
    assert [line[:first] for line in cells] == [line[:first] for line in all_cells]
    assert "training speed" in cells[0][-1] and len(cells[0]) < len(all_cells[0])
    shutil.rmtree(results)
    assert f"There are no results in `{results.name}` yet." in updated(new, results.parent)


def test_an_overview_has_the_differences_in_all_folders(results: Path) -> None:
    other = shutil.copytree(results, results.parent / "other")
    for path in other.glob("*.seed2.json"):
        path.unlink()
    for path in results.glob("other.*.json"):
        path.unlink()
    text = f"{MARKERS.format(f'{results.name} overview {other.name}')}{END}\n"
    lines = updated(text, results.parent).splitlines()
    heads, _, *rows = [line.strip("| ").split(" | ") for line in lines[1:-1]]
    assert heads[0] == "compared with" and heads[2::2] == ["gain", "gain", "decoding speed"]
    assert [row[:2] for row in rows] == [["fused", "plain"], ["other", "fused"]]
    [table], [other_table] = read_tables(results, {}), read_tables(other, {})
    plain, fused = table.rows
    score = table.columns[0]
    values, others = ([run.score(score) for run in row.runs] for row in (fused, plain))
    mean, spread = fmean(values) - fmean(others), stdev(values) + stdev(others)
    assert rows[0][2:4] == [f"{mean:+.2f} (±{spread:.2f})", "open"]
    comparison = other_table.compare(other_table.rows[1], score)
    assert comparison is not None and len(comparison.differences) == 1
    assert rows[0][4].split()[0] == f"{comparison.difference:+.2f}"
    assert rows[0][4].endswith(" *") == (comparison.p_values[1] < 0.05)
    assert rows[1][2:4] == ["-", "-"]
    text = f"{MARKERS.format(f'{other.name} main {results.name}')}{END}\n"
    lines = updated(text, results.parent).splitlines()[1:-1]
    heads, _, *rows = [line.split(" | ") for line in lines]
    by_name = {row[0].strip("| "): row[heads.index("Δ, Systems")] for row in rows}
    assert by_name == {"plain": "", "fused": f"{mean:+.2f}", "other": ""}


def test_systems_are_grouped_by_significance(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"{MARKERS.format(f'{results.name} significance {results.name}')}{END}\n"
    assert len(updated(text, results.parent).splitlines()) == 4, "no system has three seeds"
    monkeypatch.setattr(system_tables, "SEEDS", 2)
    [table] = read_tables(results, {})
    heads, _, *rows = [
        line.strip("| ").split(" | ") for line in updated(text, results.parent).splitlines()[1:-1]
    ]
    assert heads == ["Systems", "Systems"]
    groups = [row[0] for row in rows]
    assert groups == [group for group in system_tables.SIGNIFICANCE if group in groups]
    cells = {system: row for row in rows for system in row[1].split("; ")}
    assert len(cells) == 2 and all(row[1] == row[2] for row in rows)
    for row in table.rows[1:]:
        scores = row.compare(table.base_of(row), table.columns[0], table.p_values)
        significant = [seed for seed, p in scores.p_values.items() if p < 0.05]
        count = f", {len(significant)} of 2 seeds" if len(significant) == 1 else ""
        group = cells[f"{row.name} ({scores.difference:+.2f}{count})"][0]
        signs = {scores.differences[seed] > 0 for seed in significant}
        assert ("better" in group, "worse" in group) == (True in signs, False in signs)
        assert ("some" in group) == (len(significant) == 1)


def test_a_comparison_has_the_difference_of_the_means_of_all_seeds() -> None:
    """The baseline has a further seed."""
    scores = SeedComparison(MeanScore(3.5, 0.5, 2), MeanScore(2.0, 1.0, 3), {1: 2.0, 2: 1.5}, {})
    comparison = system_tables.Comparison(scores, {})
    assert str(comparison) == "+1.50 (±1.50)"
    assert comparison.summary == "+1.50 (2 seeds)"


@pytest.mark.parametrize(
    ("better", "worse", "group"),
    [
        (3, 0, "better with each seed"),
        (1, 0, "better with some seeds"),
        (1, 2, "better with some seeds, worse with others"),
        (0, 0, "no significant difference with any seed"),
        (0, 2, "worse with some seeds"),
        (0, 3, "worse with each seed"),
    ],
)
def test_each_comparison_has_a_group(better: int, worse: int, group: str) -> None:
    differences = dict(enumerate([1.0] * better + [-1.0] * worse + [0.5] * (3 - better - worse)))
    p_values = {seed: 0.5 if value == 0.5 else 0.01 for seed, value in differences.items()}
    mean = MeanScore(1.0, 0.1, 3)
    scores = SeedComparison(mean, mean, differences, p_values)
    assert system_tables.significance_of(scores) == group in system_tables.SIGNIFICANCE


def test_a_table_of_all_scores_is_inserted(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"{MARKERS.format(results.name + ' all-scores')}{END}\n"
    with pytest.raises(DataError, match="no system with 3 seeds"):
        updated(text, results.parent)
    monkeypatch.setattr(system_tables, "SEEDS", 2)
    [table] = read_tables(results, {})
    lines = updated(text, results.parent).splitlines()
    heads, _, *rows = [line.strip("| ").split(" | ") for line in lines[1:-1]]
    assert [row[:2] for row in rows] == [["fused", "plain"], ["other", "fused"]]
    bold = 0
    for row, (own, base) in zip(rows, zip(table.rows[1:], table.rows, strict=False), strict=True):
        for column, head, cell in zip(table.columns, heads[1:], row[2:], strict=True):
            assert head == f"Δ {column.metric} {column.checkpoint}, ± of both"
            values, others = ([run.score(column) for run in each.runs] for each in (own, base))
            difference, spread = fmean(values) - fmean(others), stdev(values) + stdev(others)
            bold += difference > spread
            change = f"{difference:+.2f}"
            change = f"**{change}**" if difference > spread else change
            assert cell == f"{change}, {spread:.2f}"
    assert 0 < bold < sum(len(row) - 2 for row in rows)


def test_a_table_of_the_power_of_the_rule_is_inserted(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"{MARKERS.format(f'{results.name} power {results.name}')}{END}\n"
    with pytest.raises(DataError, match="too few seeds"):
        updated(text, results.parent)
    noise = Noise(0.5, 0.3)
    monkeypatch.setattr(system_tables, "measured_noise", lambda _: noise)
    monkeypatch.setattr(power, "DRAWS", 50)
    lines = updated(text, results.parent).splitlines()
    heads, _, *rows = [line.strip("| ").split(" | ") for line in lines[1:-1]]
    assert heads == ["true difference", "0", "0.5", "1", "1.5", "2"]
    assert [row[0] for row in rows] == 2 * [f"Systems, {n} seeds" for n in (3, 5, 9)]
    shares = gain_probabilities(noise, map(float, heads[1:]), 5)
    assert rows[1][1:] == [f"{share:.0%}" for share in shares]


def test_a_table_of_costs_is_inserted(results: Path) -> None:
    text = f"{MARKERS.format(results.name + ' costs')}{END}\n"
    with pytest.raises(DataError, match="no measured costs"):
        updated(text, results.parent)
    cost = SystemCost(training=[100.0], decoding=[10.0], bytes_per_token=1000)
    slow = SystemCost(training=[50.0], decoding=[8.0], bytes_per_token=1500)
    costs = MeasuredCosts(
        processor="p", device="d", settings="s", revision=None, systems={"b": cost, "a": slow}
    )
    write_costs(results, costs)
    lines = updated(text, results.parent).splitlines()
    assert lines[-3:] == [
        "| b | ×1.00 | ×1.00 | ×1.00 |",
        "| a | ×0.50 | ×0.80 | ×1.50 |",
        END,
    ]


def test_a_table_of_losses_is_inserted(results: Path) -> None:
    text = f"{MARKERS.format(results.name + ' losses fused plain')}{END}\n"
    lines = updated(text, results.parent).splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines[1:-1]]
    assert cells[0][:3] == ["mean validation loss after epoch", "1", "2"]
    assert [row[0] for row in cells[2:]] == ["fused", "plain"]
    for row in cells[2:]:
        curves = [read_result(results / f"{row[0]}.seed{seed}.json").valid_curve for seed in (1, 2)]
        losses = [dict(zip(c["epoch"], c["loss"], strict=True)) for c in curves]
        for epoch, cell in zip(cells[0][1:-1], row[1:-1], strict=True):
            values = [loss.get(int(epoch)) for loss in losses]
            assert cell == ("-" if None in values else f"{sum(values) / 2:.3f}")
        assert row[-1] == f"{sum(min(loss.values()) for loss in losses) / 2:.3f}"
    for name in ("nothing", "plain@model.dropout=0.3"):
        with pytest.raises(DataError, match=f"has no training of {name}"):
            updated(text.replace("plain", name), results.parent)


def test_a_table_of_losses_shows_the_chosen_config(results: Path) -> None:
    key = "training.stages.0.schedule.peak"
    path = results / "fused.seed1.peak=0.02.json"
    result = read_result(path)
    curve = {**result.valid_curve, "loss": [loss - 1 for loss in result.valid_curve["loss"]]}
    write_result(path, result, valid_curve=curve)
    names = f"fused@{key}=0.02 fused@{key}=0.03 fused"
    lines = updated(f"{MARKERS.format(f'{results.name} losses {names}')}{END}\n", results.parent)
    rows = [line.strip("| ").split(" | ") for line in lines.splitlines()[3:-1]]
    assert [row[0] for row in rows] == ["fused, peak = 0.02", "fused, peak = 0.03", "fused"]
    assert [row[-1] for row in rows] == ["1.000", "2.000", "1.500"]


def test_a_table_of_training_losses_is_inserted(results: Path) -> None:
    """A loss of the curve belongs to all updates since the one before it."""
    for seed, factor in ((1, 1.0), (2, 2.0)):
        file = results / f"fused.seed{seed}.json"
        content = json.loads(file.read_text(encoding="utf-8"))
        losses = [4 * factor, 2 * factor, 3 * factor, factor]
        curve = {"update": [2, 5, 6, 8], "epoch": [0.4, 1.0, 1.2, 1.6], "loss": losses}
        file.write_text(json.dumps({**content, "train_curve": curve}), encoding="utf-8")
    text = f"{MARKERS.format(results.name + ' training-losses fused')}{END}\n"
    lines = updated(text, results.parent).splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines[1:-1]]
    assert cells[0][:2] == ["mean training loss in epoch", "1"]
    first = (4 * 2 + 2 * 3) / 5
    assert cells[2] == ["fused", f"{(first + 2 * first) / 2:.3f}", *["-"] * (len(cells[0]) - 2)]
    file = results / "fused.seed2.json"
    diverged = {name: column for name, column in curve.items() if name != "loss"}
    write_result(file, read_result(file), train_curve=diverged)
    assert f"| fused |{' - |' * (len(cells[0]) - 1)}" in updated(text, results.parent)


def test_a_table_of_tuned_values_is_inserted(results: Path) -> None:
    """``fused`` was trained with two more rates: in a trial, and with another dropout rate."""
    key = "training.stages.0.schedule.peak"
    for rate, losses, more in (
        ("0.02", [5.0, 1.25, 1.0, 1.0], {"training.stages.0.end.epochs": 2}),
        ("0.03", [5.0, 0.5, 0.5, 0.5], {"model.dropout": 0.3}),
    ):
        path = results / f"fused.seed1.peak={rate}.json"
        result = read_result(path)
        overrides = {**result.overrides, **more}
        curve = {"update": [1, 2, 3, 4], "epoch": [1.0, 2.0, 3.0, 4.0], "loss": losses}
        write_result(path, result, valid_curve=curve, overrides=overrides)
    other = results / "other.seed1.json"
    write_result(other, read_result(other), valid_curve={"update": [1], "epoch": [1.0]})  # all NaN
    text = f"{MARKERS.format(f'{results.name} tuning {key} 2')}{END}\n"
    lines = updated(text, results.parent).splitlines()
    recipe = read_result(results / "fused.seed1.json")
    own = recipe.config["training"]["stages"][0]["schedule"]["peak"]
    assert recipe.valid_curve["loss"][:2] == [2.0, 1.5]
    cells = {str(own): "1.500", "0.02": "**1.250**"}
    order = sorted(cells, key=float)
    assert lines[1] == f"|  | {' | '.join(order)} |"
    assert lines[3:-1] == [f"| fused | {' | '.join(cells[name] for name in order)} |"]
    for path in results.glob("fused.*peak*.json"):
        path.unlink()
    with pytest.raises(DataError, match=f"several values of {key}"):
        updated(text, results.parent)


def test_systems_with_a_lower_loss_are_counted(results: Path) -> None:
    def loss(system: str, seed: int, epoch: str) -> float:
        curve = read_result(results / f"{system}.seed{seed}.json").valid_curve
        return dict(zip(curve["epoch"], curve["loss"], strict=True))[int(epoch)]

    text = f"{MARKERS.format(results.name + ' loss-counts')}{END}\n"
    lines = updated(text, results.parent).splitlines()
    epochs, _, counts, ranges = [line.strip("| ").split(" | ") for line in lines[1:-1]]
    assert epochs.pop() == "lowest" and epochs
    assert counts[0] == "by epoch: systems with a lower loss"
    assert len(counts) == len(ranges) == len(epochs) + 2  # a heading, and the lowest losses
    for epoch, count, extent in zip(epochs, counts[1:-1], ranges[1:-1], strict=True):
        differences = [
            fmean(loss(system, seed, epoch) - loss(base, seed, epoch) for seed in (1, 2))
            for system, base in (("fused", "plain"), ("other", "fused"))
        ]
        assert count == f"{sum(value < 0 for value in differences)} of 2"
        assert extent == f"{min(differences):+.3f} to {max(differences):+.3f}"
    for path in results.glob("[fo]*.json"):
        path.unlink()
    with pytest.raises(DataError, match="has no system"):
        updated(text, results.parent)


def test_printed_numbers_of_parameters_are_compared(toy: Path, tmp_path: Path) -> None:
    paper = {"vocabulary": [20, 20], "parameters": "9.00M", "note": "too large"}
    rows = {name: {"paper": paper} for name in ("other", "equal")}
    rows["without"] = {"paper": {}}
    recipes = make_recipes(tmp_path / "recipes", toy, rows)
    count = sum(count_parameters(load(recipes / "equal.yaml"), (20, 20)).values())
    equal = {**paper, "parameters": f"{count / 1e6:.2f}M"}
    make_recipes(recipes, toy, {**rows, "equal": {"paper": equal}})
    text = f"{MARKERS.format('recipes counts')}{END}\n"
    lines = updated(text, tmp_path).splitlines()
    assert [line.strip("| ").split(" | ")[2:] for line in lines[3:5]] == [
        ["9.00M", f"{count:,}", "**no**", "too large"],
        [equal["parameters"], f"{count:,}", "yes", "too large"],
    ]
    assert lines[5:] == ["", "1 of 2 printed numbers agree.", END]
    del equal["vocabulary"]
    make_recipes(recipes, toy, {"equal": {"paper": equal}})
    with pytest.raises(DataError, match=r"equal.yaml has no paper.vocabulary"):
        updated(text, tmp_path)


def test_a_missing_marker_is_an_error(tmp_path: Path) -> None:
    second = MARKERS.format("x") + END
    for text in ("nothing", MARKERS.format("x"), MARKERS.format("x") + second):
        (tmp_path / "a.md").write_text(text)
        with pytest.raises(ValueError, match="marker"):
            updated(text, tmp_path)
    command = [sys.executable, "-m", "tools.results", str(tmp_path / "a.md")]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 1 and "a.md" in ended.stderr and "Traceback" not in ended.stderr
