"""Configs of the rows of MLRF's and RTAL's tables, and the scripts that run them.

The tables are complete, and the numbers of parameters are those that the papers print.
"""

import json
import random
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from fusetk.cli.main import main
from fusetk.data.stages import lock
from fusetk.evaluation.metrics import METRICS
from fusetk.experiment.places import places, recipe_with_folders
from fusetk.experiment.references import write_references
from fusetk.recipe import Recipe
from fusetk.reporting.parameters import matches_printed
from tests.helpers.rows import (
    COUNTS_PAGE,
    RECIPES,
    check_counts,
    check_tables,
    count,
    load,
    published,
    rows,
)

pytestmark = pytest.mark.usefixtures("commands")

ROOT = Path(__file__).parent.parent
FOLDERS = [RECIPES / "mlrf", RECIPES / "rtal", RECIPES / "multi30k" / "fusion"]
GROUNDS = {
    RECIPES / "rtal" / name for name in ("base.yaml", "big.yaml", "systems/tree.yaml")
}  # without data
PATHS = [
    path for folder in FOLDERS for path in sorted(folder.rglob("*.yaml")) if path not in GROUNDS
]


# Rows ---------------------------------------------------------------------------------------------

TABLES = {
    "mlrf/iwslt14_deen": {
        "MLRF Table 2": 15,
        "MLRF Table 4": 9,
        "MLRF Figure 3": 9,
        "MLRF Figure 4": 3,
    },
    "mlrf/nist_zhen": {"MLRF Table 3": 10},
    "rtal/wmt14_ende": {"RTAL Table 1": 6, "RTAL Table 3": 3, "RTAL Table 4": 3, "RTAL Table 5": 5},
    "rtal/wmt17_enfr": {"RTAL Table 2": 4},
    "multi30k/fusion": {"Multi30k De-En, 3+3 layers of 256": 9},
}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_config_is_valid(path):
    paper = load(path).paper
    assert paper and (path.stem in ("base", "big")) == (paper.row is None)


@pytest.mark.parametrize("folder", TABLES)
def test_tables_are_complete_and_in_order(folder):
    check_tables(folder, TABLES[folder])


PAPERS = ("mlrf", "rtal", "densenmt", "lwc", "dtmt")


def all_rows() -> list[Recipe]:
    """The rows of all papers' tables."""
    folders = [folder for paper in PAPERS for folder in (RECIPES / paper).iterdir()]
    return [
        row
        for folder in folders
        if folder.is_dir() and folder.name != "systems"
        for row in rows(str(folder.relative_to(RECIPES))).values()
    ]


def test_each_row_of_a_paper_has_one_recipe_and_each_recipe_is_a_row():
    recipes = Counter(
        (row.paper.table, row.paper.row)
        for row in all_rows()
        if row.paper and row.paper.note != "not in the table, for comparison"
    )
    assert set(recipes.values()) == {1}
    printed = {
        (title, row.row): row.authors for title, table in published().items() for row in table.rows
    }
    own = {key for key, authors in printed.items() if authors is None}
    assert own <= set(recipes) <= set(printed)
    assert (len(own), len(recipes)) == (201, 208)
    assert {printed[key] for key in set(recipes) - own} == {
        "Vaswani et al. 2017",
        "Gehring et al. 2017",
    }


def test_rows_say_what_their_number_is():
    for title, table in published().items():
        names = [row.row for row in table.rows]
        assert len(set(names)) == len(names), title
        for row in table.rows:
            values = table.values(row.row) or {}
            assert values["metric"] in METRICS and values["checkpoint"], (title, row.row)
            assert values.get("compared_with", names[0]) in names, (title, row.row)


def test_averages_are_over_test_sets_of_the_recipe_and_averaged_checkpoints_are_kept():
    for row in all_rows():
        assert row.paper
        assert set(row.paper.average or ()) <= set(row.data.test), row.paper
        kept = (row.paper.checkpoint or "best").partition("average-")[2]
        assert not kept or int(kept) == row.training.keep_last, row.paper
        if isinstance(row.paper.bleu, dict):
            assert set(row.paper.bleu) <= {*row.data.test, "average"}, row.paper


