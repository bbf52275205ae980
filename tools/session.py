"""Recording of a terminal session as a picture: ``python -m tools.session FILE.svg COMMAND...``.

The command runs in a pseudo-terminal. The picture shows the final content of its lines: progress
bars are in their last state. ``--typed`` is the command line that the picture shows.
"""

import argparse
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

# A control sequence with its number and its letter, another control character, or text.
TOKEN = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b[^\[]|[\r\n\x08]|[^\x1b\r\n\x08]+")


def record(command: Sequence[str], columns: int) -> tuple[str, int]:
    """Run a command in a terminal of so many columns. Return its output and its exit status."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    process = subprocess.Popen(command, stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    output = b""
    while True:
        try:
            block = os.read(controller, 65536)
        except OSError:  # the other side is closed
            break
        if not block:
            break
        output += block
        sys.stderr.buffer.write(block)
        sys.stderr.flush()
    return output.decode(errors="replace"), process.wait()


def final_lines(output: str) -> list[str]:
    """Return the lines that remain on the screen, with their colours.

    The output may move the cursor up, return to the start of the line, and erase lines, as progress
    bars do.
    """
    lines = [""]
    row = 0
    overwrite = False
    for match in TOKEN.finditer(output):
        count, kind = match[1], match[2] or match[0]
        if kind == "\r":
            overwrite = True
        elif kind == "\n":
            row += 1
            if row == len(lines):
                lines.append("")
        elif kind == "A":
            row = max(0, row - int(count or 1))
        elif kind == "K":
            lines[row] = ""
        elif kind == "m" or not match[0].startswith(("\x1b", "\x08")):
            lines[row] = match[0] if overwrite else lines[row] + match[0]
            overwrite = False
    return lines


def picture(lines: Sequence[str], columns: int, title: str) -> str:
    """Return an SVG of the lines; it has no external resources.

    Lines that are longer than the terminal continue below, as in a terminal.
    """
    console = Console(record=True, width=columns, file=io.StringIO(), color_system="truecolor")
    for line in lines:
        text = Text.from_ansi(line)
        for part in text.divide(range(columns, text.cell_len, columns)):
            console.print(part, soft_wrap=True)
    svg = console.export_svg(title=title)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code", "DejaVu Sans Mono")


def main() -> None:
    """Record the command and write the picture."""
    parser = argparse.ArgumentParser(description="record a terminal session as an SVG picture")
    parser.add_argument("output", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--typed", help="command line that the picture shows (COMMAND)")
    parser.add_argument(
        "--omit", default="^$", metavar="REGEX", help="lines that are left out (empty ones)"
    )
    options = parser.parse_args()
    output, status = record(options.command, options.columns)
    if status:
        sys.exit(status)
    typed = options.typed or " ".join(options.command)
    lines = [line for line in final_lines(output) if not re.search(options.omit, line)]
    svg = picture([f"$ {typed}", *lines], options.columns, typed)
    options.output.write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
