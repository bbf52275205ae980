"""Programs ``fusetk``, ``python`` and ``python3`` for scripts, which start fast.

``fusetk ...`` and ``python -m fusetk ...`` run in a fork of a server process that has imported the
package. Other calls of ``python`` are passed on.
"""

import json
import os
import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.helpers.forks import SERVER

CLIENT = """#!{python} -IS
import json, os, signal, socket, sys

words = sys.argv[1:]
if os.path.basename(sys.argv[0]) != "fusetk":
    if words[:2] != ["-m", "fusetk"]:
        os.execv({python!r}, [{python!r}, *words])
    words = words[2:]
numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)  # until the process is known
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
socket.send_fds(server, [b"."], [0, 1, 2])
server.sendall(json.dumps([words, os.getcwd(), dict(os.environ)]).encode())
server.shutdown(socket.SHUT_WR)
answer = server.makefile()
pid = int(answer.readline())
for number in numbers:
    signal.signal(number, lambda number, _: os.kill(pid, number))
signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
sys.exit(int(answer.readline() or 1))
"""


@contextmanager
def fast_commands(folder: Path) -> Iterator[Path]:
    """Write the programs into a folder for ``PATH``, and run their server within this context."""
    address = str(folder / "server")
    for name in ("fusetk", "python", "python3"):
        program = folder / name
        program.write_text(CLIENT.format(python=sys.executable, address=address))
        program.chmod(0o755)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    server = SERVER.Process(target=_serve, args=(listener, str(folder / "python")))
    server.start()
    listener.close()
    try:
        yield folder
    finally:
        server.kill()
        server.join()


def _serve(listener: socket.socket, python: str) -> None:
    """Answer every connection in a fork of this process."""
    sys.executable = python
    while True:
        connection, _ = listener.accept()
        if not os.fork():
            listener.close()
            _answer(connection)
        connection.close()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _answer(connection: socket.socket) -> None:
    """Run a command with the streams, the folder and the environment of the client."""
    import torch

    from fusetk.cli.main import main

    code: object = 1
    try:
        _, streams, _, _ = socket.recv_fds(connection, 1, 3)
        words, folder, environment = json.load(connection.makefile())
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        sys.stdin = os.fdopen(0, closefd=False)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        connection.sendall(f"{os.getpid()}\n".encode())
        torch.set_num_threads(1)
        main(words)
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        status = code if isinstance(code, int) else 1
        with suppress(OSError):
            connection.sendall(f"{status}\n".encode())
        os._exit(status)
