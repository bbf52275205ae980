"""IWSLT14 German-English, prepared from an archive that has the structure of the real one and
random talks."""

import gzip
import importlib.util
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
from fusetk.errors import DataError
from tests.helpers.rows import load

pytestmark = pytest.mark.usefixtures("commands")

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "recipes" / "run_iwslt_deen.sh"
SETS = ["dev2010", "TEDX.dev2012", "tst2010", "tst2011", "tst2012"]
WORDS = {
    "de": "das Haus ist alt und der Hund schläft heute".split(),
    "en": "the house is old and the dog sleeps today".split(),
}

spec = importlib.util.spec_from_file_location("iwslt14", ROOT / "recipes" / "data" / "iwslt14.py")
assert spec and spec.loader
iwslt14 = importlib.util.module_from_spec(spec)
spec.loader.exec_module(iwslt14)


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


def test_training_text_keeps_titles_and_descriptions_and_drops_the_rest(tmp_path):
    counts = iwslt14.extract(
        pack(tmp_path / "de-en.tgz", files(talks=3)), tmp_path / "raw", any_data=True
    )
    assert counts == {"train": 36, **dict.fromkeys(SETS, 7)}
    lines = (tmp_path / "raw" / "train.en").read_text(encoding="utf-8").split("\n")[:-1]
    assert lines[:3] == ["Talk 0: house", "is 0 .", sentence("en", 0)]
    assert not [line for line in lines if "<" in line]


def test_segments_lose_tags_and_typographic_apostrophes(tmp_path):
    iwslt14.extract(pack(tmp_path / "de-en.tgz", files()), tmp_path / "raw", any_data=True)
    lines = (tmp_path / "raw" / "tst2011.de").read_text(encoding="utf-8").split("\n")[:-1]
    assert lines == [f"{sentence('de', i)} It's tst2011." for i in range(7)]


def test_unicode_line_separators_and_empty_segments_keep_their_lines():
    assert iwslt14.segments(
        '<seg id="1"> a\u2028b </seg>\n<seg id="2"></seg>\n<seg id="3">c</seg>\n'
    ) == ["a\u2028b", "", "c"]
    assert iwslt14.training_text("a\u0085b\r\n\n<title>c</title>\n") == ["a\u0085b", "", "c"]


def broken(tmp_path: Path, how: str) -> Path:
    path = tmp_path / "de-en.tgz"
    members = files()
    if how == "missing member":
        del members["de-en/IWSLT14.TED.tst2011.de-en.en.xml"]
    if how == "unequal":
        members["de-en/train.tags.de-en.en"] += "one line more\n"
    if how == "no segments":
        members |= {
            f"de-en/IWSLT14.TED.tst2010.de-en.{language}.xml": "<mteval></mteval>\n"
            for language in WORDS
        }
    pack(path, members)
    if how == "truncated":
        path.write_bytes(path.read_bytes()[:-200])
    if how == "half":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    if how == "a web page":
        path.write_text("<html>404 Not Found</html>")
    if how == "gzip of text":
        path.write_bytes(gzip.compress(b"hello\n" * 1000))
    if how == "empty":
        path.write_bytes(b"")
    if how == "absent":
        path.unlink()
    return path


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("missing member", "lacks de-en/IWSLT14.TED.tst2011.de-en.en.xml"),
        ("unequal", "train has 240 German and 241 English lines"),
        ("no segments", "tst2010 has 0 German and 0 English lines"),
        ("truncated", "is not a complete .tgz"),
        ("half", "is not a complete .tgz"),
        ("a web page", "is not a complete .tgz"),
        ("gzip of text", "is not a complete .tgz"),
        ("empty", "is not a complete .tgz"),
        ("absent", "there is no archive"),
    ],
)
def test_a_wrong_archive_is_one_sentence_that_says_what_to_do(tmp_path, capsys, how, said):
    path = broken(tmp_path, how)
    assert iwslt14.main(["extract", str(path), str(tmp_path / "raw"), "--any-data"]) == 2
    error = capsys.readouterr().err
    assert said in error and str(path) in error and "--archive" in error and error.count("\n") == 1
    assert not (tmp_path / "raw").exists()


