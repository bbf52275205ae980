"""recipes/run_decode_modes.sh: errors, and a run of every mode of decoding."""

import subprocess
from pathlib import Path

import pytest

from fusetk.files import lock
from tests.cli.test_decode import make_run

pytestmark = pytest.mark.usefixtures("commands")

SCRIPT = Path(__file__).parent.parent.parent / "recipes" / "run_decode_modes.sh"


def call(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, *map(str, arguments)], capture_output=True, text=True)


def test_usage_and_errors():
    assert call("-h").returncode == 0 and "--other RUN" in call("-h").stdout
    for arguments, reason in [
        (["run"], "give RUN, SOURCE and REFERENCE"),
        (["--wide"], "there is no option --wide"),
    ]:
        process = call(*arguments)
        assert process.returncode != 0 and reason in process.stderr


def test_a_missing_run_or_text_is_named(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "text").write_text("hund\n")
    run, text, missing = (tmp_path / name for name in ("run", "text", "missing"))
    for arguments, reason in (
        ([missing, text, text], "there is no run"),
        ([run, missing, text], "there is no file"),
        ([run, text, missing], "there is no file"),
        ([run, text, text, "--other", missing], "there is no run"),
    ):
        process = call(*arguments, "--out", tmp_path / "out")
        assert process.returncode == 2
        assert process.stderr == f"run_decode_modes.sh: {reason} {missing}\n"
    (tmp_path / "two").write_text("hund\nhund\n")
    process = call(run, text, tmp_path / "two", "--out", tmp_path / "out")
    assert process.returncode == 2 and "have unequal numbers of lines" in process.stderr
    assert not (tmp_path / "out").exists()


def test_translations_of_other_inputs_are_not_reused(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "text").write_text("hund\n")
    texts = [tmp_path / "text", tmp_path / "text", "--out", tmp_path / "out"]
    for name in ("one", "other"):  # a call that made no translation changes nothing for the next
        process = call(tmp_path / name, *texts)
        assert process.returncode == 2 and "has translations" not in process.stderr
    (tmp_path / "out" / "greedy.txt").write_text("dog\n")
    process = call(tmp_path / "one", *texts)
    assert process.returncode == 2 and "has translations of other models" in process.stderr
    # The modes use the search settings of the run's config.
    (tmp_path / "out" / "greedy.txt").unlink()
    for beam, reason in ((3, "has no checkpoints/best"), (4, "has translations of other models")):
        (tmp_path / "one" / "config.yaml").write_text(f"decoding:\n  beam: {beam}\n")
        process = call(tmp_path / "one", *texts)
        assert process.returncode == 2 and reason in process.stderr
        (tmp_path / "out" / "greedy.txt").write_text("dog\n")
    (tmp_path / "out" / "greedy.txt").unlink()
    call(tmp_path / "other", *texts)
    (tmp_path / "out" / "greedy.txt").write_text("dog\n")
    # The other spelling of a path names the same model.
    process = call(f"{tmp_path}/./other/", *texts)
    assert process.returncode == 2 and "is not a run folder" in process.stderr


def test_no_file_of_the_user_is_overwritten(tmp_path):
    own, run = tmp_path / "own", tmp_path / "run"
    own.mkdir()
    run.mkdir()
    (own / "prefix").write_text("dog\n")
    (tmp_path / "text").write_text("hund\n")
    cases = (
        (own / "prefix", "where this command overwrites files: give another"),
        ("text", "and has files"),
    )
    for reference, reason in cases:
        process = call(run, tmp_path / "text", tmp_path / reference, "--out", own)
        assert process.returncode == 2 and reason in process.stderr
    assert (own / "prefix").read_text() == "dog\n"


def test_a_second_call_with_the_same_output_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "text").write_text("hund\n")
    with open(tmp_path / "out" / ".lock", "w") as file:
        assert lock(file)
        texts = [tmp_path / "text", tmp_path / "text", "--out", tmp_path / "out"]
        process = call(tmp_path / "run", *texts)
    assert process.returncode == 2 and "another call writes to" in process.stderr


@pytest.mark.slow
def test_every_mode_has_a_line(tmp_path):
    first_run, second_run = (tmp_path / name for name in ("one", "other"))
    for folder, seed in ((first_run, 1), (second_run, 2)):
        folder.mkdir()
        make_run(folder, seed=seed)
    (tmp_path / "source").write_text(
        "ein hund läuft .\nhund\n\nein hund bellt und läuft , und bellt .\n" * 3
    )
    (tmp_path / "reference").write_text("ein hund .\nbellt\n-\nhund bellt , und läuft .\n" * 3)
    texts = [first_run, tmp_path / "source", tmp_path / "reference"]
    process = call(
        *texts, "--other", second_run, "--tokenized", "--out", tmp_path / "out", "--device", "cpu"
    )
    assert process.returncode == 0, process.stderr
    head, *rows, parts = (tmp_path / "out" / "table.txt").read_text().splitlines()
    assert head.split() == ["mode", "BLEU", "speed"] and "the same bytes" in parts
    assert len(rows) == 28 and all(
        row.split()[-1] == "sentences/s" and float(row.split()[-3]) >= 0 for row in rows
    )
    again = call(
        *texts, "--other", second_run, "--tokenized", "--out", tmp_path / "out", "--device", "cpu"
    )
    assert again.returncode == 0 and "==" not in again.stdout, (
        "existing translations are not repeated"
    )
