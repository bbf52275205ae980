"""Parts of Markdown pages."""

import re
from collections.abc import Iterator

from tools.docstrings import paragraphs


def blocks(text: str, language: str) -> Iterator[str]:
    """Yield the contents of all fenced blocks of ``text`` in a language."""
    for block in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        yield block[1]


def escape(text: str) -> str:
    """Escape the characters that have a meaning in Markdown or in formulas."""
    return re.sub(r"([\\`*_\[\]<>&$~])", r"\\\1", text)


def prose(docstring: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring, each in one line. No paragraph may be verbatim."""
    for paragraph in paragraphs(docstring):
        assert not paragraph.verbatim, paragraph.source
        yield paragraph.converted(escape, "`{}`".format)
