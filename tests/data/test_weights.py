"""Several training corpora: numbers of pairs, and sampling weights."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from fusetk import runs
from fusetk import train as train_module
from fusetk import weights as weights_module
from fusetk.data import binarize, parallel, preprocess
from fusetk.data.batch_config import BatchConfig
from fusetk.data.config import DataConfig
from fusetk.data.corpus import Corpus
from fusetk.data.corpus_weights import CorpusPart, WeightedSpan, find, sampling_spans
from fusetk.data.parallel import chunks
from fusetk.data.pipeline import Pipeline
from fusetk.data.prepare import prepare
from fusetk.data.sampler import batches
from fusetk.errors import ConfigError, DataError
from fusetk.recipe import Recipe, load
from fusetk.training.loop import Trainer
from tests.helpers import forks

PREFIXES = ["/texts/raw/news", "/texts/raw/web", "/texts/old/news", "/texts/raw/subtitles"]
PARTS = [CorpusPart(prefix, pairs) for prefix, pairs in zip(PREFIXES, (10, 20, 30, 0), strict=True)]


# Names and weights -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("/texts/raw/web", 1),
        ("web", 1),
        ("raw/web", 1),
        ("../raw/web", 1),
        ("./web", 1),
        ("raw/news", 0),
        ("old/news", 2),
    ],
)
def test_a_corpus_is_named_by_the_end_of_its_path(name: str, found: int) -> None:
    assert find(name, PREFIXES) == PREFIXES[found]


def test_a_complete_path_is_not_ambiguous() -> None:
    assert find("news", ["news", "old/news"]) == "news"


def test_names_of_none_or_of_several_are_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"no training corpus is called 'wob'; data\.train has /texts/raw/news, ",
    ):
        find("wob", PREFIXES)
    with pytest.raises(
        ConfigError,
        match=r"'news' may be /texts/raw/news or /texts/old/news; write more of its path",
    ):
        find("news", PREFIXES)
    with pytest.raises(ConfigError, match="no training corpus"):
        find("eb", PREFIXES)


def test_each_corpus_has_a_span_unless_all_weights_are_one() -> None:
    assert (
        sampling_spans(PARTS, None)
        == sampling_spans(PARTS, {})
        == sampling_spans(PARTS, {"web": 1, "raw/news": 1.0})
        == []
    )
    assert sampling_spans(PARTS, {"web": 0.5, "raw/news": 0}) == [
        WeightedSpan(10, 30, 0.5),
        WeightedSpan(30, 60, 1),
        WeightedSpan(60, 60, 1),
    ]
    assert sampling_spans([CorpusPart("/a", 5), CorpusPart("/a", 5)], {"a": 2}) == [
        WeightedSpan(0, 5, 2),
        WeightedSpan(5, 10, 2),
    ]


def test_two_names_of_one_corpus_are_refused() -> None:
    with pytest.raises(ConfigError, match="web and raw/web are the same corpus, /texts/raw/web"):
        sampling_spans(PARTS, {"web": 2, "raw/web": 1})


def test_weights_that_leave_no_pair_are_refused_with_the_numbers() -> None:
    for weights in (
        {"raw/news": 0, "old/news": 0, "web": 0, "subtitles": 0},
        {"raw/news": 0, "old/news": 0, "web": 0},
    ):
        with pytest.raises(ConfigError, match=r"leave no pair .*/texts/raw/web: 0 x 20 pairs"):
            sampling_spans(PARTS, weights)


# The order of an epoch ---------------------------------------------------------------------------

SOURCE, TARGET = (np.random.default_rng(1).integers(1, 40, 3000).astype(np.int32) for _ in range(2))
SIZE = BatchConfig(size=300)


def occurrences(spans: list[WeightedSpan], seed: int = 1, epoch: int = 0) -> np.ndarray:
    """Return the number of occurrences of each pair in an epoch."""
    epoch_batches = list(batches(SOURCE, TARGET, SIZE, seed, epoch, spans))
    assert max(int(TARGET[pairs].sum()) for pairs in epoch_batches) <= SIZE.size
    return np.bincount(np.concatenate(epoch_batches), minlength=len(TARGET))


def test_the_weight_of_a_corpus_is_the_mean_number_of_occurrences() -> None:
    spans = [
        WeightedSpan(0, 1000, 2.75),
        WeightedSpan(1500, 2500, 0.5),
        WeightedSpan(2500, 3000, 1),
    ]  # the pairs 1000 to 1499 have no span
    first = occurrences(spans)
    assert set(first[:1000]) == {2, 3} and 700 < (first[:1000] == 3).sum() < 800
    assert not first[1000:1500].any()
    assert set(first[1500:2500]) == {0, 1} and 450 < first[1500:2500].sum() < 550
    assert set(first[2500:]) == {1}
    assert np.array_equal(first, occurrences(spans))
    for other in (occurrences(spans, epoch=1), occurrences(spans, seed=2)):
        assert not np.array_equal(first, other) and set(other[:1000]) == {2, 3}
    mean = np.mean([occurrences(spans, epoch=epoch)[:1000] for epoch in range(200)])
    assert mean == pytest.approx(2.75, abs=0.01)


def test_weights_of_one_change_nothing() -> None:
    plain = list(batches(SOURCE, TARGET, SIZE, 1, 4))
    ones = list(
        batches(SOURCE, TARGET, SIZE, 1, 4, [WeightedSpan(0, 1000, 1), WeightedSpan(1000, 3000, 1)])
    )
    assert all(np.array_equal(one, other) for one, other in zip(plain, ones, strict=True))


def test_an_epoch_has_at_least_one_pair() -> None:
    spans = [WeightedSpan(0, 3, 1e-6), WeightedSpan(5, 90, 1e-6)]
    drawn = [batches(SOURCE, TARGET, SIZE, 1, epoch, spans) for epoch in range(30)]
    pairs = {int(pair) for epoch in drawn for batch in epoch for pair in batch}
    assert all(len(epoch) == len(epoch[0]) == 1 for epoch in drawn)
    assert len(pairs) > 10 and pairs <= set(range(5, 90))


# Records of prep ---------------------------------------------------------------------------------


def write(folder: Path, name: str, count: int, seed: int) -> str:
    """Write a corpus whose words begin with its name, and return its prefix."""
    choose = random.Random(seed)
    lines = [
        [f"{name}{choose.choice('abcdefgh')}" for _ in range(choose.randint(0, 12))]
        for _ in range(count)
    ]
    for language in ("de", "en"):
        (folder / f"{name}.{language}").write_text("".join(" ".join(line) + "\n" for line in lines))
    return str(folder / name)


STEPS = [
    {"step": "filter", "max_length": 11},
    {"step": "deduplicate"},
    {"step": "truecase"},
    {"step": "filter", "min_length": 2},
]


@pytest.mark.parametrize(
    ("more", "jobs"),
    [
        ({"valid": {"every": 7}}, 1),
        ({"valid": {"sample": 60}}, 2),
        ({"valid": {"every": 5}, "bpe": {"merges": 4, "max_subwords": 18}}, 1),
        ({"bpe": {"merges": 4, "max_subwords": 18}}, 2),
    ],
)
def test_pairs_of_each_corpus_are_counted(
    more: dict, jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With filters, deduplication, two passes, a split, a limit of subwords, and several jobs."""
    for module in (preprocess, binarize):
        monkeypatch.setattr(module, "chunks", lambda items, size: chunks(items, size, 500))
    monkeypatch.setattr(parallel, "MIN_ITEMS", 0)
    names = ["x", "y", "z"]
    train = [
        write(tmp_path, name, count, seed)
        for seed, (name, count) in enumerate(zip(names, (200, 3, 150), strict=True))
    ]
    values = {
        "source": "de",
        "target": "en",
        "folder": str(tmp_path / "out"),
        "train": train,
        "valid": [train[0]],
        "steps": STEPS,
        **more,
    }
    manifest = prepare(DataConfig.model_validate(values), jobs=jobs)
    corpus = Corpus.open(tmp_path / "out", "train")
    assert [part.prefix for part in corpus.parts] == train and sum(
        part.pairs for part in corpus.parts
    ) == len(corpus)
    assert manifest.splits["train"]["corpora"] == [
        {"prefix": part.prefix, "pairs": part.pairs} for part in corpus.parts
    ]
    vocabulary = Pipeline.load(tmp_path / "out" / "text").source_vocab
    firsts = [vocabulary.decode(ids)[0][0] for ids in corpus.source]
    assert firsts == [
        name for name, part in zip(names, corpus.parts, strict=True) for _ in range(part.pairs)
    ]
    assert 0 < corpus.parts[2].pairs < 150


