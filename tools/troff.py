"""Conversion of docstrings to troff, the format of manual pages."""

import re

import fusetk
from tools.docstrings import paragraphs


def escape(text: str) -> str:
    """Escape backslashes, minus signs, non-ASCII characters, and dots at the start of a line."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = "".join(c if ord(c) < 128 else f"\\[u{ord(c):04X}]" for c in text)
    return re.sub(r"(?m)^(?=[.'])", r"\\&", text)


def bold(text: str) -> str:
    return f"\\fB{escape(text)}\\fR"


def italic(text: str) -> str:
    return f"\\fI{escape(text)}\\fR"


def prose(docstring: str) -> str:
    """Convert a docstring. Code becomes bold."""
    converted = []
    for paragraph in paragraphs(docstring):
        lines = paragraph.converted(escape, bold)
        converted.append(f".nf\n{lines}\n.fi" if paragraph.verbatim else lines)
    return "\n.PP\n".join(converted)


def tagged(head: str, text: str) -> list[str]:
    """Return a docstring as an indented text below ``head``, which is troff."""
    return [".TP", head, prose(text).replace("\n.PP\n", "\n.IP\n")]


def page(name: str, section: int, summary: str, body: list[str]) -> str:
    """Return a manual page; ``body`` follows the NAME section."""
    source = f"fusetk {escape(fusetk.__version__)}"
    lines = [
        f'.TH "{escape(name.upper())}" "{section}" "" "{source}" "fusetk"',
        ".ad l",
        ".nh",
        ".SH NAME",
        f"{escape(name)} \\- {escape(summary.rstrip('.'))}",
        *body,
    ]
    return "\n".join(lines) + "\n"
