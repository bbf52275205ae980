"""``fusetk rescore`` on run folders with untrained models."""

import gzip
import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fusetk import system
from fusetk.cli.main import main
from fusetk.data.bpe import BPE
from fusetk.data.pipeline import Pipeline
from fusetk.data.vocab import EOS
from fusetk.decoding.target_scores import score_targets
from fusetk.runs import TEXT
from tests.cli import test_decode
from tests.cli.test_decode import make_run

SOURCE = ["Ein Hund läuft.", "", "Hund", "Ein Hund läuft und bellt, und bellt.", "Katze?", ""]
TARGET = ["hund läuft .", "", "", "und und und", "Ein, Hund.", "hund"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("text")
    (folder / "in").write_text("".join(f"{line}\n" for line in SOURCE))
    (folder / "out.gz").write_bytes(gzip.compress("".join(f"{line}\n" for line in TARGET).encode()))
    return folder / "in", folder / "out.gz"


def call(*arguments, given: str | bytes = b"", command="rescore") -> Result:
    return CliRunner().invoke(main, [command, *map(str, arguments)], input=given)


def lines(*arguments, given: str | bytes = b"", command="rescore") -> list[str]:
    result = call(*arguments, given=given, command=command)
    assert result.exit_code == 0, result.output
    return result.stdout.split("\n")[:-1]


def refused(*arguments, given: str | bytes = b"") -> str:
    result = call(*arguments, given=given)
    assert result.exit_code == 2 and "Traceback" not in result.output
    return result.stderr


def wanted(trained: Path) -> list[list[float] | None]:
    """The scores of the tokens of each pair, and of EOS."""
    loaded = system.load_model(trained)
    encoded = []
    for side, text in (("source", SOURCE), ("target", TARGET)):
        vocabulary = getattr(loaded.pipeline, f"{side}_vocab")
        encoded.append(
            [
                vocabulary.encode(loaded.pipeline.subwords(side, loaded.pipeline.words(side, line)))
                for line in text
            ]
        )
    pairs = list(zip(*encoded, strict=True))
    return [
        score_targets([loaded.model], [([*source, EOS], target)])[0].scores if source else None
        for source, target in pairs
    ]


def test_a_score_for_each_line(trained, files, tmp_path):
    printed = lines("-m", trained, *files)
    scores = wanted(trained)
    assert [bool(line) for line in printed] == [True, False, True, True, True, False]
    for line, token_scores in zip(printed, scores, strict=True):
        assert not line or float(line) == pytest.approx(sum(token_scores), abs=1e-5)
    assert len(scores[2]) == 1  # a blank target consists of EOS
    tsv = "".join(f"{source}\t{target}\n" for source, target in zip(SOURCE, TARGET, strict=True))
    assert (
        lines("-m", trained, given=tsv)
        == lines("-m", trained, "--tsv", "-", given=tsv.replace("\n\t\n", "\n\n"))
        == printed
    )
    (tmp_path / "both").write_text(tsv)
    assert lines("-m", trained, "--tsv", tmp_path / "both") == printed
    assert (
        lines("-m", trained, files[0], "-", given=gzip.decompress(files[1].read_bytes())) == printed
    )
    assert lines("-m", trained, "-", files[1], given=files[0].read_bytes()) == printed
    assert (
        lines("-m", trained, *files, "-o", tmp_path / "scores") == []
        and (tmp_path / "scores").read_text().split("\n")[:-1] == printed
    )
    assert len(lines("-m", trained, files[0], files[0])) == len(SOURCE)
    assert lines("-m", trained, *files, "-o", "/dev/null") == []


def test_eos_and_length_penalty(trained, files):
    scores = [token_scores for token_scores in wanted(trained) if token_scores]
    for options, number in (
        (["--no-eos"], lambda s: sum(s[:-1])),
        (["-n"], lambda s: sum(s) / len(s)),
        (["-n", "0.5", "--penalty", "gnmt"], lambda s: sum(s) / ((5 + len(s)) / 6) ** 0.5),
        (["-n", "2", "--no-eos"], lambda s: sum(s[:-1]) / max(1, len(s) - 1) ** 2),
    ):
        printed = [float(line) for line in lines("-m", trained, *files, *options) if line]
        assert printed == pytest.approx([number(token_scores) for token_scores in scores], abs=1e-5)


def test_word_scores(trained, files):
    scores = wanted(trained)
    rows = [
        json.loads(line) for line in lines("-m", trained, *files, "--json", "--word-scores", "-n")
    ]
    assert [row["id"] for row in rows] == list(range(len(SOURCE)))
    assert rows[1] == {"id": 1, "score": None, "normalized": None, "tokens": [], "word_scores": []}
    assert rows[4]["tokens"] == ["ein", ",", "hund", "."]
    for line, row, token_scores in zip(
        lines("-m", trained, *files, "--word-scores"), rows, scores, strict=True
    ):
        if token_scores is None:
            assert line == ""
            continue
        score, *words = line.split("\t")
        assert [word.split(" ")[0] for word in words] == [*row["tokens"], "</s>"]
        assert (
            [float(word.split(" ")[1]) for word in words]
            == pytest.approx(token_scores, abs=1e-5)
            == row["word_scores"]
        )
        assert float(score) == pytest.approx(row["score"], abs=1e-5) == sum(token_scores)
        assert row["normalized"] == pytest.approx(sum(token_scores) / len(token_scores), abs=1e-5)
    short = [
        json.loads(line)
        for line in lines("-m", trained, *files, "--json", "--word-scores", "--no-eos")
    ]
    assert [len(row["word_scores"]) for row in short] == [len(row["tokens"]) for row in short]
    assert lines("-m", trained, *files, "--word-scores", "--no-eos")[2] == "0.000000"


def test_files_are_arguments_or_options(trained, files):
    source, target = files
    as_arguments = call("-m", trained, source, target).stdout
    for words in (("-i", source, "-r", target), ("-i", source, target), (source, "-r", target)):
        assert call("-m", trained, *words).stdout == as_arguments
    assert refused("-m", trained, "-r", target).endswith("give SRC, too\n")
    assert "give SRC and TGT" in refused("-m", trained, "-i", source)
    assert "give SRC and TGT" in refused("-m", trained, "-i", source, "-r", target, "more")


def test_the_summary(trained, files):
    scores = [score for token_scores in wanted(trained) if token_scores for score in token_scores]
    summary = json.loads(lines("-m", trained, *files, "--summary", "--json")[0])
    assert (
        summary["score"] == pytest.approx(sum(scores), abs=1e-4)
        and summary["tokens"] == len(scores) == summary["words"]
    )
    assert summary["perplexity"] == pytest.approx(math.exp(-sum(scores) / len(scores)), rel=1e-5)
    assert (summary["sentences"], summary["blank"], summary["unknown"]) == (4, 2, 0)
    [line] = lines("-m", trained, *files, "--summary")
    assert (
        f"perplexity {summary['perplexity']:.4f} per token" in line
        and "4 sentences, 2 without a source, 14 tokens (0 unknown)" in line
    )
    result = call("-m", trained, *files)
    assert (
        line in result.stderr
        and "4 sentences in" in result.stderr
        and "target tokens/s" in result.stderr
    )
    assert call("-m", trained, *files, "-q").stderr == ""
    assert lines("-m", trained, given="", command="rescore") == []
    assert "no sentence was scored" in call("-m", trained).stderr
    assert (
        json.loads(lines("-m", trained, "--summary", "--json", given="\n")[0])["perplexity"] is None
    )
    single = call("-m", trained, given="Hund\t\n").stderr
    assert "\n1 sentence, 1 token (0 unknown), 1 word: " in single and "\n1 sentence in" in single


def test_a_word_with_unknown_subwords_is_one_word(tmp_path):
    run = make_run(tmp_path)
    pipeline = Pipeline.load(run / TEXT)
    codes = BPE(["#version: 0.2", "h u", "hu n", "hun d</w>"])
    pipeline.bpe = {"source": codes, "target": codes}
    pipeline.save(run / TEXT)
    [text] = lines("-m", run, "--summary", "--json", given="hund\tкот hund кит\n")
    tokens = {"source_tokens": ["hund"], "translations": [{"tokens": ["к@@", "о@@", "т", "hund"]}]}
    arguments = ("-m", run, "--json-lines", "-", "--summary", "--json")
    [search] = lines(*arguments, given=json.dumps(tokens))
    for summary, unknown, words in ((text, 6, 3), (search, 3, 2)):
        numbers = json.loads(summary)
        assert (numbers["unknown"], numbers["words"]) == (unknown, words + 1), "EOS is a word"


def test_scores_do_not_depend_on_chunks_and_batches(trained, files, monkeypatch):
    printed = lines("-m", trained, *files)
    monkeypatch.setattr("fusetk.evaluation.rescore_files.CHUNK", 1)
    for options in ([], ["--batch-tokens", 1]):
        for one, other in zip(lines("-m", trained, *files, *options), printed, strict=True):
            assert one == other or float(one) == pytest.approx(float(other), abs=1e-5)
    rows = map(json.loads, lines("-m", trained, "--json", *files))
    assert [row["id"] for row in rows] == list(range(len(printed)))


def test_tokenized_and_raw_text(trained):
    raw, words = "Ein Hund, ein Hund.\tHund, und.\n", "ein hund , ein hund .\thund , und .\n"
    assert lines("-m", trained, given=raw) == lines("-m", trained, "--tokenized", given=words)
    assert lines("-m", trained, given=raw) != lines("-m", trained, "--tokenized", given=raw)


# Output of decode ---------------------------------------------------------------------------------


def test_a_line_of_white_space_is_blank_in_each_command(trained, tmp_path):
    for name in ("source", "target"):
        (tmp_path / name).write_text("\u3000\n\u2028\nhund\n", encoding="utf-8")
    *blank, last = lines("-m", trained, "--tokenized", tmp_path / "source", tmp_path / "target")
    assert blank == ["", ""] and last
    rows = test_decode.output(
        "-m", trained, "--tokenized", "--json", lines=["\u3000", "\u2028", "hund"]
    )
    for row in map(json.loads, rows):
        assert bool(row["source_tokens"]) == bool(row["translations"]) == (row["id"] == 2)


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("other"), seed=2)


