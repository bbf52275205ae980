"""Configs of the rows of layer-wise coordination: the tables are complete, all systems are trained
in the same way, and the numbers of parameters are those of the paper."""

import json
import random
import subprocess
from pathlib import Path

import pytest

from fusetk.recipe import Recipe
from fusetk.reporting.parameters import matches_printed
from tests.helpers import rows as helper
from tests.helpers.rows import GROUNDS, RECIPES, check_tables, load, prepared, rows

pytestmark = pytest.mark.usefixtures("commands")

LWC = RECIPES / "lwc"
TABLES = {
    "lwc/iwslt14_deen": {
        "LWC Table 1, De-En": 2,
        "LWC Table 3, De-En": 5,
        "LWC Table 4, De-En": 8,
        "LWC section 5.4, De-En": 1,
    },
    "lwc/iwslt14_roen": {"LWC Table 1, Ro-En": 2},
    "lwc/iwslt14_esen": {"LWC Table 1, Es-En": 2},
    "lwc/wmt16_enro": {"LWC Table 2, En-Ro": 2},
    "lwc/wmt14_ende": {"LWC Table 2, En-De": 4},
}
DEEN = "lwc/iwslt14_deen"
PATHS = [
    path
    for folder in TABLES
    for path in sorted((RECIPES / folder).glob("*.yaml"))
    if path.stem not in GROUNDS
]
V = 31_370


def count(found: Recipe, size: int = V) -> int:
    return helper.count(found, size, size)


def printed(folder: str, name: str) -> float:
    paper = rows(folder)[name].paper
    assert paper and isinstance(paper.bleu, float)
    return paper.bleu


# Rows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_config_is_a_row_that_can_be_built(path):
    found = load(path)
    assert found.paper and found.paper.row and found.paper.bleu
    assert count(found, 500) > 7_000_000


def test_all_folders_are_tested():
    assert {path.parent for path in LWC.glob("*/*.yaml")} == {
        LWC / "systems",
        *(RECIPES / folder for folder in TABLES),
    }


@pytest.mark.parametrize("folder", TABLES)
def test_tables_are_complete_and_in_order(folder):
    check_tables(folder, TABLES[folder])


def test_systems_on_multi30k_differ_only_in_the_setting_that_names_them():
    check_tables("multi30k/coordinated", {"Multi30k De-En, one vocabulary, layers of 256": 7})
    recipes = rows("multi30k/coordinated")
    sizes = {name: count(recipe, 9_000) for name, recipe in recipes.items()}
    assert (
        abs(sizes["coordinated"] - sizes["transformer"]) < 3000
        and sizes["layerwise"] == sizes["transformer"]
    )
    first = recipes["transformer"]
    assert all(
        (recipe.training, recipe.data, recipe.decoding)
        == (first.training, first.data, first.decoding)
        for recipe in recipes.values()
    )


def test_names_of_files_agree_with_their_settings():
    for folder in TABLES:
        for name, one in rows(folder).items():
            row = str(one.paper and one.paper.row)
            transformer = row.startswith(("Transformer", "Baseline"))
            assert one.model.kind == ("transformer" if transformer else "coordinated")
            if not name.startswith("table3"):
                assert transformer == ("transformer" in name or name == "context_gate")


def test_depths_are_those_of_the_paper():
    recipes = rows(DEEN)
    for name, recipe in recipes.items():
        system, _, depth = name.removeprefix("table4_").partition("_")
        if name.startswith("table4"):
            layers = int(depth.removesuffix("l"))
            sides = (
                [recipe.model.stack]
                if system == "coordinated"
                else [recipe.model.encoder, recipe.model.decoder]
            )
            assert all(side.layers == layers for side in sides) and str(
                recipe.paper and recipe.paper.row
            ).endswith(f", {layers} layers")
    assert [recipes[f"table4_coordinated_{n}l"].paper.bleu for n in (10, 14, 18, 22)] == [
        34.32,
        35.07,
        35.31,
        35.05,
    ]  # type: ignore[union-attr]
    assert [recipes[f"table4_transformer_{n}l"].paper.bleu for n in (4, 6, 8, 10)] == [
        32.78,
        32.86,
        32.72,
        32.67,
    ]  # type: ignore[union-attr]