def test_bleu_is_printed_for_all_rows_except_points_of_a_curve():
    without = {
        name
        for folder in EXPECTED
        for name, one in rows(folder).items()
        if one.paper and one.paper.bleu is None
    }
    assert without == {
        *(f"figure3_hops_{hops}" for hops in (1, 2, 3, 5, 7, 8)),
        *(name for name in rows("mlrf/iwslt14_deen") if name.startswith("figure4")),
    }


def test_averages_of_nist_are_those_of_the_three_test_sets_unless_a_note_says_so():
    for name, recipe in rows("mlrf/nist_zhen").items():
        assert recipe.paper and isinstance(recipe.paper.bleu, dict)
        bleu = recipe.paper.bleu
        assert list(recipe.data.test) == list(bleu)[:-1] == ["MT06", "MT04", "MT05", "MT08"]
        mean = (bleu["MT04"] + bleu["MT05"] + bleu["MT08"]) / 3
        sentence = f"the average of the three test sets is {mean:.2f}"
        note = recipe.paper.note or ""
        assert "three test sets" not in note or sentence in note, name
        assert (abs(mean - bleu["average"]) < 0.01) == (sentence not in note), name


# Parameters ---------------------------------------------------------------------------------------

D_F, D_A = 512, 1024  # MLRF section 4.2


def norm(d: int) -> int:
    return 2 * d


def ffn(width: int, hidden: int, out: int) -> int:
    return width * hidden + hidden + hidden * out + out


def backbone(d: int, hidden: int, layers: int, bias: bool = True) -> int:
    """Layers of both sides. An attention has four matrices. An encoder layer has one attention, and
    a decoder layer has two."""
    attention = 4 * (d * d + bias * d)
    return layers * (3 * attention + 2 * ffn(d, hidden, d) + 5 * norm(d))


def deen(layers: int = 3) -> int:
    return backbone(256, 1024, layers) + 256 * (8_389 + 2 * 6_428) + 6_428


def zhen() -> int:
    return backbone(512, 2048, 6) + 512 * 3 * 30_004 + 30_004


def fnn(d: int, layers: int) -> int:
    """Enc-FNN or Dec-FNN over some layers, which include the word embedding."""
    return ffn(layers * d, D_F, d) + norm(d)


def sa(d: int, hops: int, w1: int = 1) -> int:
    return w1 * d * D_A + D_A * hops + ffn(hops * d, D_F, d) + norm(d)


def ende(d: int, layers: int = 6) -> int:
    """Pre-norm with a norm after each stack, attention without biases, one matrix for all words,
    and no output bias."""
    return backbone(d, 4 * d, layers, bias=False) + 2 * norm(d) + 33_708 * d


def refine(d: int) -> int:
    return norm(d) + ffn(d, 4 * d, d)


def ewp(d: int) -> int:
    return 1 + refine(d)


