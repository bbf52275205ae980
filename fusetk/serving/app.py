"""The HTTP service: requests and answers in JSON."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse

from fusetk.decoding.alignment import AttentionHeads, hard
from fusetk.decoding.config import multiple_of_groups
from fusetk.decoding.translate import Extras, Translation, Translator
from fusetk.errors import ConfigError, Diverged
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
from fusetk.system import System, changed

KEYS = ("text", "n_best", "alignment")


class RequestOptions(NamedTuple):
    """The options of a request, which hold for all its sentences."""

    n_best: int = 1
    alignment: bool = False


class NumberedSentence(NamedTuple):
    """A sentence, and its number in its request, from 1.

    The number selects the random numbers of samples, so they do not depend on other requests.
    """

    number: int
    text: str


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


def make_app(system: System, limits: Limits, hosts: Sequence[str] = LOCAL_HOSTS) -> Starlette:
    """Return an ASGI application that translates with ``system``.

    The help of ``fusetk serve`` describes the requests and the answers. For ``hosts`` see
    ``make_service``.
    """
    translators: dict[RequestOptions, Translator] = {}

    def translate(
        sentences: Sequence[NumberedSentence], options: RequestOptions
    ) -> list[list[Translation] | BadRequest]:
        if options not in translators:
            settings = {"n_best": options.n_best}
            if not system.config.sample:
                beam = max(options.n_best, system.config.beam)
                settings["beam"] = multiple_of_groups(beam, system.config.groups)
            config = changed(system.config, settings)
            extras = Extras(attention=AttentionHeads() if options.alignment else None)
            translators[options] = Translator(system.models, system.pipeline, config, extras)
        return _translate(translators[options], sentences)

    batcher = Batcher(translate, limits.batch, limits.queue)

    async def answer(request: Request) -> JSONResponse:
        document = await read_object(request, KEYS, limits.body)
        lines, options, single = parse(document, limits)
        sentences = [NumberedSentence(number, line) for number, line in enumerate(lines, 1)]
        results = await result_of(request, batcher.submit(sentences, options))
        answers = []
        for sentence, result in zip(sentences, results, strict=True):
            if isinstance(result, BadRequest):
                raise BadRequest(result.status, f"sentence {sentence.number} {result}")
            answers.append(_answer(system, sentence.text, result, options))
        return JSONResponse(answers[0] if single else {"sentences": answers})

    async def health(request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok", "waiting": batcher.waiting})

    endpoints = [("POST", "/translate", answer), ("GET", "/health", health)]
    return make_service(endpoints, batcher, hosts)


def _translate(
    translator: Translator, sentences: Sequence[NumberedSentence]
) -> list[list[Translation] | BadRequest]:
    """Return the translations of each sentence, or an error if it would be truncated."""
    most = translator.max_source_length
    results: list[list[Translation] | BadRequest] = []
    for sentence in sentences:
        try:
            length = len(translator.tokens("source", sentence.text))
        except ConfigError as error:  # of a prep step; other requests are in the batch
            results.append(BadRequest(500, f"cannot be prepared: {error}"))
            continue
        too_long = BadRequest(413, f"has {length} tokens; the model reads at most {most}")
        results.append([] if length <= most else too_long)
    fitting = [i for i, result in enumerate(results) if not isinstance(result, BadRequest)]
    translations: Sequence[list[Translation] | BadRequest]
    try:
        translations = translator.n_best(
            [sentences[i].text for i in fitting], first=[sentences[i].number for i in fitting]
        )
    except (ConfigError, Diverged) as error:
        if len(fitting) > 1:  # each request gets its own result
            return [_translate(translator, [sentence])[0] for sentence in sentences]
        translations = [BadRequest(500, f"cannot be translated: {error}")]
    for i, n_best in zip(fitting, translations, strict=True):
        results[i] = n_best
    return results


def parse(document: dict[str, Any], limits: Limits) -> tuple[list[str], RequestOptions, bool]:
    """Return the sentences, the options, and whether the text was a single string.

    Raises BadRequest for a request that is not valid.
    """
    text = document.get("text")
    lines = [text] if isinstance(text, str) else text
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise BadRequest(400, "text must be a string or a list of strings")
    if len(lines) > limits.sentences:
        raise BadRequest(413, f"text has {len(lines)} sentences; at most {limits.sentences}")
    for number, line in enumerate(lines, 1):
        check_line(line, f"sentence {number}", limits.characters)
    n_best = whole_number("n_best", document.get("n_best", 1), 1, limits.n_best)
    alignment = document.get("alignment", False)
    if not isinstance(alignment, bool):
        raise BadRequest(400, "alignment must be true or false")
    return lines, RequestOptions(n_best, alignment), isinstance(text, str)


def _answer(
    system: System, line: str, translations: Sequence[Translation], options: RequestOptions
) -> dict[str, Any]:
    """Return the answer for a sentence. A blank sentence has no translations."""
    if not translations:
        return {"text": "", "translations": []}
    answer: dict[str, Any] = {"text": translations[0].text}
    if options.alignment:
        words = system.pipeline.words("source", line)
        answer["source_tokens"] = system.pipeline.subwords("source", words)
    rows = []
    for translation in translations:
        row: dict[str, Any] = {
            "text": translation.text,
            "score": translation.score,
            "normalized": translation.normalized,
        }
        if options.alignment and translation.attention is not None:
            row["tokens"] = translation.tokens
            row["alignment"] = hard(translation.attention)
        rows.append(row)
    return {**answer, "translations": rows}
