"""Configs of the rows of DTMT's tables, and Figure 3: the tables are complete, and training and
numbers of parameters are those of the paper."""

import json
import random
import subprocess
from pathlib import Path

import pytest

from fusetk.recipe import Recipe
from fusetk.training.schedule import SCHEDULES
from tests.helpers import rows as helper
from tests.helpers.rows import GROUNDS, RECIPES, check_tables, load, prepared

pytestmark = pytest.mark.usefixtures("commands")

DTMT = RECIPES / "dtmt"
NIST, ENDE, ENFR = "dtmt/nist_zhen", "dtmt/wmt14_ende", "dtmt/wmt14_enfr"
TABLES = {
    NIST: {"DTMT Table 1": 4, "DTMT Table 3": 9, "DTMT Table 4": 4, "DTMT Table 6": 12},
    ENDE: {"DTMT Table 2, En-De": 3, "DTMT Table 5": 3},
    ENFR: {"DTMT Table 2, En-Fr": 3},
}
MULTI30K = "multi30k/recurrent"
PATHS = [
    path
    for folder in (*TABLES, MULTI30K)
    for path in sorted((RECIPES / folder).glob("*.yaml"))
    if path.stem not in GROUNDS
]
S, T = 41_970, 30_500
SIDES = ("encoder", "query", "decoder")


def rows(folder: str) -> dict[str, Recipe]:
    """Return the rows of a folder with a recurrent system."""
    recipes = helper.rows(folder)
    return {name: recipe for name, recipe in recipes.items() if recipe.model.kind == "recurrent"}


def count(recipe: Recipe, source: int = S, target: int = T) -> int:
    return helper.count(recipe, source, target)


def printed(folder: str, name: str) -> float:
    paper = rows(folder)[name].paper
    assert paper and paper.bleu
    return paper.bleu["average"] if isinstance(paper.bleu, dict) else paper.bleu


def transitions(recipe: Recipe) -> list[tuple[str, int]]:
    """Return the cell and the depth of encoder, query and decoder."""
    return [
        (side.cell, side.depth)
        for side in (recipe.model.encoder, recipe.model.query, recipe.model.decoder)
    ]


# Rows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_config_is_a_row_that_can_be_built(path):
    recipe = load(path)
    assert (
        recipe.paper
        and recipe.paper.row
        and (recipe.paper.bleu is None) == (path.parent.parent.name == "multi30k")
    )
    assert count(recipe, 600, 500) > 1_000_000


def test_all_folders_are_tested():
    assert {path.parent for path in DTMT.glob("*/*.yaml")} == {
        DTMT / "systems",
        *(RECIPES / folder for folder in TABLES),
    }


@pytest.mark.parametrize("folder", TABLES)
def test_tables_are_complete_and_in_order(folder):
    check_tables(folder, TABLES[folder])


def test_names_of_files_agree_with_their_settings():
    for folder in TABLES:
        for name, recipe in rows(folder).items():
            row, depth = (
                str(recipe.paper and recipe.paper.row),
                max(depth for _, depth in transitions(recipe)),
            )
            assert row.startswith(
                "- " if "_wo_" in name else f"DTMT#{depth}" if depth else "ShallowRNMT"
            )
            assert ("Non-PE" in row or "Techniques" in row) == (recipe.model.positions == "none")


