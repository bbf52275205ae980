"""The requests of `fusetk explore`: answers, wrong requests, limits, reloading, the page."""

import base64
import hashlib
import re
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fusetk.cli.main import main
from fusetk.exploring.explorer import Search
from tests.exploring.runs import explorer
from tests.helpers.services import ask, running

pytest.importorskip("starlette")

TEXT = "eins zwei drei"


@pytest.fixture(scope="module")
def port(runs: list[Path]) -> Iterator[int]:
    from fusetk.exploring.app import ExploreLimits, make_explore_app

    limits = ExploreLimits(characters=100, beam=4, queue=4)
    explorers = [explorer(run) for run in runs]
    with running(make_explore_app(explorers, lambda i: explorer(runs[i]), limits)) as port:
        yield port


def test_the_runs_are_described(port: int) -> None:
    status, answer = ask(port, b"", "GET", "/runs")
    assert status == 200 and [run["name"] for run in answer["runs"]] == ["plain", "fused"]
    assert answer["limits"] == {"characters": 100, "beam": 4, "queue": 4}
    assert [view["what"] for view in answer["runs"][1]["views"]][:2] == ["fuse", "connect"]


def test_answers_are_those_of_the_explorer(port: int, runs: list[Path]) -> None:
    from fusetk.exploring.explorer import Heatmap, Search

    fused = explorer(runs[1])
    body = {"run": 1, "text": TEXT, "beam": 3, "prefix": ["DREI"], "target": "ZWEI"}
    status, answer = ask(port, body)
    expected = fused.translate(Search(3, ("DREI",), "ZWEI"), TEXT)
    assert status == 200
    assert [row["tokens"] for row in answer["translations"]] == [
        row["tokens"] for row in expected["translations"]
    ]
    assert answer["given"] == expected["given"]
    tokens = answer["translations"][0]["tokens"]
    body = {"run": 1, "text": TEXT, "tokens": tokens, "what": "cross", "layer": 2, "head": "all"}
    status, answer = ask(port, body, path="/heatmaps")
    assert (status, answer) == (
        200,
        fused.heatmaps(Heatmap(tuple(tokens), "cross", 2, "all"), TEXT),
    )


LONG = "a" * 101
MAPS = {"text": TEXT, "tokens": ["DREI"], "what": "cross"}
WRONG: list[tuple[str, object, int, str]] = [
    ("/translate", b"", 400, "not valid JSON"),
    ("/translate", [], 400, "must be an object"),
    ("/translate", {"text": TEXT, "n_best": 2}, 400, "unknown key 'n_best'; the keys are run"),
    ("/translate", {}, 400, "the sentence is empty: type a sentence"),
    ("/translate", {"text": " "}, 400, "the sentence is empty: type a sentence"),
    ("/translate", {"text": 3}, 400, "text must be a string"),
    ("/translate", {"text": LONG}, 413, "text has 101 characters; at most 100"),
    ("/translate", {"text": "a\nb"}, 400, "text has a line feed"),
    ("/translate", b'{"text": "\\ud800"}', 400, "text has half of a surrogate pair"),
    ("/translate", {"text": TEXT, "run": 2}, 400, "run must be a whole number from 0 to 1"),
    ("/translate", {"text": TEXT, "run": True}, 400, "run must be a whole number"),
    ("/translate", {"text": TEXT, "beam": 5}, 400, "beam must be a whole number from 1 to 4"),
    ("/translate", {"text": TEXT, "prefix": 1}, 400, "prefix must be a string"),
    ("/translate", {"text": TEXT, "prefix": [1]}, 400, "prefix must be a list of strings"),
    ("/translate", {"text": TEXT, "prefix": [""]}, 400, "prefix has an empty token"),
    ("/translate", {"text": TEXT, "prefix": [" "]}, 400, "prefix has an empty token"),
    ("/translate", {"text": TEXT, "prefix": ["a"] * 401}, 413, "prefix has 401 tokens"),
    ("/translate", {"text": TEXT, "prefix": [LONG]}, 413, "a token of prefix has 101"),
    ("/translate", {"text": TEXT, "target": LONG}, 413, "target has 101 characters"),
    ("/translate", b'"' + b"a" * 100_000, 413, "the request has more than"),
    ("/heatmaps", {**MAPS, "what": None}, 400, "what must be the name of a view"),
    ("/heatmaps", {**MAPS, "what": "fuse"}, 400, "no heatmaps 'fuse'; it has cross"),
    ("/heatmaps", {**MAPS, "tokens": "DREI"}, 400, "tokens must be a list of strings"),
    ("/heatmaps", {**MAPS, "layer": 0}, 400, "layer must be a whole number from 1"),
    ("/heatmaps", {**MAPS, "layer": 2}, 400, "cross-attention has no layer 2: choose 1"),
    ("/heatmaps", {**MAPS, "head": 3}, 400, "cross-attention has no head 3: choose 1 to 2"),
    ("/heatmaps", {**MAPS, "head": "most"}, 400, 'head must be a number from 1, "mean" or "all"'),
    ("/heatmaps", {**MAPS, "head": [1]}, 400, "head must be a number from 1"),
    ("/reload", {"run": "plain"}, 400, "run must be a whole number"),
    ("/nothing", {}, 404, "there is no POST /nothing; the service has GET /, GET /runs"),
]


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"), WRONG, ids=[f"{row[0]} {row[3]}" for row in WRONG]
)
def test_a_wrong_request_is_answered_with_the_reason(
    port: int, path: str, body: object, status: int, reason: str
) -> None:
    answered, answer = ask(port, body, path=path)
    assert answered == status and reason in answer["error"]


