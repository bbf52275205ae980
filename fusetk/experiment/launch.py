"""Child processes of an experiment: commands on one or several devices, and signals."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

from fusetk.errors import EX_DIVERGED, FusetkError, Interrupted
from fusetk.parent import ends_with_parent
from fusetk.training.signals import signals_handled

# After a signal, torchrun kills processes that have not ended within 30 seconds. This is too short
# for a checkpoint on a slow disk. New versions of torch read the number of seconds from a variable.
TORCHRUN_PATIENCE = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "600"}


class StepFailed(FusetkError):
    """A command of an experiment failed. It has printed the reason."""

    def __init__(self, command: Sequence[str], code: int):
        self.exit_code = code if code > 0 else 128 - code
        ended = f"exit status {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
        advice = "correct the error above, and run the same `fusetk run` command again to continue"
        if code == EX_DIVERGED:
            advice = "the error above says how to train again"
        super().__init__(f"`{shown(command)}` ended with {ended}: {advice}")


def shown(command: Sequence[str]) -> str:
    """Return a command as the user would type it."""
    words = list(command)
    if words[:3] == [sys.executable, "-m", "fusetk"]:
        words = ["fusetk", *words[3:]]
    elif words[:3] == [sys.executable, "-m", "torch.distributed.run"]:
        words = ["torchrun", *words[3:]]
    return shlex.join(words)


def command(*arguments: object, devices: int = 1) -> list[str]:
    """Return the command line of a fusetk command, on several devices by torchrun."""
    words = [str(argument) for argument in arguments]
    if devices == 1:
        return [sys.executable, "-m", "fusetk", *words]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={devices}"]
    return [sys.executable, *launcher, "-m", "fusetk", *words]


def module_path() -> dict[str, str]:
    """Return the environment variable with which ``python -m`` finds the modules of this process.

    Without it, a file of the current folder, such as random.py, would replace a module of Python.
    The mapping is empty if this process finds them there, too. Python 3.10 ignores the variable.
    """
    if "" in sys.path or os.getcwd() in sys.path:
        return {}
    return {"PYTHONSAFEPATH": "1"}


def call(words: Sequence[str], locks: Sequence[int] = ()) -> None:
    """Run a command and wait for its end. Signals are passed on to it.

    If this process is killed, the command gets SIGTERM (on Linux). Until it has ended, it holds the
    open files ``locks``. Raises Interrupted if it ended after a signal, and StepFailed for another
    exit status than 0.
    """
    received: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if process.poll() is None:
            # torchrun ends its processes after SIGTERM and SIGINT only.
            process.send_signal(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    # In a session of its own, the child gets each signal once: from this process, not also from
    # the terminal.
    process = subprocess.Popen(
        words,
        env={**TORCHRUN_PATIENCE, **module_path(), **os.environ},
        start_new_session=True,
        pass_fds=locks,
        preexec_fn=ends_with_parent(),
    )
    with signals_handled(pass_on):
        code = process.wait()
    if received:
        name = signal.Signals(received[0]).name
        raise Interrupted(f"stopped by {name}: run the same command again to continue")
    if code:
        raise StepFailed(words, code)
