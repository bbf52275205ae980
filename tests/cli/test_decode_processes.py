"""``fusetk decode`` with several processes: the same output as with one, and they end together."""

import json
import os
import random
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

import fusetk
from fusetk.cli.main import main
from fusetk.decoding import translate
from tests.cli.test_decode import WORDS, make_run
from tests.helpers.forks import Forks

TEXT = ["--chunk", "10"]  # twenty lines for two processes
SAMPLES = ["--n-best", "2", "--sample", "--seed", "5", "--batch-tokens", "1"]
LINES = [" ".join(random.Random(i).choices(WORDS, k=(0, 1, 3, 6)[i % 4])) for i in range(50)]
CALLS: dict[str, tuple[list[str], bytes]] = {
    "text": (TEXT, "\n".join(LINES).encode()),
    "samples": (SAMPLES, "\n".join(LINES).encode()),
    "broken line": ([], b"Hund\nein Hund\n\xff\nHund\n"),
    "broken process": (["-b", "1"], b"Hund\nein Hund\n"),
    "closed": (["--chunk", "5"], b"Hund\n" * 200),
    "no run": (["-m", "none"], b""),
    "resumed": ([*TEXT, "--resume", "-o"], "\n".join(LINES).encode()),
}


class EndedProcess(NamedTuple):
    """The exit code, output and messages of a process."""

    code: int
    out: str
    said: str


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def ended(trained: Path, tmp_path_factory) -> dict[str, list[EndedProcess]]:
    """The results of two processes for each call.

    They are forks of a process that has imported all modules, so they start fast.
    """
    folder = tmp_path_factory.mktemp("calls")
    (folder / "half").write_text(
        "".join(f"{line}\n" for line in alone(trained, *CALLS["text"]).split("\n")[:30]) + "ha"
    )
    program = (
        "from tests.cli.test_decode_processes import fork_calls\n"
        f"fork_calls({str(trained)!r}, {str(folder)!r})"
    )
    Forks([], code=program).succeed(seconds=200)
    return {
        name: [EndedProcess(*one) for one in json.loads((folder / f"{name}.json").read_text())]
        for name in CALLS
    }


def alone(trained: Path, options: list[str], text: bytes) -> str:
    result = CliRunner().invoke(
        main, ["decode", "-m", str(trained), "-d", "cpu", *options], input=text
    )
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("name", ["text", "samples"])
def test_two_processes_write_what_one_writes(
    trained: Path, ended: dict[str, list[EndedProcess]], name: str
) -> None:
    """The lines of a chunk are distributed by length; samples depend on the line number."""
    first, second = ended[name]
    assert (first.code, second.code) == (0, 0), first.said + second.said
    assert first.out == alone(trained, *CALLS[name]) and first.out.count("\n") >= 50
    assert second.out == first.said == second.said == ""


def test_two_processes_resume_an_output(ended: dict[str, list[EndedProcess]]) -> None:
    first, second = ended["resumed"]
    assert (first.code, second.code) == (0, 0), first.said + second.said
    assert first.out == ended["text"][0].out


@pytest.mark.parametrize(
    ("options", "streams"),
    [
        ([], "standard input and standard output"),
        (["-i", "in.de"], "standard output"),
        (["-o", "out.en"], "standard input"),
        (["-i", "in.de", "-o", "out.en"], ""),
    ],
)
def test_a_restart_by_torchrun_needs_files(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    streams: str,
) -> None:
    """The process before the restart has read some lines, and has written some translations."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    Path("in.de").write_text("Hund\nein Hund\n")
    Path("out.en").write_text("before\n")
    command = ["decode", "-m", str(trained), "-d", "cpu", *options]
    result = CliRunner().invoke(main, command, input="Hund\n")
    assert bool(result.exit_code) == bool(streams), result.output
    assert f"cannot begin again with {streams}: name files" in result.stderr or not streams
    lines = Path("out.en").read_text().splitlines()
    assert lines == ["before"] if streams else len(lines) == 2


def test_the_error_names_the_process_that_failed(ended: dict[str, list[EndedProcess]]) -> None:
    first, second = ended["broken process"]
    assert first.code == second.code == 2
    assert (
        first.said.startswith("fusetk: process 1 of 2 on")
        and "failed: RuntimeError: this one is broken\n" in first.said
    )
    assert first.said.count("\n") == 1 and "Traceback" in second.said


def test_an_error_of_all_processes_is_reported_once(ended: dict[str, list[EndedProcess]]) -> None:
    first, second = ended["no run"]
    assert first.code == second.code == 2 and second.said == ""
    assert first.said == (
        "fusetk: none is not a run folder: there is no such folder; give the folder of a training "
        "(fusetk train --run)\n"
    )


def test_lines_before_a_broken_line_are_written(ended: dict[str, list[EndedProcess]]) -> None:
    first, second = ended["broken line"]
    assert (first.code, second.code) == (2, 0)
    assert (
        first.out.count("\n") == 2
        and first.said.startswith("fusetk: standard input, line 3")
        and second.said == ""
    )


def test_a_closed_pipe_ends_all_processes_without_an_error(
    ended: dict[str, list[EndedProcess]],
) -> None:
    assert [(one.code, one.said) for one in ended["closed"]] == [(0, ""), (0, "")]


def test_processes_end_without_finalization(trained: Path, tmp_path: Path) -> None:
    """Python's finalization may abort a process that has translated everything."""
    text = tmp_path / "text"
    text.write_text("Hund\nein Hund\n")
    code = "from fusetk import processes\nprocesses.end_process = lambda: print('skipped')\n"
    files = ["-i", text, "-o", tmp_path / "output"]
    said = Forks(["decode", "-m", trained, "-d", "cpu", *files], 2, code).succeed()
    assert said.count("skipped") == 2


