"""Conversion of docstrings to troff, the format of manual pages."""

import inspect
import re

import fusetk


def escape(text: str) -> str:
    """Escape backslashes, minus signs, non-ASCII characters, and dots at the start of a line."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = "".join(c if ord(c) < 128 else f"\\[u{ord(c):04X}]" for c in text)
    return re.sub(r"(?m)^(?=[.'])", r"\\&", text)


def bold(text: str) -> str:
    return f"\\fB{escape(text)}\\fR"


def italic(text: str) -> str:
    return f"\\fI{escape(text)}\\fR"


def prose(text: str) -> str:
    """Convert a docstring.

    Blank lines separate paragraphs, and ``code`` becomes bold. As in click, a paragraph that starts
    with a backspace keeps its lines.
    """
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        verbatim = paragraph.startswith("\b")
        lines = paragraph.lstrip("\b\n").splitlines()
        source = "\n".join(lines) if verbatim else " ".join(line.strip() for line in lines)
        # The parts are: text, backquotes, code, text, backquotes, code, ..., text.
        parts = re.split(r"(`+)(.+?)\1", source)
        texts = [escape(part) for part in parts[::3]]
        codes = [bold(part) for part in parts[2::3]]
        converted = texts[0]
        for code, following in zip(codes, texts[1:], strict=True):
            converted += code + following
        paragraphs.append(f".nf\n{converted}\n.fi" if verbatim else converted)
    return "\n.PP\n".join(paragraphs)


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
