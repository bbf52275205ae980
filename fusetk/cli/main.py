"""The ``fusetk`` command. It imports a subcommand when it is called, so ``--help`` is fast."""

import importlib
import os
import sys
from typing import Any

import click

from fusetk import __version__
from fusetk.cli import streams
from fusetk.errors import FusetkError

COMMANDS = {
    "dataset": "Make the raw text of a published data set.",
    "prep": "Convert raw parallel text to memory-mapped token ids.",
    "text": "Run single steps of prep as pipes.",
    "train": "Train a model, or resume its training.",
    "average": "Average the checkpoints of a run.",
    "decode": "Translate text.",
    "rescore": "Compute the probability of given translations.",
    "score": "Compute BLEU, chrF and TER of translations.",
    "compare": "Compare the translations of two runs sentence by sentence.",
    "estimate": "Estimate memory, hours and money of a training before it starts.",
    "run": "Run all steps of a config, from raw text to the score.",
    "report": "Compare the table of a paper with the results of runs.",
    "plot-attention": "Draw the attention weights of a translation.",
    "plot-curves": "Draw the training curves of runs.",
    "describe": "Print a resolved config and its parameter counts.",
}


class _LazyGroup(click.Group):
    """A command group that imports the module of a subcommand when it is needed."""

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
        except BrokenPipeError:
            # The reader of standard output has closed the pipe. Standard error never raises
            # BrokenPipeError, because `streams.guarded` discards its failed writes.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            context.exit(0)
        except OSError as error:
            where = error.filename or "the output"
            click.echo(f"fusetk: {where}: {error.strerror or error}", err=True)
            context.exit(2)
        except click.NoSuchOption as error:
            from fusetk.cli.foreign import option_advice

            advice = option_advice(error.option_name, error.ctx or context)
            if advice is None:
                raise
            click.echo(f"fusetk: unknown option {error.option_name}; {advice}", err=True)
            context.exit(2)

    def resolve_command(self, context: click.Context, args: list[str]) -> Any:
        if args[0] not in COMMANDS and not context.resilient_parsing:
            from fusetk.cli.foreign import similar_command

            near = similar_command(args[0], COMMANDS)
            commands = ", ".join(COMMANDS)
            hint = f"did you mean `fusetk {near}`?" if near else f"the commands are {commands}"
            click.echo(f"fusetk: unknown command {args[0]!r}; {hint}", err=True)
            context.exit(2)
        return super().resolve_command(context, args)


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(__version__, "-V", "--version", prog_name="fusetk")
def main() -> None:
    """Layer fusion for encoder-decoder translation models: from raw text to scored translation.

    User errors (a wrong option, a wrong config, a missing file) print one line to standard error
    and exit with status 2. `fusetk COMMAND --help` lists the options of a command.
    """
