"""The ``fusetk`` command: subcommands are imported when they are called, so ``--help`` answers at once."""

import importlib
import os
import sys
from typing import Any

import click

from fusetk import __version__
from fusetk.cli import streams
from fusetk.errors import FusetkError

COMMANDS = {
    "prep": "Raw parallel text to memory-mapped ids.",
    "text": "The steps of prep as pipes.",
    "train": "Train a model; resumes by itself.",
    "average": "Average checkpoints of a run.",
    "decode": "Translate text.",
    "rescore": "How probable given translations are.",
    "score": "BLEU, chrF and TER of translations.",
    "compare": "Show where the translations of two runs differ.",
    "report": "The paper's table beside what runs measured.",
    "plot-attention": "Draw the attention of a translation.",
    "plot-curves": "Draw the training curves of runs.",
    "describe": "Print a resolved config and its parameter counts.",
}


class _Lazy(click.Group):
    """Commands by name, imported on use."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"fusetk.cli.{name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def main(self, *arguments: Any, **options: Any) -> Any:
        with streams.guarded():
            try:
                return super().main(*arguments, **options)
            except FusetkError as error:
                click.echo(f"fusetk: {error}", err=True)
                sys.exit(error.exit_code)

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except (
            BrokenPipeError
        ):  # the reader of standard output has seen enough; standard error never raises it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            context.exit(0)
        except OSError as error:
            click.echo(
                f"fusetk: {error.filename or 'the output'}: {error.strerror or error}", err=True
            )
            context.exit(2)
        except click.NoSuchOption as error:
            from fusetk.cli.foreign import option_here

            here = option_here(error.option_name, error.ctx or context)
            if here is None:
                raise
            click.echo(f"fusetk: there is no option {error.option_name}; {here}", err=True)
            context.exit(2)

    def resolve_command(self, context: click.Context, args: list[str]) -> Any:
        if args[0] not in COMMANDS and not context.resilient_parsing:
            from fusetk.cli.foreign import command_here

            near = command_here(args[0], COMMANDS)
            hint = (
                f"did you mean `fusetk {near}`?"
                if near
                else f"the commands are {', '.join(COMMANDS)}"
            )
            click.echo(f"fusetk: there is no command {args[0]!r}; {hint}", err=True)
            context.exit(2)
        return super().resolve_command(context, args)


@click.group(
    cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}
)
@click.version_option(__version__, "-V", "--version", prog_name="fusetk")
def main() -> None:
    """Layer fusion for encoder-decoder translation models: from raw text to scored translation.

    Errors that you can mend end with exit status 2 and one sentence. `fusetk COMMAND --help` tells a command's options.
    """
