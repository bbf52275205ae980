"""Compare tokenisation and BPE with the commands of sacremoses and subword-nmt.

    python tests/benchmarks/text.py FILE LANGUAGE [--lines N] [--merges N]

The text has N lines: those of FILE, and perturbed repetitions whose vocabulary grows as that of
real text (``growing_text.py``). The script measures the processor time of each command, system
time included. It compares the outputs, and prints the seconds and the ratio.
"""

import argparse
import filecmp
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from growing_text import growing_lines  # isort: skip

from fusetk.data.text import read_lines


def seconds(command: list[str], source: Path, output: Path) -> float:
    """Return the processor time of a command that reads ``source`` and writes ``output``."""

    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = used()
    with source.open("rb") as file, output.open("wb") as out:
        subprocess.run(command, stdin=file, stdout=out, stderr=subprocess.DEVNULL, check=True)
    return used() - before


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("language")
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--merges", type=int, default=10_000)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the ratios to this file")
    options = parser.parse_args()
    ours = [sys.executable, "-m", "fusetk", "text"]
    bin_folder = Path(sys.executable).parent
    moses, subword_nmt = str(bin_folder / "sacremoses"), str(bin_folder / "subword-nmt")
    merges = str(options.merges)
    results = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        raw, words, codes = (folder / name for name in ("raw", "tokenize", "learn-bpe"))
        lines = growing_lines(list(read_lines(options.file)), options.lines)
        raw.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        language = ["-l", options.language]
        for task, source, arguments, other in (
            ("tokenize", raw, language, [moses, *language, "-q", "tokenize"]),
            ("learn-bpe", words, ["-s", merges], [subword_nmt, "learn-bpe", "-s", merges]),
            ("apply-bpe", words, ["-c", str(codes)], [subword_nmt, "apply-bpe", "-c", str(codes)]),
        ):
            output, other_output = folder / task, folder / f"{task}.other"
            fast = seconds([*ours, task, *arguments], source, output)
            slow = seconds(other, source, other_output)
            equal = filecmp.cmp(output, other_output, shallow=False)
            results[task] = {"seconds": fast, "other": slow, "ratio": slow / fast, "equal": equal}
    fast, slow = (sum(result[key] for result in results.values()) for key in ("seconds", "other"))
    equal = all(result["equal"] for result in results.values())
    results["all"] = {"seconds": fast, "other": slow, "ratio": slow / fast, "equal": equal}
    for task, result in results.items():
        verdict = "equal output" if result["equal"] else "DIFFERENT OUTPUT"
        print(
            f"{task}: {result['seconds']:.2f} s against {result['other']:.2f} s, "
            f"{result['ratio']:.1f} times faster, {verdict}"
        )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