def test_rows_of_a_second_table_repeat_those_of_the_first():
    recipes = rows(DEEN)
    for again, first in (
        ("table3_our_model", "coordinated"),
        ("table4_coordinated_14l", "coordinated"),
        ("table4_transformer_6l", "transformer"),
    ):
        assert recipes[again].model_dump(exclude={"paper"}) == recipes[first].model_dump(
            exclude={"paper"}
        )
        assert printed(DEEN, again) == printed(DEEN, first)


def test_printed_differences_are_those_of_the_printed_scores():
    for name, difference in (
        ("table3_wo_weight_sharing", 1.11),
        ("table3_wo_mixed_attention", 1.30),
        ("table3_wo_language_embedding", 2.27),
        ("table3_wo_position_embedding", 16.61),
        ("transformer", 2.21),
    ):
        assert printed(DEEN, "coordinated") - printed(DEEN, name) == pytest.approx(difference)
    assert printed(DEEN, "table3_wo_weight_sharing") - printed(
        DEEN, "context_gate"
    ) == pytest.approx(0.94)
    for folder, difference in (
        ("lwc/iwslt14_roen", 1.08),
        ("lwc/iwslt14_esen", 1.93),
        ("lwc/wmt16_enro", 1.73),
    ):
        assert printed(folder, "coordinated") - printed(folder, "transformer") == pytest.approx(
            difference
        )
    assert printed("lwc/wmt14_ende", "base_coordinated") - printed(
        "lwc/wmt14_ende", "base_transformer"
    ) == pytest.approx(1.03)
    assert printed("lwc/wmt14_ende", "big_coordinated") == 29.01


# Settings -----------------------------------------------------------------------------------------


def test_an_ablation_changes_a_single_setting():
    ours = rows(DEEN)["coordinated"].model.model_dump()
    assert (ours["share_weights"], ours["mixed_attention"], ours["language_embedding"]) == (
        True,
        True,
        True,
    )
    assert (ours["positions"], ours["stack"]["layers"]) == ("sinusoidal", 14)
    for name, change in (
        ("wo_weight_sharing", {"share_weights": False, "stack": {**ours["stack"], "layers": 7}}),
        ("wo_mixed_attention", {"mixed_attention": False}),
        ("wo_language_embedding", {"language_embedding": False}),
        ("wo_position_embedding", {"positions": "none"}),
    ):
        assert rows(DEEN)[f"table3_{name}"].model.model_dump() == {**ours, **change}
    transformer, gate = rows(DEEN)["transformer"].model, rows(DEEN)["context_gate"].model
    assert (
        gate == transformer.model_copy(update={"context_gate": "scalar"})
        and transformer.context_gate == "none"
    )


@pytest.mark.parametrize("folder", TABLES)
def test_training_is_that_of_the_paper(folder):
    small, ende = "iwslt14" in folder, folder.endswith("ende")
    recipes = list(rows(folder).values())
    for recipe in recipes:
        model, (stage,) = recipe.model, recipe.training.stages
        sizes = {256: (1024, 4, 0.1), 512: (2048, 8, 0.1), 1024: (4096, 16, 0.3)}
        assert (model.ffn, model.heads, model.dropout) == sizes[model.width]
        assert model.width == 256 if small else model.width == 1024 or ende
        assert (model.tie, model.norm, model.attention_bias, model.output_bias) == (
            "all",
            "pre",
            False,
            False,
        )
        adam = stage.optimizer
        assert (adam.kind, tuple(adam.betas), adam.eps) == ("adam", (0.9, 0.98), 1e-9)
        schedule = stage.schedule
        assert (schedule.kind, schedule.warmup, schedule.factor) == ("noam", 4000, 1.0)
        assert (stage.batch.size, stage.batch.unit, stage.batch.accumulate) == (
            4096,
            "both",
            1 if small else 8,
        )
        assert stage.end.patience and recipe.training.label_smoothing == 0.1
        search = recipe.decoding
        assert (search.beam, search.normalize, search.penalty) == (
            (4, 0.6) if ende else (6, 1.1)
        ) + ("gnmt",)
        alike = next(first for first in recipes if first.model.width == model.width)
        assert (recipe.training, recipe.data) == (alike.training, alike.data)


