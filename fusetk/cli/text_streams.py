"""Input and output of the commands of ``fusetk text``: files, or - for the standard streams."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fusetk.cli.common_options import print_warning
from fusetk.data.text import check_inputs_and_output, read_input, writer

Watch = Callable[[Iterator[str]], Iterator[str]]  # inspects lines and returns them unchanged


@contextmanager
def output_to(path: Path, *inputs: Path) -> Iterator[IO[str]]:
    """Open a file or standard output for writing.

    The file is opened only if all inputs can be read and none of them is the file itself.
    """
    if is_file(path):
        check_inputs_and_output(inputs, path)
        with writer(path) as file:
            yield file
        return
    sys.stdout.flush()
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, AttributeError, ValueError):  # tests replace standard output
        yield sys.stdout
        return
    with open(descriptor, "w", 1 << 16, encoding="utf-8", newline="\n", closefd=False) as out:
        yield out


def is_file(path: Path) -> bool:
    """Whether a path names a file; `-` names standard input or output."""
    return str(path) != "-"


def change_lines(change: Callable[[str], str], source: Path, target: Path, watch: Watch) -> None:
    """Apply ``change`` to every line of ``source``, and write the lines to ``target``."""
    lines = watch(read_input(str(source)))
    with output_to(target, source) as out:
        for line in lines:
            changed = change(line)
            assert "\n" not in changed
            out.write(changed + "\n")


def warn(warning: str | None, advice: str) -> None:
    """Print a warning, unless it is None, and what to do."""
    if warning:
        print_warning(f"{warning}; {advice}")


def warn_without_spaces(lines: Iterator[str]) -> Iterator[str]:
    """Return the lines unchanged; warn if the first lines have no spaces between words."""
    from fusetk.data.languages import SAMPLE, without_spaces

    def check() -> None:
        warn(without_spaces(seen), "use a tool that segments the language")

    seen: list[str] = []
    for line in lines:
        yield line
        if len(seen) < SAMPLE:
            seen.append(line)
            if len(seen) == SAMPLE:
                check()
    if len(seen) < SAMPLE:
        check()
