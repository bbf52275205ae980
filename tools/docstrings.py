"""Docstrings as paragraphs of text and code."""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Paragraph(NamedTuple):
    """A paragraph of a docstring."""

    source: str
    """One line, or the lines of the docstring if the paragraph is verbatim."""
    verbatim: bool

    def converted(self, text: Callable[[str], str], code: Callable[[str], str]) -> str:
        """Return the paragraph with its text and its code, which is in backquotes, converted."""
        # The parts are: text, backquotes, code, text, backquotes, code, ..., text.
        parts = re.split(r"(`+)(.+?)\1", self.source)
        parts[::3] = map(text, parts[::3])
        parts[2::3] = map(code, parts[2::3])
        del parts[1::3]
        return "".join(parts)


def paragraphs(docstring: str) -> Iterator[Paragraph]:
    """Yield the paragraphs of a docstring, which blank lines separate.

    As in click, a paragraph that starts with a backspace keeps its lines.
    """
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
        lines = paragraph.lstrip("\b\n").splitlines()
        verbatim = paragraph.startswith("\b")
        source = "\n".join(lines) if verbatim else " ".join(line.strip() for line in lines)
        yield Paragraph(source, verbatim)
