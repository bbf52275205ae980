"""Parts of all HTTP services: requests and answers in JSON, and errors as JSON."""

import asyncio
import ipaddress
import json
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fusetk.errors import FusetkError, join_names
from fusetk.serving.batching import Batcher, Closed, QueueFull

BUSY = {"Retry-After": "1"}  # header of the answer of a full queue, in seconds

BODY_SECONDS = 30  # time that a client has to send a request
CHECK_INTERVAL = 0.5  # seconds between the checks whether a client is still connected

# Names of this machine in the header Host. Old versions of Starlette end a name at the first colon,
# so they read "[" in "[::1]:8080".
LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]", "[")

Result = TypeVar("Result")
Endpoint = Callable[[Request], Awaitable[Response]]

log = logging.getLogger(__name__)


class BadRequest(Exception):
    """A request that cannot be answered, with the HTTP status and the reason."""

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status = status


async def read_object(request: Request, keys: Sequence[str], size: int) -> dict[str, Any]:
    """Return the JSON object of a request.

    Raises BadRequest if the body is not a JSON object with keys of ``keys``, if it has not arrived
    within ``BODY_SECONDS``, as soon as it has more than ``size`` bytes, or if a browser sends the
    request for a page of another site.
    """
    # The page could not read the answer, but the service would compute it. Browsers send the header
    # with HTTPS, and without it to addresses of this machine only.
    if request.headers.get("sec-fetch-site") == "cross-site":
        raise BadRequest(403, "a page of another site sent this request: use a program instead")
    try:
        body = await asyncio.wait_for(_body(request, size), BODY_SECONDS)
    except asyncio.TimeoutError:
        raise BadRequest(408, f"the request did not arrive within {BODY_SECONDS} s") from None
    try:
        document: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(400, f"the request is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadRequest(400, 'the request must be an object, such as {"text": "Hallo"}')
    if unknown := sorted(set(document) - set(keys)):
        raise BadRequest(400, f"unknown key {unknown[0]!r}; the keys are {', '.join(keys)}")
    return document


async def _body(request: Request, size: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > size:
            raise BadRequest(413, f"the request has more than {size} bytes")
    return bytes(body)


async def result_of(request: Request, future: "Future[Result]") -> Result:
    """Return the result of a request to a ``Batcher``.

    If the client disconnects, cancel the request and raise ClientDisconnect.
    """
    waiting = asyncio.wrap_future(future)
    try:
        while not (await asyncio.wait([waiting], timeout=CHECK_INTERVAL))[0]:
            if await request.is_disconnected():
                raise ClientDisconnect
        return waiting.result()
    finally:
        waiting.cancel()  # no effect if there is a result


def whole_number(name: str, value: Any, low: int, high: int) -> int:
    """Return a value of a request. Raises BadRequest if it is not a number in these bounds."""
    if type(value) is not int or not low <= value <= high:
        raise BadRequest(400, f"{name} must be a whole number from {low} to {high}")
    return value


def check_line(line: str, name: str, characters: int) -> None:
    """Raise BadRequest if a text is not one line of at most ``characters`` valid characters."""
    if len(line) > characters:
        raise BadRequest(413, f"{name} has {len(line)} characters; at most {characters}")
    if "\n" in line:
        raise BadRequest(400, f"{name} has a line feed; send one line for each sentence")
    try:
        line.encode()
    except UnicodeEncodeError:
        raise BadRequest(400, f"{name} has half of a surrogate pair") from None


def trusted_hosts(host: str, listener: socket.socket) -> Sequence[str]:
    """Return the values of the header Host that a service on the address ``host`` answers.

    A service that only this machine can reach answers requests to names of this machine. So a web
    page whose name resolves to 127.0.0.1 (DNS rebinding) cannot read the answers. Another service
    answers requests to any name.
    """
    if not ipaddress.ip_address(listener.getsockname()[0]).is_loopback:
        return ["*"]
    return [*LOCAL_HOSTS, host]


def make_service(
    endpoints: Sequence[tuple[str, str, Endpoint]],
    batcher: Batcher[Any, Any, Any],
    hosts: Sequence[str] = LOCAL_HOSTS,
) -> Starlette:
    """Return an ASGI application with these endpoints: method, path, function.

    Errors are answered with a JSON object that has the key ``error``, and requests whose header
    Host is not one of ``hosts`` with status 400. The batcher is closed when the application ends.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(batcher.close)

    known = join_names([f"{method} {path}" for method, path, _ in endpoints])

    async def misdirected(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        reason = f"there is no {request.method} {request.url.path}; the service has {known}"
        return _error(error.status_code, reason, error.headers)

    routes = [
        Route(path, with_json_errors(function), methods=[method])
        for method, path, function in endpoints
    ]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))],
        exception_handlers={HTTPException: misdirected},
    )
    app.router.redirect_slashes = False  # a redirection would have the host that the client names
    return app


def with_json_errors(endpoint: Endpoint) -> Endpoint:
    """Return an endpoint that answers each error of ``endpoint`` with its status and reason."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except BadRequest as error:
            return _error(error.status, str(error))
        except QueueFull:
            return _error(503, "the queue is full: try again", BUSY)
        except (Closed, asyncio.CancelledError):
            return _error(503, "the service is closing")
        except ClientDisconnect:
            return _error(400, "the request ended early")
        except FusetkError as error:
            return _error(500, str(error))
        except Exception:
            log.exception("%s failed", request.url.path)
            return _error(500, "the request failed; the log of the service has the reason")

    return answer


def _error(status: int, reason: str, headers: Any = None) -> JSONResponse:
    return JSONResponse({"error": reason}, status, headers)
