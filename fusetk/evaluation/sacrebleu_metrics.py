"""The metrics of the sacrebleu library: sacreBLEU, chrF, chrF++, TER, and mteval-v13a."""

import string
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fusetk import display
from fusetk.errors import DataError, one_line
from fusetk.evaluation.metric import Metric, MetricOptions, Score, StatisticsRow

if TYPE_CHECKING:
    import numpy as np

BLOCK = 1000  # lines in one call of sacrebleu, whose chrF keeps 20 KB of n-grams for each line

_ASCII_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


class SacreMetric(Metric):
    """A metric whose statistics and scores are computed by a metric of the sacrebleu library."""

    def __init__(self, scorer: Any, references: Sequence[Sequence[str]]) -> None:
        self.scorer = scorer
        self.references = references

    def statistics(self, hypotheses: Sequence[str]) -> list[StatisticsRow]:
        rows: list[StatisticsRow] = []
        with display.task(self.name, "lines", len(hypotheses)) as done:
            for start in range(0, len(hypotheses), BLOCK):
                block = slice(start, start + BLOCK)
                references = [lines[block] for lines in self.references]
                rows += self.scorer._extract_corpus_statistics(hypotheses[block], references)
                done.set(len(rows))
        return rows

    def value(self, totals: StatisticsRow) -> float:
        return float(self.scorer._compute_score_from_stats(list(totals)).score)

    def values(self, totals: "np.ndarray") -> "np.ndarray":
        """Return the value for each row of ``totals``, of shape (samples, statistics)."""
        import numpy as np

        positive = (totals > 0).all(1)  # these need neither smoothing nor a special case
        values = np.empty(len(totals))
        values[positive] = self.positive_values(totals[positive])
        values[~positive] = super().values(totals[~positive])
        return values

    def positive_values(self, totals: "np.ndarray") -> "np.ndarray":
        """Return the value for each row of ``totals``, whose statistics are all positive."""
        return super().values(totals)

    def score(self, rows: Sequence[StatisticsRow]) -> Score:
        result = self.scorer._aggregate_and_compute(rows)
        return Score(
            metric=self.name,
            name=result.name,
            value=result.score,
            signature=self.signature(),
            sentences=len(rows),
            **self.parts(result),
        )

    def signature(self) -> str:
        """Return all settings that are needed to reproduce the score."""
        return str(self.scorer.get_signature())

    def parts(self, result: Any) -> dict[str, Any]:
        """Return the remaining fields of ``Score`` for a result of the sacrebleu library."""
        return {"details": ""}


class BleuMetric(SacreMetric):
    """A kind of BLEU."""

    def positive_values(self, totals: "np.ndarray") -> "np.ndarray":
        """Return the value for each row of ``totals``, whose statistics are all positive."""
        import numpy as np

        length, reference_length = totals[:, 0], totals[:, 1]
        matches, ngrams = np.split(totals[:, 2:], 2, axis=1)
        brevity_penalty = np.exp(np.minimum(0, 1 - reference_length / length))
        return 100 * brevity_penalty * np.exp(np.log(matches / ngrams).mean(1))

    def parts(self, result: Any) -> dict[str, Any]:
        """Return the remaining fields of ``Score``, with details as multi-bleu.perl prints them."""
        precisions = "/".join(f"{precision:.1f}" for precision in result.precisions)
        ratio = result.sys_len / result.ref_len if result.ref_len else 0.0
        lengths = f"hyp_len={result.sys_len}, ref_len={result.ref_len}"
        return {
            "details": f"{precisions} (BP={result.bp:.3f}, ratio={ratio:.3f}, {lengths})",
            "hypothesis_length": result.sys_len,
            "reference_length": result.ref_len,
            "brevity_penalty": result.bp,
        }


class PreparedBleu(BleuMetric):
    """BLEU of lines that ``prepare`` converts to words.

    sacreBLEU splits the prepared lines at white space and does nothing else to them. Subclasses
    implement ``prepare``.
    """

    smoothing: str  # smoothing method of sacreBLEU

    def __init__(self, references: Sequence[Sequence[str]]) -> None:
        from sacrebleu.metrics.bleu import BLEU

        scorer = BLEU(tokenize="none", smooth_method=self.smoothing, force=True)
        super().__init__(scorer, [self._prepare_all(lines) for lines in references])

    def prepare(self, line: str) -> str:
        """Return the words of a line, separated by white space.

        The words are in lower case if the metric ignores case.
        """
        raise NotImplementedError

    def _prepare_all(self, lines: Sequence[str]) -> list[str]:
        return [self.prepare(line) for line in lines]

    def statistics(self, hypotheses: Sequence[str]) -> list[StatisticsRow]:
        """Return one row for each line.

        A row has the lengths of the hypothesis and of the closest reference, the matching n-grams
        for n = 1 to 4, and the n-grams of the hypothesis for n = 1 to 4.
        """
        return super().statistics(self._prepare_all(hypotheses))


