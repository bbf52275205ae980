import math
import random
import shutil
import string
import subprocess
import sys
from pathlib import Path

import pytest

from fusetk.errors import DataError
from fusetk.evaluation.metric import MetricOptions
from fusetk.evaluation.metrics import METRICS, is_lower_better, make_metrics, score
from fusetk.evaluation.multi_bleu import split_compounds, split_words
from fusetk.evaluation.texts import ignored_options
from fusetk.reporting import score_log

WORDS = ["der", "Mann", "sieht", "die", "Frau", "nicht", ",", "."]


def sentence(draw: random.Random, low: int = 4, high: int = 12) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(draw.randint(low, high)))


def corpus(
    seed: int, sentences: int = 12, references: int = 2
) -> tuple[list[str], list[list[str]]]:
    draw = random.Random(seed)
    streams = [[sentence(draw) for _ in range(sentences)] for _ in range(references)]
    hypotheses = []
    for i in range(sentences):
        words = draw.choice(streams)[i].split()
        hypotheses.append(
            " ".join(
                draw.choice(WORDS) if draw.random() < 0.2 else word
                for word in words
                if draw.random() < 0.9
            )
        )
    return hypotheses, streams


def multi_bleu(hypotheses: list[str], references: list[list[str]], **options: bool) -> float:
    return score(hypotheses, references, ["multi-bleu"], **options)[0].value


def row(hypothesis: str, *references: str) -> tuple[int, ...]:
    """The statistics of one line: lengths, matches and n-grams of multi-bleu."""
    [metric] = make_metrics([[line] for line in references], ["multi-bleu"], MetricOptions())
    return tuple(metric.statistics([hypothesis])[0])


def plain_bleu(hypotheses: list[str], references: list[list[str]]) -> float:
    """BLEU as Papineni et al. (2002) define it, of words between ASCII white space."""
    groups = [
        [line.encode().split() for line in lines]
        for lines in zip(hypotheses, *references, strict=True)
    ]
    hypothesis_length = reference_length = 0
    for words, *targets in groups:
        hypothesis_length += len(words)
        distances = [(abs(len(target) - len(words)), len(target)) for target in targets]
        reference_length += min(distances)[1]
    product = 1.0
    for n in range(1, 5):
        correct = total = 0
        for words, *targets in groups:
            grams, *target_grams = (
                [tuple(side[i : i + n]) for i in range(len(side) - n + 1)]
                for side in (words, *targets)
            )
            total += len(grams)
            for gram in set(grams):
                most = max(side.count(gram) for side in target_grams)
                correct += min(most, grams.count(gram))
        if not correct:
            return 0.0
        product *= correct / total
    return 100 * min(1.0, math.exp(1 - reference_length / hypothesis_length)) * product**0.25


@pytest.mark.parametrize("references", [1, 2, 3])
@pytest.mark.parametrize("seed", range(10))
def test_multi_bleu_is_the_plain_definition(seed: int, references: int) -> None:
    hypotheses, streams = corpus(seed, references=references)
    assert multi_bleu(hypotheses, streams) == pytest.approx(
        plain_bleu(hypotheses, streams), abs=1e-9
    )


@pytest.mark.parametrize("seed", range(10))
def test_multi_bleu_splits_at_ascii_white_space_only(seed: int) -> None:
    draw = random.Random(seed)
    spaces = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]
    assert len(spaces) > 25

    def shuffle_spaces(line: str) -> str:
        choices = [*spaces, *" " * 3 * len(spaces)]
        return draw.choice(choices) + "".join(
            draw.choice(choices) if character == " " else character for character in line
        )

    hypotheses, streams = corpus(seed, sentences=40, references=1 + seed % 3)
    hypotheses = [shuffle_spaces(line) for line in hypotheses]
    streams = [[shuffle_spaces(line) for line in stream] for stream in streams]
    expected = plain_bleu(hypotheses, streams)
    assert expected > 0
    [result] = score(hypotheses, streams, ["multi-bleu"])
    assert result.value == pytest.approx(expected, abs=1e-9)
    assert result.hypothesis_length == sum(len(line.encode().split()) for line in hypotheses)
    assert result.hypothesis_length == sum(len(split_words(line)) for line in hypotheses)