def test_transitions_are_those_of_the_paper():
    transitions_of = {
        folder: {name: transitions(recipe) for name, recipe in rows(folder).items()}
        for folder in TABLES
    }
    systems = {
        "shallow": ("gru", 0),
        "shallow_lgru": ("l-gru", 0),
        **{f"dtmt{n}": ("l-gru", n) for n in (1, 2, 3, 4)},
    }
    three = ("shallow", "dtmt1", "dtmt4")
    expected = {name: [systems[name]] * 3 for name in three}
    assert transitions_of[ENFR] == expected
    gru = [("gru", 4)] * 3
    assert transitions_of[ENDE] == {
        **expected,
        "table5_dtmt4": [("l-gru", 4)] * 3,
        "table5_wo_lgru": gru,
        "table5_wo_lgru_and_techniques": gru,
    }
    for name in three:
        for cell in ("gru", "lau", "l-gru"):
            expected[f"table3_{name}_{cell.replace('-', '')}"] = [(cell, systems[name][1])] * 3
    expected["table4_dtmt4"] = [("l-gru", 4)] * 3
    for i, side in enumerate(SIDES):
        expected[f"table4_shallow_{side}"] = [
            ("gru", 0) if j == i else ("l-gru", 4) for j in range(3)
        ]
    for name, system in systems.items():
        expected |= {f"table6_{name}": [system] * 3, f"table6_{name}_no_positions": [system] * 3}
    assert transitions_of[NIST] == expected


def test_rows_of_a_second_table_repeat_those_of_the_first():
    for folder, again, first in (
        *(
            (NIST, f"table3_{name}", name.partition("_")[0])
            for name in ("shallow_gru", "dtmt1_lgru", "dtmt4_lgru")
        ),
        (NIST, "table4_dtmt4", "dtmt4"),
        *((NIST, f"table6_{name}", name) for name in ("shallow", "dtmt1", "dtmt4")),
        (NIST, "table6_shallow_lgru", "table3_shallow_lgru"),
        (ENDE, "table5_dtmt4", "dtmt4"),
    ):
        recipes = rows(folder)
        assert recipes[again].model_dump(exclude={"paper"}) == recipes[first].model_dump(
            exclude={"paper"}
        )
        assert printed(folder, again) == printed(folder, first)


def test_averages_are_those_of_the_five_test_sets():
    for name in ("shallow", "dtmt1", "dtmt4"):
        recipe = rows(NIST)[name]
        assert recipe.paper and isinstance(recipe.paper.bleu, dict)
        assert (
            list(recipe.data.test)
            == list(recipe.paper.bleu)[:-1]
            == ["MT06", "MT02", "MT03", "MT04", "MT05", "MT08"]
        )
        mean = sum(recipe.paper.bleu[f"MT0{n}"] for n in (2, 3, 4, 5, 8)) / 5
        assert mean == pytest.approx(recipe.paper.bleu["average"], abs=0.005)


def test_printed_differences_are_those_of_the_printed_scores():
    for folder, system, baseline, difference in (
        (NIST, "dtmt1", "shallow", 2.84),
        (NIST, "dtmt4", "shallow", 3.47),
        (NIST, "table3_shallow_lgru", "table3_shallow_gru", 2.26),
        (NIST, "table3_dtmt1_lgru", "table3_dtmt1_gru", 0.78),
        (NIST, "table3_dtmt4_lgru", "table3_dtmt4_gru", 0.88),
        (NIST, "table3_shallow_lgru", "table3_shallow_lau", 0.77),
        (NIST, "table3_dtmt4_lgru", "table3_dtmt4_lau", 0.50),
        (NIST, "table4_dtmt4", "table4_shallow_encoder", 1.74),
        (NIST, "table4_dtmt4", "table4_shallow_decoder", 0.68),
        (ENDE, "dtmt1", "shallow", 2.26),
        (ENDE, "dtmt4", "shallow", 3.04),
        (ENFR, "dtmt1", "shallow", 1.47),
        (ENFR, "dtmt4", "shallow", 2.74),
    ):
        assert printed(folder, system) - printed(folder, baseline) == pytest.approx(difference)
    gains = [
        printed(NIST, name) - printed(NIST, f"{name}_no_positions")
        for name in rows(NIST)
        if f"{name}_no_positions" in rows(NIST)
    ]
    assert len(gains) == 6 and all(0.08 < gain < 0.36 for gain in gains)  # "+0.1 to +0.3"


# Settings -----------------------------------------------------------------------------------------


