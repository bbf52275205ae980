"""``fusetk.load``: what docs/python.md shows, settings of a call, scores, threads."""

import os
import pickle
import random
import subprocess
import sys
import threading
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch

import fusetk
from fusetk import runs, trace
from fusetk.data.pipeline import Pipeline, Text
from fusetk.data.vocab import Vocabulary
from fusetk.decoding.requests import Request
from fusetk.errors import ConfigError, DataError
from fusetk.models import MODELS
from fusetk.models.quantization import to_bf16, to_int8
from fusetk.nn.inference_linear import kernels_are_faster
from fusetk.system import load_model
from tests.cli.test_decode import WORDS, make_run, output
from tests.contracts.systems import SYSTEMS
from tests.helpers.batches import random_batch
from tests.helpers.forks import Forks
from tests.helpers.threads import torch_threads
from tools.manual import commands
from tools.markdown import blocks

LINES = ["Ein Hund läuft.", "", "Hund", "Ein Hund läuft und bellt, und bellt.", "Katze?"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("run"))


def test_a_system_translates_as_the_command_does(trained: Path) -> None:
    drawn = torch.get_rng_state()
    system = fusetk.load(trained)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert system.translate(LINES) == output("-m", trained, lines=LINES)
    greedy = output("-m", trained, "-b", 1, lines=LINES)
    assert (
        system.translate(LINES, beam=1)
        == fusetk.load(str(trained), beam=1).translate(LINES)
        == greedy
    )
    assert system.translate([]) == [] and system.score([], []) == []
    with pytest.raises(ConfigError, match=r"baem.*did you mean 'beam'"):
        system.translate(LINES, baem=2)
    with pytest.raises(ConfigError, match="effect with several models only"):
        system.translate(["a"], ensemble="log")
    with pytest.raises(ConfigError, match="effect with several models only"):
        fusetk.load(trained, ensemble="log")
    with pytest.raises(ConfigError, match="ensemble_weights has 3 numbers for 2 models"):
        fusetk.load([trained, trained], ensemble_weights=[1, 2, 3])
    with pytest.raises(ConfigError, match=r"ensemble_weights.0: must be greater than 0"):
        fusetk.load([trained, trained], ensemble_weights=[0, 1])
    with pytest.raises(ConfigError, match="fp8"):
        fusetk.load(trained, precision="fp8")
    with pytest.raises(ConfigError, match="device cpu, not meta"):
        to_int8(load_model(trained).model.to("meta"))