E, F = 4 * 256, 7 * 512  # layer embeddings of MLRF: 3 or 6 layers and the word embedding
EXPECTED = {
    "mlrf/iwslt14_deen": {
        "baseline_3layer_mle": deen(),
        "baseline_3layer": deen(),
        "baseline_4layer": deen(4),
        "baseline_6layer": deen(6),
        "enc_avg": deen() + norm(256),
        "enc_ffn": deen() + fnn(256, 4) + E,
        "enc_sa_4hops": deen() + sa(256, 4) + E,
        "enc_sa_6hops": deen() + sa(256, 6) + E,
        "dec_avg": deen() + norm(256),
        "dec_ffn": deen() + fnn(256, 4) + E,
        "dec_sa_4hops": deen() + sa(256, 4) + E,
        "dec_sa_6hops": deen() + sa(256, 6, w1=6) + E,
        "both_ffn": deen() + 2 * fnn(256, 4) + E,  # both sides share the layer embedding
        "both_sa": deen() + 2 * sa(256, 4) + E,
        "both_ffn_sa": deen() + fnn(256, 4) + sa(256, 4) + E,
        "table4_enc_ffn": deen() + fnn(256, 4) + E,
        "table4_enc_ffn_word_only": deen() + fnn(256, 4),
        "table4_enc_ffn_layer_only": deen() + fnn(256, 3) + E - 256,
        "table4_dec_sa": deen() + sa(256, 4) + E,
        "table4_dec_sa_word_only": deen() + sa(256, 4),
        "table4_dec_sa_layer_only": deen() + sa(256, 4) + E - 256,
        "table4_both_ffn_sa": deen() + fnn(256, 4) + sa(256, 4) + E,
        "table4_both_ffn_sa_word_only": deen() + fnn(256, 4) + sa(256, 4),
        "table4_both_ffn_sa_layer_only": deen() + fnn(256, 3) + sa(256, 4) + E - 256,
        **{f"figure3_hops_{hops}": deen() + sa(256, hops) + E for hops in range(1, 9)},
        "figure3_baseline": deen(),
        "figure4_baseline": deen(),
        "figure4_baseline_dropout_0.2": deen(),
        "figure4_dec_sa": deen() + sa(256, 4) + E,
    },
    "mlrf/nist_zhen": {
        "baseline_mle": zhen(),
        "baseline_restart": zhen(),
        "enc_avg": zhen() + norm(512),
        "enc_ffn": zhen() + fnn(512, 7) + F,
        "enc_sa_4hops": zhen() + sa(512, 4) + F,
        "dec_avg": zhen() + norm(512),
        "dec_ffn": zhen() + fnn(512, 7) + F,
        "dec_sa_4hops": zhen() + sa(512, 4) + F,
        "dec_sa_4hops_independent_w1": zhen() + sa(512, 4, w1=7) + F,
        "both_avg_sa": zhen() + norm(512) + sa(512, 4) + F,
    },
    "rtal/wmt14_ende": {
        "transformer_base": ende(512),
        "transformer_big": ende(1024),
        "base_rtal_4layers": ende(512, 4) + 2 * 3 * ewp(512),
        "big_rtal_4layers": ende(1024, 4) + 2 * 3 * ewp(1024),
        "base_rtal_6layers": ende(512) + 2 * 3 * ewp(512),
        "big_rtal_6layers": ende(1024) + 2 * 3 * ewp(1024),
        "table3_encoder": ende(512) + 3 * ewp(512),
        "table3_decoder": ende(512) + 3 * ewp(512),
        "table3_both": ende(512) + 2 * 3 * ewp(512),
        "table4_mean": ende(512),
        "table4_concat_ffn": ende(512) + 2 * 3 * ffn(2 * 512, 4 * 512, 512),
        "table4_ewp_ffn": ende(512) + 2 * 3 * ewp(512),
        "table5_transformer_base": ende(512),
        "table5_linear": ende(512) + 2 * (6 * 512**2 + refine(512)),
        "table5_iterative": ende(512) + 2 * 5 * ewp(512),
        "table5_cnn_like_tree": ende(512) + 2 * 3 * ewp(512),
        "table5_rtal": ende(512) + 2 * 3 * ewp(512),
    },
    "rtal/wmt17_enfr": {  # the vocabulary is not printed; with that of English-German
        "transformer_base": ende(512),
        "transformer_big": ende(1024),
        "base_rtal_6layers": ende(512) + 2 * 3 * ewp(512),
        "big_rtal_6layers": ende(1024) + 2 * 3 * ewp(1024),
    },
}


@pytest.mark.parametrize("folder", EXPECTED)
def test_parameters_follow_from_the_description(folder):
    counts = {
        name: count(recipe, *((recipe.paper and recipe.paper.vocabulary) or (33_708, 33_708)))
        for name, recipe in rows(folder).items()
    }
    assert counts == EXPECTED[folder]


