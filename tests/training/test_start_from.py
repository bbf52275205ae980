"""Training and preparation that start from an existing run, codes and vocabularies."""

import shutil
from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner

from fusetk.cli.main import main
from fusetk.data import manifest
from fusetk.data.pipeline import Pipeline
from fusetk.data.prepare import prepare
from fusetk.data.vocab import Vocabulary
from fusetk.errors import ConfigError, DataError
from fusetk.recipe import Recipe, load
from fusetk.resume import check_before_prep
from fusetk.system import build
from fusetk.train import train
from fusetk.training import checkpoint
from fusetk.training.start_from import start_checkpoint, start_from
from fusetk.weights import read_tensors
from tests.helpers.metrics import records


@pytest.fixture(scope="module")
def parent(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with BPE on the toy corpus."""
    folder = tmp_path_factory.mktemp("parent")
    recipe = load(
        toy, [f"data.folder={folder / 'data'}", "data.bpe={merges: 20}", "training.log_every=100"]
    )
    prepare(recipe.data)
    train(recipe, folder / "run", "cpu", quiet=True)
    return folder / "run"


def second(toy: Path, parent: Path, folder: Path, *settings: str) -> Recipe:
    """A config for a second corpus, with a word that the first does not have."""
    for side, word in (("de", "elf"), ("en", "ELF")):
        text = (toy.parent / f"valid.{side}").read_text(encoding="utf-8")
        (folder / f"new.{side}").write_text(text.replace("\n", f" {word}ß\n"), encoding="utf-8")
    text = parent / "text"
    return load(
        toy,
        [
            f"data.folder={folder / 'prepared'}",
            f"data.train=[{folder / 'new'}]",
            f"data.bpe={{codes: {text / 'bpe.codes'}}}",
            f"data.vocabulary={{source: {text / 'vocab.de'}, target: {text / 'vocab.en'}}}",
            f"training.start_from={parent}",
            *settings,
        ],
    )


def test_existing_codes_and_vocabularies_give_the_same_ids(
    toy: Path, parent: Path, tmp_path: Path
) -> None:
    recipe = second(toy, parent, tmp_path, f"data.train=[{toy.parent / 'train'}]")
    prepare(recipe.data)
    first = parent.parent / "data"
    old, new = Pipeline.load(first / "text"), Pipeline.load(tmp_path / "prepared" / "text")
    assert old.source_vocab.tokens == new.source_vocab.tokens
    assert old.bpe["source"].codes == new.bpe["source"].codes
    ids = [
        sorted(path.name for path in folder.iterdir()) for folder in (first, tmp_path / "prepared")
    ]
    assert ids[0] == ids[1]
    for name in ids[0]:
        path = first / name
        if path.is_file() and name.startswith("train.") and path.suffix != ".json":
            assert path.read_bytes() == (tmp_path / "prepared" / name).read_bytes(), name


def test_a_vocabulary_is_extended_at_its_end(toy: Path, parent: Path, tmp_path: Path) -> None:
    recipe = second(toy, parent, tmp_path, "data.vocabulary.extend=true")
    prepare(recipe.data)
    old = Pipeline.load(parent / "text")
    new = Pipeline.load(tmp_path / "prepared" / "text")
    for side in ("source_vocab", "target_vocab"):
        before, after = getattr(old, side).tokens, getattr(new, side).tokens
        assert after[: len(before)] == before and "ß" in after[len(before) :]
    options = [f"data.vocabulary.size={len(before)}", "data.vocabulary.extend=true"]
    prepare(second(toy, parent, tmp_path, *options).data)
    assert Pipeline.load(tmp_path / "prepared" / "text").target_vocab.tokens == before


def test_weights_are_matched_by_name_and_rows_by_token(
    toy: Path, parent: Path, tmp_path: Path
) -> None:
    recipe = second(toy, parent, tmp_path, "data.vocabulary.extend=true")
    prepare(recipe.data)
    pipeline = Pipeline.load(tmp_path / "prepared" / "text")
    sizes = len(pipeline.source_vocab), len(pipeline.target_vocab)
    torch.manual_seed(3)
    model = build(recipe, *sizes)
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    report = start_from(model, *start_checkpoint(parent), pipeline)
    tensors = read_tensors((parent / "checkpoints" / "best").resolve(), "model.safetensors")
    assert sorted(report.copied) == sorted(tensors) and not report.missing + report.different
    for name, parameter in model.named_parameters():
        known = len(tensors[name])
        assert torch.equal(parameter[:known], tensors[name]), name
        assert torch.equal(parameter[known:], before[name][known:]), name
    assert {rows.name for rows in report.rows if rows.new} >= {"source.tokens.weight"}


def test_learned_positions_are_not_matched_by_token(
    toy: Path, parent: Path, tmp_path: Path
) -> None:
    """Both runs have as many positions as tokens."""
    pipeline = Pipeline.load(parent / "text")
    size = len(pipeline.source_vocab)
    positions = ("model.positions=learned", f"model.max_positions={size}")
    run = tmp_path / "run"
    data = f"data.folder={parent.parent / 'data'}"
    recipe = load(toy, [data, "data.bpe={merges: 20}", *positions])
    train(recipe, run, "cpu", quiet=True)
    tokens = pipeline.source_vocab.tokens[4:]
    pipeline.source_vocab = Vocabulary(tokens[::-1])
    model = build(recipe, size, len(pipeline.target_vocab))
    start_from(model, *start_checkpoint(run), pipeline)
    tensors = read_tensors((run / "checkpoints" / "best").resolve(), "model.safetensors")
    weights = dict(model.named_parameters())
    assert torch.equal(weights["source.positions.weight"], tensors["source.positions.weight"])
    reordered = tensors["source.tokens.weight"][[*range(4), *range(size - 1, 3, -1)]]
    assert torch.equal(weights["source.tokens.weight"], reordered)


def test_rows_of_embeddings_with_the_name_of_their_side(parent: Path, tmp_path: Path) -> None:
    pipeline = Pipeline.load(parent / "text")
    size = len(pipeline.source_vocab)
    checkpoint.save(tmp_path / "old", {"source.weight": torch.arange(float(size))[:, None]}, {}, {})
    pipeline.source_vocab = Vocabulary(pipeline.source_vocab.tokens[4:][::-1])
    model = torch.nn.ModuleDict({"source": torch.nn.Embedding(size, 1)})
    start_from(model, parent, tmp_path / "old", pipeline)
    rows = model.get_parameter("source.weight").flatten().tolist()
    assert rows == [*range(4), *range(size - 1, 3, -1)]


def test_weights_that_do_not_fit_are_named(toy: Path, parent: Path, tmp_path: Path) -> None:
    settings = ["model.encoder.layers=2", "model.decoder.layers=1", "model.ffn=32"]
    recipe = second(toy, parent, tmp_path, *settings)
    pipeline = Pipeline.load(parent / "text")
    model = build(recipe, len(pipeline.source_vocab), len(pipeline.target_vocab))
    report = start_from(model, *start_checkpoint(parent), pipeline)
    assert all(name.startswith("encoder.layers.1.") for name in report.missing)
    assert "encoder.layers.0.ffn.hidden.weight" in report.different and not report.unused
    text = "\n".join(report.lines())
    assert "because the run does not have them" in text and "because their shapes differ" in text
    other = build(load(toy, ["model.width=16", "model.ffn=24"]), 10, 10)
    with pytest.raises(ConfigError, match=r"no weight of .* fits this model"):
        start_from(other, *start_checkpoint(parent), pipeline)


def test_fine_tuning_continues_from_the_run(toy: Path, parent: Path, tmp_path: Path) -> None:
    """The example of the documentation: a config that extends that of the run; train and decode."""
    second(toy, parent, tmp_path)
    values = {
        "extends": str(toy),
        "data": {
            "folder": "prepared",
            "train": ["new"],
            "bpe": {"codes": str(parent / "text" / "bpe.codes")},
            "vocabulary": {
                "source": str(parent / "text" / "vocab.de"),
                "target": str(parent / "text" / "vocab.en"),
            },
        },
        "training": {"start_from": str(parent)},
    }
    (tmp_path / "tuned.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")

    def call(*words: object) -> str:
        result = CliRunner().invoke(main, [str(word) for word in words])
        assert result.exit_code == 0, result.output
        return result.output

    run = tmp_path / "tuned"
    call("train", tmp_path / "tuned.yaml", "--prep", "-d", "cpu", "-r", run, "-q")
    log = (run / "log.txt").read_text()
    assert f"start from {parent / 'checkpoints'}" in log and "weights copied" in log
    first, tuned = (records(each, "valid")[0]["loss"] for each in (parent, run))
    assert tuned < first, "a run that starts from weights begins with a lower loss"
    call("train", tmp_path / "tuned.yaml", "-d", "cpu", "-r", run, "-q")  # does not start again
    assert (run / "log.txt").read_text().count("weights copied") == 1
    text = tmp_path / "in.de"
    text.write_text("eins zwei\n", encoding="utf-8")
    call("decode", "-m", run, text, "-o", tmp_path / "out")
    prepared = manifest.read(tmp_path / "prepared")
    changed = ["train", tmp_path / "tuned.yaml", "--prep", "-r", run, "--set"]
    refused = CliRunner().invoke(main, [*map(str, changed), "data.bpe.max_subwords=9"])
    assert refused.exit_code == 2 and "data.bpe.max_subwords: none -> 9" in refused.stderr
    assert manifest.read(tmp_path / "prepared") == prepared, "the text was not prepared again"
    (tmp_path / "copy").mkdir()
    for other in ("null", str(tmp_path / "copy")):
        with pytest.raises(ConfigError, match="start_from"):
            train(load(tmp_path / "tuned.yaml", [f"training.start_from={other}"]), run, "cpu", True)


def test_a_run_is_resumed_after_its_parent_was_moved(
    toy: Path, parent: Path, tmp_path: Path
) -> None:
    old = tmp_path / "parent"
    shutil.copytree(parent, old, symlinks=True)
    settings = ["training.stages.0.end.updates=2", "training.validation.every_updates=2"]
    recipe = second(toy, parent, tmp_path, f"training.start_from={old}", *settings)
    prepare(recipe.data)
    train(recipe, tmp_path / "run", "cpu", quiet=True)
    moved = old.rename(tmp_path / "moved")
    settings[0] = "training.stages.0.end.updates=4"
    recipe = second(toy, parent, tmp_path, f"training.start_from={moved}", *settings)
    train(recipe, tmp_path / "run", "cpu", quiet=True)
    assert "changed: training.start_from: " in (tmp_path / "run" / "log.txt").read_text()
    # The last checkpoint may record the old path, if the training was killed before the next one.
    recipe = second(toy, parent, tmp_path, f"training.start_from={moved}", *settings)
    newest, before = (tmp_path / "run/checkpoints" / f"update-000000{n}" for n in (4, 2))
    shutil.rmtree(newest)
    (tmp_path / "run/checkpoints/last").unlink()
    (tmp_path / "run/checkpoints/last").symlink_to(before.name)
    train(recipe, tmp_path / "run", "cpu", quiet=True)
    assert newest.exists()


def test_the_moving_average_of_the_run_is_copied(toy: Path, tmp_path: Path) -> None:
    settings = ["training.ema=0.9", "training.stages.0.end.updates=4"]
    recipe = load(toy, settings)
    run = tmp_path / "run"
    train(recipe, run, "cpu", quiet=True)
    pipeline = Pipeline.load(run / "text")
    model = build(recipe, len(pipeline.source_vocab), len(pipeline.target_vocab))
    report = start_from(model, *start_checkpoint(run), pipeline)
    mean = read_tensors(report.folder, "ema.safetensors")
    raw = read_tensors(report.folder, "model.safetensors")
    assert all(torch.equal(mean[name], value) for name, value in model.named_parameters())
    assert any(not torch.equal(mean[name], raw[name]) for name in mean)
    assert report.lines()[0].endswith(" moving averages copied")


def test_existing_files_that_changed_are_noticed(toy: Path, parent: Path, tmp_path: Path) -> None:
    codes = tmp_path / "codes"
    codes.write_text((parent / "text" / "bpe.codes").read_text())
    recipe = second(toy, parent, tmp_path, f"data.bpe.codes={codes}")
    prepare(recipe.data)
    codes.write_text("#version: 0.2\ne i\n")
    with pytest.raises(DataError, match=r"data\.bpe\.codes\.0: .* changed\): run fusetk prep"):
        train(recipe, tmp_path / "run", "cpu", quiet=True)
    assert "bpe" in prepare(recipe.data).made and "bpe" not in prepare(recipe.data).made


def test_changed_codes_do_not_replace_the_text_of_a_run(
    toy: Path, parent: Path, tmp_path: Path
) -> None:
    codes = tmp_path / "codes"
    codes.write_text((parent / "text" / "bpe.codes").read_text())
    settings = [f"data.bpe.codes={codes}", "training.stages.0.end.updates=2"]
    recipe = second(toy, parent, tmp_path, *settings)
    prepare(recipe.data)
    run = tmp_path / "run"
    train(recipe, run, "cpu", quiet=True)
    codes.write_text("#version: 0.2\ne i\n")
    with pytest.raises(ConfigError, match=f"{codes} changed since .* train without --prep"):
        check_before_prep(recipe, run)
    settings[1] = "training.stages.0.end.updates=3"
    train(second(toy, parent, tmp_path, *settings), run, "cpu", quiet=True)
    log = (run / "log.txt").read_text(encoding="utf-8")
    assert f"{codes} changed since" in log and "keeps the prepared text" in log


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("data.bpe={}", "give one of merges"),
        ("data.bpe={merges: 3, codes: a}", "give one of merges"),
        ("data.bpe={codes: [a, b, c]}", "data.bpe.codes: must have at most 2 items"),
        ("data.vocabulary={extend: true}", "extend has an effect with source or target only"),
        ("data.vocabulary={joint: true, source: a, target: b}", "a joint vocabulary has one file"),
        ("training.stages.0.start=best", "the first stage has start: best"),
        ("data.bpe={codes: a, joint: false}", "joint has no effect with codes: remove joint, or"),
        ("data.bpe={codes: a, min_frequency: 3}", "min_frequency has no effect with codes"),
        ("data.bpe={merges: 3, segmentations: 3}", "segmentations has no effect without dropout"),
        ("data.bpe={merges: 3, seed: 2}", "seed has no effect without dropout"),
        ("data.vocabulary={source: a, target: b, size: 9}", "size has no effect on existing"),
        ("data.vocabulary={joint: true, source: a, threshold: 2}", "threshold has no effect on"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    toy: Path, setting: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        load(toy, [setting])


@pytest.mark.parametrize(
    "setting",
    [
        "data.bpe={codes: a, joint: true, min_frequency: 2, segmentations: 10, seed: 1}",
        "data.bpe={codes: a, dropout: 0.1, segmentations: 3, seed: 2}",
        "data.vocabulary={source: a, target: b, threshold: 1, size: null}",
        "data.vocabulary={source: a, target: b, threshold: 2, size: 9, extend: true}",
        "data.vocabulary={source: a, threshold: 2, size: 9}",
    ],
)
def test_defaults_and_keys_with_an_effect_are_accepted(toy: Path, setting: str) -> None:
    """A stored config has all keys."""
    load(toy, [setting])


def test_codes_that_cannot_be_used_are_refused(toy: Path, tmp_path: Path) -> None:
    (tmp_path / "codes").write_text("#version: 0.2\na b c d\n")
    folder = f"data.folder={tmp_path / 'p'}"
    with pytest.raises(DataError, match=r"codes, line 2: .* is not a merge"):
        prepare(load(toy, [folder, f"data.bpe={{codes: {tmp_path / 'codes'}}}"]).data)
    with pytest.raises(DataError, match=r"codez does not exist; did you mean codes\?"):
        prepare(load(toy, [folder, f"data.bpe={{codes: {tmp_path / 'codez'}}}"]).data)


def test_rows_follow_their_tokens_in_another_order(toy: Path, parent: Path) -> None:
    old = Pipeline.load(parent / "text")
    source, target = (
        Vocabulary(list(reversed(vocabulary.tokens[4:])))
        for vocabulary in (old.source_vocab, old.target_vocab)
    )
    model = build(load(toy), len(source), len(target))
    start_from(model, *start_checkpoint(parent), Pipeline(old, old.bpe, (source, target)))
    tensors = read_tensors((parent / "checkpoints" / "best").resolve(), "model.safetensors")
    for name in ("source.tokens.weight", "target.tokens.weight", "output.bias"):
        rows, before = model.get_parameter(name), tensors[name]
        assert torch.equal(rows[:4], before[:4]) and torch.equal(rows[4:].flip(0), before[4:])


def test_an_empty_name_of_a_run_is_refused(toy: Path) -> None:
    refused = CliRunner().invoke(main, ["train", str(toy), "--run", ""])
    assert refused.exit_code == 2 and "--run is empty" in refused.stderr
    refused = CliRunner().invoke(main, ["dataset", "iwslt14-de-en", "--raw", ""])
    assert refused.exit_code == 2 and "--raw is empty: name a file or a folder" in refused.stderr