def test_an_ablation_changes_a_single_setting():
    ours = rows(NIST)["dtmt4"].model.model_dump()
    recipes = rows(NIST)
    for side in SIDES:
        changed = {**ours, side: {**ours[side], "cell": "gru", "depth": 0}}
        assert recipes[f"table4_shallow_{side}"].model.model_dump() == changed
    for name, recipe in recipes.items():
        if name.endswith("_no_positions"):
            with_positions = recipes[name.removesuffix("_no_positions")].model.model_dump()
            assert with_positions["positions"] == "sinusoidal" and recipe.model.model_dump() == {
                **with_positions,
                "positions": "none",
            }
    full, without, bare = (
        rows(ENDE)[f"table5_{name}"] for name in ("dtmt4", "wo_lgru", "wo_lgru_and_techniques")
    )
    gru = {side: {**full.model.model_dump()[side], "cell": "gru"} for side in SIDES}
    assert without.model.model_dump() == {**full.model.model_dump(), **gru}
    off = {
        "heads": 1,
        "layer_norm": False,
        "positions": "none",
        "embedding_dropout": 0,
        "candidate_dropout": 0,
        "output_dropout": 0,
    }
    assert bare.model.model_dump() == {**without.model.model_dump(), **off}
    assert bare.training == without.training.model_copy(update={"label_smoothing": 0})


# Dropout of embeddings, output and candidates; lr0, n, p, s and e of Equation 17; most subwords.
PAPER = {
    NIST: ((0.5, 0.5, 0.3), (1e-3, 2, 500, 8_000, 64_000), 128),
    ENDE: ((0.3, 0.3, 0.1), (1e-4, 8, 50, 200_000, 1_200_000), 256),
    ENFR: ((0.2, 0.2, 0.1), (1e-4, 8, 50, 400_000, 3_000_000), 256),
}


@pytest.mark.parametrize("folder", TABLES)
def test_training_is_that_of_the_paper(folder):
    dropout, (rate, n, p, s, e), longest = PAPER[folder]
    recipes = rows(folder)
    first = recipes["shallow"]
    assert not first.data.bpe or first.data.bpe.max_subwords == longest
    for name, recipe in recipes.items():
        model, (stage,), bare = recipe.model, recipe.training.stages, "techniques" in name
        assert (model.kind, model.width, model.embedding, model.tie, model.project_context) == (
            "recurrent",
            1024,
            None,
            "none",
            False,
        )
        assert (model.heads, model.layer_norm) == ((1, False) if bare else (16, True))
        assert (model.embedding_dropout, model.output_dropout, model.candidate_dropout) == (
            (0, 0, 0) if bare else dropout
        )
        assert model.init == 0.08 and recipe.training.label_smoothing == (0 if bare else 0.1)
        adam, schedule = stage.optimizer, stage.schedule
        assert (adam.kind, tuple(adam.betas), adam.eps, adam.weight_decay) == (
            "adam",
            (0.9, 0.999),
            1e-6,
            0,
        )
        assert (schedule.kind, schedule.rate, schedule.replicas) == ("rnmt-plus", rate, n)
        assert (schedule.warmup, schedule.decay_start, schedule.decay_end) == (p, s, e)
        assert (stage.batch.size, stage.batch.unit, stage.batch.accumulate, stage.clip) == (
            4096,
            "longest",
            n,
            5,
        )
        assert stage.end.patience == 10 and (
            recipe.training.validation.every_updates,
            recipe.training.validation.metric,
        ) == (2000, "bleu")
        assert (recipe.decoding.beam, recipe.decoding.normalize, recipe.decoding.penalty) == (
            4,
            0.6,
            "gnmt",
        )
        assert recipe.data == first.data and (bare or recipe.training == first.training)


@pytest.mark.parametrize(
    ("folder", "rates"),
    [
        (
            NIST,
            {1: 1.001e-3, 1000: 2e-3, 4000: 2e-3, 32_000: 5e-4},
        ),  # of 8,000 and 64,000 each replica does half
        (ENDE, {1: 1.0175e-4, 400: 8e-4, 25_000: 8e-4, 150_000: 5e-5}),
        (ENFR, {1: 1.0175e-4, 400: 8e-4, 50_000: 8e-4, 375_000: 5e-5}),
    ],
)
def test_rates_are_those_of_equation_17(folder, rates):
    config = rows(folder)["dtmt4"].training.stages[0].schedule
    schedule = SCHEDULES[config.kind](config, 1024)
    assert {update: schedule.rate(update) for update in rates} == pytest.approx(rates)


