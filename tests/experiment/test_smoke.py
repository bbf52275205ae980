"""From the files of each published data set to the score of a row: `fusetk dataset` and
`fusetk run --smoke`."""

import json
import subprocess
from pathlib import Path

import pytest

from fusetk.datasets import table
from tests.helpers.published import PAIRS, REFERENCES, TALKS, write_files
from tests.helpers.rows import RECIPES, load

pytestmark = pytest.mark.usefixtures("commands")

TRANSFORMER = {"width": 16, "heads": 2, "ffn": 16}
RECURRENT = {"width": 16, "heads": 2}
CONVOLUTIONS = {"width": 16, "encoder.connect.growth": 8, "decoder.connect.growth": 8}
ROWS = {  # a row of each data set, and the sizes of its model here
    "iwslt14-de-en": ("mlrf/iwslt14_deen/dec_sa_4hops", TRANSFORMER),
    "iwslt14-es-en": ("lwc/iwslt14_esen/coordinated", TRANSFORMER),
    "iwslt14-ro-en": ("lwc/iwslt14_roen/transformer", TRANSFORMER),
    "iwslt14-tr-en": ("densenmt/iwslt14_tren/densenmt_4l_2_e64", CONVOLUTIONS),
    "nist-zh-en": ("dtmt/nist_zhen/dtmt1", RECURRENT),
    "wmt14-en-de": ("rtal/wmt14_ende/base_rtal_4layers", TRANSFORMER),
    "wmt14-en-de-stanford": ("lwc/wmt14_ende/base_coordinated", TRANSFORMER),
    "wmt14-en-fr": ("dtmt/wmt14_enfr/dtmt1", RECURRENT),
    "wmt16-en-ro": ("lwc/wmt16_enro/coordinated", TRANSFORMER),
}
FAST = "iwslt14-es-en"  # the others take longer


def fusetk(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    command = ["fusetk", *map(str, words)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_every_data_set_has_a_row() -> None:
    assert sorted(ROWS) == table.names()
    for name, (row, _) in ROWS.items():
        paper = load(RECIPES / f"{row}.yaml").paper
        assert paper and paper.dataset == name


@pytest.mark.parametrize(
    "name",
    [name if name == FAST else pytest.param(name, marks=pytest.mark.slow) for name in ROWS],
)
def test_from_the_files_of_a_data_set_to_the_score(name: str, tmp_path: Path) -> None:
    row, sizes = ROWS[name]
    config = RECIPES / f"{row}.yaml"
    recipe = load(config)
    assert recipe.paper
    settings = [f"--set=model.{key}={value}" for key, value in sizes.items()]
    files = tmp_path / "files"
    files.mkdir()
    dataset = table.read(name)
    write_files(dataset, files)
    run = ("run", config, "--raw", "raw", "--out", "out", "--smoke", *settings)
    if not recipe.paper.dataset_note:
        (tmp_path / "raw").mkdir()
        files.rename(tmp_path / "raw" / "archives")
        run = (*run, "--dataset", "--any-data")
    else:
        missing = fusetk(tmp_path, *run, "--dataset")
        assert missing.returncode == 2 and missing.stderr.count("\n") == 1
        expected = f"run `fusetk dataset {name} --raw raw` first, then {recipe.paper.dataset_note}"
        assert expected in missing.stderr
        made = fusetk(
            tmp_path, "dataset", name, "--raw", "raw", "--files", files, "--no-fetch", "--any-data"
        )
        assert made.returncode == 0, made.stderr
    prepared = fusetk(tmp_path, *run, "--until", "prep")
    assert "smoke test: all steps up to prep passed" in prepared.stderr
    ran = fusetk(tmp_path, *run)
    assert ran.returncode == 0, ran.stderr
    assert "smoke test: all steps passed" in ran.stderr
    [recorded] = (tmp_path / "out.smoke").glob("run.*/scores.json")
    scores = json.loads(recorded.read_text())["scores"]
    of_paper = [score for score in scores if score["metric"] == recipe.paper.metric]
    assert [score["set_name"] for score in of_paper] == list(recipe.data.test)
    number = REFERENCES if dataset.source == "zh" else 1
    assert all(f"nrefs:{number}|" in score["signature"] for score in of_paper)
    for text in dataset.texts:
        raw = tmp_path / "raw" / f"{text.name}.{dataset.target}"
        if raw.exists():
            content = raw.read_text(encoding="utf-8").split("\n")[:-1]
            tags = text.format == "wit3" and "reviewer" not in text.dropped  # as in MIXER
            assert len(content) == PAIRS[text.format] + (TALKS if tags else 0), text.name
            assert not any("<url" in line or "\r" in line or "\ufeff" in line for line in content)
            assert text.format != "segments" or ("<0>" in content[0]) == text.entities
    references = list((tmp_path / "raw").glob(f"MT06.{dataset.target}*"))
    assert len(references) == (REFERENCES if dataset.source == "zh" else 0)
    assert recipe.paper.row in ran.stdout, "the table of the paper"