def test_sets_of_another_size_are_refused_without_the_option(tmp_path):
    with pytest.raises(DataError, match="dev2010 has 7 segments, the published set 887"):
        iwslt14.extract(pack(tmp_path / "de-en.tgz", files()), tmp_path / "raw")


def serve(monkeypatch, data: bytes, length: int | None = None) -> None:
    """Replaces the download."""

    class Response(io.BytesIO):
        headers = {"Content-Length": str(len(data) if length is None else length)}

    monkeypatch.setattr(iwslt14.urllib.request, "urlopen", lambda url, timeout: Response(data))


def test_a_download_is_complete_or_missing(tmp_path, monkeypatch):
    serve(monkeypatch, b"x" * 1000, length=1001)
    with pytest.raises(
        DataError, match=r"is incomplete: .*de-en.tgz.part has 1,000 of 1,001 bytes"
    ):
        iwslt14.fetch(tmp_path / "de-en.tgz")
    assert not (tmp_path / "de-en.tgz").exists()
    serve(monkeypatch, b"x" * 1000)
    assert iwslt14.fetch(tmp_path / "de-en.tgz").read_bytes() == b"x" * 1000
    assert not (tmp_path / "de-en.tgz.part").exists()


def test_no_network_is_one_sentence(tmp_path, monkeypatch, capsys):
    def refuse(url, timeout):
        raise OSError("no route to host")

    monkeypatch.setattr(iwslt14.urllib.request, "urlopen", refuse)
    assert iwslt14.main(["fetch", str(tmp_path)]) == 2
    assert "cannot be downloaded (no route to host)" in capsys.readouterr().err


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
    counts = json.loads((out / "data.iwslt14_deen" / "manifest.json").read_text(encoding="utf-8"))[
        "splits"
    ]
    assert counts["train"]["dropped"] == {"empty": 1, "length ratio": 1, "too long": 1}
    assert (
        counts["train"]["pairs_out"],
        counts["valid"]["pairs_out"],
        counts["test.test"]["pairs_out"],
    ) == (230, 10, 35)