def names(prefixes: object) -> list[str]:
    assert isinstance(prefixes, list)
    return [Path(prefix).name for prefix in prefixes]


def test_data_are_those_of_the_paper():
    nist, ende, enfr = (rows(folder)["shallow"].data for folder in TABLES)
    assert nist.bpe and (nist.bpe.merges, nist.bpe.joint, nist.vocabulary.joint) == (
        30_000,
        False,
        False,
    )
    assert "lowercase" in [step.step for step in nist.steps] and names(nist.valid) == ["MT06"]
    for config in (ende, enfr):
        assert config.bpe and (config.bpe.merges, config.bpe.joint, config.vocabulary.joint) == (
            32_000,
            True,
            True,
        )
        assert [step.step for step in config.steps] == [
            "normalize-punctuation",
            "tokenize",
            "filter",
        ]
        assert names(config.valid) == ["newstest2013"] and list(config.test) == ["newstest2014"]
    assert [(config.source, config.target, len(config.train)) for config in (nist, ende, enfr)] == [
        ("zh", "en", 1),
        ("en", "de", 3),
        ("en", "fr", 5),
    ]
    assert len({config.folder for config in (nist, ende, enfr)}) == 3


# Parameters ---------------------------------------------------------------------------------------

D = 1024
C = 2 * D  # what attention finds, of both directions


def gru(read: int) -> int:
    """A GRU has three maps of the input and three of the state. The map of the candidate has a
    bias, and the norms of the two gates have gain and shift."""
    return 3 * read * D + 3 * D * D + D + 2 * 2 * D


def l_gru(read: int) -> int:
    """An L-GRU has the parameters of a GRU, one more gate, and the linear map H of the input with a
    bias. A LAU has the same number of parameters."""
    return gru(read) + (read + D) * D + 2 * D + read * D + D


def t_gru() -> int:
    return gru(0)


def transition(cell: str, depth: int, read: int) -> int:
    return (gru(read) if cell == "gru" else l_gru(read)) + depth * t_gru()


def around(source: int, target: int, heads: int = 16) -> int:
    """All parameters except those of the cells: embeddings with a bias, keys, queries and the
    vector of a head, the first state, the readout and the output projection."""
    words = source * D + D + target * D + D
    attention = C * D + D * D + D // heads
    return words + attention + C * D + D + (D + D + C) * D + D + target * D + target


def system(cells: list[tuple[str, int]], heads: int = 16) -> int:
    encoder, query, decoder = cells
    return (
        around(S, T, heads)
        + 2 * transition(*encoder, D)
        + transition(*query, D)
        + transition(*decoder, C)
    )


@pytest.mark.parametrize("folder", TABLES)
def test_parameters_follow_from_the_description(folder):
    for name, recipe in rows(folder).items():
        total = system(transitions(recipe), recipe.model.heads)
        if not recipe.model.layer_norm:
            total -= (
                4 * (1 + 4) * 2 * 2 * D
            )  # two gates in five cells of four transitions, two of which are the encoder's
        assert count(recipe) == total, name


def test_parameters_have_the_digits_that_the_paper_prints():
    recipes = {
        name: recipe
        for name, recipe in rows(NIST).items()
        if recipe.paper and recipe.paper.parameters
    }
    assert set(recipes) == {
        "shallow",
        "dtmt1",
        "dtmt4",
        *(name for name in rows(NIST) if name.startswith("table3")),
    }
    for name, recipe in recipes.items():
        assert recipe.paper and recipe.paper.vocabulary == (S, T) and recipe.paper.counted is None
        assert f"{count(recipe) / 1e6:.1f}M" == recipe.paper.parameters, name
    table = {
        line.removeprefix("table3_"): recipe.paper.parameters
        for line, recipe in recipes.items()
        if line.startswith("table3") and recipe.paper
    }
    assert table == {
        "shallow_gru": "143.2M",
        "shallow_lau": "157.9M",
        "shallow_lgru": "157.9M",
        "dtmt1_gru": "155.8M",
        "dtmt1_lau": "170.5M",
        "dtmt1_lgru": "170.5M",
        "dtmt4_gru": "193.7M",
        "dtmt4_lau": "208.4M",
        "dtmt4_lgru": "208.4M",
    }