@pytest.mark.parametrize("folder", EXPECTED)
def test_parameters_are_those_that_the_papers_print(folder):
    printed = {
        name: one.paper for name, one in rows(folder).items() if one.paper and one.paper.parameters
    }
    assert len(printed) == {"mlrf/iwslt14_deen": 15, "rtal/wmt14_ende": 6}.get(folder, 0)
    for name, paper in printed.items():
        total = EXPECTED[folder][name]
        assert matches_printed(paper.counted or paper.parameters or "", total), (name, total)
        assert matches_printed(paper.parameters or "", total) == (paper.counted is None)
        assert paper.counted is None or paper.note


@pytest.mark.parametrize(
    ("paper", "folders"),
    [("mlrf", ("iwslt14_deen", "nist_zhen")), ("rtal", ("wmt14_ende", "wmt17_enfr"))],
)
def test_the_page_has_the_numbers_of_parameters(paper, folders):
    check_counts(paper, *folders)


def test_the_page_says_how_many_numbers_agree():
    text = " ".join(COUNTS_PAGE.read_text(encoding="utf-8").split())
    agreeing = [
        (int(some), int(all_numbers))
        for some, all_numbers in re.findall(r"(\d+) of (\d+) printed numbers agree", text)
    ]
    assert len(agreeing) == 4 and [sum(numbers) for numbers in zip(*agreeing, strict=True)] == [
        35,
        40,
    ]
    assert "35 of these 40 numbers agree with the rounded or truncated number of the model" in text
    assert "The notes explain four of the other five." in text


def test_rtal_truncates_its_counts_and_mlrf_rounds_all_except_three():
    assert [
        EXPECTED["rtal/wmt14_ende"][f"{size}_rtal_{layers}layers"] // 10**6
        for layers in (4, 6)
        for size in ("base", "big")
    ] == [
        59,
        202,
        73,  # of 73.97M; with biases in attention, or with one at the output, it would be 74
        261,
    ]
    # Sizes of the vocabulary with which all four are the printed numbers.
    printed = {"base_rtal_4layers": 59, "big_rtal_4layers": 202}
    printed |= {"base_rtal_6layers": 73, "big_rtal_6layers": 261}
    sizes = [
        size
        for size in range(30_000, 40_000)
        if all(
            (EXPECTED["rtal/wmt14_ende"][name] + (size - 33_708) * width) // 10**6 == number
            for name, number in printed.items()
            for width in [1024 if name.startswith("big") else 512]
        )
    ]
    assert (sizes[0], sizes[-1]) == (33_533, 33_773)
    recipes = rows("mlrf/iwslt14_deen").items()
    cut = {
        name
        for name, recipe in recipes
        if recipe.paper and recipe.paper.parameters and not recipe.paper.counted
        if f"{EXPECTED['mlrf/iwslt14_deen'][name] / 1e6:.2f}M" != recipe.paper.parameters
    }
    assert cut == {"enc_avg", "dec_avg", "both_ffn_sa"}
    assert all(recipe.paper and recipe.paper.note for name, recipe in recipes if name in cut)


# Settings -----------------------------------------------------------------------------------------


def test_trees_have_the_dropout_of_their_model_and_combine_the_last_four_layers():
    for folder in ("rtal/wmt14_ende", "rtal/wmt17_enfr"):
        for one in rows(folder).values():
            for side in (one.model.encoder, one.model.decoder):
                if side.fuse.kind != "last":
                    dropout = 0 if side.fuse.aggregation == "mean" else one.model.dropout
                    assert (
                        side.fuse.dropout == dropout
                        and not side.fuse.embedding
                        and not side.fuse.norm
                    )
                    assert getattr(side.fuse, "leaves", 4) == 4
    assert rows("rtal/wmt14_ende")["table5_cnn_like_tree"].model.encoder.fuse.residual == "none"


def test_training_of_all_systems_of_a_table_is_the_same():
    for folder in TABLES:
        for table in TABLES[folder]:
            recipes = {
                name: recipe
                for name, recipe in rows(folder).items()
                if recipe.paper and recipe.paper.table == table
            }
            alike = [recipe for name, recipe in recipes.items() if not name.endswith("_mle")]
            by_width = {recipe.model.width: recipe for recipe in alike}
            for recipe in alike:
                first = by_width[recipe.model.width]
                assert (recipe.training, recipe.decoding, recipe.data) == (
                    first.training,
                    first.decoding,
                    first.data,
                )