def test_multi_bleu_prints_like_the_script() -> None:
    hypotheses = ["the cat sat on the mat .", "a dog ran"]
    references = [["the cat sat on a mat .", "a big dog ran home"]]
    # By hand: 1-grams 6+3 of 7+3, 2-grams 4+1 of 6+2, 3-grams 2+0 of 5+1, 4-grams 1+0 of 4+0;
    # lengths 10 and 12.
    [result] = score(hypotheses, references, ["multi-bleu"])
    value = 100 * math.exp(-0.2) * (9 / 10 * 5 / 8 * 2 / 6 * 1 / 4) ** 0.25
    details = "90.0/62.5/33.3/25.0 (BP=0.819, ratio=0.833, hyp_len=10, ref_len=12)"
    assert str(result) == f"BLEU = {value:.2f}, {details}"


def test_the_order_of_sentences_and_of_references_does_not_matter() -> None:
    hypotheses, streams = corpus(1)
    order = random.Random(5).sample(range(len(hypotheses)), len(hypotheses))
    moved = [[stream[i] for i in order] for stream in reversed(streams)]
    for metric in ("multi-bleu", "sacrebleu", "ter", "chrf++"):
        before = score(hypotheses, streams, [metric])[0].value
        after = score([hypotheses[i] for i in order], moved, [metric])[0].value
        assert after == pytest.approx(before), metric


@pytest.mark.parametrize("name", METRICS)
def test_a_copy_of_a_reference_has_the_best_value(name: str) -> None:
    hypotheses, [first, second] = corpus(2)
    [best] = score(second, [first, second], [name])
    [other] = score(hypotheses, [first, second], [name])
    if METRICS[name].lower_is_better:
        assert best.value == 0 < other.value
    else:
        assert best.value == pytest.approx(100) and other.value < 99


def test_a_further_reference_never_lowers_a_precision() -> None:
    hypotheses, streams = corpus(3, references=3)
    for hypothesis, *targets in zip(hypotheses, *streams, strict=True):
        fewer = row(hypothesis, *targets[:2])
        more = row(hypothesis, *targets)
        assert all(a <= b for a, b in zip(fewer[2:6], more[2:6], strict=True))
    assert multi_bleu(hypotheses, [streams[0], streams[0]]) == multi_bleu(hypotheses, streams[:1])


def test_the_closest_reference_length_counts_the_shorter_at_a_tie() -> None:
    assert row("a b c d", "a b c d e f", "a b")[:2] == (4, 2)
    assert row("a b c d", "a b c d e", "a b")[:2] == (4, 5)


def test_counts_are_clipped_to_the_reference_that_has_most() -> None:
    assert row("a a a", "a b", "a a b")[2] == 2


def test_no_smoothing_and_no_division_by_zero() -> None:
    assert multi_bleu(["a b c"], [["a b c"]]) == 0  # no 4-grams
    assert multi_bleu(["a b c d"], [["d c b a"]]) == 0
    [empty] = score([""], [["a b"]], ["multi-bleu"])
    details = "0.0/0.0/0.0/0.0 (BP=0.000, ratio=0.000, hyp_len=0, ref_len=2)"
    assert str(empty) == f"BLEU = 0.00, {details}"
    assert score(["a b c d"], [[""]], ["multi-bleu"])[0].value == 0
    assert score(["a b c d e", ""], [["a b c d e", ""]], ["multi-bleu"])[0].value == pytest.approx(
        100
    )


def test_words_end_at_ascii_white_space_only() -> None:
    nbsp, line_separator = "\u00a0", "\u2028"
    assert row(f"a\tb  c{nbsp}d{line_separator}e\x0bf \x1cg ", "x")[0] == 5
    assert row("  a b", "a b")[2:6] == (2, 1, 0, 0)


def test_lowercase_ignores_case() -> None:
    hypotheses, references = ["der Ärger WAR nicht groß"], [["Der ärger war nicht Groß"]]
    assert multi_bleu(hypotheses, references) == 0
    assert multi_bleu(hypotheses, references, lowercase=True) == pytest.approx(100)
    assert score(hypotheses, references, ["multi-bleu-lc"])[0].value == pytest.approx(100)
    names = [
        result.metric
        for result in score(
            hypotheses, references, ["multi-bleu", "multi-bleu-lc", "sacrebleu"], lowercase=True
        )
    ]
    assert names == ["multi-bleu-lc", "sacrebleu"]  # the same thing is not listed twice
    signatures = {
        result.metric: result.signature for result in score(hypotheses, references, list(METRICS))
    }
    assert "case:mixed" in signatures["multi-bleu"]
    assert "case:lc" in signatures["multi-bleu-lc"]