def test_test_sets_are_in_order_lowercased_and_tokenised(prepared):
    lines = (
        (prepared[0] / "data.iwslt14_deen" / "test.test.en.txt")
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
        (out / "data.iwslt14_deen" / "valid.de.raw").read_text(encoding="utf-8").split("\n")[:-1]
    )
    assert valid == raw[22::23]


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
    ("config", "folder", "sets"),
    [
        (
            "lwc/iwslt14_deen/coordinated.yaml",
            "data.lwc_iwslt14_deen",
            SETS,
        ),
        (
            "densenmt/iwslt14_deen_words/base_4l.yaml",
            "data.densenmt_iwslt14_deen_words",
            ["dev2010", "tst2010", "tst2011", "tst2012"],
        ),
    ],
)
def test_a_row_has_the_test_sets_of_its_own_paper(prepared, tmp_path, config, folder, sets):
    shutil.copytree(prepared[0] / "raw", tmp_path / "raw")
    command = [SCRIPT, "--out", tmp_path, "--config", ROOT / "recipes" / config]
    command += ["--prepare-only", "--any-data"]
    if load(ROOT / "recipes" / config).data.bpe:
        command += ["--set", "data.bpe.merges=50"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    lines = (tmp_path / folder / "test.test.en.txt").read_text(encoding="utf-8").splitlines()
    assert [line.rstrip(" .").split()[-1] for line in lines] == [
        name.lower() for name in sets for _ in range(7)
    ]
    assert f"{'50' if config.startswith('lwc') else '175'} words a side" in ran.stderr


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
    scores = [line for line in ran.stdout.splitlines() if line.startswith("multi-bleu-lc:")]
    assert len(scores) == 2 and all("ref_len=" in line for line in scores)


def manifest(
    folder: Path,
    config: str,
    pairs: dict[str, int],
    tokens: dict[str, tuple[int, int]] | None = None,
    subwords: int = 0,
) -> None:
    """Write the part of a manifest that the check reads, for the data of this config."""
    counted = tokens or {}
    splits = {
        part: {
            "pairs_out": number - (subwords if part == "train" else 0),
            "dropped": {iwslt14.SUBWORDS: subwords} if part == "train" else {},
            "source": {"tokens_with_end": counted.get(part, (1, 1))[0]},
            "target": {"tokens_with_end": counted.get(part, (1, 1))[1]},
        }
        for part, number in pairs.items()
    }
    settings = load(ROOT / "recipes" / config).data.model_dump(mode="json", exclude={"folder"})
    (folder / "manifest.json").write_text(json.dumps({"settings": settings, "splits": splits}))


MLRF = "mlrf/iwslt14_deen/baseline_3layer.yaml"
VARIANT = {"train": 160_239, "valid": 7_283, "test.test": 6_750}
TOKENS = {
    "train": (4_035_591, 3_949_114),
    "valid": (182_592, 178_622),
    "test.test": (161_838, 156_928),
}


def test_other_pairs_are_an_error_and_other_tokens_a_warning(tmp_path, capsys):
    manifest(tmp_path, MLRF, VARIANT, TOKENS)
    assert iwslt14.main(["check", str(tmp_path)]) == 0
    assert "warning" not in (said := capsys.readouterr().err) and "at most 175 words" in said
    close = {**TOKENS, "train": (4_035_600, 3_949_114)}
    manifest(tmp_path, MLRF, VARIANT, close, subwords=39)  # MLRF's limit on subwords
    assert iwslt14.main(["check", str(tmp_path)]) == 0
    assert "warning" in capsys.readouterr().err
    manifest(tmp_path, MLRF, {**VARIANT, "train": 160_238}, TOKENS)
    assert iwslt14.main(["check", str(tmp_path)]) == 2
    assert "at most 175 words a side, in train: pairs" in capsys.readouterr().err
    (tmp_path / "manifest.json").unlink()
    assert iwslt14.main(["check", str(tmp_path)]) == 2


@pytest.mark.parametrize(
    ("config", "pairs", "said"),
    [
        (
            "lwc/iwslt14_deen/coordinated.yaml",
            {"train": 153_326, "valid": 6_969, "test.test": 6_750},
            "MIXER's split, at most 50 words",
        ),
        (
            "densenmt/iwslt14_deen/base_4l_e64.yaml",
            {**VARIANT, "test.test": 5_585},
            "fairseq's variant of MIXER's split, at most 175 words",
        ),
        (
            "densenmt/iwslt14_deen_words/base_4l.yaml",
            {**VARIANT, "test.test": 5_585},
            "at most 175 words",
        ),
        ("iwslt14/transformer_6x512.yaml", VARIANT, "at most 175 words"),
    ],
)
def test_each_row_is_checked_against_the_split_of_its_own_paper(
    tmp_path, capsys, config, pairs, said
):
    manifest(tmp_path, config, pairs, TOKENS)
    assert iwslt14.main(["check", str(tmp_path)]) == 0
    assert said in capsys.readouterr().err
    for part in pairs:
        manifest(tmp_path, config, {**pairs, part: pairs[part] + 1}, TOKENS)
        assert iwslt14.main(["check", str(tmp_path)]) == 2
        assert f"{part}: pairs" in capsys.readouterr().err


def test_a_length_limit_without_a_published_split_is_an_error(tmp_path, capsys):
    manifest(tmp_path, MLRF, VARIANT, TOKENS)
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace('"max_length": 175', '"max_length": 80'))
    assert iwslt14.main(["check", str(tmp_path)]) == 2
    assert "at most 50 or 175 words a side" in capsys.readouterr().err
    assert iwslt14.main(["check", str(tmp_path), "--any-data"]) == 0


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
    fifty, all_pairs = (sum(iwslt14.SPLITS[limit].pairs.values()) for limit in limits)
    assert counts[0] / counts[1] == pytest.approx(fifty / all_pairs, abs=0.002)


# Configs ------------------------------------------------------------------------------------------


# Configs that other recipes extend. Some of them are not complete.
GROUNDS, GROUND_FOLDERS = {"base.yaml", "big.yaml"}, {"data", "systems"}
FOUND = sorted((ROOT / "recipes").rglob("*.yaml"))
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
    subprocess.run(["shellcheck", "-x", *(ROOT / "recipes").glob("*.sh")], cwd=ROOT, check=True)
