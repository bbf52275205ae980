"""The HTTP service: answers, limits, wrong requests, and many requests at once."""

import asyncio
import http.client
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from fusetk import system
from fusetk.cli.main import main
from fusetk.decoding.threads import raise_if_cancelled
from fusetk.decoding.translate import Translation
from fusetk.errors import ConfigError, Diverged, FusetkError
from fusetk.recipe import load
from fusetk.serving.batching import Batcher, Closed, QueueFull
from fusetk.train import train
from tests.helpers.forks import Forks
from tests.helpers.services import ask, running

LINES = ["eins zwei", "drei", "", "vier fünf sechs sieben", "unbekannt"]


class RequestOptions(NamedTuple):
    """The options of a request to a batcher."""

    n_best: int = 1


class Gate:
    """A function that translates after ``open`` is set, and records its batches."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.batches: list[tuple[list[str], RequestOptions]] = []

    def __call__(self, lines: Sequence[str], options: RequestOptions) -> list[list[Translation]]:
        self.batches.append((list(lines), options))
        self.open.wait(10)
        if "fail" in lines:
            raise ValueError("failed")
        return [[Translation(line.upper(), [], 0.0, 0.0)] for line in lines]


def waits(batcher: Batcher, gate: Gate) -> None:
    """Wait until the first request is in translation."""
    end = time.monotonic() + 10
    while not gate.batches and time.monotonic() < end:
        time.sleep(0.001)
    assert gate.batches and batcher.waiting == 0


def test_requests_are_translated_together_and_answered_in_order() -> None:
    gate = Gate()
    batcher = Batcher(gate, batch=4, queue=100, window=0.0)
    first = batcher.submit(["a"], RequestOptions())
    waits(batcher, gate)
    futures = [batcher.submit([f"b{i}", f"c{i}"], RequestOptions()) for i in range(3)]
    other = batcher.submit(["d"], RequestOptions(n_best=2))
    futures[1].cancel()
    gate.open.set()
    assert first.result(10)[0][0].text == "A"
    assert [rows[0].text for rows in futures[2].result(10)] == ["B2", "C2"]
    assert other.result(10)[0][0].text == "D"
    assert [lines for lines, _ in gate.batches] == [["a"], ["b0", "c0", "b2", "c2"], ["d"]]
    batcher.close()


def test_cancelled_requests_leave_the_queue() -> None:
    gate = Gate()
    batcher = Batcher(gate, batch=2, queue=3, window=0.0)
    batcher.submit(["a"], RequestOptions())
    waits(batcher, gate)
    cancelled = []
    for _ in range(5):
        future = batcher.submit(["b"], RequestOptions())
        future.cancel()
        cancelled.append(weakref.ref(future))
    del future
    batcher.submit(["c"], RequestOptions())
    assert not any(future() for future in cancelled)
    gate.open.set()
    batcher.close()


def test_the_queue_is_bounded_and_a_failure_ends_one_batch_only() -> None:
    gate = Gate()
    batcher = Batcher(gate, batch=2, queue=3, window=0.0)
    batcher.submit(["a"], RequestOptions())
    waits(batcher, gate)
    failing = batcher.submit(["fail"], RequestOptions(n_best=3))
    last = batcher.submit(["b", "c"], RequestOptions())
    with pytest.raises(QueueFull):
        batcher.submit(["d"], RequestOptions())
    gate.open.set()
    with pytest.raises(ValueError, match="failed"):
        failing.result(10)
    assert len(last.result(10)) == 2
    batcher.close()
    with pytest.raises(Closed):
        batcher.submit(["e"], RequestOptions())


def test_closing_cancels_waiting_requests() -> None:
    gate = Gate()
    batcher = Batcher(gate, batch=1, queue=3, window=0.0)
    running = batcher.submit(["a"], RequestOptions())
    waits(batcher, gate)
    waiting = batcher.submit(["b"], RequestOptions())
    closing = threading.Thread(target=batcher.close)
    closing.start()
    with pytest.raises(CancelledError):
        waiting.result(10)
    gate.open.set()
    closing.join(10)
    assert running.result(0) and not closing.is_alive()


def search(lines: Sequence[str], options: RequestOptions) -> list[str]:
    """Compute for a minute, or until the computation is cancelled."""
    for _ in range(6000):
        raise_if_cancelled()
        time.sleep(0.01)
    return list(lines)


def batch_of_two() -> tuple[Batcher, list[Future]]:
    """Return a batcher that searches for two requests together."""
    batcher = Batcher(search, batch=2, queue=3, window=10.0)
    futures = [batcher.submit([line], RequestOptions()) for line in "ab"]
    while batcher.waiting:
        time.sleep(0.001)
    return batcher, futures


def test_a_batch_ends_when_all_its_requests_are_cancelled() -> None:
    batcher, futures = batch_of_two()
    assert futures[0].cancel() and not batcher._cancelled.wait(0.05)
    assert futures[1].cancel() and batcher._cancelled.wait(0)
    last = batcher.submit(["c", "d"], RequestOptions())
    end = time.monotonic() + 10
    while batcher.waiting and time.monotonic() < end:
        time.sleep(0.001)
    assert not batcher.waiting and not last.done()  # the thread computes the next batch
    last.cancel()
    batcher.close()


def test_closing_ends_the_current_batch() -> None:
    batcher, futures = batch_of_two()
    begin = time.monotonic()
    batcher.close()
    assert time.monotonic() - begin < 5
    for future in futures:
        with pytest.raises(Closed):
            future.result(0)


def test_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)
    result = CliRunner().invoke(main, ["serve", "run"])
    assert result.exit_code == 2 and "pip install 'fusetk[serve]'" in result.stderr


def test_an_address_that_cannot_be_used_is_refused_before_a_model_is_loaded(
    tmp_path: Path,
) -> None:
    pytest.importorskip("uvicorn")
    for command in ("serve", "explore"):
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            options = [command, str(tmp_path), "--port", str(port)]
            result = CliRunner().invoke(main, options)
            assert (result.exit_code, result.stderr) == (
                2,
                f"fusetk: --port: port {port} is in use; choose another port, or 0 for any free "
                "port\n",
            )
        result = CliRunner().invoke(main, [command, str(tmp_path), "--host", ".."])
        assert result.exit_code == 2 and "there is no address '..'" in result.stderr
        # 192.0.2.1 is reserved for documentation, so no machine has it.
        result = CliRunner().invoke(
            main, [command, str(tmp_path), "--host", "192.0.2.1", "--port", "0"]
        )
        assert result.exit_code == 2
        assert "--host: 192.0.2.1 is not an address of this machine" in result.stderr


def test_the_queue_has_room_for_the_largest_request() -> None:
    result = CliRunner().invoke(main, ["serve", "run", "--queue", "63"])
    assert result.exit_code == 2 and "--queue 63 is less than --max-sentences" in result.stderr


def test_only_settings_of_the_search_can_be_changed(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("uvicorn")
    from fusetk.serving import app, server

    served: list[system.System] = []
    monkeypatch.setattr(app, "make_app", lambda loaded, *rest: served.append(loaded))
    monkeypatch.setattr(server, "serve", lambda *arguments, **options: None)

    def serve(*words: str) -> str:
        command = ["serve", str(run), "--port", "0", "-d", "cpu", *words]
        result = CliRunner().invoke(main, command)
        assert result.exit_code == (2 if result.stderr.startswith("fusetk: ") else 0)
        return result.stderr

    serve("--set", "decoding.beam=3", "--set", "decoding.normalize=0.5")
    assert (served[0].config.beam, served[0].config.normalize) == (3, 0.5)
    assert "decoding.beam: must be at least 1" in serve("--set", "decoding.beam=0")
    said = serve("--set", "model.width=3")
    assert "--set model.width=3: fusetk serve changes only keys of the section decoding" in said


# The service --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("serving") / "run"
    train(load(toy), run, "cpu", quiet=True)
    return run


@pytest.fixture(scope="module")
def port(run: Path) -> Iterator[int]:
    """The port of a service in a thread."""
    pytest.importorskip("starlette")
    from fusetk.serving.app import Limits, make_app

    limits = Limits(sentences=8, characters=100, n_best=3, queue=16, batch=8)
    loaded = system.load(run, "cpu", max_source_length=20)
    with running(make_app(loaded, limits)) as port:
        yield port


def test_answers_equal_the_translations_of_the_system(port: int, run: Path) -> None:
    loaded = system.load(run, "cpu")
    status, answer = ask(port, {"text": LINES})
    assert status == 200
    assert [sentence["text"] for sentence in answer["sentences"]] == loaded.translate(LINES)
    status, answer = ask(port, {"text": LINES[0], "n_best": 3, "alignment": True})
    expected = loaded.n_best([LINES[0]], n_best=3, beam=3)[0]
    assert [row["text"] for row in answer["translations"]] == [row.text for row in expected]
    for row, other in zip(answer["translations"], expected, strict=True):
        assert row["score"] == pytest.approx(other.score, abs=1e-5)
        assert row["tokens"] == other.tokens and len(row["alignment"]) == len(row["tokens"])
    assert answer["source_tokens"] == LINES[0].split()
    assert ask(port, {"text": " "}) == (200, {"text": "", "translations": []})
    assert ask(port, {"text": []}) == (200, {"sentences": []})
    assert ask(port, b"", "GET", "/health") == (200, {"status": "ok", "waiting": 0})


def test_a_sample_does_not_depend_on_other_requests(run: Path) -> None:
    pytest.importorskip("starlette")
    from fusetk.serving.app import Limits, make_app

    loaded = system.load(run, "cpu", sample=True)
    with running(make_app(loaded, Limits())) as port, ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda _: ask(port, {"text": LINES[0]})[1]["text"], range(8)))
    assert together == loaded.translate(LINES[:1]) * 8


def test_other_names_of_the_machine_are_refused(port: int) -> None:
    """A web page whose name resolves to 127.0.0.1 cannot use the service."""
    assert ask(port, {"text": ""}, Host="evil.example") == (400, b"Invalid host header")
    for name in ("localhost", "127.0.0.1", "[::1]"):
        assert ask(port, {"text": ""}, Host=f"{name}:{port}")[0] == 200


def test_a_service_that_other_machines_reach_answers_to_any_name() -> None:
    pytest.importorskip("starlette")
    from starlette.requests import Request
    from starlette.responses import JSONResponse

    from fusetk.serving.http import make_service, trusted_hosts
    from fusetk.serving.server import listen

    async def answer(request: Request) -> JSONResponse:
        return JSONResponse({})

    statuses = {}
    for host in ("127.0.0.1", "127.0.0.2", "0.0.0.0"):
        with listen(host, 0) as listener:
            hosts = trusted_hosts(host, listener)
        batcher = Batcher(lambda items, options: list(items), 1, 1)
        with running(make_service([("GET", "/", answer)], batcher, hosts)) as port:
            statuses[host] = [
                ask(port, b"", "GET", "/", Host=name)[0] for name in (host, "my.example")
            ]
    assert statuses == {
        "127.0.0.1": [200, 400],
        "127.0.0.2": [200, 400],
        "0.0.0.0": [200, 200],
    }


WRONG = [
    (b"", 400, "not valid JSON"),
    (b"\xff\xfe", 400, "not valid JSON"),
    (b"[" * 10_000, 400, "not valid JSON"),
    (b'"text"', 400, "must be an object"),
    ({}, 400, "text must be a string"),
    ({"text": [1]}, 400, "text must be a string"),
    ({"text": "a", "n_bset": 2}, 400, "unknown key 'n_bset'; the keys are text, n_best"),
    ({"text": "a", "n_best": 4}, 400, "n_best must be a whole number from 1 to 3"),
    ({"text": "a", "n_best": True}, 400, "n_best must be a whole number"),
    ({"text": "a", "alignment": 1}, 400, "alignment must be true or false"),
    ({"text": "a\nb"}, 400, "sentence 1 has a line feed"),
    (b'{"text": "\\ud800"}', 400, "half of a surrogate pair"),
    ({"text": "a" * 101}, 413, "sentence 1 has 101 characters; at most 100"),
    ({"text": ["a"] * 9}, 413, "text has 9 sentences; at most 8"),
    (b'"' + b"a" * 100_000, 413, "more than"),
]


@pytest.mark.parametrize(("body", "status", "reason"), WRONG, ids=[row[2] for row in WRONG])
def test_a_wrong_request_is_answered_with_the_reason(
    port: int, body: object, status: int, reason: str
) -> None:
    answered, answer = ask(port, body)
    assert answered == status and reason in answer["error"]


class FailingTranslator:
    """A translator of words whose prep step fails for one line, and whose search for another."""

    max_source_length = 9

    def __init__(self, failure: FusetkError) -> None:
        """``failure`` is the error of the search."""
        self.failure = failure

    def tokens(self, side: str, line: str) -> list[str]:
        if line == "before":
            raise ConfigError("the step a:B failed for 'before'")
        return line.split()

    def n_best(self, lines: list[str], first: list[int]) -> list[list[Translation]]:
        if "after" in lines:
            raise self.failure
        return [[Translation(line.upper(), [], 0.0, 0.0)] for line in lines]


@pytest.mark.parametrize("failure", [ConfigError("the step a:B failed for 'after'"), Diverged()])
def test_a_failing_sentence_does_not_fail_other_sentences(failure: FusetkError) -> None:
    pytest.importorskip("starlette")
    from fusetk.serving.app import NumberedSentence, _translate

    lines = ["a", "before", "b", "after"]
    sentences = [NumberedSentence(number, line) for number, line in enumerate(lines, 1)]
    results: Any = _translate(FailingTranslator(failure), sentences)  # type: ignore[arg-type]
    assert [results[i][0].text for i in (0, 2)] == ["A", "B"]
    for i, said in (
        (1, "cannot be prepared: the step a:B failed for 'before'"),
        (3, f"cannot be translated: {failure}"),
    ):
        assert results[i].status == 500 and said in str(results[i])


def test_a_sentence_with_too_many_tokens_is_refused(port: int) -> None:
    status, answer = ask(port, {"text": ["a", "a " * 21]})
    reason = "sentence 2 has 21 tokens; the model reads at most 20"
    assert (status, answer) == (413, {"error": reason})
    assert ask(port, {"text": "a " * 20})[0] == 200


def test_other_paths_and_methods_are_answered_in_json(port: int) -> None:
    status, answer = ask(port, b"", "GET", "/")
    service = "the service has POST /translate and GET /health"
    assert status == 404 and answer == {"error": f"there is no GET /; {service}"}
    status, answer = ask(port, b"", "GET")
    assert status == 405 and answer == {"error": f"there is no GET /translate; {service}"}
    status, answer = ask(port, {"text": "a"}, path="/translate/")
    assert status == 404 and answer == {"error": f"there is no POST /translate/; {service}"}


SERVICE = """
import signal, sys
from starlette.applications import Starlette
from fusetk.serving import server
signal.signal(signal.SIGINT, signal.default_int_handler)
listener = server.listen("127.0.0.1", 0)
print(server.address(listener), flush=True)
server.serve(Starlette(), listener, access_log=sys.argv[1] == "log")
print("end")
"""


SEARCHING_SERVICE = """
from fusetk.serving import server
from fusetk.serving.batching import Batcher
from fusetk.serving.http import make_service, read_object, result_of
from tests.test_serving import search