def test_a_corpus_that_is_named_twice_is_read_twice(tmp_path: Path) -> None:
    first = write(tmp_path, "x", 50, 1)
    values = {
        "source": "de",
        "target": "en",
        "folder": str(tmp_path / "out"),
        "train": [first],
        "valid": [first],
    }
    pairs = prepare(DataConfig.model_validate(values)).splits["train"]["pairs_out"]
    twice = prepare(DataConfig.model_validate({**values, "train": [first, first]}))
    assert [part["pairs"] for part in twice.splits["train"]["corpora"]] == [pairs, pairs]


# Training ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return overrides that give the toy task two corpora of 400 and 200 pairs."""
    folder = tmp_path_factory.mktemp("two")
    for language in ("de", "en"):
        lines = (toy.parent / f"train.{language}").read_text().splitlines(keepends=True)
        (folder / f"first.{language}").write_text("".join(lines[:400]))
        (folder / f"second.{language}").write_text("".join(lines[400:]))
    overrides = [
        f"data.folder={folder / 'prepared'}",
        f"data.train=[{folder / 'first'}, {folder / 'second'}]",
    ]
    prepare(load(toy, overrides).data)
    return overrides


def seen(recipe: Recipe, run: Path) -> list[np.ndarray]:
    """Train, and return the pairs of each update."""
    updates: list[np.ndarray] = []
    plain = Trainer._update
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            Trainer,
            "_update",
            lambda self, corpus, indices, n: (
                updates.append(np.concatenate(indices)),
                plain(self, corpus, indices, n),
            )[1],
        )
        train_module.train(recipe, run, "cpu", quiet=True)
    return updates