@pytest.mark.parametrize(
    ("folder", "sizes", "epochs", "search"),
    [
        ("mlrf/iwslt14_deen", (256, 1024), (40, 20), (8, 1.6)),
        ("mlrf/nist_zhen", (512, 2048), (10, 5), (12, 1.3)),
    ],
)
def test_training_of_mlrf_is_that_of_the_paper(folder, sizes, epochs, search):
    for name, recipe in rows(folder).items():
        model, stages = recipe.model, recipe.training.stages
        assert (model.width, model.ffn, model.tie, model.norm, model.init) == (
            *sizes,
            "none",
            "post",
            "mlrf",
        )
        assert model.dropout == (0.2 if "dropout_0.2" in name else 0.1)
        for stage in stages:
            adam = stage.optimizer
            assert (adam.kind, tuple(adam.betas), adam.eps) == ("adam", (0.9, 0.98), 1e-9)
        assert [(stage.end.epochs, stage.batch.size) for stage in stages] == [
            (epochs[0], 80),
            (epochs[1], 32),
        ][: 1 if name.endswith("mle") else 2]
        noam = stages[0].schedule
        assert (noam.kind, noam.warmup, noam.factor) == ("noam", 16_000, 1)
        assert all(stage.schedule.rate == 5e-5 for stage in stages[1:])
        assert recipe.training.label_smoothing == 0
        assert (recipe.decoding.beam, recipe.decoding.normalize) == search
        for side in (model.encoder, model.decoder):
            fuse = side.fuse
            assert fuse.kind in ("last", "average") or fuse.hidden == D_F
            assert fuse.kind != "attention" or fuse.attention_hidden == D_A


@pytest.mark.parametrize("folder", ["rtal/wmt14_ende", "rtal/wmt17_enfr"])
def test_training_of_rtal_is_that_of_the_paper(folder):
    for recipe in rows(folder).values():
        model, (stage,) = recipe.model, recipe.training.stages
        assert (model.width, model.ffn, model.heads) in ((512, 2048, 8), (1024, 4096, 16))
        adam, batch, search = stage.optimizer, stage.batch, recipe.decoding
        assert (adam.kind, tuple(adam.betas), adam.eps) == ("adam", (0.9, 0.98), 1e-9)
        # tensor2tensor counts the longer side of a batch.
        assert (batch.size, batch.unit, batch.accumulate) == (4096, "longest", 8)
        assert recipe.training.label_smoothing == 0.1
        assert (search.beam, search.normalize, search.penalty) == (4, 0.6, "gnmt")
        assert recipe.data.bpe and (recipe.data.bpe.merges, recipe.data.bpe.joint) == (32_000, True)
        assert recipe.data.vocabulary.joint


def test_big_models_train_longer_and_average_more():
    recipes = rows("rtal/wmt14_ende")
    sizes = {
        name: (
            recipe.training.stages[0].end.updates,
            recipe.training.keep_last,
            recipe.model.heads,
            recipe.model.dropout,
        )
        for name, recipe in recipes.items()
    }
    assert sizes["base_rtal_6layers"] == (100_000, 5, 8, 0.1) and sizes["big_rtal_6layers"] == (
        300_000,
        20,
        16,
        0.3,
    )
    assert rows("rtal/wmt17_enfr")["transformer_big"].model.dropout == 0.1


# Scripts ------------------------------------------------------------------------------------------

WORDS = {
    "de": "das Haus ist alt und der Hund schläft heute".split(),
    "en": "the house is old and the dog sleeps today".split(),
}
TINY = [
    "model.width=16",
    "model.heads=2",
    "model.ffn=16",
    "training.stages.0.end={updates: 2}",
    "decoding={beam: 1, max_length_factor: 0, max_length_extra: 3}",
]