async def answer(request):
    print("request", flush=True)
    document = await read_object(request, ["text"], 1000)
    return await result_of(request, batcher.submit([document["text"]], None))

batcher = Batcher(search, batch=1, queue=1)
listener = server.listen("127.0.0.1", 0)
print(listener.getsockname()[1], "is the port", flush=True)
server.serve(make_service([("POST", "/", answer)], batcher), listener, access_log=True)
"""


@pytest.mark.parametrize("stalls", [False, True])
def test_a_signal_ends_the_service_during_a_request(stalls: bool) -> None:
    """The client waits for a search, or it stalls within its request."""
    pytest.importorskip("uvicorn")
    service = Forks([], code=SEARCHING_SERVICE)
    service.wait_for("is the port")
    port = int(service.output().split()[0])
    with socket.create_connection(("127.0.0.1", port)) as client:
        body = b'{"text": "a"}'
        body = body[: 5 if stalls else None]
        client.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 13\r\n\r\n" + body)
        service.wait_for("request")
        begin = time.monotonic()
        service.send_signal(signal.SIGTERM)
        assert service.wait(20) == [-signal.SIGTERM]
        assert time.monotonic() - begin < 5
        answer = client.recv(1000)
    assert answer.startswith(b"HTTP/1.1 503") and b"the service is closing" in answer


def test_a_second_ctrl_c_is_not_an_error() -> None:
    pytest.importorskip("uvicorn")
    code = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    service = Forks([], code=code + SEARCHING_SERVICE)
    service.wait_for("is the port")
    port = int(service.output().split()[0])
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(ask, port, {"text": "a"}, path="/")
        service.wait_for("request")
        for _ in range(2):
            service.send_signal(signal.SIGINT)
            time.sleep(0.2)
        assert service.wait(20) == [0]
        assert answer.result() == (503, {"error": "the service is closing"})
    assert "Traceback" not in service.output()


@pytest.mark.parametrize("log", ["log", "quiet"])
def test_ctrl_c_ends_the_service_without_an_error(log: str) -> None:
    pytest.importorskip("uvicorn")
    command = [sys.executable, "-c", SERVICE, log]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout
        address = process.stdout.readline()
        assert address.startswith("http://127.0.0.1:")
        port = int(address.rpartition(":")[2])
        assert ask(port, b"", "GET", "/")[0] == 404
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    assert (process.returncode, output) == (0, "end\n")
    assert errors.count('"GET / HTTP/1.1" 404') == (log == "log") and "Traceback" not in errors


def test_many_requests_at_once_among_wrong_ones(port: int, run: Path) -> None:
    loaded = system.load(run, "cpu")
    expected = dict(zip(LINES, loaded.translate(LINES), strict=True))

    def request(i: int) -> str:
        if i % 5 == 4:
            body, wanted, _ = WRONG[i // 5 % len(WRONG)]
            assert ask(port, body)[0] == wanted
            return "wrong"
        line = LINES[i % 5]
        status, answer = ask(port, {"text": [line] * (1 + i % 7), "n_best": 1 + i % 3})
        if status == 503:
            assert answer == {"error": "the queue is full: try again"}
            return "full"
        assert status == 200
        for sentence in answer["sentences"]:
            assert i % 3 == 2 or sentence["text"] == expected[line]
        return "answered"

    with ThreadPoolExecutor(24) as threads:
        results = list(threads.map(request, range(150)))
    # The number of answers depends on the speed of the machine: the queue is short.
    assert results.count("wrong") == 30 and results.count("answered") > 4
    assert ask(port, {"text": LINES[0]})[1]["text"] == expected[LINES[0]]


def test_the_request_of_a_client_that_disconnected_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("starlette")
    from starlette.requests import ClientDisconnect

    from fusetk.serving import http as service

    class Request:
        async def is_disconnected(self) -> bool:
            return True

    monkeypatch.setattr(service, "CHECK_INTERVAL", 0.001)
    future: Future[int] = Future()
    with pytest.raises(ClientDisconnect):
        asyncio.run(service.result_of(Request(), future))  # type: ignore[arg-type]
    assert future.cancelled()


def test_a_client_that_stalls_gets_an_error(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from fusetk.serving import http as service

    monkeypatch.setattr(service, "BODY_SECONDS", 0.01)
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(
            b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
        )
        answer = b"".join(iter(lambda: client.recv(1000), b""))  # until the service disconnects
    assert answer.startswith(b"HTTP/1.1 408") and b"did not arrive within 0.01 s" in answer


def test_a_client_that_leaves_does_not_disturb_the_next_one(port: int) -> None:
    for _ in range(5):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.putrequest("POST", "/translate")
        connection.putheader("Content-Length", "100")
        connection.endheaders()
        connection.send(b'{"text": ')
        connection.close()
    assert ask(port, {"text": LINES[0]})[0] == 200