def names(prefixes: object) -> list[str]:
    assert isinstance(prefixes, list)
    return [Path(prefix).name for prefix in prefixes]


def test_data_are_those_of_the_paper():
    data = {
        folder.removeprefix("lwc/"): next(iter(rows(folder).values())).data for folder in TABLES
    }
    kinds = {name: [step.step for step in one.steps] for name, one in data.items()}
    for one in data.values():
        assert one.bpe and one.bpe.joint and one.vocabulary.joint
    assert {name: one.bpe.merges for name, one in data.items() if one.bpe} == {
        "iwslt14_deen": 31_000,
        "iwslt14_roen": 39_000,
        "iwslt14_esen": 34_000,
        "wmt16_enro": 36_000,
        "wmt14_ende": 40_000,
    }
    assert [name for name, steps in kinds.items() if "lowercase" in steps] == ["iwslt14_deen"]
    assert names(data["iwslt14_deen"].test["test"]) == [
        "dev2010",
        "TEDX.dev2012",
        "tst2010",
        "tst2011",
        "tst2012",
    ]
    (limit,) = (step.max_length for step in data["iwslt14_deen"].steps if step.step == "filter")
    assert limit == 50 and kinds["iwslt14_deen"] == ["tokenize", "filter", "lowercase"]
    assert data["iwslt14_deen"].valid.model_dump() == {"every": 23}
    for name in ("iwslt14_roen", "iwslt14_esen"):
        assert names(data[name].valid) == ["dev2010", "tst2010", "tst2011", "tst2012"] and list(
            data[name].test
        ) == ["tst2014"]
    assert names(data["wmt16_enro"].valid) == ["newsdev2016"] and list(data["wmt16_enro"].test) == [
        "newstest2016"
    ]
    assert kinds["wmt16_enro"] == ["normalize-punctuation", "tokenize", "filter", "truecase"]
    assert names(data["wmt14_ende"].valid) == ["newstest2012", "newstest2013"] and list(
        data["wmt14_ende"].test
    ) == ["newstest2014"]
    assert kinds["wmt14_ende"] == ["filter"]


# Parameters ---------------------------------------------------------------------------------------


def norm(d: int) -> int:
    return 2 * d


def attention(d: int) -> int:
    """Maps of queries, keys, values and output, without biases."""
    return 4 * d * d


def ffn(d: int, hidden: int) -> int:
    return d * hidden + hidden + hidden * d + d


def layer(d: int, hidden: int) -> int:
    return attention(d) + ffn(d, hidden) + 2 * norm(d)


def coordinated(d: int, hidden: int, layers: int = 14) -> int:
    """One matrix for all words, a vector for each language, and a norm after the last layer."""
    return layers * layer(d, hidden) + norm(d) + 2 * d + V * d


def transformer(d: int, hidden: int, layers: int = 6) -> int:
    return layers * (2 * layer(d, hidden) + attention(d) + norm(d)) + 2 * norm(d) + V * d


