"""The ``fusetk`` command. It imports a subcommand when it is called, so ``--help`` is fast."""

import atexit
import errno
import gc
import importlib
import os
import sys
from typing import Any, NoReturn

import click

from fusetk import __version__
from fusetk.cli import streams
from fusetk.cli.common_options import print_traceback, with_common_options
from fusetk.cli.parameters import check_utf8
from fusetk.errors import EXIT_INTERRUPTED, ConfigError, FusetkError, OutputDiskFull, first_line
from fusetk.parent import end_with_torchrun
from fusetk.priority import apply_nice_to_session

COLLECT_AFTER = 10_000  # new objects between two runs of the garbage collector

COMMANDS = {
    "demo": "Train a small model that fuses its layers, and show its translations.",
    "dataset": "Make the raw text of a published data set.",
    "prep": "Convert raw parallel text to memory-mapped token ids.",
    "text": "Run single steps of prep as pipes.",
    "train": "Train a model, or resume its training.",
    "average": "Average the checkpoints of a run.",
    "decode": "Translate text.",
    "rescore": "Compute the probability of given translations.",
    "score": "Compute BLEU, chrF and TER of translations.",
    "compare": "Compare the translations of two runs sentence by sentence.",
    "ablate": "Show how much each site of a model needs each layer.",
    "estimate": "Estimate memory, hours and money of a training before it starts.",
    "run": "Run all steps of a config, from raw text to the score.",
    "report": "Compare the table of a paper with the results of runs.",
    "plot-attention": "Draw attention, layer weights or the similarity of layers.",
    "plot-curves": "Draw the training curves of runs.",
    "explore": "Show on a web page how a model translates.",
    "serve": "Translate over HTTP.",
    "export": "Write a model for CTranslate2.",
    "describe": "Print the parameters of a config's model, or the resolved config.",
    "doctor": "Describe this machine and the causes of slow computation.",
}

DISTRIBUTED_COMMANDS = ("train", "decode")  # torchrun may start them in several processes

# Commands that keep a part of their result after Ctrl-C, and how to continue.
CONTINUE = {
    "prep": "the complete stages are kept: run the same command again to continue",
    "decode": "a file of -o keeps its complete lines: add --resume to continue it",
    "dataset": "the complete texts and downloads are kept: run the same command again to continue",
    "run": "the complete steps are kept: run the same command again to continue",
    "demo": "the complete steps are kept: run the same command again to continue",
}