def test_a_run_on_two_files_equals_that_on_one_file_with_the_same_text(
    toy: Path, two: list[str], tmp_path: Path
) -> None:
    train_module.train(load(toy), tmp_path / "one", "cpu", quiet=True)
    train_module.train(
        load(toy, [*two, "training.stages.0.weights={first: 1}"]),
        tmp_path / "two",
        "cpu",
        quiet=True,
    )
    first, second = (
        tmp_path / name / "checkpoints" / runs.checkpoint_name(8) / runs.MODEL
        for name in ("one", "two")
    )
    assert first.read_bytes() == second.read_bytes()


def test_a_later_stage_fine_tunes_on_one_corpus(toy: Path, two: list[str], tmp_path: Path) -> None:
    stage = "optimizer: adam, schedule: {kind: constant, rate: 0.001}, batch: {size: 400}"
    first = f"{{{stage}, end: {{epochs: 1}}}}"
    second = f"{{{stage}, weights: {{first: 0, second: 1.5}}, end: {{epochs: 2}}}}"
    updates = seen(load(toy, [*two, f"training.stages=[{first}, {second}]"]), tmp_path)
    end = next(i for i, _ in enumerate(updates) if sum(map(len, updates[:i])) == 600)
    assert sorted(np.concatenate(updates[:end])) == list(range(600))
    tuned = np.bincount(np.concatenate(updates[end:]), minlength=600)
    assert not tuned[:400].any() and set(tuned[400:]) == {2, 3, 4}