D, H = 256, 1024
UNREAD = (
    layer(D, H) - norm(D) - 2 * D * D
)  # of the source's highest layer all but its norm, keys and values
SMALL = {"transformer": transformer(D, H), "coordinated": coordinated(D, H)}
EXPECTED = {
    "lwc/iwslt14_deen": {
        **SMALL,
        "table3_our_model": coordinated(D, H),
        "table3_wo_weight_sharing": coordinated(D, H) - UNREAD,
        "table3_wo_mixed_attention": coordinated(D, H) + 14 * norm(D),
        "table3_wo_language_embedding": coordinated(D, H) - 2 * D,
        "table3_wo_position_embedding": coordinated(D, H),
        **{
            f"table4_coordinated_{layers}l": coordinated(D, H, layers)
            for layers in (10, 14, 18, 22)
        },
        **{f"table4_transformer_{layers}l": transformer(D, H, layers) for layers in (4, 6, 8, 10)},
        "context_gate": transformer(D, H) + 6 * (2 * D + 1),
    },
    # The paper does not print the vocabulary of these tasks; the counts use that of German-English.
    "lwc/iwslt14_roen": SMALL,
    "lwc/iwslt14_esen": SMALL,
    "lwc/wmt16_enro": {
        "transformer": transformer(1024, 4096),
        "coordinated": coordinated(1024, 4096),
    },
    "lwc/wmt14_ende": {
        f"{size}_{name}": system(d, 4 * d)
        for size, d in (("base", 512), ("big", 1024))
        for name, system in (("transformer", transformer), ("coordinated", coordinated))
    },
}


@pytest.mark.parametrize("folder", TABLES)
def test_parameters_follow_from_the_description(folder):
    assert {name: count(one) for name, one in rows(folder).items()} == EXPECTED[folder]


def test_parameters_are_those_that_the_paper_prints():
    papers = {
        name: one.paper for name, one in rows(DEEN).items() if one.paper and one.paper.parameters
    }
    assert len(papers) == 6 and all(paper.vocabulary == (V, V) for paper in papers.values())
    for name, paper in papers.items():
        total = EXPECTED[DEEN][name]
        assert f"{total / 1e6:.2f}M" == (paper.counted or paper.parameters), name
        assert matches_printed(paper.parameters or "", total) == (paper.counted is None) and (
            paper.counted is None or paper.note
        )
    assert {name for name, paper in papers.items() if paper.counted} == {
        "table3_wo_weight_sharing",
        "table3_wo_mixed_attention",
    }
    assert (
        matches_printed("19.07M", EXPECTED[DEEN]["table3_wo_weight_sharing"] + UNREAD)
        and UNREAD == 657_152
    )


def test_the_page_has_the_numbers_of_parameters():
    helper.check_counts("lwc", *(folder.partition("/")[2] for folder in TABLES))


def test_gates_for_each_feature_or_maps_for_each_attention_do_not_fit_the_printed_counts():
    assert not matches_printed("19.08M", transformer(D, H) + 6 * (2 * D * D + D))
    assert not matches_printed("19.07M", coordinated(D, H) + 14 * (norm(D) + attention(D)))


@pytest.mark.parametrize("d", [256, 512, 1024])
def test_14_layers_have_about_as_many_parameters_as_6_and_6(d):
    assert coordinated(d, 4 * d) - transformer(d, 4 * d) == 6 * d
    assert (
        coordinated(d, 2 * d) - V * d
        < 0.95 * (transformer(d, 2 * d) - V * d)
        < 0.7 * (transformer(d, 4 * d) - V * d)
    )


# Text ---------------------------------------------------------------------------------------------

WORDS = {
    "de": "das Haus ist alt und der Hund schläft heute".split(),
    "en": "the house is old and the dog sleeps today".split(),
    "ro": "casa este veche și câinele doarme astăzi în țară".split(),
    "es": "la casa es vieja y el perro duerme hoy".split(),
}


