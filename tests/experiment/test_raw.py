"""The raw text of `fusetk run`: missing text, `--dataset`, and the published counts."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fusetk import recipe as recipes
from fusetk.cli.main import main
from fusetk.data.corpus_weights import find
from fusetk.datasets import table
from fusetk.datasets.make import ORIGINS
from fusetk.errors import ConfigError, DataError
from fusetk.experiment import counts
from fusetk.experiment.places import places, prefixes_by_use, recipe_with_folders
from fusetk.experiment.raw import missing_texts, provide_raw_text
from fusetk.papers import TextCountsConfig
from fusetk.recipe import Recipe
from tests.helpers.manifests import write_manifest
from tests.helpers.published import write_files
from tests.helpers.rows import GROUNDS, RECIPES, load

ROW = RECIPES / "lwc/iwslt14_roen/coordinated.yaml"


def in_folder(path: Path, raw: Path) -> Recipe:
    return recipe_with_folders(load(path), raw, places(path, load(path), raw.parent / "out"))


def run(*arguments: object) -> Any:
    return CliRunner().invoke(main, ["run", *map(str, arguments)])


def test_weights_follow_their_corpora_into_another_folder(tmp_path: Path) -> None:
    [prefix] = load(ROW).data.train
    recipe = recipes.load(ROW, [f"training.stages.0.weights={{{prefix}: 0.5}}"])
    moved = recipe_with_folders(recipe, tmp_path, places(ROW, recipe, tmp_path / "out"))
    weights = moved.training.stages[0].weights
    assert weights is not None and moved.data.train != [prefix]
    assert {find(name, moved.data.train): weight for name, weight in weights.items()} == {
        moved.data.train[0]: 0.5
    }


def test_two_texts_with_the_same_name_are_refused(tmp_path: Path) -> None:
    for settings in ("data.train=[big/text, small/text]", "data.test={a: [b/text], c: [d/text]}"):
        recipe = recipes.load(ROW, [settings])
        with pytest.raises(ConfigError, match=f"/text would both be {tmp_path}/text: give them"):
            recipe_with_folders(recipe, tmp_path, places(ROW, recipe, tmp_path / "out"))
    recipe = recipes.load(ROW, ["data.test={a: [b/text], c: [b/text]}"])
    recipe_with_folders(recipe, tmp_path, places(ROW, recipe, tmp_path / "out"))


# Missing text -------------------------------------------------------------------------------------


@pytest.mark.parametrize("smoke", [[], ["--smoke"]], ids=str)
@pytest.mark.parametrize("exists", [False, True])
def test_missing_text_names_the_command_that_makes_it(
    tmp_path: Path, smoke: list[str], exists: bool
) -> None:
    raw = tmp_path / "raw text"
    if exists:
        raw.mkdir()
    result = run(ROW, "--raw", raw, "--out", tmp_path / "out", *smoke)
    assert result.exit_code == 2 and result.stderr.count("\n") == 1
    reason = "train.ro nor train.ro.gz exists (and 11 more)" if exists else "does not exist"
    assert reason in result.stderr
    advice = f"run `fusetk dataset iwslt14-ro-en --raw '{raw}'` first, or add --dataset"
    assert advice in result.stderr
    assert not (tmp_path / "out").exists()


def test_text_that_the_user_must_change_is_not_made(tmp_path: Path) -> None:
    for row, note in (
        ("mlrf/nist_zhen/dec_avg", "then segment train.zh and each MT*.zh into words"),
        ("densenmt/iwslt14_tren_morph/base_4l_e64", "then replace each Turkish file by its"),
    ):
        result = run(RECIPES / f"{row}.yaml", "--raw", tmp_path / "raw", "--dataset")
        assert result.exit_code == 2 and note in result.stderr
        assert not (tmp_path / "raw").exists()


def test_a_config_without_a_data_set_says_so(tmp_path: Path) -> None:
    config = RECIPES / "multi30k/transformer_de_en.yaml"
    assert "put the text there\n" in run(config, "--raw", tmp_path).stderr
    result = run(config, "--raw", tmp_path, "--dataset")
    assert result.exit_code == 2 and "the config names no data set" in result.stderr


def test_the_texts_of_the_config_are_made_from_archives(tmp_path: Path) -> None:
    """A text that the config does not read may be missing in the archives."""
    raw = tmp_path / "raw"
    (raw / "archives").mkdir(parents=True)
    dataset = table.read("wmt14-en-de")
    write_files(dataset, raw / "archives")
    (raw / "archives" / "newstest2012-src.en.sgm").unlink()
    recipe = in_folder(RECIPES / "rtal/wmt14_ende/transformer_base.yaml", raw)
    assert len(missing_texts(recipe)) == 10
    with pytest.raises(
        DataError, match="newstest2013 has 6 pairs, but the published text has 3,000"
    ):
        provide_raw_text(recipe, raw, True, False, lambda line: None)
    provide_raw_text(recipe, raw, True, True, lambda line: None)
    assert missing_texts(recipe) == []
    assert not (raw / "newstest2012.en").exists()
    provide_raw_text(recipe, raw, False, False, lambda line: pytest.fail("nothing is made"))
    (raw / "newstest2014.de").unlink()
    with pytest.raises(DataError, match=r"newstest2014.de nor newstest2014.de.gz exists: run"):
        provide_raw_text(recipe, raw, False, False, lambda line: None)


def test_the_rows_of_a_paper_name_a_data_set_with_their_texts() -> None:
    """All rows of a folder have the same text, so one row is tested."""
    for paper in ("densenmt", "dtmt", "lwc", "mlrf", "rtal"):
        for base in sorted((RECIPES / paper).glob("*/base.yaml")):
            row = max(path for path in base.parent.glob("*.yaml") if path.stem not in GROUNDS)
            recipe = load(row)
            assert recipe.paper and recipe.paper.row
            assert recipe.paper.dataset and missing_texts(in_folder(row, Path("/raw")))
            names = [Path(prefix).name for _, prefix in prefixes_by_use(recipe.data)]
            table.read(recipe.paper.dataset, names)
    with pytest.raises(ConfigError, match="wmt14-en-de has no text x; its texts are europarl"):
        table.read("wmt14-en-de", ["x"])


def test_a_part_of_a_data_set_can_be_made(tmp_path: Path) -> None:
    write_files(table.read("nist-zh-en"), tmp_path)
    arguments = ["dataset", "nist-zh-en", "--raw", tmp_path / "raw", "--files", tmp_path]
    arguments += ["--no-fetch", "--any-data", "--text", "MT05", "--text", "train"]
    result = CliRunner().invoke(main, [*map(str, arguments)])
    assert result.exit_code == 0
    names = {path.name for path in (tmp_path / "raw").iterdir()}
    texts = {"train.zh", "train.en", "MT05.zh", *(f"MT05.en{n}" for n in ("", 1, 2, 3))}
    assert names == {ORIGINS, *texts}


# Published counts ---------------------------------------------------------------------------------


def compared(folder: Path, published: dict[str, Any], **splits: Any) -> list[counts.Count]:
    write_manifest(folder, splits=splits)
    models = {name: TextCountsConfig.model_validate(value) for name, value in published.items()}
    return counts.compare(models, folder)


SIDE = {"language": "de", "dtype": "uint16", "sentences": 1, "largest": 1}


def split(pairs: int, subwords: int = 0, tokens: tuple[int, int] = (1, 1)) -> dict[str, Any]:
    sides = {
        side: {**SIDE, "tokens_with_end": number}
        for side, number in zip(("source", "target"), tokens, strict=True)
    }
    return {"pairs_out": pairs, "dropped": {"too many subwords": subwords, "empty": 9}, **sides}


@pytest.mark.parametrize(
    ("published", "pairs", "verdict"),
    [
        (100, split(100), "same"),
        (100, split(90, 10), "same"),
        (100, split(99), "DIFFERENT"),
        ("4.5M", split(4_280_000), "close"),
        ("4.5M", split(3_960_000), "DIFFERENT"),
        ("153K", split(160_239), "close"),
    ],
)
def test_pairs_are_compared_with_the_published_ones(
    tmp_path: Path, published: Any, pairs: dict[str, Any], verdict: str
) -> None:
    compared_counts = compared(tmp_path, {"train": {"pairs": published}}, train=pairs)
    assert [count.verdict for count in compared_counts] == [verdict]
    if verdict == "DIFFERENT":
        with pytest.raises(DataError, match="pairs of train is not the published one"):
            counts.check(compared_counts, any_data=False)
        assert "warning" in str(counts.check(compared_counts, any_data=True))
    else:
        assert counts.check(compared_counts, any_data=False) is None


def test_other_tokens_are_a_warning(tmp_path: Path) -> None:
    published = {"train": {"pairs": 5, "tokens": [1000, 2000]}, "absent": {"pairs": 1}}
    assert (
        counts.check(compared(tmp_path, published, train=split(5, 0, (1000, 2000))), False) is None
    )
    for tokens, verdict in (((1000, 2010), "close"), ((1000, 2011), "DIFFERENT")):
        compared_counts = compared(tmp_path, published, train=split(5, 0, tokens))
        assert [count.verdict for count in compared_counts] == ["same", "same", verdict]
        assert "warning" in str(counts.check(compared_counts, any_data=False))
    assert "train: target tokens" in counts.table(compared_counts)


def test_tokens_of_pairs_with_too_many_subwords_are_counted(tmp_path: Path) -> None:
    published = {"train": {"pairs": 5, "tokens": [1000, 2000]}}
    prepared = split(3, 2, (800, 1700)) | {"dropped_tokens": {"source": 200, "target": 300}}
    assert counts.check(compared(tmp_path, published, train=prepared), any_data=False) is None
