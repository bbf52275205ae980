"""``fusetk text``: the prep steps as commands that read and write text."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click

from fusetk.cli.common_options import inform, input_argument, input_or_argument
from fusetk.data.text import Pair, read_lines, read_pairs, readable, standard_input, writer
from fusetk.errors import DataError

OptionalPath = Path | None


@click.group("text")
def command() -> None:
    """Tokenise, normalise, segment and filter text, line by line.

    Commands read UTF-8 from standard input and write to standard output unless options name files.
    They write one line for each line that they read. Two commands differ: `filter` reads two files
    and drops pairs of lines, and `learn-bpe` writes codes. Files named .gz are compressed. Only a
    line feed ends a line.
    """


def pipe(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options -i and -o to a command."""
    function = click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path),
        help="Write to this file instead of standard output.",
    )(function)
    return click.option(
        "-i",
        "--input",
        type=click.Path(path_type=Path),
        callback=input_or_argument,
        help="Read this file instead of standard input. It can also be given without -i.",
    )(input_argument("input")(function))


def language(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option -l to a command."""
    return click.option(
        "-l",
        "--language",
        default="en",
        show_default=True,
        metavar="LANG",
        help="Language of the text.",
    )(function)


def lines_of(path: OptionalPath) -> Iterator[str]:
    """Return the lines of a file or of standard input."""
    return read_lines(path) if path is not None and is_file(path) else standard_input()


@contextmanager
def output_to(path: OptionalPath, *inputs: OptionalPath) -> Iterator[IO[str]]:
    """Open a file or standard output for writing.

    The file is opened only if all inputs can be read and none of them is the file itself.
    """
    if path is not None and is_file(path):
        readable([file for file in inputs if file is not None and is_file(file)], path)
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


def each(
    change: Callable[[str], str],
    input: OptionalPath,
    output: OptionalPath,
    watch: Callable[[Iterator[str]], Iterator[str]] = iter,
) -> None:
    """Apply ``change`` to every line; ``watch`` inspects the lines and returns them unchanged."""
    lines = watch(lines_of(input))
    with output_to(output, input) as out:
        for line in lines:
            changed = change(line)
            assert "\n" not in changed
            out.write(changed + "\n")


def warn(warning: str | None, advice: str) -> None:
    """Print a warning, unless it is None, and what to do."""
    if warning:
        click.echo(f"warning: {warning}; {advice}", err=True)


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


@command.command()
@pipe
@language
@click.option(
    "--no-escape",
    is_flag=True,
    help="Do not write & | < > ' \" [ ] as Moses' entities.",
)
@click.option(
    "-a",
    "--aggressive-hyphens",
    is_flag=True,
    help="Split words at hyphens; write @-@ for the hyphen.",
)
def tokenize(
    input: OptionalPath,
    output: OptionalPath,
    language: str,
    no_escape: bool,
    aggressive_hyphens: bool,
) -> None:
    """Split punctuation from words as Moses' tokeniser does."""
    from fusetk.data.languages import without_tokenizer_rules
    from fusetk.data.tokenize import Tokenizer

    warn(without_tokenizer_rules(language), "check -l, or use a tool for the language")
    each(Tokenizer(language, not no_escape, aggressive_hyphens), input, output, warn_without_spaces)


@command.command()
@pipe
@language
@click.option(
    "--no-unescape", is_flag=True, help="Do not replace Moses' entities by their characters."
)
def detokenize(input: OptionalPath, output: OptionalPath, language: str, no_unescape: bool) -> None:
    """Join punctuation to words as Moses' detokeniser does."""
    from fusetk.data.tokenize import Detokenizer

    each(Detokenizer(language, not no_unescape), input, output)


@command.command()
@pipe
@language
@click.option("--nfc", is_flag=True, help="Convert the text to Unicode normal form C first.")
def normalize(input: OptionalPath, output: OptionalPath, language: str, nfc: bool) -> None:
    """Normalise punctuation as Moses' script normalize-punctuation does."""
    from fusetk.data.languages import without_normalizer_rules
    from fusetk.data.normalize import Normalizer
    from fusetk.data.steps.nfc import to_nfc

    warn(without_normalizer_rules(language), "check -l, or use a tool for the language")
    change = Normalizer(language)
    each((lambda line: change(to_nfc(line))) if nfc else change, input, output)


@command.command("learn-bpe")
@click.option(
    "-i",
    "--input",
    "inputs",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Read this file; repeat the option to count several files together.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write the codes to this file instead of standard output.",
)
@click.option(
    "-s",
    "--merges",
    default=10000,
    show_default=True,
    type=click.IntRange(1),
    help="Number of merges to learn.",
)
@click.option(
    "--min-frequency",
    default=2,
    show_default=True,
    type=click.IntRange(1),
    help="Smallest number of occurrences of a pair of symbols that is merged.",
)
def learn_bpe(
    inputs: tuple[Path, ...], output: OptionalPath, merges: int, min_frequency: int
) -> None:
    """Learn byte pair encoding from tokenised text."""
    from fusetk.data.bpe import learn

    counts: Counter[str] = Counter()
    for path in inputs or (None,):
        for line in lines_of(path):
            counts.update(line.split(" "))
    counts.pop("", None)
    if not counts:
        source = inputs[0] if inputs else "standard input"
        raise DataError(f"{source} has no words to learn from; give text with words")
    codes = learn(counts, merges, min_frequency)
    if len(codes) - 1 < merges:
        click.echo(
            f"after {len(codes) - 1} of {merges} merges, "
            f"no pair occurs {min_frequency} times any more",
            err=True,
        )
    with output_to(output, *inputs) as out:
        out.writelines(f"{line}\n" for line in codes)


@command.command("apply-bpe")
@pipe
@click.option(
    "-c",
    "--codes",
    required=True,
    type=click.Path(path_type=Path),
    help="File of codes that learn-bpe wrote.",
)
@click.option(
    "--vocabulary",
    type=click.Path(path_type=Path),
    help="File of subwords and counts. Subwords that are not in it are split again.",
)
@click.option(
    "--threshold",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Smallest count of a subword in the vocabulary; rarer subwords are split again.",
)
def apply_bpe(
    input: OptionalPath, output: OptionalPath, codes: Path, vocabulary: OptionalPath, threshold: int
) -> None:
    """Split words into subwords; every subword except the last of a word ends with `@@`."""
    from fusetk.data.bpe import BPE, read_vocabulary

    bpe = BPE.load(codes, read_vocabulary(vocabulary, threshold) if vocabulary else None)

    def change(line: str) -> str:
        words = line.strip(" ")
        if len(words) == len(line):
            return bpe.line(line)
        start = len(line) - len(line.lstrip(" "))
        return line[:start] + bpe.line(words) + line[start + len(words) :]

    each(change, input, output)


@command.command("remove-bpe")
@pipe
def remove_bpe(input: OptionalPath, output: OptionalPath) -> None:
    """Join subwords to words."""
    from fusetk.data.bpe import join

    each(join, input, output)


@command.command("filter")
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="PREFIX",
    help="Write files named PREFIX and the suffixes of SOURCE and TARGET.",
)
@click.option(
    "--min-length",
    default=1,
    show_default=True,
    type=click.IntRange(0),
    help="Smallest number of tokens on either side.",
)
@click.option(
    "--max-length", type=click.IntRange(1), help="Largest number of tokens on either side."
)
@click.option(
    "--max-ratio",
    type=click.FloatRange(1),
    help="Largest ratio of the longer side's length to the shorter side's.",
)
@click.option("--deduplicate", is_flag=True, help="Drop pairs that equal an earlier pair.")
def filter_pairs(
    source: Path,
    target: Path,
    output: str,
    min_length: int,
    max_length: int | None,
    max_ratio: float | None,
    deduplicate: bool,
) -> None:
    """Drop pairs of lines of SOURCE and TARGET by length.

    The command prints the number of dropped pairs for each reason.
    """
    from fusetk.data.filter import Deduplicator, Outcome
    from fusetk.data.steps.deduplicate import Deduplicate
    from fusetk.data.steps.filter import Filter

    step = Filter(step="filter", min_length=min_length, max_length=max_length, max_ratio=max_ratio)
    unique = [Deduplicate(step="deduplicate")] if deduplicate else []
    deduplicator = Deduplicator(unique)
    outputs = [_output_path(output, path) for path in (source, target)]
    if outputs[0] == outputs[1] or {*outputs} & {source, target}:
        raise DataError(
            f"-o {output} and the suffixes of the inputs give {outputs[0]} and {outputs[1]}; "
            "the outputs must differ from each other and from the inputs: give another prefix"
        )
    for path in outputs:
        readable((source, target), path)
    dropped: Counter[str] = Counter()
    num_kept = 0
    with writer(outputs[0]) as first, writer(outputs[1]) as second:
        for left, right in read_pairs(Pair(source, target)):
            reason = step.drop_reason(left, right)
            if not reason:
                keys = tuple(unique_step.key(left, right) for unique_step in unique)
                reason = deduplicator.reason(Outcome(left, right, "", keys))
            if reason:
                dropped[reason] += 1
            else:
                num_kept += 1
                first.write(left + "\n")
                second.write(right + "\n")
    total = num_kept + sum(dropped.values())
    reasons = "".join(f", {count} {reason}" for reason, count in sorted(dropped.items()))
    inform(f"{total} pairs in, {num_kept} out{reasons}")


def _output_path(prefix: str, path: Path) -> Path:
    """Return the prefix with the suffix of an input, without .gz."""
    return Path(prefix + (path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix))
