"""``fusetk text``: the steps of preparation as pipes."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click

from fusetk.data.text import Pair, read_lines, read_pairs, readable, standard_input, writer
from fusetk.errors import DataError

OptionalPath = Path | None


@click.group("text")
def command() -> None:
    """Tokenise, normalise, segment and filter text, line by line.

    Commands read UTF-8 from standard input and write to standard output unless files are given, a line for each line; `filter`
    reads two files and drops pairs of lines, `learn-bpe` writes codes. Files named .gz are packed. A line ends at a line feed only.
    """


def pipe(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options -i and -o."""
    function = click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path),
        help="Write here instead of to standard output.",
    )(function)
    return click.option(
        "-i",
        "--input",
        type=click.Path(path_type=Path),
        help="Read this instead of standard input.",
    )(function)


def language(function: Callable[..., Any]) -> Callable[..., Any]:
    """The option -l."""
    return click.option(
        "-l",
        "--language",
        default="en",
        show_default=True,
        metavar="LANG",
        help="Language of the text.",
    )(function)


def lines_of(path: OptionalPath) -> Iterator[str]:
    """The lines of a file or of standard input."""
    return read_lines(path) if path is not None and str(path) != "-" else standard_input()


@contextmanager
def output_to(path: OptionalPath, *inputs: OptionalPath) -> Iterator[IO[str]]:
    """A file or standard output; a file is not touched before the inputs are seen to be there and others than it."""
    if path is not None and str(path) != "-":
        readable([given for given in inputs if given is not None and str(given) != "-"], path)
        with writer(path) as file:
            yield file
        return
    sys.stdout.flush()
    if _is_real(sys.stdout):
        with open(
            sys.stdout.fileno(), "w", 1 << 16, encoding="utf-8", newline="\n", closefd=False
        ) as out:
            yield out
    else:
        yield sys.stdout


def _is_real(stream: Any) -> bool:
    try:
        stream.fileno()
    except (OSError, AttributeError, ValueError):
        return False  # a test's stand-in
    return True


def each(
    change: Callable[[str], str],
    input: OptionalPath,
    output: OptionalPath,
    watch: Callable[[Iterator[str]], Iterator[str]] = iter,
) -> None:
    """Write every line changed. ``watch`` hands on the lines of the input."""
    lines = watch(lines_of(input))
    with output_to(output, input) as out:
        for line in lines:
            changed = change(line)
            assert "\n" not in changed
            out.write(changed + "\n")


def warn(doubt: str | None, advice: str) -> None:
    """Print a doubt, if there is one, and what to do."""
    if doubt:
        click.echo(f"warning: {doubt}; {advice}", err=True)


def watched(lines: Iterator[str]) -> Iterator[str]:
    """The same lines, with a warning when the first ones have no spaces between words."""
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
    help="Leave & | < > ' \" [ ] as they are instead of writing entities.",
)
@click.option(
    "-a", "--aggressive-hyphens", is_flag=True, help="Split words at hyphens, marked @-@."
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
    each(Tokenizer(language, not no_escape, aggressive_hyphens), input, output, watched)


@command.command()
@pipe
@language
@click.option("--no-unescape", is_flag=True, help="Leave Moses' entities as they are.")
def detokenize(input: OptionalPath, output: OptionalPath, language: str, no_unescape: bool) -> None:
    """Join punctuation to words as Moses' detokeniser does."""
    from fusetk.data.tokenize import Detokenizer

    each(Detokenizer(language, not no_unescape), input, output)


@command.command()
@pipe
@language
@click.option("--nfc", is_flag=True, help="Put the text into Unicode normal form C first.")
def normalize(input: OptionalPath, output: OptionalPath, language: str, nfc: bool) -> None:
    """Normalise punctuation as Moses' script does."""
    from fusetk.data.languages import without_normalizer_rules
    from fusetk.data.normalize import Normalizer
    from fusetk.data.steps import nfc as normal_form

    warn(without_normalizer_rules(language), "check -l, or use a tool for the language")
    change = Normalizer(language)
    each((lambda line: change(normal_form(line))) if nfc else change, input, output)


@command.command("learn-bpe")
@click.option(
    "-i",
    "--input",
    "inputs",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Read this; several files count together.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write the codes here instead of to standard output.",
)
@click.option(
    "-s",
    "--merges",
    default=10000,
    show_default=True,
    type=click.IntRange(1),
    help="How many merges to learn.",
)
@click.option(
    "--min-frequency",
    default=2,
    show_default=True,
    type=click.IntRange(1),
    help="Stop when no pair stands so often.",
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
        raise DataError(f"{inputs[0] if inputs else 'standard input'} has no words to learn from")
    codes = learn(counts, merges, min_frequency)
    if len(codes) - 1 < merges:
        click.echo(
            f"no pair stands {min_frequency} times any more after {len(codes) - 1} of {merges} merges",
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
    help="Codes that learn-bpe wrote.",
)
@click.option(
    "--vocabulary",
    type=click.Path(path_type=Path),
    help="Subwords and counts; split those that are not in it.",
)
@click.option(
    "--threshold",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Fewest times that one stands in the vocabulary.",
)
def apply_bpe(
    input: OptionalPath, output: OptionalPath, codes: Path, vocabulary: OptionalPath, threshold: int
) -> None:
    """Split words into subwords, joined by `@@ `."""
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
    help="Write PREFIX and the endings of SOURCE and TARGET.",
)
@click.option(
    "--min-length",
    default=1,
    show_default=True,
    type=click.IntRange(0),
    help="Fewest tokens on either side.",
)
@click.option("--max-length", type=click.IntRange(1), help="Most tokens on either side.")
@click.option(
    "--max-ratio", type=click.FloatRange(1), help="Greatest ratio of the lengths, either way."
)
@click.option("--deduplicate", is_flag=True, help="Drop pairs that stood before.")
def filter_pairs(
    source: Path,
    target: Path,
    output: str,
    min_length: int,
    max_length: int | None,
    max_ratio: float | None,
    deduplicate: bool,
) -> None:
    """Drop pairs of lines of SOURCE and TARGET by length; what was dropped and why goes to standard error."""
    from fusetk.data.config import Filter
    from fusetk.data.filter import DUPLICATE, digest, drop_reason, length

    step = Filter(step="filter", min_length=min_length, max_length=max_length, max_ratio=max_ratio)
    outputs = [
        Path(output + path.with_suffix("").suffix if path.suffix == ".gz" else output + path.suffix)
        for path in (source, target)
    ]
    if outputs[0] == outputs[1] or {*outputs} & {source, target}:
        raise DataError(
            f"-o {output} would write {outputs[0]} and {outputs[1]}, made from the endings of the inputs; give another prefix"
        )
    for path in outputs:
        readable((source, target), path)
    dropped: Counter[str] = Counter()
    seen: set[bytes] = set()
    kept = 0
    with writer(outputs[0]) as first, writer(outputs[1]) as second:
        for left, right in read_pairs(Pair(source, target)):
            reason = drop_reason(step, length(left), length(right))
            if not reason and deduplicate:
                mark = digest(left, right)
                reason = DUPLICATE if mark in seen else ""
                seen.add(mark)
            if reason:
                dropped[reason] += 1
            else:
                kept += 1
                first.write(left + "\n")
                second.write(right + "\n")
    click.echo(
        f"{kept + sum(dropped.values())} pairs in, {kept} out{_reasons(dropped.items())}", err=True
    )


def _reasons(dropped: Iterable[tuple[str, int]]) -> str:
    return "".join(f", {count} {reason}" for reason, count in sorted(dropped))