def test_all_processes_load_the_checkpoint_of_rank_0(tmp_path: Path) -> None:
    """A training may move the link to the best checkpoint while the processes start."""
    run = make_run(tmp_path)
    folder = run / "checkpoints"
    shutil.copytree(folder / "update-0000001", folder / "update-0000002")
    (tmp_path / "lines").write_text("Hund\nein Hund\n")
    code = (
        "from pathlib import Path\nfrom fusetk import system\nresolve = Path.resolve\n"
        "def resolve_link(path, *strict):\n"
        "    moved = os.environ['RANK'] == '1' and path.is_symlink()\n"
        "    path = resolve(path, *strict)\n"
        "    return path.with_name('update-0000002') if moved else path\n"
        "load = system.load_weights\n"
        "def load_and_print(model, folder, file):\n"
        "    print(folder.name, flush=True)\n"
        "    load(model, folder, file)\n"
        "Path.resolve, system.load_weights = resolve_link, load_and_print\n"
    )
    files = ["-i", tmp_path / "lines", "-o", tmp_path / "output"]
    said = Forks(["decode", "-m", run, "-d", "cpu", *files], 2, code).succeed()
    assert said.count("update-0000001") == 3  # and in the message of rank 0


def test_the_working_directory_may_be_the_checkpoint(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("Hund\nein Hund\n")
    code = f"os.chdir({str(trained / 'checkpoints' / 'update-0000001')!r})\n"
    files = ["-i", tmp_path / "lines", "-o", tmp_path / "output"]
    Forks(["decode", "-m", ".", "-d", "cpu", *files], 2, code).succeed()
    assert (tmp_path / "output").read_text().count("\n") == 2


@pytest.mark.slow
def test_torchrun_starts_them(trained: Path) -> None:
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "fusetk",
    ]
    command = [*launcher, "decode", "-m", str(trained), "-d", "cpu", "--quiet", *TEXT]
    ran = subprocess.run(
        command,
        input=CALLS["text"][1],
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=120,
    )
    assert ran.returncode == 0 and ran.stdout.decode() == alone(trained, *CALLS["text"]), (
        ran.stderr.decode()
    )


# The process that forks ---------------------------------------------------------------------------


def _fork(trained: str, folder: Path, name: str) -> list[EndedProcess]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options, stdin = CALLS[name]
    output = folder / f"{name}.out"
    if name == "resumed":
        (folder / "half").rename(output)
        options = [*options, str(output)]
    (folder / "given").write_bytes(stdin)
    settings = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    pids = []
    for rank in (0, 1):
        if not (pid := os.fork()):
            _child(rank, settings, ["-m", trained, *options], folder, name)
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    said = [(folder / f"said{rank}").read_text() for rank in (0, 1)]
    out = [
        output.read_text() if name == "resumed" else (folder / f"out{rank}").read_text()
        for rank in (0, 1)
    ]
    return [EndedProcess(*one) for one in zip(codes, out, said, strict=True)]


def _child(
    rank: int, settings: dict[str, str], options: list[str], folder: Path, name: str
) -> None:
    os.environ.update(settings, RANK=str(rank), LOCAL_RANK=str(rank))
    os.dup2(os.open(folder / "given", os.O_RDONLY), 0)
    for number, kind in ((1, "out"), (2, "said")):
        os.dup2(os.open(folder / f"{kind}{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    if name == "closed":
        reader, writer = os.pipe()
        os.dup2(writer, 1)
        os.close(reader)
        os.close(writer)
    if name == "broken process" and rank == 1:
        translate.search = _fail  # type: ignore[assignment]
    code: Any = 1
    try:
        main(["decode", "-d", "cpu", "--quiet", *(options if name != "no run" else options[2:])])
    except SystemExit as end:
        code = end.code
    finally:
        sys.stderr.flush()
        os._exit(code or 0)


def _fail(*given: object, **options: object) -> None:
    raise RuntimeError("this one is broken")


def fork_calls(trained: str, folder: str) -> None:
    """Run all calls in forks of this process, and write their results as JSON files."""
    fusetk.load(trained).translate(["hund"])  # slow initialisation happens before the forks
    for name in CALLS:
        results = _fork(trained, Path(folder), name)
        (Path(folder) / f"{name}.json").write_text(json.dumps(results))
