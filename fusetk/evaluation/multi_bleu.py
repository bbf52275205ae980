"""BLEU of tokenised text without smoothing, as the Moses script multi-bleu.perl computes it.

sacreBLEU without a tokeniser and without smoothing has the same arithmetic. It splits a line at all
Unicode white space. The script reads bytes and splits at ASCII white space only, so other white
space is replaced before sacreBLEU sees it.
"""

import re
from collections.abc import Collection, Sequence
from typing import ClassVar

from fusetk.evaluation.metric import MetricOptions
from fusetk.evaluation.sacrebleu_metrics import PreparedBleu

# Perl splits a line of bytes at this white space. str.split would also split at NBSP and others.
split_words = re.compile(r"[^ \t\n\r\f\v]+").findall

# Replacements of the other white space: lone surrogates, which valid UTF-8 cannot contain.
_OTHER_SPACE = (
    "\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009"
    "\u200a\u2028\u2029\u202f\u205f\u3000"
)
_REPLACE_OTHER_SPACE = {ord(space): 0xDC00 + i for i, space in enumerate(_OTHER_SPACE)}
_COMPOUND = re.compile(rb"(\S)-(\S)")
_SPLIT_HYPHEN = re.compile(" (?:@-@|##AT##-##AT##) ")


class MultiBleu(PreparedBleu):
    """BLEU of tokenised lines without smoothing, as multi-bleu.perl computes it."""

    name = "multi-bleu"
    tokenizes = False
    options: ClassVar[Collection[str]] = ("compound_split",)
    smoothing = "none"

    def __init__(
        self,
        references: Sequence[Sequence[str]],
        options: MetricOptions,
        source: Sequence[str] | None = None,
    ) -> None:
        self.compound_split = options.compound_split and "compound_split" in self.options
        if options.lowercase:
            self.case_sensitive = False
            if self.name == MultiBleu.name:
                self.name = LowercaseMultiBleu.name
        super().__init__(references)

    def prepare(self, line: str) -> str:
        """Lower-case a line if case does not count, and split compounds on request."""
        if not self.case_sensitive:
            line = line.lower()
        if self.compound_split:
            line = split_compounds(line)
        return line.translate(_REPLACE_OTHER_SPACE)

    def signature(self) -> str:
        """Return all settings that are needed to reproduce the score."""
        case = "mixed" if self.case_sensitive else "lc"
        compounds = "|compounds:split" if self.compound_split else ""
        references = f"nrefs:{len(self.references)}"
        return f"{references}|case:{case}|tok:none{compounds}|smooth:none|arithmetic:moses"


class LowercaseMultiBleu(MultiBleu):
    """multi-bleu of lower-cased lines.

    Lower case is Unicode's (``str.lower``). The script with -lc reads bytes and changes A to Z
    only, so the two differ on text with other capitals.
    """

    name = "multi-bleu-lc"
    case_sensitive = False


class JoinedMultiBleu(MultiBleu):
    """multi-bleu of lines in which the hyphens that preparation split off are joined again.

    ``rich @-@ text`` (the Moses tokeniser with -a) and ``rich ##AT##-##AT## text`` become
    ``rich-text``, as without the splitting.
    """

    name = "multi-bleu-joined"
    options: ClassVar[Collection[str]] = ()

    def prepare(self, line: str) -> str:
        """Join hyphens, and lower-case the line if case does not count."""
        return super().prepare(_SPLIT_HYPHEN.sub("-", line))

    def signature(self) -> str:
        """Return all settings that are needed to reproduce the score."""
        return super().signature().replace("|tok:none", "|tok:none|hyphens:joined")


def split_compounds(line: str) -> str:
    """Split words at hyphens, as papers on WMT English-German do.

    ``rich-text`` becomes ``rich ##AT##-##AT## text``. Like tensor2tensor's get_ende_bleu.sh, this
    works on bytes, and a match consumes the byte on each side of the hyphen. So only the first
    hyphen of a-b-c is split. Both hyphens of ä-ö-ü are split, because its letters have two bytes.
    """
    return _COMPOUND.sub(rb"\1 ##AT##-##AT## \2", line.encode()).decode()