def test_two_requests_at_once_get_their_own_answers(port: int) -> None:
    bodies = [{"run": run, "text": text} for run in (0, 1) for text in ("eins", "zwei drei")]
    expected = [ask(port, body)[1]["translations"] for body in bodies]
    with ThreadPoolExecutor(4) as threads:
        for _ in range(5):
            answers = list(threads.map(lambda body: ask(port, body), bodies))
            assert [status for status, _ in answers] == [200] * 4
            assert [answer["translations"] for _, answer in answers] == expected


class SlowLoad:
    """Loads a run as soon as ``go_on`` is set."""

    def __init__(self, loaded: Any):
        self.loaded = loaded
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, number: int) -> Any:
        self.begun.set()
        self.go_on.wait(20)
        return self.loaded


def test_the_queue_is_bounded(runs: list[Path]) -> None:
    from fusetk.exploring.app import ExploreLimits, make_explore_app

    plain = explorer(runs[0])
    load = SlowLoad(plain)
    app = make_explore_app([plain], load, ExploreLimits(queue=1))
    with running(app) as port, ThreadPoolExecutor(3) as threads:
        first = threads.submit(ask, port, {}, "POST", "/reload")
        assert load.begun.wait(20)
        others = [threads.submit(ask, port, {"text": TEXT}) for _ in range(2)]
        done, _ = wait(others, 20, FIRST_COMPLETED)
        assert [request.result() for request in done] == [
            (503, {"error": "the queue is full: try again"})
        ]
        load.go_on.set()
        assert first.result()[0] == 200
        assert sorted(request.result()[0] for request in others) == [200, 503]


def test_a_run_is_loaded_again_and_a_damaged_one_keeps_the_old_model(
    runs: list[Path], tmp_path: Path
) -> None:
    from fusetk.exploring.app import ExploreLimits, make_explore_app

    run = tmp_path / "run"
    shutil.copytree(runs[0], run, symlinks=True)
    app = make_explore_app([explorer(run)], lambda number: explorer(run), ExploreLimits())
    with running(app) as port:
        expected = ask(port, {"text": TEXT})[1]["translations"]
        status, answer = ask(port, {"run": 0}, path="/reload")
        assert status == 200 and answer["name"] == "run"
        for part in ("text", "checkpoints"):
            shutil.rmtree(run / part)
            status, answer = ask(port, {"run": 0}, path="/reload")
            assert status == 409 and str(run) in answer["error"]
        assert ask(port, {"text": TEXT})[1]["translations"] == expected


def test_requests_behind_a_reload_use_the_new_model(runs: list[Path]) -> None:
    from fusetk.exploring.app import ExploreLimits, make_explore_app

    fused = explorer(runs[1])
    load = SlowLoad(fused)
    app = make_explore_app([explorer(runs[0])], load, ExploreLimits())
    with running(app) as port, ThreadPoolExecutor(3) as threads:
        first = threads.submit(ask, port, {}, "POST", "/reload")
        assert load.begun.wait(20)
        heatmaps = {"text": TEXT, "tokens": ["DREI"], "what": "fuse"}
        second = threads.submit(ask, port, {"text": TEXT})
        third = threads.submit(ask, port, heatmaps, "POST", "/heatmaps")
        time.sleep(0.2)  # the requests reach the queue
        load.go_on.set()
        assert first.result()[0] == third.result()[0] == 200
        assert second.result()[1]["translations"] == fused.translate(Search(), TEXT)["translations"]


def test_other_names_of_the_machine_are_refused(port: int) -> None:
    """A web page whose name resolves to 127.0.0.1 cannot read the answers."""
    assert ask(port, b"", "GET", "/runs", Host="evil.example")[0] == 400
    for name in ("localhost", "127.0.0.1", "[::1]"):
        assert ask(port, b"", "GET", "/runs", Host=f"{name}:{port}")[0] == 200


def test_requests_of_pages_of_other_sites_are_refused(port: int) -> None:
    """A browser adds the header ``Sec-Fetch-Site`` to each request of a page."""
    headers = {"Sec-Fetch-Site": "cross-site"}
    assert ask(port, {"text": TEXT}, **headers)[0] == 403
    assert ask(port, {"text": TEXT}, **{"Sec-Fetch-Site": "same-origin"})[0] == 200


def test_the_page_needs_no_other_file_and_runs_no_other_script(port: int) -> None:
    from fusetk.exploring.page import page_headers

    status, content = ask(port, b"", "GET", "/")
    text = content.decode()
    assert status == 200 and text.startswith("<!DOCTYPE html>")
    policy = page_headers()["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    for tag in ("style", "script"):
        [inline] = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    for word in (
        "http:",
        "https:",
        "src=",
        "@import",
        "url(",
        "innerHTML",
        "document.write",
        "insertAdjacentHTML",
        "eval(",
        " style=",
        " onclick=",
    ):
        assert word not in text, word


def test_the_command_refuses_wrong_runs(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["explore", "a", "b", "c"])
    assert result.exit_code == 2 and "give one run or two runs" in result.stderr
    result = CliRunner().invoke(main, ["explore", str(tmp_path / "no"), "--port", "0"])
    assert result.exit_code == 2 and str(tmp_path / "no") in result.stderr
    assert result.stdout == ""


def test_the_command_refuses_raw_if_no_run_has_a_moving_average(runs: list[Path]) -> None:
    result = CliRunner().invoke(main, ["explore", str(runs[0]), "--port", "0", "--raw"])
    assert (
        result.exit_code == 2
        and "so --raw (raw=True in Python) has no effect: omit --raw" in result.stderr
    )