def test_an_n_best_list(trained, other, files):
    listed = lines(
        "-m",
        trained,
        "--n-best",
        2,
        "--tokenized",
        given="".join(f"{line}\n" for line in SOURCE),
        command="decode",
    )
    text = "".join(
        f"{line}\n" for line in [*listed, "4 |||  |||  ||| -1 ||| 0-0", "4|||hund|||x= 1"]
    )
    rescored = lines(
        "-m", trained, files[0], "--n-best", "-", "--tokenized", "--feature", "Again", given=text
    )
    for before, after in zip(listed, rescored, strict=False):
        number, words, features, score = after.split(" ||| ")
        old, new = features.split(" Again= ")
        assert before == " ||| ".join([number, words, old, score])
        assert float(new) == pytest.approx(float(old.removeprefix("LogProb= ")), abs=1e-5)
    assert rescored[-2].startswith("4 |||  ||| Again= -") and rescored[-2].endswith(
        " ||| -1 ||| 0-0"
    )
    assert rescored[-1].startswith("4|||hund|||x= 1 Again= -")
    scores = [
        line.split("Rescore= ")[1].split(" ")[0]
        for line in lines("-m", other, files[0], "--n-best", "-", "-n", given=text)
    ]
    pairs = "".join(
        f"{SOURCE[int(line.split('|||')[0])]}\t{line.split('|||')[1].strip()}\n"
        for line in text.split("\n")[:-1]
    )
    assert scores == lines("-m", other, "-n", given=pairs)