class _LazyGroup(click.Group):
    """A command group that imports the module of a subcommand when it is needed."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"fusetk.cli.{name.replace('-', '_')}")
        return with_common_options(module.command)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def main(self, *arguments: Any, **options: Any) -> Any:
        _collect_less_garbage()
        end_with_torchrun()  # also during the imports of a command, which take seconds
        apply_nice_to_session()
        with streams.guarded():
            try:
                return super().main(*arguments, **options)
            except FusetkError as error:
                click.echo(f"fusetk: {error}", err=True)
                sys.exit(error.exit_code)
            except OSError as error:  # from the help or the version of `fusetk`
                sentence, status = _system_error(error)
                click.echo(f"fusetk: {sentence}", err=True)
                sys.exit(status)

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        for word in args:
            check_utf8(word, "rename the file, or convert the text")
        return super().parse_args(context, args)

    def invoke(self, context: click.Context) -> Any:
        from fusetk.cli.warning_format import set_warning_form  # logging is slow to import

        set_warning_form()
        try:
            return super().invoke(context)
        except BrokenPipeError:
            # The reader of standard output has closed the pipe. Standard error never raises
            # BrokenPipeError, because `streams.guarded` discards its failed writes.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            context.exit(0)
        except OSError as error:
            _end(context, *_system_error(error))
        except MemoryError as error:
            _end(context, _no_memory(error), FusetkError.exit_code)
        except KeyboardInterrupt:
            _end(context, _interrupted(context), EXIT_INTERRUPTED)
        except FusetkError:
            print_traceback(context)
            raise
        except click.UsageError as error:
            from fusetk.cli.usage_errors import usage_sentence

            sentence = usage_sentence(error, context)
            if sentence is None:
                raise
            _end(context, sentence, FusetkError.exit_code)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except (Exception, SystemExit) as error:
            from fusetk.config import outside_error, place_outside_libraries

            if not place_outside_libraries(error, called=False):
                raise
            _end(
                context,
                f"code outside fusetk failed: {outside_error(error)}: correct it; --debug prints "
                "the traceback",
                1,
            )

    def resolve_command(self, context: click.Context, args: list[str]) -> Any:
        if args[0] not in COMMANDS and not context.resilient_parsing:
            from fusetk.cli.foreign import similar_command

            near = similar_command(args[0], COMMANDS)
            commands = ", ".join(COMMANDS)
            hint = f"did you mean `fusetk {near}`?" if near else f"the commands are {commands}"
            click.echo(f"fusetk: unknown command {args[0]!r}; {hint}", err=True)
            context.exit(2)
        # Other launchers are not refused: a cluster may set WORLD_SIZE for a single process, too.
        started_by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
        several = started_by_torchrun and os.environ.get("WORLD_SIZE", "1") != "1"
        if several and args[0] not in DISTRIBUTED_COMMANDS and not context.resilient_parsing:
            raise ConfigError(
                f"torchrun started fusetk {args[0]} in {os.environ['WORLD_SIZE']} processes, and "
                "each would do all the work: start the command without torchrun (only "
                f"{' and '.join(DISTRIBUTED_COMMANDS)} divide their work among processes)"
            )
        return super().resolve_command(context, args)


def _end(context: click.Context, sentence: str, status: int) -> NoReturn:
    """Print the current error, with --debug after its traceback, and exit."""
    print_traceback(context)
    click.echo(f"fusetk: {sentence}", err=True)
    context.exit(status)


def _interrupted(context: click.Context) -> str:
    """Return the message after Ctrl-C, with the advice of ``CONTINUE`` for the command.

    The object of the context, if it has one, is the name of the command that calls this one.
    """
    advice = CONTINUE.get(context.obj or context.invoked_subcommand or "")
    return f"interrupted; {advice}" if advice else "interrupted"


def _system_error(error: OSError) -> tuple[str, int]:
    """Return a sentence about an error of the operating system, and the exit status."""
    from fusetk.data.text import cannot_write

    if error.errno == errno.ENOMEM:
        return _no_memory(error), FusetkError.exit_code
    where = error.filename or "the output"
    full = cannot_write(where, error)
    if isinstance(full, OutputDiskFull):
        return str(full), full.exit_code
    reason = error.strerror or str(error)
    if isinstance(error, PermissionError) and error.filename:
        verb = "written"
        if not os.access(where, os.R_OK):
            verb = "read" if os.path.exists(where) else "read or written"
        advice = "change its permissions, or choose another path"
        return f"{where} cannot be {verb} ({reason}): {advice}", FusetkError.exit_code
    return f"{where}: {reason}", FusetkError.exit_code


def _no_memory(error: Exception) -> str:
    return f"there is not enough memory ({first_line(error)}): end other programs"


def _collect_less_garbage() -> None:
    """Let the garbage collector run less often, and skip all objects at the end of the process.

    The imports of a command make hundreds of thousands of objects that exist until the end. By
    default, the collector examines them several times during the imports, and once more when the
    process ends.
    """
    gc.set_threshold(COLLECT_AFTER)
    atexit.register(gc.freeze)


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(__version__, "-V", "--version", prog_name="fusetk")
def main() -> None:
    """Layer fusion for encoder-decoder translation models: from raw text to scored translation.

    A wrong option, a wrong config or a missing file gives a line for each error on standard error,
    and exit status 2. `fusetk COMMAND --help` lists the options of a command.
    """
