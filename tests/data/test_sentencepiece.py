"""The step sentencepiece: from raw text to raw text, also without spaces between words."""

import pickle
from pathlib import Path

import pytest

from fusetk.data.binarize import check_required_tokens
from fusetk.data.config import DataConfig
from fusetk.data.pipeline import Pipeline, Text
from fusetk.data.prepare import prepare
from fusetk.data.steps.base import Side
from fusetk.data.steps.sentencepiece import PieceModel, SentencePiece, join_pieces
from fusetk.data.vocab import EOS, Vocabulary
from fusetk.decoding.config import SearchConfig
from fusetk.decoding.translate import Translator
from fusetk.errors import ConfigError, DataError
from fusetk.evaluation.rescore import Rescorer
from fusetk.recipe import load
from fusetk.training.validation import Validator
from fusetk.training.validation_config import ValidationConfig

CHINESE = ["我們今天去學校", "你今天去哪裡", "他們去學校學習", "今天天氣很好"] * 30
ENGLISH = ["We go to school today.", "Where do you go?", "They learn; at school."] * 40


def prepared(toy: Path, folder: Path, *settings: str) -> Pipeline:
    for side, lines in (("de", CHINESE), ("en", ENGLISH)):
        (folder / f"text.{side}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    steps = "{step: sentencepiece, size: 330}"
    paths = [f"data.{split}=[{folder / 'text'}]" for split in ("train", "valid")]
    recipe = load(toy, [f"data.folder={folder / 'p'}", f"data.steps=[{steps}]", *paths, *settings])
    messages: list[str] = []
    prepare(recipe.data, report=messages.append)
    assert not any("spaces" in message for message in messages)
    return Pipeline.load(folder / "p" / "text")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sentencepiece", None)
    with pytest.raises(ConfigError, match=r"pip install 'fusetk\[sentencepiece\]'"):
        SentencePiece(step="sentencepiece").learn(["a"])


def test_bpe_and_sentencepiece_exclude_each_other(toy: Path) -> None:
    with pytest.raises(ConfigError, match="splits words into subwords: set bpe: null"):
        load(toy, ["data.steps=[{step: sentencepiece}]", "data.bpe={merges: 3}"])


def test_a_step_after_sentencepiece_must_not_change_its_subwords(toy: Path) -> None:
    with pytest.raises(ConfigError, match="the step lowercase would change the subwords of the"):
        load(toy, ["data.bpe=null", "data.steps=[{step: sentencepiece}, {step: lowercase}]"])
    for steps in (
        "{step: lowercase}, {step: sentencepiece}, {step: filter, max_length: 9}",
        "{step: sentencepiece, side: source}, {step: lowercase, side: target}",
    ):
        load(toy, ["data.bpe=null", f"data.steps=[{steps}]"])


def test_pieces_and_bytes_become_raw_text() -> None:
    assert join_pieces("▁a <0xE2> <0x96> <0x81> <0x62>") == "a b"  # a word of `algorithm: word`
    assert join_pieces("▁It ▁is <0xE4> <0xBD> <0xA0> , ▁ü ber") == "It is你, über"
    assert join_pieces("<0xE4> a") == "\ufffda" and join_pieces("") == ""
    assert join_pieces("▁a <0x0A> b <0x0D> ▁c") == "a b  c"  # one line remains one line
    assert join_pieces("▁< 0x4 1 > <0x41>") == "<0x41>A"  # text that looks like a byte


def test_pieces_of_a_model_without_bytes_are_text() -> None:
    undo = SentencePiece(step="sentencepiece", byte_fallback=False).undo_function("en")
    assert undo("▁a <0x41> ▁b") == "a<0x41> b"


def test_a_line_of_pieces_becomes_words() -> None:
    text = Text([SentencePiece(step="sentencepiece", side="target")], "zh", "en")
    pipeline = Pipeline(text, {}, (Vocabulary([]), Vocabulary([])))
    assert pipeline.unsplit("▁car pet s ▁It") == "carpets It"
    other = Text([SentencePiece(step="sentencepiece", side="source")], "zh", "en")
    assert Pipeline(other, {}, (Vocabulary([]), Vocabulary([]))).unsplit("▁car pet") == "▁car pet"


def test_validation_bleu_is_that_of_words(toy: Path, tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    pipeline = prepared(toy, tmp_path, "data.bpe=null")
    config = ValidationConfig(bleu=True)
    validator = Validator(config, SearchConfig(), tmp_path / "p", pipeline)
    metric = validator.metrics["bleu"]
    assert metric.references == [ENGLISH]
    assert metric.convert("▁car pet s") == "carpets"


@pytest.mark.parametrize(("side", "words"), [("both", 2), ("target", 2), ("source", 5)])
def test_rescore_counts_the_words_of_target_tokens(side: Side, words: int) -> None:
    tokens = ["▁car", "pet", "s", "▁It", "<0xE4>"]
    vocabulary = Vocabulary(tokens)
    text = Text([SentencePiece(step="sentencepiece", side=side)], "zh", "en")
    translator = Translator([], Pipeline(text, {}, (vocabulary, vocabulary)), SearchConfig())
    rescorer = Rescorer(translator, batch_tokens=1)
    for target, expected in ((tokens, words), ([], 0)):
        pair = rescorer.pair([5, EOS], target)
        assert pair is not None and rescorer._scored(pair, []).words == expected


def test_words_of_target_tokens() -> None:
    text = Text([SentencePiece(step="sentencepiece", side="target")], "zh", "en")
    pipeline = Pipeline(text, {}, (Vocabulary([]), Vocabulary([])))
    tokens = ["▁The", "re", "▁", "r", "un", "s", "▁a"]
    assert pipeline.target_words(tokens) == [(0, "There"), (2, "runs"), (6, "a")]
    assert pipeline.target_words([]) == []


def test_raw_text_returns_unchanged(toy: Path, tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    pipeline = prepared(toy, tmp_path)
    for side, lines in (("source", CHINESE), ("target", ENGLISH)):
        vocabulary = pipeline.source_vocab if side == "source" else pipeline.target_vocab
        for line in dict.fromkeys([*lines, "ж 🎈 x"]):
            tokens = pipeline.subwords(side, pipeline.words(side, line))
            assert vocabulary.decode(vocabulary.encode(tokens)) == tokens, "no token is unknown"
            assert pipeline.raw(pipeline.join(tokens)) == line
    assert len(pipeline.subwords("source", pipeline.words("source", CHINESE[0]))) < 7


def test_a_vocabulary_without_room_for_the_bytes_is_an_error(tmp_path: Path) -> None:
    data = DataConfig.model_validate(
        {
            "source": "zh",
            "target": "en",
            "folder": str(tmp_path),
            "train": ["train"],
            "valid": ["valid"],
            "steps": [{"step": "sentencepiece", "side": "target"}],
        }
    )
    all_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    check_required_tokens(data, (Vocabulary(["x"]), Vocabulary([*all_bytes, "x"])))
    with pytest.raises(DataError, match=r"target vocabulary lacks 6 tokens .* as '<0xFA>'"):
        check_required_tokens(data, (Vocabulary(["x"]), Vocabulary(all_bytes[:250])))
    existing = data.vocabulary.model_copy(update={"target": "vocabulary of another program"})
    data = data.model_copy(update={"vocabulary": existing})
    check_required_tokens(data, (Vocabulary(["x"]), Vocabulary(all_bytes[:250])))


def test_the_model_is_learned_again_identically(toy: Path, tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    step = SentencePiece(step="sentencepiece", size=310)
    first, second = (step.learn(ENGLISH) for _ in range(2))
    assert first.content == second.content
    first.save(tmp_path / "model")
    loaded = step.load(tmp_path / "model")
    copy: PieceModel = pickle.loads(pickle.dumps(loaded))
    assert copy(ENGLISH[0]) == loaded(ENGLISH[0]) == first(ENGLISH[0])


def test_text_and_models_that_cannot_be_used(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    step = SentencePiece(step="sentencepiece", size=8)
    with pytest.raises(DataError, match="cannot learn a model of size 8"):
        step.learn([])
    (tmp_path / "model").write_bytes(b"nonsense")
    with pytest.raises(DataError, match="model is not a model of SentencePiece"):
        step.load(tmp_path / "model")