@pytest.mark.parametrize("ids, missing", [((0, 2, 3, 4), 0), ((0, 3), 2), ((), 4)])
def test_an_n_best_list_without_some_lines_is_a_warning(trained, files, caplog, ids, missing):
    entries = "".join(f"{number} ||| hund ||| x= 1 ||| 1\n" for number in ids)
    result = call("-m", trained, files[0], "--n-best", "-", given=entries)
    said = f"standard input has no translation of {missing} lines of {files[0]}: if the list"
    assert result.exit_code == 0 and (said in caplog.text) == bool(missing)
    assert missing or "has no translation" not in caplog.text


def test_a_text_with_bars_in_an_n_best_list(trained, files):
    words = "und ||| und= bellt"
    [printed] = lines(
        "-m", trained, files[0], "--n-best", "-", given=f"0 ||| {words} ||| x= 1 ||| 2 ||| 0-0\n"
    )
    [score] = lines("-m", trained, given=f"{SOURCE[0]}\t{words}\n")
    assert printed == f"0 ||| {words} ||| x= 1 Rescore= {score} ||| 2 ||| 0-0"


@pytest.mark.parametrize(
    "text, said",
    [
        (
            "0 ||| hund ||| katze ||| -1\n",
            "line 1: '0 ||| hund ||| katze ||| -1' has no field with features, such as",
        ),
        ("0 ||| hund\n", "line 1: '0 ||| hund' is not `ID ||| text ||| features ||| score`"),
        (
            "0 ||| hund ||| x= 1 ||| 1\nhund ||| a ||| x= 1\n",
            "line 2: 'hund ||| a ||| x= 1' is not",
        ),
        (
            "2 ||| hund ||| x= 1 ||| 1\n0 ||| hund ||| x= 1 ||| 1\n",
            "line 2: ID 0 comes after ID 2",
        ),
        ("6 ||| hund ||| x= 1 ||| 1\n", "it has no line for ID 6, counted from 0: give the source"),
        ("1 ||| hund ||| x= 1 ||| 1\n", "is blank, so it has no score: remove the entry"),
        (
            "0 ||| hund ||| Rescore= 1 ||| 1\n",
            "line 1: this line already has Rescore; choose another name with --feature",
        ),
    ],
)
def test_invalid_n_best_lists(trained, files, text, said):
    error = refused("-m", trained, files[0], "--n-best", "-", given=text)
    assert error.splitlines()[-1].startswith("fusetk: standard input, line ") and said in error


