"""The server of all HTTP services: an address to listen on, and uvicorn."""

import copy
import errno
import logging
import os
import socket
from contextlib import suppress
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from uvicorn.config import LOGGING_CONFIG

from fusetk.errors import ConfigError

GRACE_SECONDS = 1  # time for the requests that have begun when the service ends


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 chooses a free port.

    Clients can connect at once and wait for the service. Raises ConfigError if the address cannot
    be used.
    """
    try:
        [(family, *_), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return socket.create_server((host, port), family=family)
    except (socket.gaierror, UnicodeError):
        raise ConfigError(
            f"--host: there is no address {host!r}; 127.0.0.1 serves this machine"
        ) from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = "is in use; choose another port, or 0 for any free port"
        elif error.errno == errno.EACCES:
            reason = "needs more rights; choose a port above 1023"
        elif error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError(
                f"--host: {host} is not an address of this machine; 127.0.0.1 serves this machine"
            ) from None
        else:
            reason = f"cannot be used on {host}: {os.strerror(error.errno or 0)}"
        raise ConfigError(f"--port: port {port} {reason}") from None


def address(listener: socket.socket) -> str:
    """Return the URL of a socket that listens."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """A server that ends in the same way if the user presses Ctrl-C a second time.

    uvicorn would then close the connections without an answer and log tracebacks.
    """

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self.force_exit = False


def serve(app: Starlette, listener: socket.socket, access_log: bool = False) -> None:
    """Answer requests until SIGINT (Ctrl-C) or SIGTERM.

    Requests that have begun then have ``GRACE_SECONDS`` to finish, before they are cancelled.
    The access log has a line on standard error for each request.
    """
    settings = copy.deepcopy(LOGGING_CONFIG)
    settings["handlers"]["access"]["stream"] = "ext://sys.stderr"
    config = uvicorn.Config(
        app,
        log_config=settings,
        log_level=logging.WARNING,
        access_log=access_log,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    if access_log:
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    with suppress(KeyboardInterrupt):
        _Server(config).run(sockets=[listener])
