"""Byte pair encoding computes the same as subword-nmt."""

import io
import os
import random
from collections import Counter
from contextlib import redirect_stderr
from pathlib import Path

import pytest
from subword_nmt import apply_bpe, learn_bpe

from fusetk.data import bpe
from fusetk.data.bpe import BPE
from fusetk.data.text import read_lines
from fusetk.errors import DataError


def text(seed: int, letters: str = "abcde", lines: int = 200) -> list[str]:
    choose = random.Random(seed)
    words = [
        "".join(choose.choice(letters) for _ in range(choose.randrange(1, 9))) for _ in range(80)
    ]
    return [
        " ".join(choose.choice(words) for _ in range(choose.randrange(8))) for _ in range(lines)
    ]


def counts_of(lines: list[str]) -> Counter[str]:
    return Counter(word for line in lines for word in line.split(" ") if word)


def codes_of_version_0_1(codes: list[str]) -> list[str]:
    """Return similar codes in which some ends of words are symbols."""
    separated = [
        line.replace("</w>", " </w>") if line.endswith("</w>") and i % 3 == 0 else line
        for i, line in enumerate(codes[1:])
    ]
    return [line for line in separated if len(line.split(" ")) == 2]


@pytest.mark.parametrize("min_frequency", [2, 40])
def test_learned_as_subword_nmt_does(min_frequency: int, capfd: pytest.CaptureFixture[str]) -> None:
    lines = text(1) + text(2, "äöü中\u00a0x")
    out = io.StringIO()
    learn_bpe.learn_bpe(lines, out, 150, min_frequency)
    capfd.readouterr()
    assert bpe.learn(counts_of(lines), 150, min_frequency) == out.getvalue().splitlines()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("letters", ["a", "ab", "abc", "</w>a", "\\a.b", "ab\u00a0", "ä😀\u2028x"])
@pytest.mark.parametrize("seed", range(6))
def test_learned_with_runs_ties_and_spaces(seed: int, letters: str) -> None:
    """Counts of subword-nmt differ from exact ones in such words, and after pruning."""
    choose = random.Random(seed)
    words = {
        "".join(choose.choices(letters, k=choose.randrange(2, 20))): choose.choice([1, 2, 90])
        for _ in range(choose.choice([5, 300]))
    }
    out = io.StringIO()
    with redirect_stderr(io.StringIO()):
        learn_bpe.learn_bpe([f"{word} {n}" for word, n in words.items()], out, 250, is_dict=True)
    assert bpe.learn(words, 250) == out.getvalue().split("\n")[:-1]


@pytest.mark.parametrize("threshold", [0, 1, 30])
@pytest.mark.parametrize("letters", ["abcde", "ab", "a"])
@pytest.mark.parametrize("version", ["0.2", "0.1"])
def test_applied_as_subword_nmt_does(threshold: int, letters: str, version: str) -> None:
    codes = bpe.learn(counts_of(text(3, letters)), 100)
    if version == "0.1":
        codes = codes_of_version_0_1(codes)
    vocabulary = None
    if threshold:
        plain = BPE(codes)
        subwords = bpe.count_subwords(counts_of(text(3, letters)), plain)
        vocabulary = {token: n for token, n in subwords.items() if n >= threshold}
    reference = apply_bpe.BPE(
        io.StringIO("\n".join(codes) + "\n"), vocab=set(vocabulary) if vocabulary else None
    )
    ours = BPE(codes, vocabulary)
    for line in [*text(4, letters + "z"), "", "z", letters[0] * 300, (letters * 200)[:500]]:
        assert ours.line(line) == reference.segment(line)
        assert ours(line) == reference.segment_tokens(line.split(" "))


@pytest.mark.parametrize("version", [["#version: 0.2"], []])
def test_repeated_merges_are_applied_as_subword_nmt_does(version: list[str]) -> None:
    choose = random.Random(5)
    pairs = ["a a", "aa a", "a aa", "aa aa", "a a</w>", "aa a</w>", "a aa</w>", "aa aa</w>"]
    for _ in range(60):
        codes = version + choose.choices(pairs, k=10)
        vocabulary = dict.fromkeys(choose.sample(["a", "aa", "aaa", "a@@", "aa@@", "aaa@@"], 3), 1)
        file = io.StringIO("\n".join(codes))
        reference = apply_bpe.BPE(file, vocab=set(vocabulary))
        for length in range(1, 9):
            assert BPE(codes, vocabulary).line("a" * length) == reference.segment("a" * length)


def test_splitting_gives_no_empty_subword() -> None:
    assert BPE(["n </w>", "a n</w>", "b a"], {"b@@": 2, "a@@": 2})("ban") == ["b@@", "a@@", "n"]
    choose = random.Random(4)
    codes = ["a b", "ab </w>", "c </w>", "b c</w>", "a bc</w>", "ab ab", "abab c", "ababc </w>"]
    tokens = [token + mark for token in ("a", "b", "c", "ab", "bc", "abab") for mark in ("", "@@")]
    for _ in range(100):
        ours = BPE(codes, dict.fromkeys(choose.sample(tokens, 4), 1))
        for word in ("c", "ab", "abc", "abab", "ababc", "cabab"):
            subwords = ours(word)
            assert all(subwords) and not subwords[-1].endswith("@@")
            assert bpe.join(" ".join(subwords)) == word