def test_the_page_has_the_numbers_of_parameters():
    helper.check_counts("dtmt", *(folder.partition("/")[2] for folder in TABLES))


def test_ratio_filters_leave_the_pairs_that_the_papers_count():
    ratios = {
        str(folder): next(
            step.max_ratio for step in load(RECIPES / folder).data.steps if step.step == "filter"
        )
        for folder in (
            "dtmt/wmt14_ende/dtmt4.yaml",
            "dtmt/wmt14_enfr/dtmt4.yaml",
            "rtal/wmt14_ende/transformer_big.yaml",
            "rtal/wmt17_enfr/transformer_big.yaml",
            "densenmt/wmt14_ende/densenmt_en_de_15.yaml",
        )
    }
    assert list(ratios.values()) == [None, 1.5, None, None, None]  # 4.5M, 36M, 4.5M, 40M, 4.5M


def test_the_transformer_of_the_first_table_is_the_big_one_on_the_same_text():
    row, recurrent = helper.rows(NIST)["transformer_big"], rows(NIST)["dtmt4"]
    assert row.paper and row.paper.parameters == "277.6M" and row.paper.note
    assert f"{count(row) / 1e6:.1f}M" == row.paper.counted == "281.8M"
    assert (row.model.width, row.model.ffn, row.model.heads) == (1024, 4096, 16)
    assert (row.data, row.decoding) == (recurrent.data, recurrent.decoding)
    batches = [one.training.stages[0].batch for one in (row, recurrent)]
    assert batches[0] == batches[1] and row.training.validation == recurrent.training.validation


ONE_T = 4 * t_gru()  # a T-GRU more in each transition, of which the encoder has two
TO_L_GRU = 3 * (l_gru(D) - gru(D)) + l_gru(C) - gru(C)


def fits(linear_bias: bool = True) -> tuple[int, int]:
    """Return the lowest and the highest number of parameters of ShallowRNMT with GRUs for which all
    counts of Table 3 round to the printed counts."""
    change, lower, upper = TO_L_GRU - (0 if linear_bias else 4 * D), 0, 10**9
    for added, tenths in (
        (0, 1432),
        (change, 1579),
        (ONE_T, 1558),
        (ONE_T + change, 1705),
        (4 * ONE_T, 1937),
        (4 * ONE_T + change, 2084),
    ):
        lower = max(lower, tenths * 100_000 - 50_000 - added)
        upper = min(upper, tenths * 100_000 + 49_999 - added)
    return lower, upper


def test_the_printed_counts_fit_these_cells_only():
    assert (ONE_T, TO_L_GRU) == (12 * D * D + 20 * D, 14 * D * D + 12 * D)
    lower, upper = fits()
    rest = system([("gru", 0)] * 3) - 1024 * S - 2049 * T
    assert (lower - rest, upper - rest) == (
        105_470_704,
        105_473_231,
    )  # as base.yaml says of 1,024 S + 2,049 T
    assert lower <= system([("gru", 0)] * 3) <= upper
    assert (
        round((lower - rest) / (D + D + 1), -2) == 51_500
    )  # entries a side if the target's embedding were the output's matrix, too
    assert 3 * ONE_T + TO_L_GRU == 52_502_528 and 3 * ONE_T + TO_L_GRU - 4 * D == 52_498_432
    without = load(DTMT / "nist_zhen" / "dtmt4.yaml")
    model = without.model.model_copy(update={"linear_bias": False})
    assert count(without) - count(without.model_copy(update={"model": model})) == 4 * D
    lower, upper = fits(linear_bias=False)
    assert lower > upper
    projected = TO_L_GRU - 2 * (C - D) * D  # where the decoder's L-GRU would read 1,024 features
    assert f"{projected / 1e6:.1f}" == "12.6" and f"{TO_L_GRU / 1e6:.1f}" == "14.7"


