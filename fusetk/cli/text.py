"""``fusetk text``: the prep steps as commands that read and write text."""

from itertools import chain
from pathlib import Path

import click

from fusetk.cli.common_options import inform
from fusetk.cli.parameters import FilePath
from fusetk.cli.text_filter import filter_pairs
from fusetk.cli.text_line_commands import LINE_COMMANDS
from fusetk.cli.text_options import count_option, make_command, path_option
from fusetk.cli.text_streams import is_file, output_to
from fusetk.data.text import check_inputs_and_output, display_name, read_input
from fusetk.errors import DataError


@click.group("text")
def command() -> None:
    """Tokenise, normalise, segment and filter text, line by line.

    Commands read UTF-8 from standard input and write to standard output unless options name files.
    They write one line for each line that they read. Two commands differ: `filter` reads two files
    and drops pairs of lines, and `learn-bpe` writes codes. Files named .gz are compressed. Only a
    line feed ends a line.
    """


for name, entry in LINE_COMMANDS.items():
    command.add_command(make_command(name, entry))
command.add_command(filter_pairs)


@command.command("learn-bpe")
@click.argument("files", nargs=-1, metavar="[FILE]...", type=FilePath(path_type=Path))
@path_option(
    "-i",
    "--input",
    "inputs",
    multiple=True,
    help="Read this file; repeat the option to count several files together. Files can also be "
    "given without -i.",
)
@path_option(
    "-o", "--output", default="-", help="Write the codes to this file instead of standard output."
)
@count_option("-s", "--merges", default=10000, help="Number of merges to learn.")
@count_option(
    "--min-frequency",
    default=2,
    help="Smallest number of occurrences of a pair of symbols that is merged.",
)
def learn_bpe(
    files: tuple[Path, ...],
    inputs: tuple[Path, ...],
    output: Path,
    merges: int,
    min_frequency: int,
) -> None:
    """Learn byte pair encoding from tokenised text."""
    from fusetk.data.bpe import fewer_merges_message, learn, word_frequencies

    sources = [*inputs, *files] or [Path("-")]
    if sources.count(Path("-")) > 1:
        raise DataError("- is given twice, but standard input can be read only once")
    if is_file(output):
        check_inputs_and_output(sources, output)
    counts = word_frequencies(chain.from_iterable(read_input(str(file)) for file in sources))
    if not counts:
        name = display_name(str(sources[0]))
        raise DataError(f"{name} has no words to learn from; give text with words")
    codes = learn(counts, merges, min_frequency)
    if message := fewer_merges_message(codes, merges, min_frequency):
        inform(message)
    with output_to(output, *sources) as out:
        out.writelines(f"{line}\n" for line in codes)
