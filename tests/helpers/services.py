"""HTTP services in a thread of the test, and requests to them."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def running(app: Any) -> Iterator[int]:
    """Serve an application on 127.0.0.1 and yield its port."""
    uvicorn = pytest.importorskip("uvicorn")
    from fusetk.serving.server import listen

    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(10)
    assert not thread.is_alive()


def ask(
    port: int, body: object, method: str = "POST", path: str = "/translate", **headers: str
) -> tuple[int, Any]:
    """Return the status and the answer of a request, as JSON if it is an object.

    The body is bytes, or a value that is sent as JSON.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        connection.request(method, path, content, headers)
        response = connection.getresponse()
        text = response.read()
        return response.status, json.loads(text) if text[:1] == b"{" else text
    finally:
        connection.close()
