"""Several processes train as one process, except for rounding. They resume exactly, and all end if
one of them fails.
"""

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner
from torch import nn

from fusetk import processes as process_module
from fusetk import runs
from fusetk import train as train_module
from fusetk import weights as weights_module
from fusetk.cli.main import main
from fusetk.errors import ConfigError, FusetkError
from fusetk.processes import World, local_device
from fusetk.recipe import load
from fusetk.training import parallel
from fusetk.training.gradients import seed_of_update
from fusetk.training.parallel import all_reduce_gradients
from fusetk.weights import read_state
from tests.helpers.forks import train
from tests.helpers.metrics import records

# Adam would enlarge the rounding error of zero gradients, such as those of the keys' biases.
PLAIN = [
    "training.validation.metric=bleu",
    "model.dropout=0",
    "training.stages.0.optimizer={kind: nag, momentum: 0.9}",
]


def torchrun(
    config: Path, run: Path, overrides: list[str], *options: str, code: str = ""
) -> subprocess.Popen[str]:
    """Start ``fusetk train`` by torchrun. Each process first runs ``code``."""
    words = [item for override in overrides for item in ("--set", override)]
    command = ["train", str(config), "-r", str(run), "--device", "cpu", *words]
    program = ["-m", "fusetk", *command]
    if code:
        file = run.parent / "program.py"
        file.write_text(
            f"import os, sys\n{code}\nfrom fusetk.cli.main import main\nmain({command!r})\n",
            encoding="utf-8",
        )
        program = [str(file)]
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *options, *program],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def output(launcher: subprocess.Popen[str], seconds: float = 300) -> str:
    """Wait for the end of a launcher, and return the output of its processes."""
    try:
        said, _ = launcher.communicate(timeout=seconds)
    finally:
        launcher.terminate()  # it ends its processes
    assert launcher.returncode == 0, said
    return said


def weights(run: Path, update: int) -> dict[str, torch.Tensor]:
    return weights_module.read_tensors(
        run / "checkpoints" / runs.checkpoint_name(update), runs.MODEL
    )


