"""IWSLT14 German-English, prepared from an archive that has the structure of the real one and
random talks."""

import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from fusetk import recipe
from fusetk.data.text import read_lines
from fusetk.datasets import table
from tests.helpers.rows import load

pytestmark = pytest.mark.usefixtures("commands")

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "recipes" / "run_iwslt_deen.sh"
SETS = ["dev2010", "TEDX.dev2012", "tst2010", "tst2011", "tst2012"]
WORDS = {
    "de": "das Haus ist alt und der Hund schläft heute".split(),
    "en": "the house is old and the dog sleeps today".split(),
}


def sentence(language: str, i: int) -> str:
    words = WORDS[language]
    return " ".join(words[(i + j) % len(words)] for j in range(4 + i % 3)).capitalize() + f" {i}."


def tags(language: str, talks: int) -> str:
    """Return a train.tags file: five lines of tags and ten sentences for each talk."""
    lines = []
    for talk in range(talks):
        lines += [
            f"<url>http://www.ted.com/talks/{talk}</url>",
            "<keywords>talks, houses</keywords>",
            f"<talkid>{talk}</talkid>",
            f"<title>Talk {talk}: {WORDS[language][1]}</title>",
            f"<description>{WORDS[language][2]} {talk} .</description>",
        ]
        lines += [f" {sentence(language, 10 * talk + i)} " for i in range(10)]
    return "".join(f"{line}\n" for line in lines)


def xml(language: str, segments: int, name: str) -> str:
    body = "".join(
        f'<seg id="{i + 1}"> {sentence(language, i)} It\u2019s {name}. </seg>\n'
        for i in range(segments)
    )
    head = (
        '<?xml version="1.0" encoding="UTF-8"?>\n<mteval>\n'
        f'<refset setid="{name}">\n<doc docid="1">\n<title>a title</title>\n'
    )
    return f"{head}{body}</doc>\n</refset>\n</mteval>\n"


def files(talks: int = 20, segments: int = 7) -> dict[str, str]:
    texts = {f"de-en/train.tags.de-en.{language}": tags(language, talks) for language in WORDS}
    for name in SETS:
        member = f"IWSLT14.{name}" if name.startswith("TEDX") else f"IWSLT14.TED.{name}"
        texts |= {
            f"de-en/{member}.de-en.{language}.xml": xml(language, segments, name)
            for language in WORDS
        }
    return texts | {"de-en/README": "about this archive\n"}


