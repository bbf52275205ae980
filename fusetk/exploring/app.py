"""The service of ``fusetk explore``: its page, and its requests and answers in JSON.

``docs/explore.md`` describes the requests and the answers.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fusetk.errors import CheckpointError, DataError, FusetkError
from fusetk.exploring.explorer import Explorer, Heatmap, Search
from fusetk.exploring.page import page, page_headers
from fusetk.serving.batching import Batcher
from fusetk.serving.http import (
    LOCAL_HOSTS,
    BadRequest,
    check_line,
    make_service,
    read_object,
    result_of,
    whole_number,
)

TRANSLATE_KEYS = ("run", "text", "beam", "prefix", "target")
HEATMAPS_KEYS = ("run", "text", "tokens", "what", "layer", "head")
RELOAD_KEYS = ("run",)

Load = Callable[[int], Explorer]  # loads the run with this number, from 0
Answer = Callable[[str], Any]  # a value for JSON from a text


class ExploreLimits(NamedTuple):
    """Bounds that protect the service."""

    characters: int = 500
    """Characters of a sentence, a prefix or a given translation."""
    beam: int = 20
    """Hypotheses of a search."""
    queue: int = 16
    """Requests that wait."""

    @property
    def tokens(self) -> int:
        """Tokens of a translation."""
        return 4 * self.characters

    @property
    def body(self) -> int:
        """Bytes of a request: a character has at most 12 bytes in JSON (an escaped pair)."""
        return 12 * 8 * self.characters + 10_000


def make_explore_app(
    explorers: list[Explorer],
    load: Load,
    limits: ExploreLimits,
    hosts: Sequence[str] = LOCAL_HOSTS,
) -> Starlette:
    """Return an ASGI application that shows ``explorers``.

    A request to reload a run replaces its explorer. One thread computes all answers. For ``hosts``
    see ``make_service``.
    """

    def compute(texts: Sequence[str], answer: Answer) -> list[bytes | BadRequest]:
        return [_encoded(partial(answer, text)) for text in texts]

    batcher = Batcher(compute, 1, limits.queue)

    async def answered(request: Request, text: str, answer: Answer) -> Response:
        [result] = await result_of(request, batcher.submit([text], answer))
        if isinstance(result, BadRequest):
            raise result
        return Response(result, media_type="application/json")

    async def show(request: Request) -> Response:
        return Response(page(), media_type="text/html", headers=page_headers())

    async def runs(request: Request) -> Response:
        descriptions = [explorer.describe() for explorer in explorers]
        return JSONResponse({"runs": descriptions, "limits": limits._asdict()})

    async def translate(request: Request) -> Response:
        document = await read_object(request, TRANSLATE_KEYS, limits.body)
        number = _run(document, explorers)
        text = _line(document, "text", limits)
        search = parse_search(document, limits)
        # A request in front of this one in the queue may load the run again.
        return await answered(request, text, lambda line: explorers[number].translate(search, line))

    async def heatmaps(request: Request) -> Response:
        document = await read_object(request, HEATMAPS_KEYS, limits.body)
        number = _run(document, explorers)
        text = _line(document, "text", limits)
        heatmap = parse_heatmap(document, limits)
        return await answered(request, text, lambda line: explorers[number].heatmaps(heatmap, line))

    async def reload(request: Request) -> Response:
        number = _run(await read_object(request, RELOAD_KEYS, limits.body), explorers)

        def replace(text: str) -> dict[str, Any]:
            try:
                explorers[number] = load(number)
            except FusetkError as error:
                raise CheckpointError(str(error)) from None
            return explorers[number].describe()

        return await answered(request, "", replace)

    endpoints = [
        ("GET", "/", show),
        ("GET", "/runs", runs),
        ("POST", "/translate", translate),
        ("POST", "/heatmaps", heatmaps),
        ("POST", "/reload", reload),
    ]
    return make_service(endpoints, batcher, hosts)


def _encoded(answer: Callable[[], Any]) -> bytes | BadRequest:
    """Return an answer as JSON, or the error that the user can correct."""
    try:
        return json.dumps(answer(), ensure_ascii=False, allow_nan=False).encode()
    except DataError as error:
        return BadRequest(400, str(error))
    except CheckpointError as error:
        return BadRequest(409, str(error))


def parse_search(document: dict[str, Any], limits: ExploreLimits) -> Search:
    """Return the search of a request. Raises BadRequest for a request that is not valid."""
    beam = document.get("beam")
    if beam is not None:
        beam = whole_number("beam", beam, 1, limits.beam)
    prefix = document.get("prefix", "")
    if isinstance(prefix, list):
        prefix = _token_list(document, "prefix", limits)
    elif isinstance(prefix, str):
        prefix = _line(document, "prefix", limits)
    else:
        raise BadRequest(400, "prefix must be a string or a list of tokens")
    return Search(beam, prefix, _line(document, "target", limits))


def parse_heatmap(document: dict[str, Any], limits: ExploreLimits) -> Heatmap:
    """Return the view of a request. Raises BadRequest for a request that is not valid."""
    what = document.get("what")
    if not isinstance(what, str):
        raise BadRequest(400, 'what must be the name of a view, such as "fuse"')
    layer = document.get("layer")
    if layer is not None:
        layer = whole_number("layer", layer, 1, 10_000)
    head = document.get("head")
    if head not in (None, "mean", "all") and type(head) is not int:
        raise BadRequest(400, 'head must be a number from 1, "mean" or "all"')
    return Heatmap(_token_list(document, "tokens", limits), what, layer, head)


def _run(document: dict[str, Any], explorers: Sequence[Explorer]) -> int:
    return whole_number("run", document.get("run", 0), 0, len(explorers) - 1)


def _line(document: dict[str, Any], key: str, limits: ExploreLimits) -> str:
    text = document.get(key, "")
    if not isinstance(text, str):
        raise BadRequest(400, f"{key} must be a string")
    check_line(text, key, limits.characters)
    return text


def _token_list(document: dict[str, Any], key: str, limits: ExploreLimits) -> tuple[str, ...]:
    tokens = document.get(key)
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise BadRequest(400, f"{key} must be a list of strings")
    if len(tokens) > limits.tokens:
        raise BadRequest(413, f"{key} has {len(tokens)} tokens; at most {limits.tokens}")
    for token in tokens:
        check_line(token, f"a token of {key}", limits.characters)
        if not token.strip(" "):
            raise BadRequest(400, f"{key} has an empty token")
    return tuple(tokens)
