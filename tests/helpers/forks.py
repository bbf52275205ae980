"""Processes that start fast: forks of a server process that has imported the package.

The import of torch takes seconds in every subprocess. A test of the start itself still needs
subprocesses.
"""

import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["torch._dynamo", "fusetk.train", "fusetk.system", __name__])


class Forks:
    """Processes that run ``fusetk`` with the same arguments, connected like those of torchrun.

    Each process first runs ``code``. A single process is not connected.
    """

    def __init__(self, arguments: Sequence[object], size: int = 1, code: str = ""):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        descriptor, name = tempfile.mkstemp()
        os.close(descriptor)
        self._output = Path(name)
        weakref.finalize(self, self._output.unlink, missing_ok=True)
        words = [str(argument) for argument in arguments]
        self._processes = []
        for rank in range(size):
            variables = {} if size == 1 else _variables(rank, size, port)
            process = SERVER.Process(target=_run, args=(words, variables, code, name), daemon=True)
            process.start()
            self._processes.append(process)

    def output(self) -> str:
        """Return what the processes have written to standard output and standard error."""
        return self._output.read_text(encoding="utf-8")

    def wait_for(self, text: str, seconds: float = 60) -> None:
        """Wait until the output contains a text. The test fails if this takes too long."""
        end = time.monotonic() + seconds
        while text not in self.output():
            if not self.is_alive() or time.monotonic() > end:
                self.kill()
                raise AssertionError(f"no {text!r} in the output:\n{self.output()}")
            time.sleep(0.005)

    def is_alive(self) -> bool:
        """Whether all processes are running."""
        return all(process.is_alive() for process in self._processes)

    def send_signal(self, number: signal.Signals, rank: int = 0) -> None:
        pid = self._processes[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def wait(self, seconds: float = 120) -> list[int]:
        """Wait for the end of all processes, and return their exit codes by rank.

        The test fails if they run longer than ``seconds``.
        """
        end = time.monotonic() + seconds
        for process in self._processes:
            process.join(max(0.0, end - time.monotonic()))
        codes = [process.exitcode for process in self._processes]
        if None in codes:
            self.kill()
            raise AssertionError(f"exit codes {codes} after {seconds} seconds:\n{self.output()}")
        return [code for code in codes if code is not None]

    def succeed(self, seconds: float = 120) -> str:
        """Wait for the end of all processes without an error, and return their output."""
        codes = self.wait(seconds)
        assert not any(codes), (codes, self.output())
        return self.output()

    def fail(self, seconds: float = 120) -> str:
        """Wait for the end of all processes, each with an error, and return their output."""
        codes = self.wait(seconds)
        assert all(codes), (codes, self.output())
        return self.output()

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def train(
    config: Path, run: Path, overrides: Sequence[str], size: int = 1, code: str = ""
) -> Forks:
    """Start ``fusetk train`` in some processes. Each process first runs ``code``."""
    options = [word for override in overrides for word in ("--set", override)]
    return Forks(["train", config, "-r", run, "--device", "cpu", *options], size, code)


def _variables(rank: int, size: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _run(arguments: list[str], variables: dict[str, str], code: str, output: str) -> None:
    import torch

    from fusetk.cli.main import main

    os.environ.update(variables)
    descriptor = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdin = os.fdopen(0, closefd=False)  # multiprocessing has replaced it
    torch.set_num_threads(1)
    exec(code, {"os": os, "sys": sys})
    if arguments:
        main(arguments)
