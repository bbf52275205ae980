"""``fusetk compare`` on files of translations and on runs with an untrained model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fusetk.cli.main import main
from fusetk.evaluation.compare import compare_sentences, diff_words, rank_by_gain
from fusetk.evaluation.metrics import score
from tests.cli.test_decode import make_run

SOURCE = ["Der Mann schlief ein.", "Ja.", "Ein Hund lief heim.", "Es geschah im Park.", ""]
REFERENCE = ["The man fell asleep.", "Yes.", "A dog ran home.", "It happened in the park.", ""]
FIRST = ["The man slept in.", "Yes.", "A dog ran home.", "It took place in a parking lot.", ""]
SECOND = ["The man fell asleep.", "Yes.", "A cat ran home.", "It happened in a park area.", ""]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, lines in {"src": SOURCE, "ref": REFERENCE, "a": FIRST, "b": SECOND}.items():
        write(name, lines)


def write(name: str, lines: list[str]) -> None:
    Path(name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def run(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, ["compare", *map(str, arguments)], input=stdin)


def blocks(*arguments: object) -> list[list[str]]:
    """The output, split into paragraphs of lines."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return [part.splitlines() for part in result.stdout.split("\n\n")]


def line_numbers(*arguments: object) -> list[int]:
    return [int(part[0].split(",")[0].removeprefix("line ")) for part in blocks(*arguments)[1:-1]]


def test_translations_are_printed_with_marks() -> None:
    paragraphs = blocks("a", "b", "-i", "src", "-r", "ref")
    assert paragraphs[0] == ["first: a", "second: b"]
    [case] = [part for part in paragraphs if part[0].startswith("line 1,")]
    assert case[1:] == [
        "  source     Der Mann schlief ein.",
        "  reference  The man fell asleep.",
        "  first      The man [-slept in-].",
        "  second     The man {+fell asleep+}.",
    ]
    [case] = [part for part in paragraphs if part[0].startswith("line 4,")]
    assert case[3:] == [
        "  first      It [-took place-] in a [-parking lot-].",
        "  second     It {+happened+} in a {+park area+}.",
    ]


def test_the_largest_gain_comes_first_and_the_scores_are_those_of_sacrebleu() -> None:
    from sacrebleu import sentence_bleu, sentence_chrf

    assert line_numbers("a", "b", "-i", "src", "-r", "ref") == [1, 4, 3]
    assert line_numbers("b", "a", "-i", "src", "-r", "ref") == [3, 4, 1]
    for metric, of in (("chrf", sentence_chrf), ("sacrebleu", sentence_bleu)):
        first = blocks("a", "b", "-i", "src", "-r", "ref", "--metric", metric)[1][0]
        before, after = (of(lines[0], [REFERENCE[0]]).score for lines in (FIRST, SECOND))
        assert first == f"line 1, {metric} {before:.1f} -> {after:.1f} ({after - before:+.1f})"


def test_without_references_in_order() -> None:
    assert line_numbers("a", "b", "-i", "src") == [1, 3, 4]
    assert line_numbers("a", "b", "-i", "src", "--all") == [1, 2, 3, 4, 5]
    assert line_numbers("a", "b", "-i", "src", "--top", 2) == [1, 3]
    paragraphs = blocks("a", "b", "-i", "src")
    assert paragraphs[1][0] == "line 1" and not any(
        line.startswith("  reference") for part in paragraphs for line in part
    )
    assert paragraphs[-1] == ["sentences: 5, translations that differ: 3, the same: 2"]


def test_the_last_line_is_over_all_sentences() -> None:
    [line] = blocks("a", "b", "-i", "src", "-r", "ref", "--top", 1)[-1]
    bleu, chrf = (
        [score(lines, [REFERENCE], [name])[0].value for lines in (FIRST, SECOND)]
        for name in ("sacrebleu", "chrf")
    )
    counts = (
        "the second translation is better in 2 of 5 sentences, worse in 1, equal in 2 (2 the same)"
    )
    assert (
        line
        == f"chrF2 {chrf[0]:.2f} -> {chrf[1]:.2f}, BLEU {bleu[0]:.2f} -> {bleu[1]:.2f}; {counts}"
    )
    [line] = blocks("b", "a", "-i", "src", "-r", "ref")[-1]
    assert "better in 1 of 5 sentences, worse in 2, equal in 2 (2 the same)" in line


