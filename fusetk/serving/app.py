"""The HTTP service: requests and answers in JSON."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from fusetk.decoding.alignment import AttentionHeads, hard
from fusetk.decoding.translate import Extras, Translation, Translator
from fusetk.serving.batching import Batcher, Closed, QueueFull, Wish
from fusetk.system import System, changed

KEYS = ("text", "n_best", "alignment")
BUSY = {"Retry-After": "1"}  # header of the answer of a full queue, in seconds

log = logging.getLogger(__name__)


class Limits(NamedTuple):
    """Bounds that protect the service."""

    sentences: int = 64
    """Sentences of one request."""
    characters: int = 2000
    """Characters of one sentence."""
    n_best: int = 10
    """Translations of one sentence."""
    queue: int = 1024
    """Sentences that wait."""
    batch: int = 64
    """Sentences that are translated together."""

    @property
    def body(self) -> int:
        """Bytes of a request: a character has at most 12 bytes in JSON (an escaped pair)."""
        return 12 * self.characters * self.sentences + 10_000


class BadRequest(Exception):
    """A request that cannot be answered, with the HTTP status and the reason."""

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status = status


def make_app(system: System, limits: Limits) -> Starlette:
    """Return an ASGI application that translates with ``system``.

    The help of ``fusetk serve`` describes the requests and the answers.
    """
    translators: dict[Wish, Translator] = {}

    def translate(lines: Sequence[str], wish: Wish) -> list[list[Translation]]:
        if wish not in translators:
            beam = max(wish.n_best, system.config.beam)
            beam += -beam % system.config.groups
            settings = {"n_best": wish.n_best, "beam": beam}
            config = changed(system.config, settings)
            extras = Extras(attention=AttentionHeads() if wish.alignment else None)
            translators[wish] = Translator(system.models, system.pipeline, config, extras)
        return translators[wish].n_best(lines)

    batcher = Batcher(translate, limits.batch, limits.queue)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(batcher.close)

    async def answer(request: Request) -> JSONResponse:
        try:
            lines, wish, single = parse(await _body(request, limits), limits)
            future = batcher.submit(lines, wish)
            results = await asyncio.wrap_future(future)
        except BadRequest as error:
            return _error(error.status, str(error))
        except QueueFull:
            return JSONResponse(_message("the queue is full: try again"), 503, BUSY)
        except (Closed, asyncio.CancelledError):
            return _error(503, "the service is closing")
        except ClientDisconnect:
            return _error(400, "the request ended early")
        except Exception:
            log.exception("translation failed")
            return _error(500, "the translation failed; the log of the service has the reason")
        sentences = [
            _sentence(system, line, found, wish) for line, found in zip(lines, results, strict=True)
        ]
        return JSONResponse(sentences[0] if single else {"sentences": sentences})

    async def health(request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok", "waiting": batcher.waiting})

    routes = [Route("/translate", answer, methods=["POST"]), Route("/health", health)]
    return Starlette(routes=routes, lifespan=lifespan)


async def _body(request: Request, limits: Limits) -> bytes:
    """Return the body. Raises BadRequest as soon as it is too large."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limits.body:
            raise BadRequest(413, f"the request has more than {limits.body} bytes")
    return bytes(body)


def parse(body: bytes, limits: Limits) -> tuple[list[str], Wish, bool]:
    """Return the sentences, the wish, and whether the text was a single string.

    Raises BadRequest for a body that is not valid.
    """
    try:
        document: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(400, f"the request is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadRequest(400, 'the request must be an object, such as {"text": "Hallo"}')
    if unknown := sorted(set(document) - set(KEYS)):
        raise BadRequest(400, f"unknown key {unknown[0]!r}; the keys are {', '.join(KEYS)}")
    text = document.get("text")
    lines = [text] if isinstance(text, str) else text
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise BadRequest(400, "text must be a string or a list of strings")
    if len(lines) > limits.sentences:
        raise BadRequest(413, f"text has {len(lines)} sentences; at most {limits.sentences}")
    for number, line in enumerate(lines, 1):
        _check_line(line, number, limits)
    n_best = document.get("n_best", 1)
    if type(n_best) is not int or not 1 <= n_best <= limits.n_best:
        raise BadRequest(400, f"n_best must be a whole number from 1 to {limits.n_best}")
    alignment = document.get("alignment", False)
    if not isinstance(alignment, bool):
        raise BadRequest(400, "alignment must be true or false")
    return lines, Wish(n_best, alignment), isinstance(text, str)


def _check_line(line: str, number: int, limits: Limits) -> None:
    if len(line) > limits.characters:
        raise BadRequest(
            413, f"sentence {number} has {len(line)} characters; at most {limits.characters}"
        )
    if "\n" in line:
        raise BadRequest(400, f"sentence {number} has a line feed; send a list of sentences")
    try:
        line.encode()
    except UnicodeEncodeError:
        raise BadRequest(400, f"sentence {number} has half of a surrogate pair") from None


def _sentence(
    system: System, line: str, translations: Sequence[Translation], wish: Wish
) -> dict[str, Any]:
    """Return the answer for a sentence. A blank sentence has no translations."""
    if not translations:
        return {"text": "", "translations": []}
    answer: dict[str, Any] = {"text": translations[0].text}
    if wish.alignment:
        words = system.pipeline.words("source", line)
        answer["source_tokens"] = system.pipeline.subwords("source", words)
    rows = []
    for translation in translations:
        row: dict[str, Any] = {
            "text": translation.text,
            "score": translation.score,
            "normalized": translation.normalized,
        }
        if wish.alignment and translation.attention is not None:
            row["tokens"] = translation.tokens
            row["alignment"] = hard(translation.attention)
        rows.append(row)
    return {**answer, "translations": rows}


def _message(reason: str) -> dict[str, str]:
    return {"error": reason}


def _error(status: int, reason: str) -> JSONResponse:
    return JSONResponse(_message(reason), status)