def write(folder: Path, name: str, lines: int, languages: tuple[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    choose = random.Random(name)
    chosen = [choose.choices(range(9), k=3 + i % 4) for i in range(lines)]
    for language in languages:
        text = "".join(
            "Well, " + " ".join(WORDS[language][i] for i in line) + ".\n" for line in chosen
        )
        (folder / f"{name}.{language}").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("folder", "pairs", "first"),
    [
        ("iwslt14_roen", (40, 160, 40), "Well"),
        ("iwslt14_esen", (40, 160, 40), "Well"),
        ("wmt16_enro", (120, 40, 40), "well"),
        ("wmt14_ende", (40, 80, 40), "Well,"),
    ],
)
def test_text_is_prepared(tmp_path, monkeypatch, folder, pairs, first):
    if folder == "wmt16_enro":  # otherwise `Well` is only at the beginning and keeps its case
        monkeypatch.setitem(WORDS, "ro", ["well", *WORDS["ro"][1:]])
        monkeypatch.setitem(WORDS, "en", ["well", *WORDS["en"][1:]])
    prepared_data = prepared(tmp_path, next(iter(rows(f"lwc/{folder}").values())).data, write)
    splits = prepared_data.splits
    assert (
        tuple(
            splits[name]["pairs_out"]
            for name in ("train", "valid", *(name for name in splits if name.startswith("test")))
        )
        == pairs
    )
    target = prepared_data.data["languages"]["target"]
    (path,) = prepared_data.folder.glob(f"test.*.{target}.txt")
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 40 and all(line.split()[0] == first for line in lines)
    if folder == "wmt16_enro":
        assert any("țară" in line and "și" in line for line in lines)  # its letters stay


# Text to a score ----------------------------------------------------------------------------------


def scores(
    tmp_path: Path, config: str, *options: str, layers: list[str]
) -> dict[tuple[str, str], dict[str, object]]:
    """Run a tiny row from random text to its scores by checkpoint and metric."""
    path = LWC / config
    data = load(path).data
    valid = data.valid if isinstance(data.valid, list) else []
    for prefix in {
        *data.train,
        *valid,
        *(prefix for prefixes in data.test.values() for prefix in prefixes),
    }:
        write(
            tmp_path / "raw",
            Path(prefix).name,
            120 if prefix in data.train else 3,
            (data.source, data.target),
        )
    settings = ["model.width=16", "model.heads=2", "model.ffn=16", "data.bpe.merges=30", *layers]
    settings += [
        "training.stages.0.end={updates: 2}",
        "decoding={beam: 1, max_length_factor: 0, max_length_extra: 3}",
    ]
    further = [word for setting in settings for word in ("--set", setting)]
    command = [
        RECIPES / "run_recipe.sh",
        path,
        "--raw",
        tmp_path / "raw",
        "--out",
        tmp_path / "out",
        "--any-data",
        *options,
        *further,
    ]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    notes = json.loads(
        (tmp_path / "out" / f"run.{path.parent.name}.{path.stem}.seed1" / "scores.json").read_text(
            encoding="utf-8"
        )
    )
    return {(note["checkpoint"], note["metric"]): note for note in notes["scores"]}


def test_a_row_from_raw_text_to_bleu(tmp_path):
    found = scores(tmp_path, "iwslt14_deen/coordinated.yaml", layers=["model.stack.layers=2"])
    assert set(found) == {("best", "multi-bleu-lc")} and all(
        note["sentences"] == 5 * 3 for note in found.values()
    )
    text = (tmp_path / "out" / "data.iwslt14_deen" / "test.test.en.txt").read_text(encoding="utf-8")
    assert text == text.lower()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "layers", "metric"),
    [
        (
            "iwslt14_deen/context_gate.yaml",
            ["model.encoder.layers=1", "model.decoder.layers=1"],
            "multi-bleu-lc",
        ),
        ("iwslt14_deen/table3_wo_weight_sharing.yaml", ["model.stack.layers=2"], "multi-bleu-lc"),
        ("iwslt14_deen/table3_wo_mixed_attention.yaml", ["model.stack.layers=2"], "multi-bleu-lc"),
        ("wmt16_enro/coordinated.yaml", ["model.stack.layers=2"], "sacrebleu"),
    ],
)
def test_other_rows_from_raw_text_to_bleu(tmp_path, config, layers, metric):
    found = scores(tmp_path, config, layers=layers)
    assert {name for _, name in found} >= {metric}
    if metric == "sacrebleu":
        assert all("case:mixed" in str(note["signature"]) for note in found.values())
