"""Compare tokenisation and BPE with the commands of sacremoses and subword-nmt.

    python tests/benchmarks/text.py FILE LANGUAGE [--times N]

FILE is repeated N times. The script measures the user time of each command. It compares the
outputs, and prints the seconds and the ratio.
"""

import argparse
import filecmp
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from fusetk.data.text import read_lines


def seconds(command: list[str], source: Path, output: Path) -> float:
    """Return the seconds of user time of a command that reads ``source`` and writes ``output``."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with source.open("rb") as file, output.open("wb") as out:
        subprocess.run(command, stdin=file, stdout=out, stderr=subprocess.DEVNULL, check=True)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("language")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--merges", type=int, default=5000)
    options = parser.parse_args()
    ours = [sys.executable, "-m", "fusetk", "text"]
    with tempfile.TemporaryDirectory() as folder:
        raw, our_output, other_output, codes = (
            Path(folder) / name for name in ("raw", "ours", "other", "codes")
        )
        raw.write_text(
            "".join(f"{line}\n" for line in read_lines(options.file)) * options.times,
            encoding="utf-8",
        )
        pairs = [
            (
                "tokenize",
                [*ours, "tokenize", "-l", options.language],
                ["sacremoses", "-l", options.language, "-q", "tokenize"],
            )
        ]
        subprocess.run(
            [*ours, "learn-bpe", "-s", str(options.merges), "-i", str(raw), "-o", str(codes)],
            check=True,
        )
        pairs.append(
            (
                "apply-bpe",
                [*ours, "apply-bpe", "--codes", str(codes)],
                ["subword-nmt", "apply-bpe", "-c", str(codes)],
            )
        )
        for name, our_command, other_command in pairs:
            fast = seconds(our_command, raw, our_output)
            slow = seconds(other_command, raw, other_output)
            equal = filecmp.cmp(our_output, other_output, shallow=False)
            verdict = "equal output" if equal else "DIFFERENT OUTPUT"
            print(
                f"{name}: {fast:.2f} s against {slow:.2f} s, "
                f"{slow / fast:.1f} times faster, {verdict}"
            )


if __name__ == "__main__":
    main()
