"""`fusetk run`: its steps, what a second call repeats, child processes, and jobs of Slurm."""

import json
import os
import re
import shlex
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from fusetk import recipe as recipes
from fusetk.cli import run_slurm
from fusetk.cli.main import main
from fusetk.cli.run_slurm import without_slurm
from fusetk.data.config import Sample
from fusetk.errors import ConfigError, DataError, Interrupted
from fusetk.evaluation.metrics import METRICS
from fusetk.experiment import launch, slurm
from fusetk.experiment.places import Places, further_references, places
from fusetk.experiment.products import Products
from fusetk.experiment.references import write_references
from fusetk.experiment.run import STEPS, Experiment, Options, describe_updates
from fusetk.experiment.scoring import decoded_checkpoints, metrics_of
from fusetk.experiment.smoke import smoke_settings, with_smoke_settings, write_smoke_text
from fusetk.files import digest, lock
from fusetk.runs import CHECKPOINTS, STATE, references_folder
from fusetk.runs import CONFIG as CONFIG_NAME
from fusetk.training.progress import Progress
from tests.helpers.manifests import write_manifest
from tests.helpers.rows import GROUNDS, RECIPES, load

CONFIG = """
data: {source: de, target: en, folder: data, train: [raw/train], valid: [raw/valid],
  test: {first: [raw/first], second: [raw/second]}, bpe: {merges: 50}}
model: {kind: transformer, width: 16, heads: 2, ffn: 16, encoder: {layers: 1}, decoder: {layers: 1}}
training:
  keep_last: 3
  stages:
    - {optimizer: adam, schedule: {kind: constant, rate: 0.001}, end: {updates: 4},
       batch: {size: 100, accumulate: 4}}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "my.yaml"
    path.write_text(CONFIG)
    return path


class Steps:
    """A replacement of the commands: it writes their files, and can fail at one of them."""

    def __init__(self, where: Places, fails_at: int | None = None):
        self.where = where
        self.fails_at = fails_at
        self.called: list[str] = []

    def __call__(self, words: list[str], locks: list[int]) -> None:
        arguments = words[words.index("fusetk") + 1 :]
        if self.fails_at == len(self.called):
            self.fails_at = None
            raise launch.StepFailed(words, 1)
        self.called.append(" ".join(arguments))
        checkpoints = self.where.run / CHECKPOINTS
        if arguments[0] == "train" and not checkpoints.exists():
            progress = Progress(update=4, saved=[2, 4]).to_state()
            for name in ("update-0000002", "update-0000004", "best"):
                write_state(checkpoints / name, name, progress=progress)
            shutil.copy(self.where.config, self.where.run / CONFIG_NAME)
        elif arguments[0] == "average":
            write_state(checkpoints / arguments[-1].removeprefix("--name="), "average")
        elif arguments[0] == "decode":
            Path(arguments[arguments.index("-o") + 1]).write_text("translation\n")


def write_state(folder: Path, content: str, **entries: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    state = {"format": 1, "sha256": {"model.safetensors": content}, **entries}
    (folder / STATE).write_text(json.dumps({**state, "digest": digest(state)}))


def experiment(
    config: Path, monkeypatch: pytest.MonkeyPatch, steps: Steps | None = None
) -> "tuple[Experiment, Steps]":
    recipe = recipes.load(config)
    where = places(config, recipe, config.parent / "out")
    steps = steps or Steps(where)
    monkeypatch.setattr("fusetk.experiment.launch.call", steps)
    monkeypatch.setattr("fusetk.experiment.run.write_references", lambda data, folder: None)
    folder = where.prepared(recipe.data)
    folder.mkdir(parents=True, exist_ok=True)
    for name in recipe.data.test:
        (folder / f"test.{name}.de.txt").write_text(name)
    data = recipe.data.model_copy(update={"folder": str(folder)})
    recipe = recipe.model_copy(update={"data": data})
    return Experiment(recipe, where, Options(), lambda line: None), steps


def kinds(steps: Steps) -> list[str]:
    return [line.split()[0] for line in steps.called]


COMPLETE = ["prep", "train", "average", *["decode"] * 4, *["score"] * 4]


def test_the_steps_are_taken_in_order(config, monkeypatch):
    run, steps = experiment(config, monkeypatch)
    run.run()
    assert kinds(steps) == COMPLETE
    assert "average" in steps.called[2] and "--last=2 --name=average-2" in steps.called[2]
    scored = [line.split("--set-name ")[1] for line in steps.called if line.startswith("score")]
    assert scored == [
        f"{name} --checkpoint {label}"
        for name in ("first", "second")
        for label in ("best", "average-2")
    ]


def test_a_quiet_experiment_calls_quiet_commands(config, monkeypatch):
    run, steps = experiment(config, monkeypatch)
    run.options = run.options._replace(quiet=True)
    run.run()
    assert kinds(steps) == COMPLETE and all(" -q" in line for line in steps.called)


def test_the_command_for_the_complete_table_can_be_copied(config, monkeypatch, tmp_path):
    run, steps = experiment(config, monkeypatch)
    lines: list[str] = []
    run.say = lines.append
    run.options = run.options._replace(row=tmp_path / "my rows" / "a.yaml")
    run.run()
    assert kinds(steps) == [*COMPLETE, "report"]
    [command] = [line.partition(": ")[2] for line in lines if line.startswith("the complete table")]
    out = str(run.places.out)
    assert shlex.split(command) == ["fusetk", "report", str(tmp_path / "my rows"), "--runs", out]


def test_a_second_call_repeats_only_the_steps_that_check_their_own_state(config, monkeypatch):
    run, _ = experiment(config, monkeypatch)
    run.run()
    again, steps = experiment(config, monkeypatch)
    again.run()
    assert kinds(steps) == ["prep", "train", *["score"] * 4]


def test_the_plan_says_which_steps_are_done(config, monkeypatch):
    run, steps = experiment(config, monkeypatch)
    run.options = run.options._replace(device="cpu", devices=2)

    def states() -> list[str]:
        title, *lines = run.plan()
        assert title == f"plan: {run.places.run} (text in data.my) on 2 x cpu"
        assert [line.split()[0] for line in lines] == list(STEPS)
        return [line.split(maxsplit=1)[1] for line in lines]

    table = "nothing to do: the config is not a row of a paper's table"
    before = sorted(config.parent.rglob("*"))
    assert states() == [*["to do"] * 5, table]
    assert sorted(config.parent.rglob("*")) == before and not steps.called
    steps.fails_at = 4  # the second translation
    with pytest.raises(launch.StepFailed):
        run.run()
    (Path(run.recipe.data.folder) / "manifest.json").touch()
    write_state(run.places.run / CHECKPOINTS / "last", "x", progress=Progress(update=3).to_state())
    prepared = "done; repeated if the text or a setting changed"
    assert states() == [prepared, "continues after 3 updates", *["to do"] * 3, table]
    ended = Progress(update=4, stage_update=4, ranking=[(4, 1.0, 1.0)]).to_state()
    write_state(run.places.run / CHECKPOINTS / "last", "x", progress=ended)
    rest = ["done, 1 of 1 average", "to do, 1 of 4 translations", "to do", table]
    assert states() == [prepared, "done, 4 updates", *rest]
    run.run()
    rest[1] = "done, 4 of 4 translations"
    assert states() == [prepared, "done, 4 updates", *rest]
    run.options = run.options._replace(until="train")
    assert len(run.plan()) == 3
    run.options = run.options._replace(until="prep")  # it needs no device
    assert run.plan()[0] == f"plan: {run.places.run} (text in data.my)"


def test_a_dry_run_prints_only_the_plan(config, monkeypatch):
    monkeypatch.setattr(Experiment, "run", lambda self: pytest.fail("the run began"))
    for language in ("de", "en"):
        for name in ("train", "valid", "first", "second"):
            (config.parent / f"{name}.{language}").touch()
    files = sorted(config.parent.rglob("*"))
    where = ["--raw", str(config.parent), "--out", str(config.parent / "out")]
    result = CliRunner().invoke(main, ["run", str(config), *where, "--dry-run", "--seed=2"])
    assert result.exit_code == 0 and result.stderr == ""
    assert "/out/run.my.seed2 (text in data.my)" in result.stdout
    assert sorted(config.parent.rglob("*")) == files


@pytest.mark.parametrize(
    "paper, error",
    [
        ("dataset: iwslt14-de-en", ""),
        ("dataset: nist-zh-en, dataset_note: segment it", "first, then segment it"),
        ("line: 1", "put the text there, since the config names no data set"),
    ],
)
def test_a_dry_run_names_missing_text_only_if_dataset_cannot_make_it(config, paper, error):
    config.write_text(f"{config.read_text()}paper: {{table: Mine, row: my, {paper}}}\n")
    raw = str(config.parent / "none")
    result = CliRunner().invoke(main, ["run", str(config), "--raw", raw, "--dataset", "--dry-run"])
    assert result.exit_code == (2 if error else 0)
    assert error in result.stderr and bool(result.stdout) != bool(error)
    assert not Path(raw).exists()


@pytest.mark.parametrize("number", range(len(COMPLETE)))
def test_after_a_failure_the_next_call_continues_there(config, monkeypatch, number):
    run, steps = experiment(config, monkeypatch)
    steps.fails_at = number
    with pytest.raises(launch.StepFailed, match="command again to continue"):
        run.run()
    assert kinds(steps) == COMPLETE[:number]
    steps.called.clear()
    run.run()
    done = {"prep", "train", "score"}  # these commands find out themselves what is left to do
    repeated = [kind for kind in COMPLETE[:number] if kind in done]
    assert kinds(steps) == repeated + COMPLETE[number:]


def test_another_checkpoint_or_text_or_search_is_translated_again(config, monkeypatch):
    run, steps = experiment(config, monkeypatch)
    run.run()

    def decoded() -> list[str]:
        steps.called.clear()
        run.run()
        return [line for line in steps.called if line.startswith("decode")]

    assert not decoded()
    write_state(run.places.run / CHECKPOINTS / "best", "other weights")
    assert len(lines := decoded()) == 2 and all("/best" in line for line in lines)
    (Path(run.recipe.data.folder) / "test.second.de.txt").write_text("other text")
    assert len(lines := decoded()) == 2 and all("test.second" in line for line in lines)
    (run.places.run / "first.best.txt").write_text("damaged")
    assert len(decoded()) == 1
    search = run.recipe.decoding.model_copy(update={"beam": 9})
    run.recipe = run.recipe.model_copy(update={"decoding": search})
    assert len(decoded()) == 4


def test_a_second_process_is_refused(config, monkeypatch):
    run, _ = experiment(config, monkeypatch)
    other, _ = experiment(config, monkeypatch)
    with run._locked(), pytest.raises(ConfigError, match="another fusetk run works on"):
        other.run()


def test_the_last_step_can_be_chosen(config, monkeypatch):
    for number, name in enumerate(STEPS[:3], 1):
        run, steps = experiment(config, monkeypatch)
        run.options = run.options._replace(until=name)
        run.run()
        assert kinds(steps) == ["prep", "train", "average"][:number]


def test_the_report_has_the_runs_of_all_seeds_of_the_row(config, monkeypatch):
    run, steps = experiment(config, monkeypatch)
    run.options = run.options._replace(row=config)
    for name in ("run.my.seed1", "run.my.seed2", "run.my2.seed1"):
        (run.places.out / name).mkdir(parents=True, exist_ok=True)
        (run.places.out / name / "config.yaml").touch()
    (run.places.out / "run.my.seed1.yaml").touch()
    run.run()
    runs = [f"--runs={run.places.out / name}" for name in ("run.my.seed1", "run.my.seed2")]
    assert steps.called[-1] == f"report {config} {' '.join(runs)}"


# Scores -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("checkpoint", "average", "existing", "expected"),
    [
        (None, None, 9, ["best", "average-3"]),
        (None, 5, 9, ["best", "average-5"]),
        (None, 5, 2, ["best", "average-2"]),
        ("best", None, 9, ["best"]),
        ("best", 2, 9, ["best", "average-2"]),
        ("last", None, 9, ["last"]),
        ("average-5", None, 9, ["average-5"]),
        ("average-5", None, 4, ["average-4"]),
        ("average-5", 5, 9, ["average-5"]),
        ("average-5", 2, 9, ["average-5", "average-2"]),
    ],
)
def test_the_checkpoint_of_the_published_score_is_translated_with(
    config, checkpoint, average, existing, expected
):
    paper = f"paper={{table: T, row: R, checkpoint: {checkpoint or 'null'}}}"
    recipe = recipes.load(config, [paper])
    assert decoded_checkpoints(recipe, average, existing) == expected


LOWERCASE = "data.steps=[{step: lowercase}]"
HYPHENS = "data.steps=[{step: tokenize, aggressive_hyphens: true}]"
PAPER = "paper={table: T, row: R, metric: mteval-v13a}"
PIECES = ["data.bpe=null", "data.steps=[{step: sentencepiece}]"]


@pytest.mark.parametrize(
    ("settings", "others", "expected"),
    [
        ([], [], ["multi-bleu"]),
        ([], ["chrf", "ter"], ["chrf", "ter"]),
        ([LOWERCASE], [], ["multi-bleu-lc"]),
        ([PAPER], [], ["mteval-v13a"]),
        ([PAPER], ["chrf", "mteval-v13a"], ["mteval-v13a", "chrf"]),
        ([HYPHENS], [], ["multi-bleu", "multi-bleu-joined", "sacrebleu"]),
        ([PAPER, HYPHENS], [], ["mteval-v13a", "multi-bleu", "multi-bleu-joined", "sacrebleu"]),
        (PIECES, [], ["sacrebleu"]),
        (PIECES, ["chrf"], ["chrf"]),
    ],
)
def test_the_metric_of_the_published_score_is_first(config, settings, others, expected):
    assert metrics_of(recipes.load(config, settings), others) == expected


def test_all_means_every_metric_of_the_text(config):
    assert metrics_of(recipes.load(config), ["all"]) == list(METRICS)
    pieces = recipes.load(config, PIECES)
    assert metrics_of(pieces, ["all"]) == [n for n in METRICS if not n.startswith("multi-bleu")]
    with pytest.raises(
        ConfigError, match="the metric multi-bleu scores words, but the step sentencepiece splits"
    ):
        metrics_of(pieces, ["multi-bleu"])


def test_a_metric_outside_fusetk_gets_the_kind_of_text_that_it_scores(
    config, monkeypatch, tmp_path
):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "run_metrics.py").write_text(
        "from fusetk.evaluation.metric import Metric\n"
        "class Words(Metric):\n    tokenizes = False\n"
        "class Text(Metric):\n    tokenizes = True\n"
        "class Source(Metric):\n    needs_source = True\n"
    )
    run, steps = experiment(config, monkeypatch)
    monkeypatch.setattr("fusetk.experiment.run.detokenize", lambda folder, words, raw: None)
    run.options = run.options._replace(metrics=["run_metrics:Words", "run_metrics:Text"])
    run.run()
    scored = [line for line in steps.called if line.startswith("score")]
    assert len(scored) == 8
    for line in scored:
        kind = Path(line.split()[1]).suffix
        assert ("--metric=run_metrics:Words" in line) == (kind == ".txt")
        assert ("--metric=run_metrics:Text" in line) == (kind == ".raw")
    with pytest.raises(ConfigError, match=r"run_metrics:Words scores words, but the step"):
        metrics_of(recipes.load(config, PIECES), ["run_metrics:Words"])
    with pytest.raises(ConfigError, match=r"run_metrics:Source needs the source"):
        metrics_of(recipes.load(config), ["run_metrics:Source"])
    with pytest.raises(DataError, match="has no 'Word'; did you mean 'Words'"):
        metrics_of(recipes.load(config), ["run_metrics:Word"])


def test_a_run_makes_only_the_averages_that_it_translates_with(config, monkeypatch):
    run, steps = experiment(config, monkeypatch)
    paper = {"table": "T", "row": "R", "checkpoint": "best"}
    run.recipe = recipes.load(config, [f"paper={json.dumps(paper)}"])
    run.options = run.options._replace(until="average")
    run.run()
    assert kinds(steps) == ["prep", "train"]
    run.options = run.options._replace(average=1)
    run.run()
    assert "--last=1 --name=average-1" in steps.called[-1]


# Places -------------------------------------------------------------------------------------------


def test_rows_of_a_folder_share_their_text_and_other_configs_do_not(config):
    row = RECIPES / "mlrf/iwslt14_deen/both_ffn.yaml"
    where = places(row, load(row), None)
    assert where.out == Path("work/mlrf_iwslt14_deen").absolute()
    assert where.run.name == "run.iwslt14_deen.both_ffn.seed1"
    assert where.prepared(load(row).data).name == "data.iwslt14_deen"
    own = places(config, recipes.load(config), None)
    assert (own.out, own.run.name) == (Path("work/my").absolute(), "run.my.seed1")


def test_a_path_with_dots_names_the_same_row(monkeypatch):
    row = RECIPES / "mlrf/iwslt14_deen/both_ffn.yaml"
    monkeypatch.chdir(row.parent.parent / "nist_zhen")
    dotted = Path("../iwslt14_deen") / row.name
    assert places(dotted, load(row), None) == places(row, load(row), None)


def test_runs_in_a_folder_with_brackets_are_found(tmp_path):
    folder = tmp_path / "exp[1]"
    where = Places(folder, "exp[1]", "exp[1].plain.seed1")
    where.run.mkdir(parents=True)
    (where.run / "config.yaml").touch()
    assert where.runs_of_all_seeds() == [where.run]


def test_other_settings_of_the_text_get_a_folder_of_their_own(config, tmp_path):
    recipe = recipes.load(config)
    where = places(config, recipe, tmp_path)
    folder = where.prepared(recipe.data)
    folder.mkdir()
    settings = recipe.data.model_dump(mode="json", exclude={"folder"})
    settings["train"] = ["/elsewhere/train"]
    write_manifest(folder, settings=settings)
    assert where.prepared(recipe.data) == folder, "the folder of the text may differ"
    other = recipes.load(config, ["data.bpe.merges=51"])
    assert where.prepared(other.data) != folder
    assert where.prepared(other.data) == where.prepared(other.data)


def test_experiments_that_start_together_with_other_settings_have_two_prepared_folders(
    config, monkeypatch
):
    run, _ = experiment(config, monkeypatch)
    chosen = Path(run.recipe.data.folder)
    # Another experiment prepares the folder between the choice and the first step.
    other = recipes.load(config, ["data.bpe.merges=51"])
    settings = other.data.model_dump(mode="json", exclude={"folder"})
    write_manifest(chosen, settings=settings)
    run.options = run.options._replace(until="prep")
    run.run()
    folder = recipes.load(run.places.config).data.folder
    assert folder == run.recipe.data.folder == str(run.places.prepared(run.recipe.data))
    assert Path(folder) != chosen
    out = run.places.out
    assert references_folder(out, Path(folder)) != references_folder(out, chosen)


def test_a_run_of_another_config_names_the_option_out_and_keeps_its_config(config, monkeypatch):
    run, steps = experiment(config, monkeypatch)
    run.run()
    for folder in (run.places.run / CHECKPOINTS).iterdir():
        write_state(folder, folder.name, progress={"update": 4})
    text = run.places.config.read_text()
    (run.places.run / "config.yaml").write_text(text)
    called = len(steps.called)
    training = run.recipe.training.model_copy(update={"seed": 7})
    run.recipe = run.recipe.model_copy(update={"training": training})
    error = r"training.seed: 1 -> 7.*: choose another --out, or"
    with pytest.raises(ConfigError, match=error):
        run.run()
    assert run.places.config.read_text() == text and len(steps.called) == called
    (run.places.run / CHECKPOINTS / "last").symlink_to("update-0000004")
    assert re.match(f"  train    to do; .*{error}", run.plan()[2])


def test_a_further_reference_needs_all_texts(tmp_path):
    for name in ("a.en1", "a.en2", "b.en1.gz"):
        (tmp_path / name).touch()
    found = list(further_references([str(tmp_path / "a"), str(tmp_path / "b")], "en"))
    assert [[path.name for path in paths] for paths in found] == [["a.en1", "b.en1.gz"]]


@pytest.mark.parametrize("lines", [(2, 3), (3, 3)])
def test_further_references_have_the_lines_of_their_sources(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: tuple[int, int]
) -> None:
    """The sources have three and two lines, so references of two and three lines are shifted."""
    for name, sources, further in (("a", 3, lines[0]), ("b", 2, lines[1])):
        for ending, number in (("de", sources), ("en", sources), ("en1", further)):
            (tmp_path / f"{name}.{ending}").write_text("x\n" * number)
    data = recipes.load(config).data
    data = data.model_copy(update={"test": {"set": [str(tmp_path / "a"), str(tmp_path / "b")]}})
    monkeypatch.setattr(
        "fusetk.experiment.references.Pipeline.load",
        lambda folder: SimpleNamespace(words=lambda side, line: line),
    )
    with pytest.raises(DataError, match=r"(a\.de|b\.de).*lines"):
        write_references(data, tmp_path / "references")


def test_products_with_damage_or_other_inputs_are_made_again(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("text")
    Products(tmp_path).add(file, [1, "x"])
    assert Products(tmp_path).up_to_date(file, [1, "x"])
    assert not Products(tmp_path).up_to_date(file, [2, "x"])
    file.write_text("texd")
    assert not Products(tmp_path).up_to_date(file, [1, "x"])
    (tmp_path / "products.json").write_text("[")
    assert not Products(tmp_path).up_to_date(file, [1, "x"])


# Devices ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        (1, "stage 1: an update is 4 x 100 = 400 target tokens"),
        (2, "stage 1: an update is 4 x 100 = 400 target tokens; each of 2 devices computes 2 of "),
        (8, "stage 1: an update is 4 x 100 = 400 target tokens; each of 8 devices computes 1/8 "),
    ],
)
def test_an_update_is_described(config, devices, text):
    [line] = describe_updates(recipes.load(config).training.stages, devices)
    assert line.startswith(text)
    batch = "training.stages.0.batch={size: 400, unit: both}"
    [line] = describe_updates(recipes.load(config, [batch]).training.stages, 1)
    assert line == "stage 1: an update is 1 x 400 tokens of both sides, padded"


def test_several_devices_are_processes_of_torchrun():
    words = launch.command("train", "a b.yaml", devices=4)
    launcher = "-m torch.distributed.run --standalone --nproc-per-node=4 -m fusetk"
    assert words[1:] == [*launcher.split(), "train", "a b.yaml"]
    assert launch.shown(words).startswith("torchrun --standalone --nproc-per-node=4 -m fusetk ")
    assert launch.shown(launch.command("train", "a b.yaml")) == "fusetk train 'a b.yaml'"


@pytest.mark.parametrize("seconds", ["600", "90"])
def test_torchrun_waits_for_a_checkpoint(monkeypatch, seconds):
    """600 seconds by default: after 30 seconds it would kill processes that save."""
    monkeypatch.delenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", raising=False)
    if seconds != "600":
        monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", seconds)
    read = "import os; assert os.environ['TORCH_ELASTIC_SHUTDOWN_TIMEOUT']"
    launch.call(python(f"{read} == {seconds!r}"))


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_commands_do_not_import_modules_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "this.py").write_text("raise SystemExit(3)")  # a module of Python has this name
    monkeypatch.chdir(tmp_path)
    words = [sys.executable, "-m", "this"]
    if sys.version_info >= (3, 11):
        launch.call(words)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(launch.StepFailed, match="ended with exit status 3"):
        launch.call(words)


def test_a_failed_command_is_named_with_its_exit_status():
    with pytest.raises(launch.StepFailed, match="ended with exit status 74") as caught:
        launch.call(python("raise SystemExit(74)"))
    assert caught.value.exit_code == 74
    with pytest.raises(launch.StepFailed, match="ended with signal SIGKILL") as caught:
        launch.call(python("import os; os.kill(os.getpid(), 9)"))
    assert caught.value.exit_code == 137
    with pytest.raises(launch.StepFailed, match=r"76: the error above says how to train again$"):
        launch.call(python("raise SystemExit(76)"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_reaches_the_command_once(tmp_path, number):
    code = (
        "import signal, time, pathlib\n"
        f"path = pathlib.Path({str(tmp_path / 'count')!r})\n"
        "def note(number, frame): path.write_text(path.read_text() + 'x')\n"
        "for name in ('SIGTERM', 'SIGINT'): signal.signal(getattr(signal, name), note)\n"
        "path.write_text('')\n"
        "while not path.read_text(): time.sleep(0.01)\n"
        "time.sleep(0.1)\n"
    )

    def interrupt() -> None:
        while not (tmp_path / "count").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    with pytest.raises(Interrupted, match=signal.Signals(number).name):
        launch.call(python(code))
    thread.join()
    assert (tmp_path / "count").read_text() == "x"
    assert signal.getsignal(number) == before


def test_a_command_ends_with_a_killed_experiment_and_keeps_its_lock(tmp_path: Path) -> None:
    """After SIGKILL of `fusetk run`, no command writes any more when the lock is free."""
    code = (
        "import signal, time, pathlib\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "def end(number, frame):\n"
        "    while not (folder / 'end').exists():\n"
        "        time.sleep(0.01)\n"
        "    (folder / 'ended').touch()\n"
        "    raise SystemExit\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "(folder / 'started').touch()\n"
        "time.sleep(60)\n"
    )
    child = os.fork()
    if not child:
        with open(tmp_path / "lock", "a") as file:
            lock(file)
            launch.call(python(code), locks=[file.fileno()])
        os._exit(1)
    while not (tmp_path / "started").exists():
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with open(tmp_path / "lock", "a") as file:
        assert not lock(file), "the command holds the lock while it ends"
        (tmp_path / "end").touch()
        assert lock(file, wait=True)
    assert (tmp_path / "ended").exists()


# Slurm --------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the programs of Slurm, which write down their arguments."""
    programs = tmp_path / "bin"
    programs.mkdir()
    sbatch = '#!/bin/sh\necho "$*" >> "$FAKE/submitted"\nwc -l < "$FAKE/submitted"\n'
    squeue = '#!/bin/sh\necho "$*" > "$FAKE/asked"\ncat "$FAKE/queued" 2> /dev/null\n:\n'
    for name, text in (("sbatch", sbatch), ("squeue", squeue)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (programs / "fusetk").touch(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE", str(tmp_path))
    return tmp_path


def test_slurm_gets_the_training_and_a_job_that_follows_it(cluster):
    where = Places(cluster / "out", "g", "x")
    where.out.mkdir()
    rest = ["fusetk", "run", "a b.yaml"]
    machine = ["--device=cpu", "--threads=3"]
    options = ["--nodes=2", "--account=me", "--reservation=r", "-t1:00:00", "--time-min=5"]
    assert slurm.submit(where, options, machine, rest) == ("1", "2")
    first, second = (cluster / "submitted").read_text().splitlines()
    assert "--nodes=2" in first and (
        f"train.sbatch {where.config} -r {where.run} --device=cpu --threads=3" in first
    )
    assert "--dependency=afterok:1" in second and "--wrap=fusetk run 'a b.yaml'" in second
    assert "--account=me --reservation=r -t1:00:00" in second
    assert not any(word in second for word in ("--nodes=2", "--time-min", "--gpus"))
    (cluster / "queued").write_text("7\n2\n")
    with pytest.raises(ConfigError, match=r"has queued or running jobs \(2\)"):
        slurm.submit(where, [], [], rest)
    experiment = SimpleNamespace(places=where, run=lambda: pytest.fail("prepared again"))
    with pytest.raises(ConfigError, match=r"has queued or running jobs \(2\)"):
        run_slurm.submit(experiment, ())
    (cluster / "queued").write_text("")
    assert slurm.submit(where, [], [], rest) == ("3", "4")
    assert "--gpus=1" in (cluster / "submitted").read_text().splitlines()[3]


@pytest.mark.parametrize(
    "missing, said",
    [
        ("fusetk", "fusetk is not on PATH"),
        ("sbatch", "the program sbatch is not installed here: run the command on a machine that"),
    ],
)
def test_a_missing_program_is_named_before_prep(cluster, monkeypatch, missing, said):
    (cluster / "bin" / missing).unlink()
    monkeypatch.setenv("PATH", str(cluster / "bin"))
    experiment = SimpleNamespace(
        places=Places(cluster / "out", "g", "x"), run=lambda: pytest.fail("prepared")
    )
    with pytest.raises(ConfigError, match=said):
        run_slurm.submit(experiment, ())
    assert not (cluster / "submitted").exists()


def test_jobs_on_a_named_cluster_are_searched_there(cluster):
    (cluster / "queued").write_text("CLUSTER: other\n7\n")
    (cluster / "record").write_text('["7;other", "8;other"]')
    assert slurm.queued(cluster / "record") == ["7 on other"]
    assert "--clusters=other" in (cluster / "asked").read_text().split()


def test_an_unknown_metric_is_an_error_before_the_first_step(config, tmp_path):
    recipe = load(config)
    with pytest.raises(DataError, match="metric 'blue'"):
        Experiment(recipe, Places(tmp_path, "g", "x"), Options(metrics=["blue"]), print)


def test_the_second_job_repeats_the_command_without_slurm():
    arguments = "run a.yaml --sbatch --nodes=2 --raw b --slurm --seed 2".split()
    assert without_slurm([*arguments, "--sbatch=-p x"]) == "run a.yaml --raw b --seed 2".split()


# The smoke test -----------------------------------------------------------------------------------

TASKS = sorted(path.parent for path in RECIPES.glob("*/*/base.yaml"))


@pytest.mark.parametrize("folder", TASKS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_first_and_last_row_of_a_task_have_valid_settings_for_the_smoke_test(folder):
    rows = [path for path in sorted(folder.glob("*.yaml")) if path.stem not in GROUNDS]
    for path in (rows[0], rows[-1]):
        smoke = recipes.load(path, smoke_settings(load(path)))
        assert smoke.model == load(path).model
        for stage in smoke.training.stages:
            assert stage.end.model_dump(exclude_none=True) == {"updates": 3}
            assert stage.batch.accumulate <= 2


def test_the_smoke_test_keeps_existing_codes(config):
    codes = ["data.bpe={codes: my.codes}"]
    settings = smoke_settings(recipes.load(config, codes))
    assert recipes.load(config, [*settings, *codes]).data.bpe.merges is None


def test_the_smoke_test_changes_the_stages_that_the_user_sets(config):
    [stage] = recipes.load(config).model_dump(mode="json")["training"]["stages"]
    settings = [f"training.stages={json.dumps([stage, stage])}"]
    one_limit = "training.stages.1.end.updates=5"
    for limit, updates in (([], [3, 3]), ([one_limit], [3, 5])):
        recipe = recipes.load(config, [*settings, *limit])
        smoke = recipes.load(config, with_smoke_settings([*settings, *limit], recipe))
        assert [stage.end.updates for stage in smoke.training.stages] == updates


def test_the_smoke_test_has_enough_pairs_for_the_interval_of_validation_pairs(config):
    every = recipes.load(config, ["data.valid={every: 4000}"])
    assert "data.valid.every=60" in smoke_settings(every)


def test_the_smoke_test_reads_the_first_lines_and_all_references(config, tmp_path):
    raw = tmp_path / "raw"
    raw.mkdir()
    for name in ("train", "valid", "first", "second"):
        for language in ("de", "en", "en1"):
            (raw / f"{name}.{language}").write_text("".join(f"{n}\n" for n in range(4000)))
    write_smoke_text(recipes.load(config), tmp_path / "smoke")
    sizes = {path.name: len(path.read_text().split()) for path in (tmp_path / "smoke").iterdir()}
    assert sizes["train.de"] == sizes["train.en"] == 3000
    assert sizes["first.de"] == sizes["first.en1"] == 20


# The command --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "give the folder of the raw text with --raw"),
        (["--raw", "/nowhere"], "--raw /nowhere: the folder does not exist: put the text there"),
        (["--raw", ".", "--set", "data.folder=x"], "--set data.folder=x: use --raw for the folder"),
        (
            ["--raw", ".", "--out", "/", "--smoke"],
            "cannot make a folder beside --out /: give another",
        ),
        (["--raw", ".", "--out", "/x/..", "--smoke"], "beside --out /: give another"),
        (["--raw", ".", "--slurm", "--smoke"], "--slurm and --smoke exclude each other"),
        (["--raw", ".", "--slurm", "--devices=4"], "--slurm and --devices exclude each other"),
        (["--raw", ".", "--devices=4", "-d", "cuda:1"], "--devices and --device cuda:1 exclude"),
        (["--raw", ".", "--slurm", "--until=prep"], "--slurm and --until prep exclude each other"),
        (["--raw", ".", "--sbatch=-p x"], "--sbatch needs --slurm"),
        (["--raw", ".", "--smoke", "--dry-run"], "--dry-run and --smoke exclude each other"),
        (["--raw", ".", "--seed=1", "--seed=1"], "--seed: the same seed is given twice"),
        (["--raw", ".", "--slurm", "--seed=1", "--seed=2"], "--slurm submits the jobs of one seed"),
        (
            ["--raw", ".", "--slurm", "--sbatch=--partition", "--sbatch=gpu"],
            "--sbatch=gpu: give an option and its value together",
        ),
    ],
)
def test_wrong_options_are_one_sentence(config, arguments, text):
    result = CliRunner().invoke(main, ["run", str(config), *arguments])
    assert result.exit_code == 2 and text in result.stderr and result.stderr.count("\n") == 1


def test_the_validation_pairs_of_the_training_text_can_be_set(config, monkeypatch):
    monkeypatch.setattr("fusetk.experiment.raw.provide_raw_text", lambda *arguments: None)
    config.write_text(CONFIG.replace("valid: [raw/valid]", "valid: {every: 9}"))
    chosen = []
    monkeypatch.setattr(Experiment, "run", lambda self: chosen.append(self.recipe.data.valid))
    options = ["--set=data.valid.sample=8", "--set=data.valid.seed=2"]
    result = CliRunner().invoke(main, ["run", str(config), "--raw", ".", *options])
    assert result.exit_code == 0 and chosen == [Sample(sample=8, seed=2)]


def test_a_test_set_has_another_name_than_the_validation_text(config):
    config.write_text(CONFIG.replace("second:", "valid:"))
    result = CliRunner().invoke(main, ["run", str(config), "--raw", "."])
    assert result.exit_code == 2 and "data.test.valid: reports use this name" in result.stderr


def test_seeds_are_trained_one_after_the_other(config, monkeypatch):
    runs = []
    monkeypatch.setattr("fusetk.experiment.raw.provide_raw_text", lambda *arguments: None)
    monkeypatch.setattr(Experiment, "run", lambda self: runs.append(self.places.run.name))
    for seeds, expected in (([], ["run.my.seed1"]), ([3, 2], ["run.my.seed3", "run.my.seed2"])):
        runs.clear()
        options = [f"--seed={seed}" for seed in seeds]
        result = CliRunner().invoke(main, ["run", str(config), "--raw", ".", *options])
        assert result.exit_code == 0 and runs == expected
        assert [name in result.stderr for name in expected] == [True] * len(expected)


def test_the_first_seed_waits_for_the_check_of_all_seeds(config, monkeypatch):
    monkeypatch.setattr("fusetk.experiment.raw.provide_raw_text", lambda *arguments: None)
    monkeypatch.setattr(Experiment, "run", lambda self: pytest.fail("the first seed began"))
    out = config.parent / "out"
    checkpoint = out / "run.my.seed2" / CHECKPOINTS / "update-0000002"
    write_state(checkpoint, "x", progress=Progress(update=2).to_state())
    other = CONFIG.replace("width: 16", "width: 32")
    (out / "run.my.seed2" / CONFIG_NAME).write_text(f"{other}  seed: 2\n")
    options = ["--raw", ".", "--out", str(out), "--seed=1", "--seed=2"]
    result = CliRunner().invoke(main, ["run", str(config), *options])
    assert result.exit_code == 2
    assert "run.my.seed2 was started with another config (model.width: 32 -> 16" in result.stderr


def test_the_config_is_a_file():
    result = CliRunner().invoke(main, ["run", "-", "--raw", "."], input="")
    assert result.exit_code == 2 and "give a file, because the outputs" in result.stderr


def test_the_script_of_slurm_is_part_of_the_package():
    assert (RECIPES / "slurm" / "train.sbatch").resolve() == slurm.SCRIPT