# Multi30k -----------------------------------------------------------------------------------------


def test_systems_on_multi30k_differ_only_in_the_setting_that_names_them():
    check_tables(MULTI30K, {"Multi30k De-En, recurrent, states of 256": 6})
    recipes = helper.rows(MULTI30K)
    first = recipes["transformer"]
    assert first.model == load(RECIPES / "multi30k" / "transformer_de_en.yaml").model
    assert all(
        (recipe.training, recipe.data, recipe.decoding)
        == (first.training, first.data, first.decoding)
        for recipe in recipes.values()
    )
    recurrent = {
        name: recipe for name, recipe in recipes.items() if recipe.model.kind == "recurrent"
    }
    assert set(recipes) - set(recurrent) == {"transformer"}
    for name, (cell, depth) in {
        "shallow": ("gru", 0),
        "shallow_lgru": ("l-gru", 0),
        "dtmt1": ("l-gru", 1),
        "dtmt2": ("l-gru", 2),
    }.items():
        assert transitions(recurrent[name]) == [(cell, depth)] * 3
    shallow = recurrent["shallow"].model
    assert (shallow.width, shallow.heads, shallow.tie, shallow.output_bias) == (
        256,
        4,
        first.model.tie,
        first.model.output_bias,
    )
    assert (shallow.embedding_dropout, shallow.candidate_dropout, shallow.output_dropout) == (
        0.3,
        0.1,
        0.3,
    )
    alike = set(type(shallow).model_fields) - set(SIDES)
    assert all(
        recipe.model.model_dump(include=alike) == shallow.model_dump(include=alike)
        for recipe in recurrent.values()
    )
    fused, dtmt2 = recurrent["unpublished_dtmt2_multihop"], recurrent["dtmt2"]
    assert (
        transitions(fused) == transitions(dtmt2)
        and dtmt2.model.encoder.fuse.kind == dtmt2.model.decoder.fuse.kind == "last"
    )
    assert fused.model.encoder.fuse.kind == "ffn" and (
        fused.model.decoder.fuse.kind,
        fused.model.decoder.fuse.hops,
    ) == ("attention", 4)


# Text ---------------------------------------------------------------------------------------------

WORDS = {
    "zh": "房子 很 旧 狗 今天 睡 在 门 前".split(),
    "en": "the house is old and the dog sleeps today".split(),
    "de": "das Haus ist alt und der Hund schläft heute".split(),
    "fr": "la maison est vieille et le chien dort bien".split(),
}


def write(
    folder: Path, name: str, lines: int, languages: tuple[str, str], further: int = 0
) -> None:
    """Write random pairs, and further references that end in `really` once, twice, and so on."""
    folder.mkdir(exist_ok=True)
    choose = random.Random(name)
    chosen = [choose.choices(range(9), k=3 + i % 4) for i in range(lines)]
    for language in languages:
        text = "".join(
            "Well , " + " ".join(WORDS[language][i] for i in line) + " .\n" for line in chosen
        )
        (folder / f"{name}.{language}").write_text(text, encoding="utf-8")
    for n in range(1, further + 1):
        text = "".join(
            "Well, " + " ".join(WORDS[languages[1]][i] for i in line) + " really" * n + ".\n"
            for line in chosen
        )
        (folder / f"{name}.{languages[1]}{n}").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("folder", "pairs", "first"), [(NIST, 40, "well"), (ENDE, 120, "Well"), (ENFR, 200, "Well")]
)
def test_text_is_prepared(tmp_path, folder, pairs, first):
    manifest = prepared(tmp_path, rows(folder)["shallow"].data, write)
    assert manifest.splits["train"]["pairs_out"] == pairs
    target = manifest.data["languages"]["target"]
    tests = sorted(manifest.folder.glob(f"test.*.{target}.txt"))
    assert len(tests) == len(rows(folder)["shallow"].data.test)
    lines = tests[0].read_text(encoding="utf-8").splitlines()
    assert len(lines) == 40 and all(line.split()[0] == first for line in lines)
    assert (manifest.folder / "text" / "vocab").exists() == (folder != NIST)