def pack(path: Path, members: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in members.items():
            entry = tarfile.TarInfo(name)
            data = text.encode()
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


def test_the_script_finds_its_folder_if_cdpath_is_set(monkeypatch):
    monkeypatch.setenv("CDPATH", ".")
    command = [SCRIPT.relative_to(ROOT), "--help"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert f"--out DIR         the folder of all output ({ROOT}/work/iwslt14_deen)" in ran.stdout


def test_configs_of_other_tasks_are_refused(tmp_path):
    config = ROOT / "recipes" / "lwc" / "wmt14_ende" / "base_transformer.yaml"
    assert config.exists()
    command = [SCRIPT, "--config", config, "--out", tmp_path / "out"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 2 and "is not one of the configs that -h lists" in ran.stderr
    assert not (tmp_path / "out").exists()


# Prepared -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The output of the script with --prepare-only for 20 talks: 240 pairs. Three of them are too
    long, empty, or have lengths that differ too much."""
    folder = tmp_path_factory.mktemp("iwslt")
    members = files()
    for language, words in (("de", 200), ("en", 180)):
        name = f"de-en/train.tags.de-en.{language}"
        members[name] += (
            "wort " * words + "\n" + "eins zwei drei vier\n" * (1 if language == "de" else 0)
        )
        members[name] += "one two\n" if language == "en" else ""
        members[name] += "hallo\n" if language == "de" else "\n"
    archive = pack(folder / "given.tgz", members)
    command = [
        SCRIPT,
        "--archive",
        "given.tgz",
        "--out",
        "out",
        "--prepare-only",
        "--any-data",
        "--set",
        "data.bpe.merges=50",
    ]
    assert archive.exists()
    return folder / "out", subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_the_script_prepares_and_compares(prepared):
    out, ran = prepared
    assert ran.returncode == 0, ran.stderr
    assert "DIFFERENT" in ran.stderr and "160,239" in ran.stderr
    counts = json.loads(
        (out / "mlrf" / "data.iwslt14_deen" / "manifest.json").read_text(encoding="utf-8")
    )["splits"]
    assert counts["train"]["dropped"] == {"empty": 1, "length ratio": 1, "too long": 1}
    assert (
        counts["train"]["pairs_out"],
        counts["valid"]["pairs_out"],
        counts["test.test"]["pairs_out"],
    ) == (230, 10, 35)


def test_test_sets_are_in_order_lowercased_and_tokenised(prepared):
    lines = (
        (prepared[0] / "mlrf" / "data.iwslt14_deen" / "test.test.en.txt")
        .read_text(encoding="utf-8")
        .split("\n")[:-1]
    )
    assert [line.rstrip(" .").split()[-1] for line in lines] == [
        name.lower() for name in SETS for _ in range(7)
    ]
    assert "it &apos;s" in lines[0] and lines[0] == lines[0].lower()


def test_every_23rd_clean_pair_is_for_validation(prepared):
    out = prepared[0]
    raw = (out / "raw" / "train.de").read_text(encoding="utf-8").split("\n")[:240]
    valid = (
        (out / "mlrf" / "data.iwslt14_deen" / "valid.de.raw")
        .read_text(encoding="utf-8")
        .split("\n")[:-1]
    )
    assert valid == raw[22::23]


def test_another_archive_does_not_replace_the_text(prepared, tmp_path):
    link = prepared[0] / "raw" / "archives" / "de-en.tgz"
    before = link.resolve()
    archive = pack(tmp_path / "other.tgz", files())
    command = [SCRIPT, "--archive", archive, "--out", prepared[0], "--prepare-only", "--any-data"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 2 and "raw has text already: omit --archive" in ran.stderr
    assert link.resolve() == before


def test_a_repeated_call_changes_nothing(prepared):
    out = prepared[0]
    before = {
        path: path.stat().st_mtime_ns
        for path in out.rglob("*")
        if path.is_file() and path.name != ".lock"
    }
    command = [SCRIPT, "--out", out, "--prepare-only", "--any-data", "--set", "data.bpe.merges=50"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0 and "nothing to do" in ran.stderr
    assert {
        path: path.stat().st_mtime_ns
        for path in out.rglob("*")
        if path.is_file() and path.name != ".lock"
    } == before


SMALL = [
    "model.width=16",
    "model.heads=2",
    "model.ffn=16",
    "decoding={beam: 2, max_length_factor: 0, max_length_extra: 3}",
]


@pytest.mark.parametrize(
    ("config", "folder"),
    [
        ("lwc/iwslt14_deen/coordinated.yaml", "lwc/data.iwslt14_deen"),
        ("densenmt/iwslt14_deen_words/base_4l.yaml", "densenmt/data.iwslt14_deen_words"),
    ],
)
def test_a_row_of_another_paper_has_its_own_text(prepared, tmp_path, config, folder):
    shutil.copytree(prepared[0] / "raw", tmp_path / "raw")
    command = [SCRIPT, "--out", tmp_path, "--config", ROOT / "recipes" / config]
    command += ["--prepare-only", "--any-data"]
    if load(ROOT / "recipes" / config).data.bpe:
        command += ["--set", "data.bpe.merges=50"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    lines = (tmp_path / folder / "test.test.en.txt").read_text(encoding="utf-8").splitlines()
    assert [line.rstrip(" .").split()[-1] for line in lines] == [
        name.lower() for name in SETS for _ in range(7)
    ]
    published = "153,326" if config.startswith("lwc") else "160,239"
    [row] = [line.split() for line in ran.stderr.splitlines() if line.startswith("train: pairs")]
    assert row[2] == published and row[4] == "DIFFERENT"


@pytest.mark.parametrize(
    "config",
    [
        "recipes/mlrf/iwslt14_deen/baseline_3layer.yaml",
        pytest.param("recipes/iwslt14/transformer_6x512.yaml", marks=pytest.mark.slow),
    ],
)
def test_from_archive_to_bleu(prepared, tmp_path, config):
    """A tiny baseline is trained in both stages, averaged, and its translations are scored."""
    shutil.copytree(prepared[0], tmp_path / "out")
    stages = range(len(recipe.load(ROOT / config).training.stages))
    settings = [
        "data.bpe.merges=50",
        *SMALL,
        *(f"training.stages.{i}.end={{updates: 2}}" for i in stages),
    ]
    command = [
        SCRIPT,
        "--out",
        tmp_path / "out",
        "--any-data",
        "--config",
        ROOT / config,
        "--average",
        "2",
    ]
    ran = subprocess.run(
        [*command, *(word for one in settings for word in ("--set", one))],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert f"{len(stages)} of {len(stages)} starts" in ran.stderr or len(stages) == 1
    scores = [line for line in ran.stdout.splitlines() if line.startswith("multi-bleu")]
    assert len(scores) == 2 and all("ref_len=" in line for line in scores)


MLRF = "mlrf/iwslt14_deen/baseline_3layer.yaml"


@pytest.mark.parametrize(
    ("config", "pairs"),
    [
        (MLRF, (160_239, 7_283, 6_750)),
        ("lwc/iwslt14_deen/coordinated.yaml", (153_326, 6_969, 6_750)),
        ("lwc/iwslt14_deen/table4_transformer_10l.yaml", (153_326, 6_969, 6_750)),
        ("densenmt/iwslt14_deen/base_4l_e64.yaml", (160_239, 7_283, 6_750)),
        ("densenmt/iwslt14_deen_words/base_4l.yaml", (160_239, 7_283, 6_750)),
        ("iwslt14/transformer_6x512.yaml", (160_239, 7_283, 6_750)),
    ],
)
def test_each_row_has_the_counts_of_the_split_of_its_own_paper(
    config: str, pairs: tuple[int, ...]
) -> None:
    """The test sets have as many segments as those of the data set, and 10,000 merges tokens."""
    row = load(ROOT / "recipes" / config)
    assert row.paper and row.paper.dataset == "iwslt14-de-en"
    text = row.paper.text
    assert tuple(text[part].pairs for part in ("train", "valid", "test.test")) == pairs
    segments = {text.name: text.pairs for text in table.read("iwslt14-de-en").texts}
    names = [Path(prefix).name for prefix in row.data.test["test"]]
    assert sum(segments[name] or 0 for name in names) == pairs[2]
    counted = all(counts.tokens for counts in text.values())
    assert counted == (row.data.bpe is not None and row.data.bpe.merges == 10_000)
    assert row.paper.metric in (None, "multi-bleu-lc", "multi-bleu")
    assert row.paper.checkpoint in (None, "best")


def test_the_limits_of_the_published_splits_keep_their_shares_of_real_text():
    """Of 167,522 pairs, 160,295 have at most 50 words. The share is the same in a sample."""
    folder = Path(os.environ.get("FUSETK_TEST_DATA", "")) / "iwslt14_sample"
    if not folder.is_dir():
        pytest.skip("FUSETK_TEST_DATA names no folder with iwslt14_sample")
    texts = [
        [
            line
            for name in ("train", "valid")
            for line in read_lines(str(folder / f"{name}.{side}.gz"))
        ]
        for side in WORDS
    ]
    limits = [
        next(
            step.max_length
            for step in load(ROOT / "recipes" / config).data.steps
            if step.step == "filter"
        )
        for config in ("lwc/iwslt14_deen/coordinated.yaml", MLRF)
    ]
    counts = [
        sum(max(len(line.split()) for line in pair) <= limit for pair in zip(*texts, strict=True))
        for limit in limits
    ]
    assert limits == [50, 175]
    fifty, all_pairs = 153_326 + 6_969, 160_239 + 7_283
    assert counts[0] / counts[1] == pytest.approx(fifty / all_pairs, abs=0.002)


# Configs ------------------------------------------------------------------------------------------


# Configs that other recipes extend. Some of them are not complete.
GROUNDS, GROUND_FOLDERS = {"base.yaml", "big.yaml"}, {"data", "systems", "plans"}
FOUND = sorted((ROOT / "recipes").glob("*/**/*.yaml"))  # papers.yaml is not a config
CONFIGS = [
    path for path in FOUND if path.name not in GROUNDS and path.parent.name not in GROUND_FOLDERS
]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_recipe_is_valid(path):
    load(path)


def test_every_recipe_validates_by_updates_or_by_epochs_and_not_by_both():
    both = [
        path
        for path in CONFIGS
        if (when := load(path).training.validation).every_updates and when.every_epochs
    ]
    assert both == []


@pytest.mark.parametrize(("layers", "expected"), [(3, 10_974_748), (4, 12.82e6), (6, 16.50e6)])
def test_parameters_are_those_of_the_paper(layers, expected):
    from fusetk import system

    config = recipe.load(
        ROOT / "recipes" / "mlrf" / "iwslt14_deen" / f"baseline_{layers}layer.yaml"
    )
    count = sum(p.numel() for p in system.build(config, 8_389, 6_428).parameters())
    assert count == expected or (layers > 3 and abs(count - expected) < 5_000)
    assert config.paper and config.paper.parameters == f"{count / 1e6:.2f}M"


def test_the_restart_is_two_stages():
    first, second = recipe.load(
        ROOT / "recipes/mlrf/iwslt14_deen/baseline_3layer.yaml"
    ).training.stages
    assert (first.end.epochs, first.batch.size, first.batch.unit) == (40, 80, "sentences")
    assert (second.end.epochs, second.batch.size, second.schedule.kind) == (20, 32, "constant")


def test_scripts_pass_shellcheck():
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed")
    subprocess.run(["shellcheck", "-x", *(ROOT / "recipes").rglob("*.sh")], cwd=ROOT, check=True)