@pytest.fixture(scope="module")
def whole(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of two processes, with dropout."""
    run = tmp_path_factory.mktemp("whole") / "run"
    train(toy, run, [], 2).succeed()
    return run


def assert_equal(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_several_processes_train_as_one(
    toy: Path, tmp_path: Path, processes: int, accumulate: int
) -> None:
    """Batches and results do not depend on the number of processes."""
    overrides = [*PLAIN, f"training.stages.0.batch.accumulate={accumulate}"]
    said = train(toy, tmp_path / "many", overrides, processes).succeed()
    assert f"{processes} processes" in said and said.count("done: 8 updates") == 1
    train_module.train(load(toy, overrides), tmp_path / "one", "cpu", quiet=True)
    actual, expected = weights(tmp_path / "many", 8), weights(tmp_path / "one", 8)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)
    for several, single in zip(
        records(tmp_path / "many", "valid"), records(tmp_path / "one", "valid"), strict=True
    ):
        assert several.keys() == single.keys() and several["update"] == single["update"]
        assert several["loss"] == pytest.approx(single["loss"], rel=1e-4) and several[
            "bleu"
        ] == pytest.approx(single["bleu"], abs=0.5)


def test_several_processes_refuse_a_config_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = CliRunner().invoke(main, ["train", "-", "-r", str(tmp_path / "run")], input="data: {}")
    assert result.exit_code == 2 and "CONFIG is -, but several" in result.stderr


def test_each_process_has_its_own_random_numbers() -> None:
    drawn = []
    for rank, updates in ((0, 4), (0, 5), (1, 4), (2, 4), (1000, 4)):
        torch.manual_seed(seed_of_update(1, updates, rank))
        drawn.append(torch.rand(8))
    assert not any(a.equal(b) for a, b in combinations(drawn, 2))


def test_two_processes_resume_to_the_bit(toy: Path, whole: Path, tmp_path: Path) -> None:
    """With dropout, in the middle of an epoch."""
    first = ["training.save_every=3", "training.stages.0.end.updates=3"]
    train(toy, tmp_path / "parts", first, 2).succeed()
    said = train(toy, tmp_path / "parts", ["training.save_every=3"], 2).succeed()
    assert "resumed after update 3" in said and "number of processes" not in said
    uninterrupted, resumed = (
        run / "checkpoints" / runs.checkpoint_name(8) for run in (whole, tmp_path / "parts")
    )
    for file in (runs.MODEL, runs.TRAINING):
        assert (uninterrupted / file).read_bytes() == (resumed / file).read_bytes()
    fail = "from fusetk.training.loop import Trainer\nTrainer._update = None\n"
    more = ["training.stages.0.end.updates=9"]
    # A session with one process, which makes no update.
    train(toy, tmp_path / "parts", more, 1, fail).fail()
    said = train(toy, tmp_path / "parts", more, 2).succeed()
    assert "number of processes" not in said
    said = train(toy, tmp_path / "parts", ["training.stages.0.end.updates=10"], 1).succeed()
    assert "changed: number of processes: 2 -> 1; the dropout masks change" in said


def test_a_signal_to_one_process_saves_and_ends_all(toy: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    processes = train(toy, run, ["training.stages.0.end.updates=100000"], 2)
    processes.wait_for("valid ")
    processes.send_signal(signal.SIGTERM, rank=1)
    assert processes.wait(60) == [75, 75]
    assert "received: saved after update" in processes.output()
    last = (run / "checkpoints" / "last").resolve()
    assert read_state(last)["interrupted"]
    update = int(last.name.removeprefix("update-"))
    train(toy, tmp_path / "whole", [f"training.stages.0.end.updates={update}"], 2).succeed()
    assert_equal(weights(run, update), weights(tmp_path / "whole", update))


def test_a_process_that_fails_is_named_and_ends_all(toy: Path, tmp_path: Path) -> None:
    fail = (
        "from fusetk.training import loop\nplain = loop.optimizer_step\n"
        "def apply(*arguments, **named):\n"
        "    loop.calls = getattr(loop, 'calls', 0) + 1\n"
        "    if os.environ['RANK'] == '1' and loop.calls == 3:\n"
        "        raise RuntimeError('the third is enough')\n"
        "    return plain(*arguments, **named)\nloop.optimizer_step = apply\n"
    )
    endless = ["training.stages.0.end.updates=100000"]
    said = train(toy, tmp_path / "run", endless, 2, fail).fail(seconds=60)
    assert "process 1 of 2 on" in said and "the third is enough" in said


@pytest.mark.parametrize("used_elsewhere", [False, True])
def test_a_parameter_that_no_process_uses_has_no_gradient(
    used_elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add_other_process(values: torch.Tensor) -> None:
        if used_elsewhere:
            values += 1  # its gradients, and the number of processes with a gradient

    monkeypatch.setattr(dist, "all_reduce", add_other_process)
    model = torch.nn.ModuleDict({"used": torch.nn.Linear(2, 3), "unused": torch.nn.Linear(2, 3)})
    model["used"](torch.ones(1, 2)).sum().backward()
    all_reduce_gradients(process_module.World(0, 2), model)
    assert (model["used"].weight.grad == 1 + used_elsewhere).all()
    if used_elsewhere:
        assert (model["unused"].weight.grad == 1).all()
    else:
        assert model["unused"].weight.grad is None


def test_gradients_are_summed_in_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def add_equal_process(values: torch.Tensor) -> None:
        sizes.append(len(values))
        values *= 2

    monkeypatch.setattr(dist, "all_reduce", add_equal_process)
    monkeypatch.setattr(parallel, "BUCKET", 7)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 4))
    model(torch.ones(1, 2)).sum().backward()
    expected = [2 * parameter.grad for parameter in model.parameters()]
    all_reduce_gradients(World(0, 2), model)
    torch.testing.assert_close([parameter.grad for parameter in model.parameters()], expected)
    # Weights and biases of 6, 3, 12 and 4 elements, and 4 numbers of processes with a gradient.
    assert sizes == [6, 3, 12, 4, 4]


def test_the_error_about_a_process_that_does_not_answer_is_one_sentence() -> None:
    world = process_module.World(0, 2)
    error = RuntimeError(
        "[unbound_buffer.cc:78] Timed out waiting 600000ms for recv operation to complete"
    )
    with pytest.raises(FusetkError, match=r"^process 0 of 2 on .* does not answer .*600000ms"):
        train_module._raise_with_context(error, world)


@pytest.mark.parametrize(
    "failure",
    ["raise RuntimeError('the metric is broken')", "os._exit(9)"],
    ids=["error", "killed"],
)
def test_a_failed_validation_loses_no_update(
    toy: Path, whole: Path, tmp_path: Path, failure: str
) -> None:
    """Validation fails in one of two processes, or the process ends. The run then resumes."""
    fail = (
        "from fusetk.training.validation import Validator\nplain = Validator.validate_part\n"
        f"def part(*arguments):\n    if os.environ['RANK'] == '1': {failure}\n"
        "    return plain(*arguments)\n"
        "Validator.validate_part = part\n"
    )
    said = train(toy, tmp_path / "run", [], 2, fail).fail()
    assert "the metric is broken" in said or "os._exit" in failure
    [saved] = runs.checkpoints(tmp_path / "run")
    assert saved.name == runs.checkpoint_name(4) and read_state(saved)["interrupted"]
    train(toy, tmp_path / "run", [], 2).succeed()
    assert_equal(weights(tmp_path / "run", 8), weights(whole, 8))


def test_a_process_that_ends_in_an_update_loses_no_earlier_one(
    toy: Path, whole: Path, tmp_path: Path
) -> None:
    fail = (
        "from fusetk.training import gradients\nplain = gradients.accumulate_gradients\n"
        "def gradients_of(*arguments):\n"
        "    gradients.calls = getattr(gradients, 'calls', 0) + 1\n"
        "    if os.environ['RANK'] == '1' and gradients.calls == 4: os._exit(9)\n"
        "    return plain(*arguments)\n"
        "gradients.accumulate_gradients = gradients_of\n"
    )
    settings = ["training.validation.every_updates=8"]
    train(toy, tmp_path / "run", settings, 2, fail).fail()
    [saved] = runs.checkpoints(tmp_path / "run")
    assert saved.name == runs.checkpoint_name(3) and read_state(saved)["interrupted"]
    train(toy, tmp_path / "run", settings, 2).succeed()
    assert_equal(weights(tmp_path / "run", 8), weights(whole, 8))


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_process_that_ends_at_a_validation_loses_no_update(
    toy: Path, tmp_path: Path, place: str
) -> None:
    fail = (
        "from fusetk.training.loop import Trainer\n"
        "from fusetk.training.progress import StageClock\n"
        "validate, add_to = Trainer._validate, StageClock.add_to\n"
        "def fail_before(self, due=False):\n"
        "    if os.environ['RANK'] == '1': os._exit(9)\n"
        "    validate(self, due)\n"
        "def fail_after(self, progress, end):\n"
        "    if os.environ['RANK'] == '1' and progress.validated: os._exit(9)\n"
        "    add_to(self, progress, end)\n"
        f"if {place!r} == 'before': Trainer._validate = fail_before\n"
        "else: StageClock.add_to = fail_after\n"
    )
    settings = ["training.validation.every_updates=5", "training.stages.0.end.hours=1"]
    train(toy, tmp_path / "run", settings, 2, fail).fail()
    [saved] = runs.checkpoints(tmp_path / "run")
    assert saved.name == runs.checkpoint_name(5) and read_state(saved)["interrupted"]


def test_a_write_error_of_rank_0_ends_all_with_the_reason(toy: Path, tmp_path: Path) -> None:
    fail = (
        "from fusetk.errors import CheckpointError\nfrom fusetk.training import checkpoint\n"
        "def save(*arguments): raise CheckpointError('the disk is full')\ncheckpoint.save = save\n"
    )
    said = train(toy, tmp_path / "run", [], 2, fail).fail()
    assert said.count("the disk is full") == 2 and all(
        f"fusetk: process {rank} of 2 on " in said for rank in (0, 1)
    )


def test_processes_of_a_start_agree_on_a_name_despite_old_entries() -> None:
    """The number of starts may differ between hosts, so the processes agree on a name."""
    store = dist.HashStore()
    names = []
    for _ in range(3):
        store.set("fusetk/hello/1", "a process that has ended")
        with ThreadPoolExecutor(4) as pool:
            prefixes = list(
                pool.map(lambda rank: process_module._agree_on_prefix(store, rank, 4), [3, 0, 1, 2])
            )
        assert len(set(prefixes)) == 1
        names.append(prefixes[0])
    assert len(set(names)) == 3


@pytest.mark.parametrize(("rank", "size"), [("x", "2"), ("2", "2"), ("-1", "2")])
def test_a_rank_outside_the_group_is_refused(
    monkeypatch: pytest.MonkeyPatch, rank: str, size: str
) -> None:
    variables = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"RANK is {rank} and WORLD_SIZE is {size}"):
        process_module.connect(torch.device("cpu"))


def test_an_empty_number_of_processes_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "")
    monkeypatch.setattr(os, "_exit", pytest.fail)
    assert process_module.connect(torch.device("cpu")).size == 1
    process_module.end_process()


def test_the_number_of_processes_must_be_a_number(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "two"}.items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(main, ["train", str(toy), "--prep"])
    assert result.exit_code == 2
    assert result.stderr == (
        "fusetk: WORLD_SIZE is two, not a number of processes: start the processes with torchrun\n"
    )
    with pytest.raises(ConfigError, match="WORLD_SIZE is two, not a number"):
        process_module.connect(torch.device("cpu"))


@pytest.mark.parametrize("port", ["abc", "99999999"])
def test_a_wrong_port_is_refused(monkeypatch: pytest.MonkeyPatch, port: str) -> None:
    variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"MASTER_PORT is {port}: set it to a port"):
        process_module.connect(torch.device("cpu"))


def test_a_process_that_finds_no_other_one_names_the_address(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(process_module, "TIMEOUT", timedelta(seconds=1))
    monkeypatch.setattr(process_module, "PATIENCE", 0.2)
    with pytest.raises(ConfigError, match=r"process 1 of 2 could not connect .* localhost:1 "):
        process_module.connect(torch.device("cpu"))
    said = capsys.readouterr().err
    assert "fusetk: process 1 of 2 waits for the others at localhost:1\n" in said


def test_an_interrupt_ends_a_process_that_waits_for_others() -> None:
    """torch waits in C++, so Python's handler would run only after the other processes start."""
    before = signal.getsignal(signal.SIGINT)
    with process_module._waiting("fusetk: process 0 of 2 waits"):
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is before is signal.default_int_handler


@pytest.mark.parametrize(
    ("reason", "error", "message"),
    [
        (
            "Duplicate GPU detected : rank 1 and rank 0",
            ConfigError,
            "process 1 of 2 has the same GPU as another process",
        ),
        (
            "Cuda failure 2 'out of memory'",
            FusetkError,
            "process 1 of 2 does not have enough memory on cpu to connect",
        ),
        ("socketStartConnect failed", ConfigError, "process 1 of 2 could not connect"),
    ],
)
def test_the_cause_of_an_error_of_nccl_is_named(
    reason: str, error: type[FusetkError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    failure = dist.DistBackendError(f"NCCL error, unhandled cuda error\nLast error:\n{reason}")

    def rendezvous(*arguments: Any, **named: Any) -> Any:
        raise failure

    monkeypatch.setattr(dist, "rendezvous", rendezvous)
    with pytest.raises(error, match=message):
        process_module.connect(torch.device("cpu"))
    if "memory" in reason:  # during the training
        with pytest.raises(FusetkError, match="there is not enough memory"):
            train_module._raise_with_context(failure, World(1, 2))


def test_all_processes_start_a_stage_from_the_checkpoint_of_rank_0(
    toy: Path, tmp_path: Path
) -> None:
    """On another host, the link to the best checkpoint may be old."""
    stage = "{optimizer: adam, schedule: {kind: constant, rate: 0.01}, end: {updates: 4}"
    stages = [f"training.stages=[{stage}}}, {stage}, start: best}}]"]
    see_nothing = (
        "from fusetk.training import loop\n"
        "if os.environ['RANK'] == '1': loop.CHECKPOINTS = 'old checkpoints'\n"
    )
    said = train(toy, tmp_path / "run", stages, 2, see_nothing).succeed()
    assert "done: 8 updates" in said


def test_all_processes_start_from_the_checkpoint_of_rank_0(toy: Path, tmp_path: Path) -> None:
    """The run may be in training: another process may see an older best checkpoint."""
    train(toy, tmp_path / "parent", [*PLAIN, "training.validation.every_updates=4"]).succeed()
    older = tmp_path / "parent" / "checkpoints" / runs.checkpoint_name(4)
    newer = older.with_name(runs.checkpoint_name(8))
    starts = [*PLAIN, f"training.start_from={newer}", "training.stages.0.end.updates=2"]
    see_older = (
        "from pathlib import Path\nfrom fusetk import train\n"
        f"older = Path({str(older)!r})\n"
        "if os.environ['RANK'] == '1': train.start_checkpoint = lambda _: (older.parents[1], older)"
    )
    assert older.is_dir()
    train(toy, tmp_path / "one", starts, 2).succeed()
    said = train(toy, tmp_path / "two", starts, 2, see_older).succeed()
    assert f"start from {newer}: " in said
    expected, actual = (weights(tmp_path / name, 2) for name in ("one", "two"))
    assert_equal(actual, expected)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ("config", "configs"),
        ("data", "prepared data"),
        ("version", "versions of fusetk"),
        ("module", "modules outside fusetk"),
    ],
)
def test_processes_with_different_files_are_refused(
    toy: Path, tmp_path: Path, other: str, named: str
) -> None:
    """Hosts may have different copies of the config, prepared data, fusetk and a module."""
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
        (tmp_path / str(rank) / "schedule_of_a_host.py").write_text(
            "from fusetk.training.schedule import Schedule, ScheduleConfig\n"
            "class Rates(Schedule):\n"
            "    Config = ScheduleConfig\n"
            f"    def rate(self, update, state=()):\n        return {0.001 + rank}\n"
        )
    overrides = ["training.stages.0.schedule={kind: 'schedule_of_a_host:Rates'}"]
    code = {
        "config": (
            "from fusetk import train\nplain = train._train\n"
            "def other(recipe, *rest):\n"
            "    training = recipe.training.model_copy(update={'label_smoothing': 0.3})\n"
            "    plain(recipe.model_copy(update={'training': training}), *rest)\n"
            "if os.environ['RANK'] == '1': train._train = other"
        ),
        "data": (
            "from fusetk.data import manifest\n"
            "if os.environ['RANK'] == '1': manifest.training_fingerprint = lambda _: 'other'"
        ),
        "version": "import fusetk; fusetk.__version__ = f'0.{os.environ[\"RANK\"]}'",
        "module": f"sys.path.insert(0, os.path.join({str(tmp_path)!r}, os.environ['RANK']))",
    }[other]
    said = train(toy, tmp_path / "run", overrides if other == "module" else [], 2, code).fail()
    assert said.count(f"the processes have different {named}: use the same") == 2
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_processes_with_another_order_of_parameters_are_refused() -> None:
    """A class outside fusetk may take the order from a set of strings."""

    class Model(nn.Module):
        def __init__(self, names: str):
            super().__init__()
            for name in names:
                self.register_parameter(name, nn.Parameter(torch.zeros(2)))

    world = World()
    sent: list[str] = []
    world.all_gather = lambda value: sent.append(value) or list(sent)  # type: ignore[method-assign]
    for names in ("ab", "ab"):
        train_module._check_same_parameters(Model(names), world)
    with pytest.raises(ConfigError, match="or another order of them: register the parameters"):
        train_module._check_same_parameters(Model("ba"), world)


@pytest.mark.slow
def test_two_hosts(toy: Path, tmp_path: Path) -> None:
    """Two launchers with one process each, connected by a rendezvous, train as one launcher."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    meet = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=7"]
    hosts = [torchrun(toy, tmp_path / "hosts", PLAIN, *meet) for _ in range(2)]
    said = [output(host) for host in hosts]
    assert sum("done: 8 updates" in text for text in said) == 1
    train(toy, tmp_path / "one", PLAIN, 2).succeed()
    actual, expected = weights(tmp_path / "hosts", 8), weights(tmp_path / "one", 8)
    assert_equal(actual, expected)


@pytest.mark.slow
def test_a_restart_by_torchrun_resumes(toy: Path, whole: Path, tmp_path: Path) -> None:
    fail = (
        "from fusetk.training import loop\nplain = loop.optimizer_step\n"
        "def apply(*arguments, **named):\n"
        "    loop.calls = getattr(loop, 'calls', 0) + 1\n"
        "    first = os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'\n"
        "    if first and os.environ['RANK'] == '1' and loop.calls == 6:\n"
        "        raise RuntimeError('once')\n"
        "    return plain(*arguments, **named)\nloop.optimizer_step = apply\n"
    )
    options = ["--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    said = output(torchrun(toy, tmp_path / "run", [], *options, code=fail))
    assert "once" in said and "resumed after update 5" in said and "done: 8 updates" in said
    assert_equal(weights(tmp_path / "run", 8), weights(whole, 8))


@pytest.mark.parametrize(
    ("gpus", "processes", "device"), [(1, "4", "cuda:0"), (4, "4", "cuda:3"), (2, None, "cuda:1")]
)
def test_each_process_gets_a_gpu(
    monkeypatch: pytest.MonkeyPatch, gpus: int, processes: str | None, device: str
) -> None:
    launch(monkeypatch, gpus, processes)
    assert local_device("auto") == device and local_device("cpu") == "cpu"


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    launch(monkeypatch, 2, "4")
    with pytest.raises(ConfigError, match="4 processes on this host and 2 GPUs"):
        local_device("cuda")


def launch(monkeypatch: pytest.MonkeyPatch, gpus: int, processes: str | None) -> None:
    """Pretend to be process 3 of a host with some GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if processes:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