def call(
    script: str, *arguments: object, settings: list[str] | None = None
) -> subprocess.CompletedProcess[str]:
    given = [word for setting in settings or [] for word in ("--set", setting)]
    return subprocess.run(
        [RECIPES / script, *map(str, arguments), *given], capture_output=True, text=True
    )


def start(script: str, *arguments: object, settings: list[str]) -> subprocess.Popen[str]:
    """Start a script, with its messages in a pipe."""
    given = [word for setting in settings for word in ("--set", setting)]
    command = [RECIPES / script, *map(str, arguments), *given]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def until(ran: subprocess.Popen[str], message: str) -> None:
    """Read messages until one begins with ``message``."""
    assert ran.stderr
    seen = []
    for line in ran.stderr:
        seen.append(line)
        if line.startswith(message):
            return
    raise AssertionError("".join(seen))


def write(
    folder: Path, name: str, lines: int, languages: tuple[str, str] = ("de", "en"), further: int = 0
) -> None:
    """Write random pairs, and further references that end in `really` once, twice, and so on."""
    folder.mkdir(exist_ok=True)
    choose = random.Random(name)
    chosen = [choose.choices(range(9), k=3 + i % 4) for i in range(lines)]
    for language, words in zip(languages, WORDS.values(), strict=True):
        (folder / f"{name}.{language}").write_text(
            "".join(" ".join(words[i] for i in line) + ".\n" for line in chosen), encoding="utf-8"
        )
    for n in range(1, further + 1):
        text = "".join(
            " ".join(WORDS["en"][i] for i in line) + " really" * n + ".\n" for line in chosen
        )
        (folder / f"{name}.{languages[1]}{n}").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("script", "arguments", "said"),
    [
        ("run_recipe.sh", ["nowhere.yaml", "--raw", "."], "nowhere.yaml"),
        (
            "run_recipe.sh",
            [RECIPES / "mlrf/iwslt14_deen/enc_avg.yaml"],
            "give the folder of the raw text with --raw",
        ),
        (
            "run_recipe.sh",
            [RECIPES / "mlrf/iwslt14_deen/enc_avg.yaml", "--raw", "/nowhere"],
            "--raw /nowhere: the folder does not exist",
        ),
        ("run_multi30k_fusion.sh", [], "give the folder of the Multi30k text"),
        ("run_multi30k_fusion.sh", ["data", "--seeds"], "--seeds needs a value"),
    ],
)
def test_errors_are_one_sentence(script, arguments, said):
    ran = call(script, *arguments)
    assert ran.returncode == 2 and said in ran.stderr and ran.stderr.count("\n") == 1, ran.stderr


def test_text_of_another_size_is_refused_without_the_option(tmp_path):
    write(tmp_path, "train", 3)
    ran = call("run_multi30k_fusion.sh", tmp_path)
    assert (
        ran.returncode == 2
        and f"{tmp_path}/train.de has 3 lines and should have 29000" in ran.stderr
    )


def notes(folder: Path) -> dict[tuple[str, str, str], dict[str, object]]:
    found = json.loads((folder / "scores.json").read_text(encoding="utf-8"))["scores"]
    return {(note["set_name"], note["checkpoint"], note["metric"]): note for note in found}