def test_tokens_of_the_search_have_its_scores(trained, other, tmp_path):
    ensemble = ["-m", trained, "-m", other, "--ensemble", "log"]
    printed = lines(
        *ensemble,
        "--json",
        "--n-best",
        2,
        given="".join(f"{line}\n" for line in SOURCE),
        command="decode",
    )
    (tmp_path / "found").write_text("".join(f"{line}\n" for line in printed))
    rescored = lines(*ensemble, "--json-lines", tmp_path / "found")
    for before, after in zip(map(json.loads, printed), map(json.loads, rescored), strict=True):
        for translation in after["translations"]:
            assert translation.pop("Rescore") == pytest.approx(translation["score"], abs=1e-4)
        assert after == before
    assert [json.loads(line)["translations"] for line in rescored][1] == []
    again = "".join(f"{line}\n" for line in rescored)
    assert "this line already has Rescore" in refused(*ensemble, "--json-lines", "-", given=again)
    for wrong in (
        "hund",
        "[]",
        '{"id": 0}',
        '{"source_tokens": 3, "translations": []}',
        '{"source_tokens": [], "translations": [{}]}',
        '{"source_tokens": [], "translations": [], "text": "\\ud800"}',
        "[" * 100_000,
    ):
        said = refused(*ensemble, "--json-lines", "-", given=wrong)
        assert "standard input, line 1: this is not a line of `fusetk decode --json`" in said


def test_a_json_source_that_is_too_long_is_truncated_with_a_warning(trained, tmp_path, caplog):
    short = make_run(tmp_path, max_source_length=2)
    for run, warned in ((trained, True), (short, False)):
        [given] = lines("-m", run, "--json", given="Ein Hund läuft.\n", command="decode")
        caplog.clear()
        lines("-m", short, "--json-lines", "-", given=given)
        assert ("line 1 has 4 tokens: only the first 2 are" in caplog.text) == warned


def test_an_ensemble(trained, other, files):
    first, second, both, mean, weighted = (
        [float(line) for line in lines(*options, *files, "--no-eos") if line]
        for options in (
            ["-m", trained],
            ["-m", other],
            ["-m", trained, "-m", other],
            ["-m", trained, "-m", other, "--ensemble", "log"],
            ["-m", trained, "-m", other, "--ensemble", "log", "--ensemble-weights", "3,1"],
        )
    )
    assert weighted == pytest.approx(
        [(3 * a + b) / 4 for a, b in zip(first, second, strict=True)], abs=1e-5
    )
    assert mean == pytest.approx(
        [(a + b) / 2 for a, b in zip(first, second, strict=True)], abs=1e-5
    )
    assert both != pytest.approx(mean, abs=1e-3)