def test_weighted_runs_resume_to_the_bit(toy: Path, two: list[str], tmp_path: Path) -> None:
    """In the middle of an epoch, and in a later one."""
    overrides = [
        *two,
        "training.stages.0.weights={first: 0.3, second: 1.7}",
        "training.validation.every_updates=100",
    ]
    parts = [f"training.stages.0.end.updates={end}" for end in (3, 10, 17)]
    whole = seen(load(toy, [*overrides, parts[-1]]), tmp_path / "whole")
    resumed = [
        pairs for part in parts for pairs in seen(load(toy, [*overrides, part]), tmp_path / "parts")
    ]
    assert all(np.array_equal(first, second) for first, second in zip(whole, resumed, strict=True))
    first, second = (
        tmp_path / name / "checkpoints" / runs.checkpoint_name(17) / runs.MODEL
        for name in ("whole", "parts")
    )
    assert first.read_bytes() == second.read_bytes()
    with pytest.raises(ConfigError, match=r"another config.*weights\.first: 0\.3 -> 0\.4"):
        train_module.train(
            load(toy, [*overrides, parts[-1], "training.stages.0.weights.first=0.4"]),
            tmp_path / "whole",
            "cpu",
            quiet=True,
        )


def test_a_weighted_run_of_two_processes_equals_that_of_one(
    toy: Path, two: list[str], tmp_path: Path
) -> None:
    overrides = [*two, "training.stages.0.weights={first: 0.3, second: 1.7}", "model.dropout=0"]
    overrides += ["training.stages.0.optimizer={kind: nag, momentum: 0.9}"]
    train_module.train(load(toy, overrides), tmp_path / "one", "cpu", quiet=True)
    forks.train(toy, tmp_path / "many", overrides, 2).succeed()
    single, several = (
        weights_module.read_tensors(
            tmp_path / name / "checkpoints" / runs.checkpoint_name(8), runs.MODEL
        )
        for name in ("one", "many")
    )
    for name, tensor in single.items():
        torch.testing.assert_close(several[name], tensor, rtol=1e-4, atol=1e-6)


def test_weights_that_do_not_fit_are_refused_before_anything_is_written(
    toy: Path, two: list[str], tmp_path: Path
) -> None:
    for weights, said in (
        ("{third: 2}", "no training corpus is called 'third'"),
        ("{first: 0, second: 0}", "leave no pair"),
    ):
        with pytest.raises(ConfigError, match=said):
            train_module.train(
                load(toy, [*two, f"training.stages.0.weights={weights}"]),
                tmp_path / "run",
                "cpu",
                quiet=True,
            )
    for weight, said in (("-1", "at least 0"), ("1e9", "at most 1000")):  # 1e9 needs much memory
        with pytest.raises(ConfigError, match=rf"weights\.first.*must be {said}"):
            load(toy, [*two, f"training.stages.0.weights={{first: {weight}}}"])
    assert not (tmp_path / "run").exists()


def test_a_corpus_that_is_left_out_may_have_longer_sentences_than_a_batch(
    toy: Path, two: list[str], tmp_path: Path
) -> None:
    folder = Path(load(toy, two).data.folder).parent
    for language, word in (("de", "eins"), ("en", "EINS")):
        (tmp_path / f"long.{language}").write_text(" ".join([word] * 500) + "\n")
    overrides = [
        f"data.folder={tmp_path / 'prepared'}",
        f"data.train=[{folder / 'first'}, {tmp_path / 'long'}]",
    ]
    prepare(load(toy, overrides).data)
    with pytest.raises(DataError, match="501 tokens and a batch holds 400"):
        train_module.train(load(toy, overrides), tmp_path / "run", "cpu", quiet=True)
    train_module.train(
        load(toy, [*overrides, "training.stages.0.weights={long: 0}"]),
        tmp_path / "run",
        "cpu",
        quiet=True,
    )
