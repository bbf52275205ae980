"""Parts of Markdown pages."""

import re
from collections.abc import Iterator


def blocks(text: str, language: str) -> Iterator[str]:
    """Yield the contents of all fenced blocks of ``text`` in a language."""
    for block in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        yield block[1]