# Text to a score, and Figure 3 --------------------------------------------------------------------


def call(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([RECIPES / script, *map(str, arguments)], capture_output=True, text=True)


def run_row(tmp_path: Path, config: str) -> dict[tuple[str, str, str], dict[str, object]]:
    """Run a tiny row from made-up text to its scores by set, checkpoint and metric."""
    path = DTMT / config
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
            further=3,
        )
    settings = [
        "model.width=16",
        "model.heads=2",
        "data.bpe.merges=30",
        "training.stages.0.end={updates: 2}",
    ]
    settings += [
        "training.stages.0.batch.accumulate=1",
        "decoding={beam: 1, max_length_factor: 0, max_length_extra: 3}",
    ]
    given = [word for setting in settings for word in ("--set", setting)]
    places = ["--raw", tmp_path / "raw", "--out", tmp_path / "out", "--any-data"]
    ran = call("run_recipe.sh", path, *places, *given)
    assert ran.returncode == 0, ran.stderr
    notes = json.loads(
        (tmp_path / "out" / f"run.{path.parent.name}.{path.stem}.seed1" / "scores.json").read_text(
            encoding="utf-8"
        )
    )
    return {
        (note["set_name"], note["checkpoint"], note["metric"]): note for note in notes["scores"]
    }


def test_a_row_from_raw_text_to_bleu(tmp_path):
    scored = run_row(tmp_path, "wmt14_ende/table5_wo_lgru_and_techniques.yaml")
    assert set(scored) == {
        ("newstest2014", "best", metric)
        for metric in ("multi-bleu", "multi-bleu-joined", "sacrebleu")
    }
    assert all(note["sentences"] == 3 for note in scored.values())


@pytest.mark.slow
def test_rows_of_nist_from_raw_text_to_figure_3(tmp_path):
    for system in ("dtmt1", "shallow"):
        found = run_row(tmp_path, f"nist_zhen/{system}.yaml")
        assert {name for name, _, _ in found} == {"MT06", *MERGED}
        assert all("nrefs:4" in str(note["signature"]) for note in found.values())
    ran = call("dtmt/figure3.sh", tmp_path / "out", "--systems", "dtmt1 shallow")
    assert ran.returncode == 0 and "as one, 4 references" in ran.stderr, ran.stderr
    assert (tmp_path / "out" / "figure3.png").stat().st_size > 1000


MERGED = ["MT02", "MT03", "MT04", "MT05", "MT08"]
LINES = [
    "one two three",
    " ".join(f"w{i}" for i in range(15)),
    " ".join(f"v{i}" for i in range(65)),
]