def test_without_kernels_a_change_of_the_weights_has_an_effect(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in kernels_are_faster[torch.float32]:
        monkeypatch.setitem(kernels_are_faster[torch.float32], kind, True)
    original = load_model(trained).model
    system = fusetk.load(trained, kernels=False)
    [model] = system.models
    assert dict(model.named_parameters()).keys() == dict(original.named_parameters()).keys()
    before = system.score(LINES, LINES)
    assert before == pytest.approx(fusetk.load(trained).score(LINES, LINES), abs=1e-3)
    with torch.no_grad():
        model.get_parameter("decoder.layers.0.ffn.out.weight").mul_(3)
    assert system.score(LINES, LINES) != pytest.approx(before, abs=1e-3)


def test_a_model_in_training_mode_does_not_translate(trained: Path) -> None:
    system = fusetk.load(trained, kernels=False)
    system.models[0].train()
    with pytest.raises(ConfigError, match=r"training mode.*call the method eval"):
        system.translate(LINES)
    system.models[0].eval()
    assert system.translate(LINES)


def test_load_does_not_seed_the_random_numbers_of_gpus(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    fusetk.load(trained)
    assert seeds == []


SEARCHES: list[dict[str, Any]] = [
    {},
    {"beam": 1},
    {"beam": 4, "groups": 2, "diversity": 0.5},
    {"sample": True},
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_number_type_of_the_program_changes_nothing(
    trained: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    for kind in kernels_are_faster[torch.float32]:
        monkeypatch.setitem(kernels_are_faster[torch.float32], kind, True)
    system = fusetk.load(trained)

    def results(system: fusetk.System) -> list[Any]:
        translations = [system.n_best(LINES, **settings) for settings in SEARCHES]
        return [*translations, system.score(LINES, LINES)]

    expected = results(system)
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        assert results(system) == expected
        loaded = fusetk.load(trained)
        assert {p.dtype for p in loaded.models[0].parameters()} == {torch.float32}
        assert results(loaded) == expected
        assert torch.get_default_dtype() == dtype
    finally:
        torch.set_default_dtype(default)


def test_a_system_can_be_pickled_after_its_use(trained: Path) -> None:
    system = fusetk.load(trained)
    expected = system.n_best(LINES)
    assert pickle.loads(pickle.dumps(system)).n_best(LINES) == expected


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_in_bf16_can_be_pickled(kind: str) -> None:
    model = to_bf16(next(build for name, build in SYSTEMS.items() if name.startswith(kind))())
    batch = random_batch()
    with torch.inference_mode():
        features = [
            each.output(each(batch.src, batch.src_mask, batch.tgt_in))
            for each in (model, pickle.loads(pickle.dumps(model)))
        ]
    assert torch.equal(*features)


def test_a_model_in_double_precision_gives_the_same_translations(trained: Path) -> None:
    system = fusetk.load(trained)
    double = fusetk.load(trained, kernels=False)
    double.models[0].double()
    for settings in SEARCHES:
        assert double.translate(LINES, **settings) == system.translate(LINES, **settings)
    assert double.score(LINES, LINES) == pytest.approx(system.score(LINES, LINES), abs=1e-4)


def test_the_score_of_a_translation_is_that_of_the_search(tmp_path: Path) -> None:
    wordy = make_run(
        tmp_path, words=["ein", "hund", "katze"]
    )  # no punctuation, so that text becomes the same tokens again
    system = fusetk.load([wordy, wordy / "checkpoints" / "best"], forbid_unknown=True)
    best_of_line = [
        (line, best[0]) for line, best in zip(LINES, system.n_best(LINES), strict=True) if best
    ]
    scores = system.score(
        [line for line, _ in best_of_line], [best.text for _, best in best_of_line]
    )
    assert scores == pytest.approx([best.score for _, best in best_of_line], abs=1e-4)
    assert system.score(LINES[:1], ["hund hund hund hund"])[0] < scores[0]
    with pytest.raises(DataError, match="2 source lines and 1 target line cannot"):
        system.score(["a", "b"], ["c"])


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("Ein Hund", "lines is of type str: give a list of lines"),
        (b"Ein Hund", "lines is of type bytes"),
        (Request("Ein Hund"), "lines is of type Request"),
        (None, "lines is None"),
        (["Hund", None], "line 2 of lines is None"),
        ([b"Hund"], "line 1 of lines is of type bytes"),
        ([Request("Hund", constraints="Hund")], "constraints of line 1 are of type str"),
        ([Request("Hund", constraints=None)], "constraints of line 1 are None"),
        (
            [Request("Hund", prefix=None)],
            "Request of line 1 has a text, prefix or phrase that is not a string",
        ),
    ],
)
def test_input_that_is_not_a_list_of_lines_is_refused(trained: Path, lines: Any, said: str) -> None:
    system = fusetk.load(trained)
    for method in (system.translate, system.n_best):
        with pytest.raises(DataError, match=said):
            method(lines)
    if not any(isinstance(line, Request) for line in lines or ()):
        with pytest.raises(DataError, match=said.replace("lines", "sources", 1)):
            system.score(lines, ["a"])
        with pytest.raises(DataError, match=said.replace("lines", "targets", 1)):
            system.score(["a"], lines)


def test_constraints_may_be_any_iterable(trained: Path) -> None:
    system = fusetk.load(trained)
    requests = [
        Request("katze", constraints=make(["hund hund"]))
        for make in (tuple, list, iter)  # type: ignore[list-item]
    ]
    translations = [system.translate([request]) for request in requests]
    assert translations[0] == translations[1] == translations[2]
    assert "hund hund" in translations[0][0]


@pytest.mark.parametrize("path", [None, 5, b"run", ["run", None]], ids=str)
def test_a_model_path_of_a_wrong_type_is_refused(path: Any) -> None:
    with pytest.raises(ConfigError, match=r"the path of a model is .*: give a string or a Path"):
        fusetk.load(path)


def test_an_empty_list_of_models_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no model to load"):
        fusetk.load([])


def test_any_iterable_of_lines_is_a_list_of_lines(trained: Path) -> None:
    system = fusetk.load(trained)
    assert (
        system.translate(line for line in LINES)
        == system.translate(tuple(LINES))
        == system.translate(LINES)
    )


def test_line_ends_do_not_change_words(tmp_path: Path) -> None:
    """`readlines` keeps line ends; without the step `tokenize`, they would change the last word."""
    run = make_run(tmp_path)
    vocabularies = (Vocabulary(WORDS), Vocabulary(WORDS))
    Pipeline(Text([], "de", "en"), {}, vocabularies).save(run / runs.TEXT)
    system = fusetk.load(run)
    for end in ("\n", "\r\n"):
        assert system.score(["ein hund" + end], ["katze" + end]) == system.score(
            ["ein hund"], ["katze"]
        )
        requests = [
            Request("ein hund" + e, "katze" + e, ("hund" + e, "ein" + e)) for e in ("", end)
        ]
        [expected, found] = [system.n_best([request]) for request in requests]
        assert expected == found
        assert system.n_best(["ein hund" + end]) == system.n_best(["ein hund"])


def test_the_default_device_is_that_of_the_commands(trained: Path) -> None:
    devices = [
        option.default
        for command in commands().values()
        for option in command.params
        if option.name == "device"
    ]
    assert len(devices) > 3 and set(devices) == {fusetk.DEVICE} == {
        signature(fusetk.load).parameters["device"].default
    }
    system = fusetk.load(trained)
    assert next(system.models[0].parameters()).device.type == (
        "cuda" if torch.cuda.is_available() else "cpu"
    )


def test_two_threads_give_the_translations_of_each_one_alone(trained: Path) -> None:
    system = fusetk.load(trained)
    texts = [
        [
            " ".join(WORDS[i % 7] for i in range(start, start + 1 + start % 5))
            for start in range(20 * k, 20 * k + 20)
        ]
        for k in (1, 2)
    ]
    alone = [system.n_best(text, beam=k + 1, n_best=k + 1) for k, text in enumerate(texts)]
    together: list[list[object]] = [[], []]

    def work(k: int) -> None:
        together[k] = [system.n_best(texts[k], beam=k + 1, n_best=k + 1) for _ in range(3)]

    threads = [threading.Thread(target=work, args=(k,)) for k in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == [[found] * 3 for found in alone]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_computes_after_its_parent_used_two_threads(trained: Path) -> None:
    code = f"""
import signal, torch, fusetk
torch.set_num_threads(2)
system = fusetk.load({str(trained)!r}, device="cpu")
def work():
    torch.ones(1000, 1000).exp()  # both threads work on it
    return system.translate(["Hund"] * 3)
expected = work()
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
signal.alarm(30)  # ends the process if it waits forever
os._exit(work() != expected)
"""
    Forks([], code=code).succeed()


@pytest.mark.parametrize(
    "settings",
    [{"beam": 4}, {"beam": 1}, {"n_best": 3, "sample": True}],
    ids=["beam", "greedy", "sample"],
)
def test_neither_batches_nor_threads_nor_order_change_a_translation(
    trained: Path, settings: dict[str, Any]
) -> None:
    """Texts are equal, and scores up to rounding. Samples depend on the line number."""
    choose = random.Random(8)
    lines = [" ".join(choose.choices(WORDS, k=choose.randint(1, 9))) for _ in range(12)]
    system = fusetk.load(trained, max_length_extra=6, **settings)
    expected = system.n_best(lines)
    order = list(range(12)) if settings.get("sample") else choose.sample(range(12), 12)
    for threads, batch_tokens in ((1, 1), (1, 70), (2, 70), (2, 10_000)):
        with torch_threads(threads):
            found = system.n_best([lines[i] for i in order], batch_tokens=batch_tokens)
        results = dict(zip(order, found, strict=True))
        for i, best in enumerate(expected):
            assert [one.tokens for one in results[i]] == [one.tokens for one in best]
            assert [one.score for one in results[i]] == pytest.approx(
                [one.score for one in best], abs=1e-4
            )


def test_a_listener_sees_the_tensors_of_all_batches(trained: Path) -> None:
    system = fusetk.load(trained, batch_tokens=30)
    names = []
    for threads in (1, 2):
        with torch_threads(threads), trace.listen() as records:
            system.translate(["ein hund bellt", "hund", "und", "ein hund"])
        names.append({name: len(tensors) for name, tensors in records.items()})
    assert names[0] == names[1] and "decoder.layer1.cross" in names[0]


def test_the_page_about_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    page = (Path(__file__).parent.parent / "docs/python.md").read_text(encoding="utf-8")
    first, *others = blocks(page, "python")
    assert "fusetk.load" in first and 5 <= len(first.splitlines()) <= 16 and others
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "my", fuse="attention")
    exec(compile("\n".join([first, *others]), "python.md", "exec"), {})
    assert capsys.readouterr().out


def test_importing_fusetk_imports_nothing_else() -> None:
    code = (
        "import sys; before = set(sys.modules); import fusetk; print(*(set(sys.modules) - before))"
    )
    modules = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert {name.split(".")[0] for name in modules} - sys.stdlib_module_names == {"fusetk"}