# Errors -------------------------------------------------------------------------------------------


def test_files_of_unequal_length_after_their_common_lines(trained, files, tmp_path):
    for name, text in (("short", "hund\nhund\n"), ("long", "hund\n" * 9)):
        (tmp_path / name).write_text(text)
        result = call("-m", trained, files[0], tmp_path / name)
        assert (
            result.exit_code == 2
            and f"in has 6 lines and {tmp_path / name} has {2 if name == 'short' else 9}"
            in result.stderr
        )
        assert result.stdout.count("\n") == min(6, len(text) // 5)
    result = call("-m", trained, files[0], "-", given="hund\n" * 7)
    assert result.exit_code == 2 and "in has 6 lines and standard input has more" in result.stderr
    result = call("-m", trained, files[0], "-", given="hund\n" * 4)
    assert result.exit_code == 2 and "standard input has 4 lines and" in result.stderr


def test_a_sentence_that_is_too_long_is_named(tmp_path, files, monkeypatch):
    monkeypatch.setattr(
        test_decode, "TINY", {**test_decode.TINY, "positions": "learned", "max_positions": 6}
    )
    short = make_run(tmp_path / "run")
    result = call(
        "-m", short, given="Hund\tHund\nHund\thund hund hund hund hund hund\nHund\tHund\n"
    )
    assert result.exit_code == 2 and result.stdout.count("\n") == 1
    said = (
        "standard input, line 2: a target sentence of 6 tokens is too long: the model has 6 "
        "positions"
    )
    assert said in result.stderr
    assert f"{files[0]} and {files[1]}, line 4: a source sentence of 9 tokens" in refused(
        "-m", short, *files
    )


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["a"], "give SRC and TGT, or omit both"),
        (["a", "b", "c"], "give SRC and TGT, or omit both"),
        (["a", "b", "--tsv", "c"], "--tsv excludes other files"),
        (["--n-best", "c"], "--n-best needs exactly one other file"),
        (["a", "--json-lines", "c"], "--json-lines has the source tokens"),
        (["--tsv", "a", "--json-lines", "c"], "--tsv and --json-lines are two inputs"),
        (["-", "-"], "standard input can be only one"),
        (["-n", "a", "b"], "write -n 1 before a file, or -n after the files"),
        (["a", "b", "-n", "nan"], "is not between 0 and 10"),
        (["a", "b", "--summary", "--no-eos"], "--no-eos does not change the summary"),
        (["a", "b", "--penalty", "gnmt"], "--penalty has no effect without -n"),
        (["a", "b", "--penalty", "gnmt", "-n", "0"], "give -n an exponent above 0"),
        (
            ["a", "b", "--feature", "New"],
            "--feature has no effect without --n-best or --json-lines",
        ),
        (["a", "--n-best", "c", "--feature", "a=b"], "cannot be the name of a feature"),
        (["a", "--n-best", "c", "--word-scores"], "are for pairs of lines"),
        (["--json-lines", "c", "--json"], "are for pairs of lines"),
        (["a", "b", "--ensemble", "log"], "--ensemble has an effect with several models only"),
        (["missing", "other"], "missing does not exist"),
    ],
)
def test_invalid_options(trained, arguments, said):
    assert said in " ".join(refused("-m", trained, *arguments).split())


def test_lines_with_other_tabs_and_an_output_that_is_read(trained, tmp_path, files):
    result = call("-m", trained, given="a\tb\na b\n")
    assert (
        result.exit_code == 2
        and "standard input, line 2: this line has 0 tabs" in result.stderr
        and result.stdout.count("\n") == 1
    )
    assert "line 1: this line has 2 tabs" in refused("-m", trained, given="a\tb\tc\n")
    before = files[0].read_bytes()
    assert (
        "is both read and written" in refused("-m", trained, *files, "-o", files[0])
        and files[0].read_bytes() == before
    )