def test_split_hyphens_are_joined() -> None:
    plain = ["a well-known state-of-the-art model .", "@-@ is left @-@"]
    other = ["a well-known state-of-the-art system !", "@-@ was left @-@"]
    expected = score(plain, [other], ["multi-bleu"])[0].value
    for hyphen in ("@-@", "##AT##-##AT##"):
        split, reference = (
            [line.replace("-", f" {hyphen} ") for line in plain[:1]] + plain[1:],
            [line.replace("-", f" {hyphen} ") for line in other[:1]] + other[1:],
        )
        [joined] = score(split, [reference], ["multi-bleu-joined"])
        assert joined.value == pytest.approx(expected)
        assert "hyphens:joined" in joined.signature
        assert score(split, [reference], ["multi-bleu"])[0].value > expected
    [lower] = score(
        ["RICH @-@ text a b"], [["rich-text a b"]], ["multi-bleu-joined"], lowercase=True
    )
    assert lower.metric == "multi-bleu-joined" and "case:lc" in lower.signature
    assert lower.details.startswith("100.0/100.0/100.0/0.0") and lower.hypothesis_length == 3


def test_the_library_gives_the_same_numbers() -> None:
    import sacrebleu

    hypotheses, streams = corpus(6)
    results = {
        result.metric: result
        for result in score(hypotheses, streams, list(METRICS), tokenize="char")
    }
    bleu = sacrebleu.corpus_bleu(hypotheses, streams, tokenize="char", force=True)
    assert results["sacrebleu"].value == bleu.score
    assert "tok:char" in results["sacrebleu"].signature
    assert results["chrf"].value == sacrebleu.corpus_chrf(hypotheses, streams).score
    assert results["chrf++"].value == sacrebleu.corpus_chrf(hypotheses, streams, word_order=2).score
    assert results["ter"].value == sacrebleu.corpus_ter(hypotheses, streams).score
    for result in results.values():
        assert "nrefs:2" in result.signature
        assert result.sentences == len(hypotheses)


@pytest.mark.parametrize(
    "options",
    [MetricOptions(), MetricOptions(lowercase=True), MetricOptions(compound_split=True)],
)
def test_the_sum_of_rows_has_the_value_of_the_score(options: MetricOptions) -> None:
    hypotheses, streams = corpus(7)
    streams[0][0] += " Über-Maß A-B-C"
    for metric in make_metrics(streams, list(METRICS), options):
        rows = metric.statistics(hypotheses)
        assert len(rows) == len(hypotheses)
        totals = [sum(column) for column in zip(*rows, strict=True)]
        assert metric.value(totals) == metric.score(rows).value, metric.name


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("lowercase", [False, True])
def test_case_sensitive_says_whether_case_matters(name: str, lowercase: bool) -> None:
    hypotheses, streams = corpus(7)
    [metric] = make_metrics(streams, [name], MetricOptions(lowercase=lowercase))
    changed = [line.upper() for line in hypotheses]
    same = metric.statistics(hypotheses) == metric.statistics(changed)
    assert same == (not metric.case_sensitive)


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_uses_its_options_only(name: str) -> None:
    hypotheses, streams = corpus(7)
    hypotheses[0] += " a-b"
    streams[0][0] += " a-b"

    def statistics(**options: object) -> list[tuple[float, ...]]:
        [metric] = make_metrics(streams, [name], MetricOptions(**options))
        return [tuple(row) for row in metric.statistics(hypotheses)]

    for option, value in (("tokenize", "char"), ("compound_split", True)):
        changes = statistics() != statistics(**{option: value})
        assert changes == (option in METRICS[name].options)


def test_lines_counted_in_blocks_count_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    hypotheses, streams = corpus(8)
    expected = score(hypotheses, streams, list(METRICS))
    monkeypatch.setattr("fusetk.evaluation.sacrebleu_metrics.BLOCK", 5)
    assert score(hypotheses, streams, list(METRICS)) == expected