def test_tokenized_text_is_not_tokenised_again() -> None:
    for name, lines in (
        ("a", ["a b c d e."]),
        ("b", ["a b c d e ."]),
        ("src", ["x"]),
        ("ref", ["a b c d e ."]),
    ):
        write(name, lines)
    documents = {}
    for more in ([], ["--tokenized"]):
        assert (
            run(
                "a", "b", "-i", "src", "-r", "ref", "--metric", "sacrebleu", "-o", "c.json", *more
            ).exit_code
            == 0
        )
        documents[bool(more)] = json.loads(Path("c.json").read_text(encoding="utf-8"))
    assert documents[False]["sentences"][0]["scores"][0] == pytest.approx(100)
    assert documents[True]["sentences"][0]["scores"][0] < 70
    [expected] = score(["a b c d e."], [["a b c d e ."]], ["sacrebleu"], tokenize="none")
    assert (
        documents[True]["summary"]["corpus"]["BLEU"][0]
        == expected.value
        < documents[False]["summary"]["corpus"]["BLEU"][0]
    )


def test_the_json_file_has_the_printed_sentences() -> None:
    printed = run("a", "b", "-i", "src", "-r", "ref", "--top", 2, "-o", "c.json").stdout
    assert printed == run("a", "b", "-i", "src", "-r", "ref", "--top", 2).stdout
    document = json.loads(Path("c.json").read_text(encoding="utf-8"))
    assert (document["first"], document["second"], document["metric"]) == ("a", "b", "chrf")
    assert [one["line"] for one in document["sentences"]] == [1, 4]
    assert document["sentences"][0]["scores"][1] == pytest.approx(100)
    assert document["sentences"][1]["second"] == SECOND[3]
    assert {
        name: document["summary"][name]
        for name in ("sentences", "same", "better", "worse", "equal")
    } == {
        "sentences": 5,
        "same": 2,
        "better": 2,
        "worse": 1,
        "equal": 2,
    }


def test_runs_are_translated_as_decode_does(tmp_path: Path) -> None:
    first_run, second_run = (
        make_run(tmp_path / name, seed=seed) for name, seed in (("one", 1), ("other", 2))
    )
    lines = ["Ein Hund läuft.", "", "Hund"]
    write("src", lines)
    translated = {}
    for name, folder in (("one", first_run), ("other", second_run)):
        result = CliRunner().invoke(main, ["decode", "-m", str(folder), "-i", "src", "-q"])
        translated[name] = result.stdout.split("\n")[:-1]
    assert translated["one"] != translated["other"]
    assert (
        run(first_run, second_run, "-i", "src", "--all", "-d", "cpu", "-o", "c.json").exit_code == 0
    )
    document = json.loads(Path("c.json").read_text(encoding="utf-8"))
    for side, name in (("first", "one"), ("second", "other")):
        assert document[side] == f"{name}, update-0000001"
        assert [case[side] for case in document["sentences"]] == translated[name]
    write("a", translated["one"])
    assert blocks("a", first_run / "checkpoints" / "best", "-i", "src")[-1] == [
        "sentences: 3, translations that differ: 0, the same: 3"
    ]
    piped = run(
        first_run, second_run, "-i", "-", "--all", stdin="".join(line + "\n" for line in lines)
    )
    assert piped.stdout == run(first_run, second_run, "-i", "src", "--all").stdout


