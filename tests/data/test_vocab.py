"""Vocabularies and their file formats."""

import gzip
from pathlib import Path

import pytest

from fusetk.data.config import VocabularyConfig
from fusetk.data.vocab import BOS, EOS, PAD, SPECIAL, UNK, Vocabulary
from fusetk.errors import DataError


def test_most_frequent_first_and_special_tokens_apart() -> None:
    vocabulary = Vocabulary.from_counts({"b": 2, "a": 2, "c": 5, "<s>": 9, "d": 1}, threshold=2)
    assert vocabulary.tokens == [*SPECIAL, "c", "a", "b"]
    assert vocabulary.encode(["a", "x", "<s>", "</s>"]) == [5, UNK, UNK, UNK]
    assert vocabulary.decode([4, 5, EOS, 6]) == ["c", "a"]
    assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)
    assert len(Vocabulary.from_counts({"b": 2, "a": 2, "c": 5}, size=6)) == 6


def test_saved_and_loaded(tmp_path: Path) -> None:
    odd = ["a\tb", "\u2028", "\ufeffx", "1", "a\u00a0b", "#", "\r"]
    vocabulary = Vocabulary(odd, range(len(odd)))
    vocabulary.save(tmp_path / "vocab")
    loaded = Vocabulary.load(tmp_path / "vocab")
    assert (loaded.tokens, loaded.counts) == (vocabulary.tokens, vocabulary.counts)
    for tokens in (odd, ["preis\t5", "5"], ["c\r"], ["a", "1"]):
        Vocabulary(tokens).save(tmp_path / "vocab")
        assert Vocabulary.load(tmp_path / "vocab").tokens == [*SPECIAL, *tokens]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("fairseq.txt", "hallo 5\n12 4\nno 1\n"),
        ("plain", "hallo\n12\nno\n"),
        ("tabs", "<unk>\t0\nhallo\t5\n12\t4\nno\t1\n"),
        ("onmt", "<unk>\t0\n<blank>\t0\n<s>\t0\n</s>\t0\nhallo\t5\n12\t4\nno\t1\n"),
        ("onmt-tf", "<blank>\n<s>\n</s>\nhallo\n12\nno\n"),
        ("marian.yml", '</s>: 0\n<unk>: 1\nhallo: 2\n"12": 3\nno: 4\n'),
        ("MARIAN.YML", "</s>: 0\n<unk>: 1\nhallo: 2\n'12': 3\nno: 4\n"),
        ("nematus.json", '{"eos": 0, "UNK": 1, "no": 4, "hallo": 2, "12": 3}'),
        (
            "new-nematus.json",
            '{"<EOS>": 0, "<GO>": 1, "<UNK>": 2, "hallo": 3, "12": 4, "no": 5}',
        ),
        (
            "sockeye.json",
            '{"<pad>": 0, "<unk>": 1, "<s>": 2, "</s>": 3, "hallo": 4, "12": 5, "no": 6}',
        ),
    ],
)
def test_formats_of_other_programs_are_read(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    assert Vocabulary.load(tmp_path / name).tokens == [*SPECIAL, "hallo", "12", "no"]


@pytest.mark.parametrize(
    "content", ["<blank>\t9\na\t5\n", "<unk>\na\nb\nc\n<blank>\n", "a\n<blank>\nb\nc\n<s>\n"]
)
def test_blank_may_be_an_ordinary_token(tmp_path: Path, content: str) -> None:
    (tmp_path / "vocab").write_text(content)
    assert "<blank>" in Vocabulary.load(tmp_path / "vocab").ids


def test_a_compressed_mapping_is_read(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "marian.yml.gz", "wt") as file:
        file.write("</s>: 0\n<unk>: 1\nhallo: 2\n")
    with gzip.open(tmp_path / "sockeye.JSON.gz", "wt") as file:
        file.write('{"<pad>": 0, "hallo": 4}')
    for name in ("marian.yml.gz", "sockeye.JSON.gz"):
        assert Vocabulary.load(tmp_path / name).tokens == [*SPECIAL, "hallo"]


@pytest.mark.parametrize("content", ["Ein:\t4\nDas:\t3\n", ": 4\n", "Ein: 4\nDas 3\n", "</s>\n"])
def test_tokens_may_end_in_a_colon(tmp_path: Path, content: str) -> None:
    (tmp_path / "vocab").write_text(content)
    tokens = [line.replace("\t", " ").partition(" ")[0] for line in content.splitlines()]
    assert Vocabulary.load(tmp_path / "vocab").tokens[4:] == [t for t in tokens if t != "</s>"]


def test_a_byte_order_mark_is_dropped_on_request(tmp_path: Path) -> None:
    (tmp_path / "vocab").write_text("\ufeffhallo\nno\n", encoding="utf-8")
    assert Vocabulary.load(tmp_path / "vocab").tokens[4:] == ["\ufeffhallo", "no"]
    assert Vocabulary.load(tmp_path / "vocab", bom=True).tokens[4:] == ["hallo", "no"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("v", "a 1\nb x\n", "v, line 2"),
        ("v", "a 1\nb 2 #fairseq:overwrite\n", "v, line 2: fairseq's overwrite marks"),
        ("v", "a\n\nb\n", "v, line 2: the token is missing"),
        ("v", "a 1\na 2\n", "v: the vocabulary has the token 'a' twice"),
        ("v.json", '{"a": 1,\n "b": }', "v.json, line 2: not valid JSON"),
        ("v.json", "[1]", "a mapping of tokens to ids"),
        ("v.yml", 'a: 1\nb: [\n"', "v.yml, line 3: not valid YAML"),
        ("v.yml", "a: 1\nb: x\n", "v.yml: the id of 'b' is 'x'"),
        ("v.json", '{"a\\nb": 4}', r"v.json has the token 'a\\nb', which cannot be a line"),
        ("v.json", '{"": 4}', "v.json has the token ''"),
        ("v.json", r'{"\ud83d": 4}', r"v.json has the token '\\ud83d', which cannot be a line"),
        ("v", "</s>: 0\n<unk>: 1\nEin: 2\n", "v, line 1: this looks like a YAML mapping"),
        ("v", "---\n'eos': 0\nEin 2\n", "v, line 2: this looks like a YAML mapping"),
        ("v", "Ein: 4\n'Das': 5\n", "line 1: .* mapping .*; give it a name that ends in .yml"),
        ("v", f"a {'9' * 5000}", "v, line 1: 'a 9+' is not a vocabulary entry"),
        ("v.json", f'{{"a": "{"9" * 5000}"}}', "v.json: the id of 'a' is '9+', not a number"),
        ("v.json", f'{{"a": {"9" * 5000}}}', "v.json is not a mapping of tokens to ids"),
        ("v.json", "[" * 100_000, "v.json is not a mapping of tokens to ids"),
    ],
)
def test_malformed_files_are_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        Vocabulary.load(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("v.json", '{"a": 4, "b": 5, "a": 6}', "has 'a' twice"),
        ("v.yml", "a: 4\nb: 5\na: 6\n", "has 'a' twice"),
        ("v.json", '{"a": 4, "b": 4}', "'a' and 'b' have the same id, 4"),
        ("v.yml", '"\x07": 2\n', "not valid YAML"),
        ("v.yml", "? [a, b]\n: 2\n", "not valid YAML"),
    ],
)
def test_ambiguous_mappings_are_refused(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=said):
        Vocabulary.load(tmp_path / name)


def test_the_size_of_an_existing_vocabulary_is_refused() -> None:
    values = {"source": "vocab.de", "size": {"source": 5, "target": 6}}
    with pytest.raises(ValueError, match=r"size\.source has no effect on an existing vocabulary"):
        VocabularyConfig.model_validate(values)
    VocabularyConfig.model_validate({**values, "extend": True})
    VocabularyConfig.model_validate({**values, "size": {"target": 6}})
