"""``fusetk demo``."""

import re
from collections.abc import Sequence
from pathlib import Path

import click

from fusetk.cli.common_options import DEBUG, QUIET, inform
from fusetk.cli.options import set_option
from fusetk.cli.parameters import FilePath
from fusetk.errors import ConfigError


@click.command("demo", epilog="Example: fusetk demo --out demo && fusetk demo --out demo --plain")
@click.option(
    "--out",
    default="fusetk-demo",
    show_default=True,
    type=FilePath(path_type=Path),
    metavar="DIR",
    help="Folder of all output.",
)
@click.option("--plain", is_flag=True, help="Train the same Transformer without fusion.")
@set_option
def command(out: Path, plain: bool, overrides: tuple[str, ...]) -> None:
    """Train a small model that fuses its layers, and show its translations and layer weights.

    A grammar makes the corpus: German sentences with their English translations. The model is a
    Transformer whose decoder fuses its layers by attention (Dec-SA). With --plain, the decoder
    returns its highest layer. Both models share the folder and the prepared text.

    Each step is a command of fusetk, which is printed. At the end an HTML page shows the layer
    weights, the attention, the scores, translations and further commands. A second call does only
    the missing steps.
    """
    from fusetk.demo.page import write_page
    from fusetk.demo.results import FUSING, PLAIN, DemoFiles
    from fusetk.demo.steps import Demo
    from fusetk.demo.terminal import SummaryConsole, show

    for setting in overrides:
        if re.match(r"data\.(folder|source|target|train|valid|test)[.=]", setting):
            raise ConfigError(
                f"--set {setting}: the demo makes its own text: omit this setting. --out chooses "
                "the folder. For other text, use fusetk prep and fusetk train"
            )
    if str(out).startswith("-"):  # a command would read its paths as options
        out = out.absolute()
    files = DemoFiles(out, PLAIN if plain else FUSING, overrides)
    demo = Demo(files, _call, inform)
    demo.run()
    write_page(files)
    console = SummaryConsole()
    if not console.is_terminal:
        console.width = 120
    show(files, demo.seconds, console)


def _call(words: Sequence[str]) -> None:
    """Run a command of fusetk in this process, with the -q and --debug of the demo.

    After Ctrl-C, it prints the advice for the demo.
    """
    context = click.get_current_context()
    name, *others = words
    flags = [flag for flag, key in (("-q", QUIET), ("--debug", DEBUG)) if context.meta.get(key)]
    main = context.find_root().command
    arguments = [name, *flags, *others]
    status = main.main(arguments, prog_name="fusetk", standalone_mode=False, obj="demo")
    if status:
        context.exit(status)