def test_a_row_from_raw_text_to_bleu_with_further_references(tmp_path):
    raw, out = tmp_path / "raw", tmp_path / "out"
    write(raw, "train", 120)
    for name in ("dev2010", "TEDX.dev2012", "tst2010", "tst2011", "tst2012"):
        write(raw, name, 4, further=2)
    (raw / "tst2012.en2").unlink()  # so the second one is no reference of the set
    settings = [*TINY, "training.stages.1.end={updates: 1}", "data.bpe.merges=30"]
    arguments = [
        RECIPES / "mlrf/iwslt14_deen/both_ffn_sa.yaml",
        "--raw",
        raw,
        "--out",
        out,
        "--seed",
        3,
        "--any-data",
        "--average",
        2,
    ]
    with start("run_recipe.sh", *arguments, "--metric", "sacrebleu", settings=settings) as ran:
        until(ran, "== 1 of 6: prep")
        twin = call("run_recipe.sh", *arguments, settings=settings)
        rest = ran.stderr.read()
    *plan, error = twin.stderr.splitlines()
    assert twin.returncode == 2 and "another fusetk run works on" in error, twin.stderr
    assert plan[0].startswith("plan: ") and len(plan) == 7
    assert ran.returncode == 0, rest
    scored = notes(out / "run.iwslt14_deen.both_ffn_sa.seed3")
    assert set(scored) == {
        ("test", label, metric)
        for label in ("best", "average-2")
        for metric in ("multi-bleu-lc", "sacrebleu")
    }, "the published metric and checkpoint, and those that were asked for"
    assert all(
        note["sentences"] == 20 and str(note["signature"]).startswith("nrefs:2|case:lc|")
        for note in scored.values()
    )
    lines = (
        (out / "references.iwslt14_deen" / "test" / "1.txt")
        .read_text(encoding="utf-8")
        .splitlines()
    )
    assert len(lines) == 20 and all(
        line.endswith(" really .") and line == line.lower() for line in lines
    )
    reported = CliRunner().invoke(main, ["report", str(arguments[0]), "--runs", str(out), "--json"])
    [warning] = [
        warning for table in json.loads(reported.stdout)["tables"] for warning in table["warnings"]
    ]
    measured = [
        (score["checkpoint"], score["metric"])
        for table in json.loads(reported.stdout)["tables"]
        for row in table["rows"]
        for score in row["measured"]
        if score["set_name"] == "test"
    ]
    assert measured == [("best", "multi-bleu-lc")]
    changed = re.findall(r"(?:data|model|training|decoding)\.[a-z0-9_.]+", warning)
    assert {
        "data.bpe.merges",
        "model.width",
        "training.stages.0.end.updates",
        "decoding.beam",
    } <= set(changed)
    assert [key for key in changed if key.startswith("data.")] == ["data.bpe.merges"], (
        "the folder of the text is free"
    )


def test_a_row_waits_while_another_one_prepares_the_text_that_they_share(tmp_path):
    raw, out = tmp_path / "raw", tmp_path / "out"
    out.mkdir()
    for name in ("train", "dev2010", "TEDX.dev2012", "tst2010", "tst2011", "tst2012"):
        write(raw, name, 40)
    row = RECIPES / "mlrf/iwslt14_deen/enc_avg.yaml"
    with (out / ".data.iwslt14_deen.lock").open("w") as other:
        assert lock(other)
        with start(
            "run_recipe.sh",
            row,
            "--raw",
            raw,
            "--out",
            out,
            "--prepare-only",
            "--any-data",
            settings=["data.bpe.merges=30"],
        ) as ran:
            until(
                ran,
                f"waiting for another fusetk run, which prepares text in {out}\n",
            )
            assert not (out / "data.iwslt14_deen").exists()
            other.close()
            rest = ran.stderr.read()
    assert ran.returncode == 0, rest
    assert (out / "data.iwslt14_deen" / "manifest.json").exists()