class SacreBleu(BleuMetric):
    """sacreBLEU."""

    name = "sacrebleu"
    tokenizes: bool | None = True
    options = ("tokenize",)

    def __init__(
        self,
        references: Sequence[Sequence[str]],
        options: MetricOptions,
        source: Sequence[str] | None = None,
    ) -> None:
        from sacrebleu.metrics.bleu import BLEU

        if options.tokenize is not None and options.tokenize not in BLEU.TOKENIZERS:
            choices = ", ".join(BLEU.TOKENIZERS)
            raise DataError(
                f"sacreBLEU has no tokeniser {options.tokenize!r}; choose one of {choices}"
            )
        try:
            # ``force`` turns off the library's warning; ``score_warnings`` has a better one.
            scorer = BLEU(lowercase=options.lowercase, tokenize=options.tokenize, force=True)
        except (ImportError, RuntimeError, OSError) as error:
            raise DataError(
                f"sacreBLEU's tokeniser {options.tokenize!r} cannot be used here: {one_line(error)}"
            ) from error
        super().__init__(scorer, references)
        self.case_sensitive = not options.lowercase
        if options.tokenize == "none":
            self.tokenizes = None


class Mteval(PreparedBleu):
    """BLEU as NIST's script mteval-v13a.pl computes it.

    The script and sacreBLEU agree: sacreBLEU's tokeniser 13a is that of the script. Both smooth the
    precision of an n-gram length n without a match: they count 1/2 match for the first such n, 1/4
    for the next one, and so on. Both use the length of the closest reference, the shorter one at a
    tie.

    Like the script, this metric lower-cases A to Z and no other letter. One case differs: if a text
    has no match, or no n-gram of some length, the script returns a small value; sacreBLEU and this
    metric return 0.
    """

    name = "mteval-v13a"
    case_sensitive = False
    tokenizes = True
    smoothing = "exp"

    def __init__(
        self,
        references: Sequence[Sequence[str]],
        options: MetricOptions,
        source: Sequence[str] | None = None,
    ) -> None:
        from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

        self.tokenizer = Tokenizer13a()
        self.lowercase = options.lowercase
        if options.lowercase:
            self.name = Mteval.name
            self.case_sensitive = False
        super().__init__(references)

    def prepare(self, line: str) -> str:
        """Tokenise a line; lower-case it unless case counts."""
        tokenized: str = self.tokenizer(line)
        if self.lowercase:
            return tokenized.lower()
        return tokenized if self.case_sensitive else tokenized.translate(_ASCII_LOWER)

    def signature(self) -> str:
        """Return all settings that are needed to reproduce the score."""
        signature = self.scorer.get_signature()
        case = "mixed" if self.case_sensitive else "lc[A-Z]"
        signature.update("case", "lc" if self.lowercase else case)
        signature.update("tok", "13a")
        signature.update("arithmetic", "mteval-v13a")
        return str(signature)


class CasedMteval(Mteval):
    """BLEU as mteval-v13a.pl computes it with the option -c, which keeps the case."""

    name = "mteval-v13a-cased"
    case_sensitive = True


class Chrf(SacreMetric):
    """chrF: the F-score of character n-grams."""

    name = "chrf"
    word_order = 0  # the longest word n-gram

    def __init__(
        self,
        references: Sequence[Sequence[str]],
        options: MetricOptions,
        source: Sequence[str] | None = None,
    ) -> None:
        from sacrebleu.metrics.chrf import CHRF

        scorer = CHRF(word_order=self.word_order, lowercase=options.lowercase)
        super().__init__(scorer, references)
        self.case_sensitive = not options.lowercase

    def positive_values(self, totals: "np.ndarray") -> "np.ndarray":
        """Return the value for each row of ``totals``, whose statistics are all positive."""
        hypothesis, reference, matches = (totals[:, i::3] for i in range(3))
        precision, recall = (matches / hypothesis).mean(1), (matches / reference).mean(1)
        factor = self.scorer.beta**2
        return 100 * (1 + factor) * precision * recall / (factor * precision + recall)


class ChrfPlusPlus(Chrf):
    """chrF++: chrF with word unigrams and bigrams."""

    name = "chrf++"
    word_order = 2


class Ter(SacreMetric):
    """TER, the translation edit rate; it ignores case."""

    name = "ter"
    case_sensitive = False
    lower_is_better = True

    def __init__(
        self,
        references: Sequence[Sequence[str]],
        options: MetricOptions,
        source: Sequence[str] | None = None,
    ) -> None:
        from sacrebleu.metrics.ter import TER

        super().__init__(TER(), references)

    def parts(self, result: Any) -> dict[str, Any]:
        """Return the remaining fields of ``Score`` for a result of the sacrebleu library."""
        return {
            "details": f"edits={result.num_edits:.0f}, ref_len={result.ref_length:.10g}",
            "reference_length": result.ref_length,
        }