# mteval-v13a --------------------------------------------------------------------------------------

TEXT = [
    "It cost 1,000.50 dollars, they said.",
    "A 5-year-old (O'Neill) sat in the U.S. today.",
    'Ärger? No: 3.4% [x] -- and/or "y" ...',
]


def mteval(hypotheses: list[str], references: list[list[str]], cased: bool) -> float:
    """BLEU as the script documents it, character by character."""

    def words(line: str) -> list[str]:
        line = f" {line} "
        for entity, char in (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")):
            line = line.replace(entity, char)
        tokenized = ""
        for i, char in enumerate(line):
            before, after = (line[k : k + 1] in tuple(string.digits) for k in (i - 1, i + 1))
            alone = char in ".," and not (before and after)
            alone |= (char == "-" and before) or (char in string.punctuation and char not in "',-.")
            if alone:
                tokenized += f" {char} "
            elif cased or char not in string.ascii_uppercase:
                tokenized += char
            else:
                tokenized += char.lower()
        return tokenized.split()

    lines = [[words(line) for line in group] for group in zip(hypotheses, *references, strict=True)]
    length = sum(len(h) for h, *_ in lines)
    reference_length = sum(
        min((abs(len(r) - len(h)), len(r)) for r in several)[1] for h, *several in lines
    )
    logarithm, missing = 0.0, 0
    for n in range(1, 5):
        matches = total = 0
        for h, *several in lines:
            grams, *allowed = (
                [tuple(side[i : i + n]) for i in range(len(side) - n + 1)] for side in (h, *several)
            )
            total += len(grams)
            matches += sum(
                min(grams.count(gram), max(side.count(gram) for side in allowed))
                for gram in set(grams)
            )
        missing += not matches
        logarithm += math.log((matches or 0.5**missing) / total) / 4
    return 100 * math.exp(logarithm + min(0.0, 1 - reference_length / length))


@pytest.mark.parametrize("references", [1, 3])
@pytest.mark.parametrize("seed", range(10))
def test_mteval_has_the_value_of_the_documented_script(seed: int, references: int) -> None:
    draw = random.Random(seed)
    pieces = " ".join(TEXT).replace("and", "and &quot;Q&amp;A&quot;").split()
    streams = [
        [" ".join(draw.choices(pieces, k=draw.randint(4, 14))) for _ in range(8)]
        for _ in range(references)
    ]
    hypotheses = [
        " ".join(draw.choice(pieces) if draw.random() < 0.4 else word for word in line.split())
        for line in streams[0]
    ]
    hypotheses = [line.swapcase() if draw.random() < 0.3 else line for line in hypotheses]
    names = ["mteval-v13a", "mteval-v13a-cased", "sacrebleu"]
    lower, cased, sacre = (result.value for result in score(hypotheses, streams, names))
    assert lower == pytest.approx(mteval(hypotheses, streams, cased=False))
    assert cased == pytest.approx(mteval(hypotheses, streams, cased=True)) == pytest.approx(sacre)
    assert lower > cased


def test_mteval_smooths_precisions_without_a_match() -> None:
    hypotheses, references = ["a b c x d e", "f g"], [["a b c y d e", "f h"]]
    [result] = score(hypotheses, references, ["mteval-v13a"])
    assert result.value == pytest.approx(mteval(hypotheses, references, cased=False))
    assert result.value > 0
    assert "smooth:exp" in result.signature
    assert "tok:13a" in result.signature
    assert "case:lc[A-Z]" in result.signature


def test_mteval_lower_cases_a_to_z_only() -> None:
    def value(name: str, reference: str, **options: bool) -> float:
        return score(["Der Ärger Ist Da"], [[reference]], [name], **options)[0].value

    assert value("mteval-v13a", "der Ärger ist da") == pytest.approx(100)
    assert value("mteval-v13a-cased", "der Ärger ist da") < 50
    assert value("mteval-v13a", "der ärger ist da") < 50
    assert value("mteval-v13a", "der ärger ist da", lowercase=True) == pytest.approx(100)
    names = [
        result.metric
        for result in score(["a"], [["a"]], ["mteval-v13a", "mteval-v13a-cased"], lowercase=True)
    ]
    assert names == ["mteval-v13a"]


# Compounds ----------------------------------------------------------------------------------------

HYPHENS = [
    "a rich-text format",
    "well-known-thing A-B-C",
    "ä-ö-ü ä-b-ü",
    "- x- -y --",
    "a--b 1-2\u00a0-\u00a03",
    "no hyphen",
    "",
]


@pytest.mark.skipif(shutil.which("perl") is None, reason="needs perl")
def test_compounds_are_split_as_the_script_does() -> None:
    program = "s{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g"
    text = "".join(f"{line}\n" for line in HYPHENS)
    result = subprocess.run(
        ["perl", "-ple", program], input=text.encode(), capture_output=True, check=True
    )
    assert [split_compounds(line) for line in HYPHENS] == result.stdout.decode().split("\n")[:-1]


def test_compounds_are_split_on_both_sides_in_multi_bleu_alone() -> None:
    assert (
        split_compounds("rich-text, well-known-thing")
        == "rich ##AT##-##AT## text, well ##AT##-##AT## known ##AT##-##AT## thing"
    )
    hypotheses, [reference] = (
        ["a rich-text file is here", "b"],
        [["a rich-text format is here", "b"]],
    )
    split = [[split_compounds(line) for line in side] for side in (hypotheses, reference)]
    for name in METRICS:
        [plain] = score(hypotheses, [reference], [name])
        [result] = score(hypotheses, [reference], [name], compound_split=True)
        if name in ("multi-bleu", "multi-bleu-lc"):
            assert result.value == score(split[0], [split[1]], [name])[0].value > plain.value
            assert "compounds:split" in result.signature and "compounds" not in plain.signature
        else:
            assert result == plain


def test_a_metric_outside_fusetk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "outside_metrics.py").write_text(
        "from fusetk.evaluation.metric import Metric, Score\n"
        "class Errors(Metric):\n"
        "    lower_is_better = True\n"
        "    options = ('tokenize',)\n"
        "    def __init__(self, references, options, source=None):\n"
        "        self.reference = references[0]\n"
        "    def statistics(self, hypotheses):\n"
        "        return [(a != b,) for a, b in zip(hypotheses, self.reference)]\n"
        "    def value(self, totals):\n"
        "        return float(totals[0])\n"
        "    def score(self, rows):\n"
        "        value = self.value([sum(map(sum, rows))])\n"
        "        return Score(self.name, 'errors', value, '', 'version:1', len(rows))\n"
        "class Short(Errors):\n"
        "    def statistics(self, hypotheses):\n        return []\n"
        "class NoRows(Errors):\n"
        "    def statistics(self, hypotheses):\n        pass\n"
        "class Unequal(Errors):\n"
        "    def statistics(self, hypotheses):\n        return [(0,), (0, 1)]\n"
        "class Text(Errors):\n"
        "    def statistics(self, hypotheses):\n        return list('ab')\n"
        "class Digits(Errors):\n"
        "    def statistics(self, hypotheses):\n        return [(1,), '1']\n"
        "class Large(Errors):\n"
        "    def statistics(self, hypotheses):\n        return [(1,), (10**400,)]\n"
        "class Flat(Errors):\n"
        "    def statistics(self, hypotheses):\n        return [1.0] * len(hypotheses)\n"
        "class Generator(Errors):\n"
        "    def statistics(self, hypotheses):\n"
        "        yield from super().statistics(hypotheses)\n"
        "class Numbers(Errors):\n"
        "    def score(self, rows):\n        return 3.0\n"
        "class NotFinite(Errors):\n"
        "    def value(self, totals):\n        return float('nan')\n"
        "class NoNumber(Errors):\n"
        "    def score(self, rows):\n"
        "        return Score(self.name, 'errors', 'a', '', 'version:1', len(rows))\n"
        "class DigitScore(Errors):\n"
        "    def score(self, rows):\n"
        "        return Score(self.name, 'errors', '1', '', 'version:1', len(rows))\n"
        "class LargeScore(Errors):\n"
        "    def score(self, rows):\n"
        "        return Score(self.name, 'errors', 10**400, '', 'version:1', len(rows))\n"
        "class Tensors(Errors):\n"
        "    def statistics(self, hypotheses):\n"
        "        import torch\n"
        "        return torch.ones(len(hypotheses), 1)\n"
        "    def score(self, rows):\n"
        "        return Score(self.name, 'errors', sum(rows)[0], '', 'version:1', len(rows))\n"
        "class Renamed(Errors):\n"
        "    def score(self, rows):\n"
        "        return Score('chrf', 'errors', 1, '', 'version:1', len(rows))\n"
        "class Exits(Errors):\n"
        "    def __init__(self, *arguments):\n        raise SystemExit(3)\n"
        "class Incomplete(Metric):\n    pass\n"
        "class Other:\n    pass\n"
    )
    name = "outside_metrics:Errors"
    results = score(["a", "b", "c"], [["a", "b", "d"]], [name, "chrf", name])
    assert [(result.metric, result.name) for result in results] == [
        (name, "errors"),
        ("chrf", "chrF2"),
    ]
    assert results[0].value == 1
    assert is_lower_better("ter") and not is_lower_better(name)  # a report imports no class
    assert not ignored_options([name], MetricOptions(tokenize="zh"))
    for wrong, message in (
        ("outside_metrics:Error", "outside_metrics.py has no 'Error'; did you mean 'Errors'"),
        ("no_metrics:Errors", "'no_metrics:Errors' cannot be imported: .* set PYTHONPATH to"),
        (
            "outside_metrics:Short",
            "outside_metrics:Short returned 0 rows for 2 lines as statistics",
        ),
        ("outside_metrics:NoRows", "outside_metrics:NoRows returned NoneType instead of a list"),
        ("outside_metrics:Unequal", "outside_metrics:Unequal returned rows of different lengths"),
        ("outside_metrics:Text", "outside_metrics:Text returned rows with values that are not"),
        ("outside_metrics:Digits", "outside_metrics:Digits returned rows with values that are not"),
        ("outside_metrics:Large", "outside_metrics:Large returned rows with values that are not"),
        ("outside_metrics:Flat", "outside_metrics:Flat returned values instead of rows as"),
        ("outside_metrics:Numbers", "score of the metric outside_metrics:Numbers returned float"),
        ("outside_metrics:NoNumber", "outside_metrics:NoNumber is 'a', not a number that a float"),
        ("outside_metrics:DigitScore", "outside_metrics:DigitScore is '1', not a number that a"),
        ("outside_metrics:LargeScore", r"LargeScore is 10+\.\.\.0+, not a number that a float can"),
        ("outside_metrics:Other", "is not a subclass of fusetk.evaluation.metric.Metric"),
        ("outside_metrics:Exits", "cannot be built with .*: SystemExit: 3"),
        ("outside_metrics:Incomplete", "cannot be built with .*: TypeError: Can't instantiate"),
        ("outside_metrics.Errors", "unknown metric .*; or package.module:Name"),
    ):
        with pytest.raises(DataError, match=message):
            score(["a", "b"], [["a", "b"]], [wrong])
    [result] = score(["a"], [["a"]], ["outside_metrics:Renamed"])
    assert result.metric == "outside_metrics:Renamed", "not the name of another metric"
    assert score(["a"], [["b"]], ["outside_metrics:Generator"])[0].value == 1
    [result] = score(["a"], [["a"]], ["outside_metrics:Tensors"])
    assert type(result.value) is float and result.value == 1
    [result] = score(["a"], [["a"]], ["outside_metrics:NotFinite"])
    run = tmp_path / "run"
    run.mkdir()
    with pytest.raises(DataError, match="NotFinite is nan, which cannot be recorded: correct the"):
        score_log.record_scores(score_log.ScoreDestination(run, "test", "best"), [result], [["a"]])
    assert not list(run.iterdir())


def test_wrong_input_is_an_error() -> None:
    with pytest.raises(DataError, match="2 lines and reference 2 has 1"):
        score(["a", "b"], [["a", "b"], ["a"]])
    with pytest.raises(DataError, match="multi-bleu"):
        score(["a"], [["a"]], ["bleau"])
    with pytest.raises(DataError, match="13a"):
        score(["a"], [["a"]], ["sacrebleu"], tokenize="13b")
    with pytest.raises(DataError, match="no lines"):
        score([], [[]])
    with pytest.raises(DataError, match="no reference"):
        score(["a"], [])


def test_metrics_do_not_import_torch() -> None:
    code = (
        "import fusetk.evaluation.metrics, fusetk.evaluation.score_warnings, sys\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