def translated(out: Path, runs: dict[str, int]) -> None:
    """Write the files that `run_recipe.sh` makes of the Chinese-English sets.

    The translations of a run are perfect for the first sets; their number differs by run.
    """
    for n, name in enumerate(MERGED):
        text = "".join(f"{line} {name}\n" for line in LINES)
        for path in (
            "data.nist_zhen/test.{}.zh.txt",
            "data.nist_zhen/test.{}.en.txt",
            *(f"references.nist_zhen/{{}}/{k}.txt" for k in (1, 2, 3)),
        ):
            write_text(out / path.format(name), text)
        for run_name, right in runs.items():
            write_text(out / run_name / "config.yaml", "")
            write_text(
                out / run_name / f"{name}.best.txt",
                text if n < right else "nothing like it here\n" * 3,
            )


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_figure_3_merges_the_sets_and_names_the_systems(tmp_path):
    translated(
        tmp_path,
        {"run.nist_zhen.dtmt4.seed1": 5, "run.nist_zhen.shallow.seed1": 3, "transformer": 4},
    )
    picture = tmp_path / "lengths.svg"
    more = ["--add", f"Transformer={tmp_path / 'transformer'}", "-o", picture]
    ran = call("dtmt/figure3.sh", tmp_path, "--systems", "dtmt4 shallow", *more)
    assert ran.returncode == 0, ran.stderr
    assert (
        all(name in ran.stdout for name in ("DTMT#4", "ShallowRNMT", "Transformer"))
        and picture.exists()
    )
    rows = [line.split() for line in ran.stdout.splitlines() if line.startswith(">")]
    assert [row[1:3] for row in rows] == [
        ["0", "15"],
        ["10", "10"],
        *([str(n), "5"] for n in (20, 30, 40, 50, 60)),
    ]
    assert all(row[3] == "100.00" for row in rows)
    merged = (tmp_path / "figure3" / "source.zh").read_text(encoding="utf-8").splitlines()
    assert len(merged) == 15 and [line.split()[-1] for line in merged[::3]] == MERGED


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--systems"], "--systems needs a value"),
        (["--add", "Transformer"], "--add Transformer: write it as NAME=RUN"),
        (["--speed"], "there is no option --speed"),
        (["one", "two"], "two is too much"),
        (["/nowhere"], "/nowhere/data.nist_zhen does not exist: call `fusetk run` with rows of"),
        (
            ["--systems", "dtmt4 dtmt1"],
            "run.nist_zhen.dtmt1.seed1 does not exist: call `fusetk run "
            "recipes/dtmt/nist_zhen/dtmt1.yaml --raw DIR --seed 1 --out {out}` first",
        ),
        (
            ["--systems", "dtmt4", "--checkpoint", "last"],
            "run.nist_zhen.dtmt4.seed1/MT02.last.txt does not exist: "
            "translate MT02 MT03 MT04 MT05 MT08 first",
        ),
    ],
)
def test_errors_of_figure_3_are_one_sentence(tmp_path, arguments, said):
    if "does not exist" in said and "--systems" in arguments:
        translated(tmp_path, {"run.nist_zhen.dtmt4.seed1": 5})
        arguments = [tmp_path, *arguments]
    ran = call("dtmt/figure3.sh", *arguments)
    errors = [line for line in ran.stderr.splitlines() if line and not line.startswith("==")]
    said = said.replace("{out}", str(tmp_path))
    assert ran.returncode == 2 and len(errors) == 1 and said in errors[0], ran.stderr


def test_a_system_of_figure_3_that_is_not_a_row_is_named(tmp_path):
    translated(tmp_path, {"run.nist_zhen.dtmt4.seed1": 5})
    ran = call("dtmt/figure3.sh", tmp_path, "--systems", "dtmt9")
    assert ran.returncode == 2 and "there is no row dtmt9 in recipes/dtmt/nist_zhen" in ran.stderr


@pytest.mark.slow
def test_systems_of_multi30k_from_raw_text_to_the_table(tmp_path):
    for name, lines in (("train", 120), ("val", 10), ("test_2016_flickr", 10)):
        write(tmp_path / "raw", name, lines, ("de", "en"))
    settings = [
        "model.width=16",
        "model.heads=2",
        "data.bpe.merges=30",
        "training.stages.0.end.updates=2",
    ]
    options = [word for setting in settings for word in ("--set", setting)]
    arguments = [
        tmp_path / "raw",
        "--any-data",
        "--out",
        tmp_path / "out",
        "--group",
        "recurrent",
        "--systems",
        "unpublished_dtmt2_multihop",
    ]
    ran = call("run_multi30k_fusion.sh", *arguments, *options)
    assert ran.returncode == 0, ran.stderr
    table = ran.stdout[ran.stdout.index("Multi30k De-En") :]
    assert all(
        row in table
        for row in ("Transformer", "ShallowRNMT + L-GRU", "DTMT#2, FFN encoder, 4-hop decoder")
    )