def test_references_exist_while_another_row_writes_them_again(tmp_path, monkeypatch):
    raw, folder = tmp_path / "raw", tmp_path / "references"
    recipe = load(RECIPES / "mlrf/nist_zhen/both_avg_sa.yaml")
    sets = list(recipe.data.test)
    for name in sets:
        write(raw, name, 3, ("zh", "en"), further=2)
    expected = sorted(
        folder / name / f"{number}.{form}"
        for name in sets
        for number in (1, 2)
        for form in ("raw", "txt")
    )

    class Words:
        """Text to words, which looks at the files whenever it is asked."""

        complete = False

        def words(self, side: str, line: str) -> str:
            assert not self.complete or all(
                len(path.read_text(encoding="utf-8").splitlines()) == 3 for path in expected
            )
            return line.lower()

    words = Words()
    monkeypatch.setattr("fusetk.experiment.references.Pipeline.load", lambda path: words)
    row = RECIPES / "mlrf/nist_zhen/both_avg_sa.yaml"
    data = recipe_with_folders(recipe, raw, places(row, recipe, tmp_path / "out")).data
    write_references(data, folder)
    words.complete = True
    write_references(data, folder)
    assert sorted(path for path in folder.rglob("*") if path.is_file()) == expected
    (raw / f"{sets[0]}.en2").unlink()
    write_references(data, folder)
    assert not (folder / sets[0] / "2.txt").exists() and (folder / sets[1] / "2.txt").exists(), (
        "references that are gone are deleted"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "config", ["mlrf/nist_zhen/both_avg_sa.yaml", "rtal/wmt14_ende/base_rtal_4layers.yaml"]
)
def test_rows_of_other_data_from_raw_text_to_bleu(tmp_path, config):
    raw, out = tmp_path / "raw", tmp_path / "out"
    recipe = load(RECIPES / config)
    assert isinstance(recipe.data.valid, list)
    for prefix in {
        *recipe.data.train,
        *recipe.data.valid,
        *(p for prefixes in recipe.data.test.values() for p in prefixes),
    }:
        write(raw, Path(prefix).name, 60, (recipe.data.source, recipe.data.target), further=3)
    settings = [
        *TINY,
        *(["data.bpe.merges=30"] if recipe.data.bpe else ["training.stages.1.end={updates: 1}"]),
    ]
    arguments = [RECIPES / config, "--raw", raw, "--out", out, "--jobs", 2, "--any-data"]
    ran = call("run_recipe.sh", *arguments, settings=settings)
    assert ran.returncode == 0, ran.stderr
    path = RECIPES / config
    scored = notes(out / f"run.{path.parent.name}.{path.stem}.seed1")
    assert {name for name, _, _ in scored} == set(recipe.data.test) and all(
        "nrefs:4" in str(note["signature"]) for note in scored.values()
    )
    expected = {
        "zh": {"mteval-v13a"},
        "en": {"multi-bleu", "multi-bleu-joined", "sacrebleu"},
    }[recipe.data.source]
    assert {metric for _, _, metric in scored} == expected
    again = call("run_recipe.sh", *arguments, settings=settings)
    assert (
        again.returncode == 0
        and "nothing changed" in again.stderr
        and "nothing to do: " in again.stderr
    )
    assert again.stdout == ran.stdout


def test_systems_of_multi30k_from_raw_text_to_the_table(tmp_path):
    for name, lines in (("train", 120), ("val", 10), ("test_2016_flickr", 10)):
        write(tmp_path / "raw", name, lines)
    arguments = [
        tmp_path / "raw",
        "--any-data",
        "--out",
        tmp_path / "out",
        "--systems",
        "rtal_ewp_both",
        "--seeds",
        "7",
    ]
    settings = [
        *TINY,
        "data.bpe.merges=30",
        "training.precision=bf16",
        "training.stages.0.end.updates=1",
    ]
    ran = call("run_multi30k_fusion.sh", *arguments, settings=settings)
    assert ran.returncode == 0, ran.stderr
    found = notes(tmp_path / "out" / "run.fusion.rtal_ewp_both.seed7")
    assert set(found) == {
        ("test_2016_flickr", label, "multi-bleu") for label in ("best", "average-1")
    }
    table = ran.stdout[ran.stdout.index("Multi30k De-En") :]
    assert all(row in table for row in ("baseline", "RTAL EWP, both", "iterative, both"))


@pytest.mark.parametrize(
    ("row", "printed"),
    [
        ("nist_zhen/dec_avg", "MT06 41.43, MT04 48.38, MT05 41.19, MT08 34.66, average 41.49"),
        ("iwslt14_deen/enc_sa_6hops", "33.40"),
    ],
)
def test_describe_prints_published_scores_as_the_paper_does(row, printed):
    arguments = ["describe", str(RECIPES / "mlrf" / f"{row}.yaml"), "--set", "model.width=8"]
    ran = CliRunner().invoke(main, [*arguments, "--set", "model.heads=1"])
    assert f"\nBLEU printed: {printed}\n" in ran.stdout
    assert ran.stdout.startswith("with ") and len(ran.stdout.splitlines()) < 20