def test_runs_of_one_name_are_named_by_their_folders(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        Path(folder).mkdir()
        make_run(tmp_path / folder / "my")
    write("src", ["Hund"])
    head = run("x/my", "y/my", "-i", "src").stdout.splitlines()[:2]
    assert head == [
        f"{n}: {f}/my (my, update-0000001)" for n, f in (("first", "x"), ("second", "y"))
    ]


def test_on_a_terminal_words_are_in_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    printed = CliRunner().invoke(main, ["compare", "a", "b", "-i", "src"], color=True).stdout
    assert "\x1b[1;31mslept in\x1b[0m" in printed and "\x1b[1;32mfell asleep\x1b[0m" in printed
    assert "[-" not in printed and "{+" not in printed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a", "short", "-i", "src"], "src has 5 lines and short has 1"),
        (["a", "b", "-i", "src", "-r", "short"], "src has 5 lines and short has 1"),
        (["a", "b", "-i", "none"], "none does not exist"),
        (["a", "b", "-i", "empty"], "empty is empty"),
        (["a", "none", "-i", "src"], "none is neither a run folder nor a file"),
        (["folder", "b", "-i", "src"], "folder is not a run folder"),
        (["a", "b", "-i", "src", "-o", "c.html"], "must end in .json"),
        (["a", "b", "-i", "src", "-o", "nowhere/c.json"], "the folder nowhere does not exist"),
        (["a", "text.json", "-i", "src", "-o", "text.json"], "both read and written"),
        (["a", "b", "-i", "src", "--top", "0"], "--top"),
        (
            ["a", "b", "-i", "src", "--device", "cpu", "--threads", "1"],
            "--device and --threads would change nothing",
        ),
        (
            ["a", "b", "-i", "src", "--tokenized"],
            "a and b are translations already, so --tokenized would change nothing",
        ),
    ],
)
def test_mistakes(arguments: list[str], said: str) -> None:
    write("short", ["Yes."])
    write("empty", [])
    write("text.json", SECOND)
    Path("folder").mkdir()
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert said in result.stderr and "Traceback" not in result.stderr and result.stdout == ""


def test_a_missing_second_run_is_an_error_before_the_first_is_translated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    translated: list[object] = []
    monkeypatch.setattr(
        "fusetk.system.load_model", lambda *arguments, **options: translated.append(arguments)
    )
    make_run(Path("one"))
    for second in ("none", "."):
        assert run("one", second, "-i", "src").exit_code == 2
    assert not translated


def test_a_comparison_of_files_imports_no_torch() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from fusetk.cli.main import main\n"
        "words = ['compare', 'a', 'b', '-i', 'src', '-r', 'ref']\n"
        "assert CliRunner().invoke(main, words).exit_code == 0\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# The functions ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "marks"),
    [
        ("It's a so-called dog .", "It is a so-called  dog.", ("It's", "It is")),
        ("yes", "yes", ("", "")),
        ("", "all new", ("", "all new")),
        ("he said: no", "he said no", (":", "")),
        ("Größe, 他", "Größe, 她", ("他", "她")),
    ],
)
def test_differing_words(first: str, second: str, marks: tuple[str, str]) -> None:
    spans = diff_words(first, second)
    for side, text, mark in zip(spans, (first, second), marks, strict=True):
        assert "".join(span.space + span.text for span in side) == text
        assert " ".join(span.text for span in side if not span.same) == mark


def test_words_repeated_hundreds_of_times_are_compared_in_few_spans() -> None:
    """A span for each of these words would take minutes in longer texts."""
    spans = diff_words("a dog" + " the" * 300 + " ran", "a dog" + " the ," * 150 + " ran")
    assert [[(span.text[:5], span.same) for span in side] for side in spans] == [
        [("a dog", True), ("the t", False), ("ran", True)],
        [("a dog", True), (", the", False), ("ran", True)],
    ]


def test_the_order_of_long_and_short_translations_does_not_matter() -> None:
    long, short = "a dog" + " the" * 600 + " ran", "a dog" + " the ," * 75 + " ran"
    assert diff_words(long, short) == diff_words(short, long)[::-1]


def test_equal_gains_keep_their_order() -> None:
    sentences = compare_sentences(["x"] * 4, ["b", "a", "b", "a"], ["a", "a", "a", "b"], ["a"] * 4)
    assert [case.line for case in rank_by_gain(sentences)] == [1, 3, 2, 4]
    assert [case.gain for case in sentences] == pytest.approx([100, 0, 100, -100])
