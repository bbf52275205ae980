"""Warnings about languages without rules, and about words that are not separated by spaces."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fusetk.cli.main import main
from fusetk.data.config import DataConfig
from fusetk.data.languages import (
    SAMPLE,
    without_normalizer_rules,
    without_spaces,
    without_tokenizer_rules,
)
from fusetk.data.prepare import prepare

TOKENIZE, NORMALIZE = {"step": "tokenize"}, {"step": "normalize-punctuation"}
# Each sentence with its words separated.
SEGMENTED = {
    "zh": "我 在 图书馆 看 了 一 本 关于 计算机 的 书 。",
    "ja": "私 は 図書館 で コンピューター の 本 を 読み まし た 。",
    "th": "ฉัน อ่าน หนังสือ เกี่ยวกับ คอมพิวเตอร์ ใน ห้องสมุด",
    "lo": "ຂ້ອຍ ອ່ານ ປຶ້ມ ໃນ ຫ້ອງສະໝຸດ",
    "km": "ខ្ញុំ អាន សៀវភៅ នៅ ក្នុង បណ្ណាល័យ",
    "my": "ကျွန်တော် စာကြည့်တိုက် မှာ စာအုပ် ဖတ် တယ်",
}
OTHERS = [
    "",
    "A b.",
    "Привет, мир!",
    "안녕하세요 세계",
    "A name: 李小龍, and more words",
    "١٢٣ !!",
    "これ is a book of words",
]


@pytest.mark.parametrize("line", SEGMENTED.values(), ids=list(SEGMENTED))
def test_words_without_spaces(line: str) -> None:
    together = line.replace(" ", "")
    assert without_spaces([line] * 3) is None
    said = without_spaces([together, "", "abc " + together])
    assert said is not None and "its words are not separated" in said
    assert without_spaces([line] * SAMPLE + [together] * SAMPLE) is None


@pytest.mark.parametrize("line", OTHERS)
def test_other_text(line: str) -> None:
    assert without_spaces([line]) is None


def test_languages_without_rules() -> None:
    for language in ("de", "en", "zh", "ja", "ko"):
        assert (
            without_tokenizer_rules(language) is None and without_normalizer_rules(language) is None
        )
    assert "no rules for 'xx': it uses the abbreviations of English" in str(
        without_tokenizer_rules("xx")
    )
    assert "no rules for 'xx'" in str(without_normalizer_rules("xx"))
    assert "its other rules need the code 'en'" in str(without_tokenizer_rules("english"))
    assert "not those of 'fr'" in str(without_normalizer_rules("french"))
    assert "not those of 'pt'" in str(without_tokenizer_rules("pt-BR"))
    assert without_normalizer_rules("it") is None, "the general rules are meant for it"


def warnings(folder: Path, source: str, lines: list[str], steps: list[dict[str, Any]]) -> list[str]:
    """Return the warnings of prep for this source language and text."""
    for name, copies in (("train", 2), ("valid", 1)):
        text = "".join(f"{line}\n" for line in lines * copies)
        (folder / f"{name}.{source}").write_text(text, encoding="utf-8")
        (folder / f"{name}.en").write_text("x y\n" * (len(lines) * copies))
    config = {"source": source, "target": "en", "folder": str(folder / "out"), "steps": steps}
    said: list[str] = []
    prepare(
        DataConfig(**config, train=[str(folder / "train")], valid=[str(folder / "valid")]),
        report=said.append,
    )
    return [line for line in said if line.startswith("warning: ")]


def test_prep_warns_of_a_language_without_rules(tmp_path: Path) -> None:
    printed = warnings(tmp_path, "xx", ["a b."], [NORMALIZE, TOKENIZE])
    assert len(printed) == 2 and all(line.startswith("warning: data.source: ") for line in printed)
    assert (
        "check the language code, or prepare this side with a tool for the language "
        "and exclude it from the step tokenize" in printed[1]
    )
    assert warnings(tmp_path, "xx", ["a b."], [NORMALIZE, TOKENIZE]) == printed, (
        "again, where nothing is made"
    )
    assert (
        warnings(
            tmp_path,
            "xx",
            ["a b."],
            [{**NORMALIZE, "side": "target"}, {**TOKENIZE, "side": "target"}],
        )
        == []
    )
    assert (
        warnings(tmp_path, "xx", ["a b."], [])
        == []
        == warnings(tmp_path, "de", ["a b."], [NORMALIZE, TOKENIZE])
    )


def test_prep_warns_of_words_without_spaces(tmp_path: Path) -> None:
    segmented, together = [SEGMENTED["zh"]] * 3, [SEGMENTED["zh"].replace(" ", "")] * 3
    printed = warnings(tmp_path, "zh", together, [TOKENIZE])
    assert [line.partition(": the")[0] for line in printed] == [
        f"warning: {tmp_path / name}.zh" for name in ("train", "valid")
    ]
    assert all(
        "segment this side before prep with a tool for the language, or in prep with a step of "
        "your own and exclude it from the step tokenize" in line
        for line in printed
    )
    assert warnings(tmp_path, "zh", segmented, [TOKENIZE]) == []
    assert warnings(tmp_path, "zh", segmented, [{**TOKENIZE, "side": "target"}]) == [], (
        "as in recipes/data/nist_zhen.yaml"
    )
    assert len(warnings(tmp_path, "zh", together, [{**TOKENIZE, "side": "target"}])) == 2


@pytest.mark.parametrize("count", [3, SAMPLE + 5])
def test_the_pipes_warn_once(count: int) -> None:
    def call(*words: str, text: str) -> tuple[str, int]:
        result = CliRunner().invoke(
            main, ["text", *words], input="".join(f"{text}\n" for _ in range(count))
        )
        assert result.exit_code == 0 and result.stdout.count("\n") == count
        return result.stderr, result.stderr.count("warning: ")

    said, times = call("tokenize", "-l", "zh", text="我在图书馆看了一本书。")
    assert times == 1 and "use a tool that segments the language" in said
    said, times = call("tokenize", "-l", "xx", text="a b.")
    assert times == 1 and "check -l, or use a tool for the language" in said
    said, times = call("normalize", "-l", "xx", text="a b.")
    assert times == 1 and "check -l" in said
    assert call("tokenize", "-l", "de", text="a b.") == ("", 0)