def test_text_with_the_mark_of_the_end_of_a_word_is_unchanged() -> None:
    words = {"x</w>ox": 1, "x</w>oxox": 5, "oxxoxx": 1}
    codes = bpe.learn(words, 200, min_frequency=1)
    subwords = bpe.count_subwords(words, BPE(codes))
    ours = BPE(codes, {token: n for token, n in subwords.items() if n >= 2})
    for word in words:
        assert bpe.join(ours.line(word)) == word


def test_both_ways_of_merging_agree() -> None:
    choose = random.Random(9)
    for letters in ("ab", "abc", "abcdefg"):
        symbols = [*letters]
        pairs: list[tuple[str, str]] = []
        while len(pairs) < 40:
            pair = (choose.choice(symbols), choose.choice(symbols))
            if pair not in pairs and len(pair[0] + pair[1]) < 12:
                pairs.append(pair)
                symbols.append(pair[0] + pair[1])
        # Ranks that no learner would give: a later merge may allow an earlier one.
        choose.shuffle(pairs)
        ranks = dict(enumerate(pairs))
        merges = {pair: rank for rank, pair in ranks.items()}
        for _ in range(200):
            word = [choose.choice(letters) for _ in range(choose.randrange(1, 60))]
            assert bpe.merge(word, merges, ranks) == bpe.merge_short(list(word), merges)


def test_a_very_long_word_is_split() -> None:
    codes = BPE(bpe.learn(counts_of(text(3)), 100))
    word = "".join(random.Random(1).choices("abcde", k=200_000))
    assert bpe.join(codes.line(word)) == word


@pytest.mark.parametrize(
    ("name", "language"),
    [("multi30k/val", "de"), ("multi30k/val", "en"), ("iwslt14_sample/valid", "de")],
)
def test_real_text_is_split_as_subword_nmt_does(name: str, language: str) -> None:
    root = os.environ.get("FUSETK_TEST_DATA")
    if not root:
        pytest.skip("FUSETK_TEST_DATA does not name the folder of real text")
    lines = list(read_lines(Path(root) / f"{name}.{language}.gz"))
    codes = bpe.learn(counts_of(lines), 500)
    theirs, ours = apply_bpe.BPE(io.StringIO("\n".join(codes) + "\n")), BPE(codes)
    assert [ours.line(line) for line in lines] == [theirs.segment(line) for line in lines]
    assert [bpe.join(ours.line(line)) for line in lines] == lines


def test_spaces_around_a_line_remain_as_with_subword_nmt() -> None:
    codes = ["#version: 0.2", "a b</w>"]
    subword_nmt = apply_bpe.BPE(io.StringIO("\n".join(codes) + "\n"))
    for line in ("  ab ba ", "ab", "ab  ", " ba", "   ", ""):
        assert bpe.with_margins(BPE(codes).line, line) == subword_nmt.process_line(line)


def test_subwords_are_joined() -> None:
    assert bpe.join("a@@ b c@@ d@@ ") == "ab cd"
    assert bpe.join("a@@ b@@") == "ab"
    assert bpe.join("x@@y @@ z") == "x@@y z"


def test_text_without_pairs_gives_no_merges() -> None:
    assert bpe.learn({"a": 3, "b": 1}, 10) == ["#version: 0.2"]
    assert bpe.learn({"a\r": 5, "xy": 3}, 10) == ["#version: 0.2", "x y</w>"]


def test_malformed_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "codes"
    path.write_text("#version: 0.2\na b\na b c\n")
    with pytest.raises(DataError, match="codes, line 3: 'a b c' is not a merge of two symbols"):
        BPE.load(path)
    path.write_text("#version: 0.9\n")
    with pytest.raises(DataError, match=r"version 0\.9"):
        BPE.load(path)
    path.write_text("ab 4\nc\n")
    with pytest.raises(DataError, match="codes, line 2"):
        bpe.read_vocabulary(path)
    path.write_text("Ein: 4\nDas: 5\n")
    with pytest.raises(DataError, match=r"codes, line 1: this looks like a YAML .* subword-nmt"):
        bpe.read_vocabulary(path)
    path.write_text("ab 4\nc@@ 2\n")
    assert bpe.read_vocabulary(path, 3) == {"ab": 4}


def test_codes_of_fastbpe_equal_those_of_subword_nmt() -> None:
    codes = ["#version: 0.2", "l o", "lo w</w>", "e r</w>"]
    counted = [f"{line} {9 - i}" for i, line in enumerate(codes[1:])]
    first, second = BPE(codes), BPE(counted)
    for line in ("low lower er", "lo", "slow"):
        assert first.line(line) == second.line(line)
    with pytest.raises(DataError, match="line 2: 'lo w</w>' is not a merge"):
        BPE([counted[0], codes[2]])


def test_a_token_as_frequent_as_the_threshold_is_in_the_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary"
    path.write_text("a 3\nb 2\nc 1\n", encoding="utf-8")
    assert bpe.read_vocabulary(path, 2) == {"a": 3, "b": 2}
    path.write_text("\ufeffa 3\n", encoding="utf-8")
    assert bpe.read_vocabulary(path) == {"\ufeffa": 3}
    assert bpe.read_vocabulary(path, bom=True) == {"a": 3}


@pytest.mark.parametrize(
    ("content", "said"), [("", "is empty"), ("hund 3\nda 3\n", "is a vocabulary with counts")]
)
def test_a_file_without_merges_is_refused(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "codes").write_text(content)
    with pytest.raises(DataError, match=said):
        BPE.load(tmp_path / "codes")
