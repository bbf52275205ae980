"""Generation of the manual pages: ``python -m tools.manual FOLDER``.

There is a page for each command and one for the config. A page depends only on the code, not on the
time or the machine, so a test can compare the pages in the repository with the code.
"""

import argparse
import inspect
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import click

from fusetk.cli.main import COMMANDS
from fusetk.cli.main import main as fusetk_command
from fusetk.cli.sections import Sections
from fusetk.errors import (
    EXIT_INTERRUPTED,
    DiskFull,
    FusetkError,
    Interrupted,
    OutputDiskFull,
    TrainingDiverged,
)
from tools.config_page import config_page
from tools.troff import bold, escape, italic, page, prose, tagged

CONFIG_COMMANDS = {"prep", "train", "run", "report", "describe", "estimate"}
RUN_COMMANDS = {
    *("train", "run", "average", "decode", "rescore", "score", "compare", "ablate", "report"),
    *("plot-attention", "plot-curves", "serve", "export", "explore"),
}
# The commands that compute with a model.
MODEL_COMMANDS = {
    *("train", "run", "decode", "rescore", "compare", "ablate", "plot-attention", "serve"),
    *("estimate", "demo", "doctor", "explore"),
}
# Environment variables, their effects, and the commands that they concern; none means all.
ENVIRONMENT: dict[str, tuple[str, set[str]]] = {
    "FUSETK_KERNELS": (
        "With `off`, the models and the search run without compiled kernels.",
        MODEL_COMMANDS,
    ),
    "CXX": (
        "C++ compiler of the kernels. Default: the first of c++, g++ and clang++.",
        MODEL_COMMANDS,
    ),
    "CC": ("C compiler that Triton needs for the kernels on CUDA.", MODEL_COMMANDS),
    "XDG_CACHE_HOME": (
        "Parent of the cache folder `fusetk`. Default: `~/.cache`. If it cannot be written, the "
        "cache is in `TMPDIR`.",
        MODEL_COMMANDS,
    ),
    "OMP_NUM_THREADS": (
        "Number of CPU threads; the option --threads overrides it.",
        MODEL_COMMANDS,
    ),
    "OMP_WAIT_POLICY, GOMP_SPINCOUNT": (
        "How threads wait. If one is set, fusetk does not shorten their spinning beside other "
        "programs.",
        MODEL_COMMANDS,
    ),
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": (
        "Number of compiled products that oneDNN keeps. Default: 256.",
        MODEL_COMMANDS,
    ),
    "LRU_CACHE_CAPACITY": (
        "Number of compiled products of each kind that PyTorch keeps on CPU. Default: 64.",
        MODEL_COMMANDS,
    ),
    "THP_MEM_ALLOC_ENABLE": (
        "1: PyTorch asks for huge pages for large tensors on CPU, which lowers the peak memory of "
        "training. 0: it does not. Default: 1.",
        {"train", "run", "demo"},
    ),
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": (
        "Seconds that a training with --devices has to save after a signal, with a new version of "
        "torch. Default: 600.",
        {"run"},
    ),
    "CUDA_VISIBLE_DEVICES": ("GPUs that the command may use.", MODEL_COMMANDS),
    "RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT": (
        "The process and its group, as torchrun sets them.",
        {"train", "decode"},
    ),
    "NO_COLOR": ("If it is set, the output has no colours.", set()),
}
# Files, what they are, and the commands that read or write them.
FILES: dict[str, tuple[str, set[str]]] = {
    "CONFIG": ("All settings of a run; see `fusetk-config`(5).", CONFIG_COMMANDS),
    "FOLDER/manifest.json, FOLDER/text, FOLDER/*.ids, FOLDER/*.offsets": (
        "The prepared folder, which `data.folder` names: its settings and checksums, the text "
        "pipeline with BPE codes and vocabularies, token ids, and the beginnings of sentences.",
        {"prep", "train", "run", "describe", "estimate"},
    ),
    "RUN/config.yaml, RUN/text": (
        "The resolved config of a run, and its text pipeline.",
        RUN_COMMANDS,
    ),
    "RUN/checkpoints/update-N": (
        "A checkpoint: `model.safetensors`, with `training.ema` also `ema.safetensors`, "
        "`training.safetensors` of the optimiser, and `state.json` with progress, config and "
        "checksums.",
        RUN_COMMANDS,
    ),
    "RUN/checkpoints/best, RUN/checkpoints/last": (
        "Links to the best and to the last checkpoint.",
        RUN_COMMANDS,
    ),
    "RUN/metrics.jsonl, RUN/log.txt": (
        "Measurements of the training for programs, and for people.",
        {"train", "run", "report", "plot-curves"},
    ),
    "RUN/machine.json, RUN/sessions.jsonl": (
        "The processor and the ways to compute on it; the sessions of the training.",
        {"train", "run"},
    ),
    "RUN/scores.json": ("Scores that `fusetk score --run` recorded.", {"score", "report", "run"}),
    "~/.cache/fusetk": (
        "Compiled kernels, and the ways to compute that were measured as the fastest.",
        MODEL_COMMANDS,
    ),
}
# The errors with their own exit codes, and the commands that can end with them.
SPECIAL: dict[type[FusetkError], set[str]] = {
    OutputDiskFull: set(COMMANDS),
    DiskFull: {"train", "average", "run"},
    Interrupted: {"train", "run"},
    TrainingDiverged: {"train", "run"},
}


# Commands -----------------------------------------------------------------------------------------


def commands() -> dict[str, click.Command]:
    """Return every command by its name, in the order of the help."""
    return {
        name: command
        for name in COMMANDS
        if (command := fusetk_command.get_command(click.Context(fusetk_command), name))
    }


def context_of(command: click.Command) -> click.Context:
    """Return a click context as in a call, with the settings that all commands share."""
    top = click.Context(fusetk_command, info_name="fusetk", **fusetk_command.context_settings)
    return top if command is fusetk_command else click.Context(command, parent=top)


def command_page(name: str, command: click.Command) -> str:
    """Return the page ``fusetk-<name>(1)``."""
    full = f"fusetk {name}"
    if isinstance(command, click.Group):
        body = group_body(full, command)
    else:
        body = [
            ".SH SYNOPSIS",
            synopsis(full, command),
            ".SH DESCRIPTION",
            prose(command.help or ""),
            ".SH OPTIONS",
            *options(command),
        ]
    if command.epilog:
        example = command.epilog.removeprefix("Example: ")
        body += [
            ".SH EXAMPLES",
            prose(command.epilog if example == command.epilog else f"`{example}`"),
        ]
    body += [*exit_codes(name), *named_texts("ENVIRONMENT", ENVIRONMENT, name)]
    body += [*named_texts("FILES", FILES, name), *see_also(name)]
    return page(f"fusetk-{name}", 1, COMMANDS[name], body)


def group_body(full: str, group: click.Group) -> list[str]:
    """Return the body of the page of a command with subcommands."""
    body = [
        ".SH SYNOPSIS",
        f"{bold(full)} {italic('COMMAND')} [{italic('OPTIONS')}] ...",
        ".SH DESCRIPTION",
        prose(group.help or ""),
        ".SH COMMANDS",
    ]
    context = context_of(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        body += [
            f".SS {bold(f'{full} {name}')}",
            prose(command.help or ""),
            ".PP",
            synopsis(f"{full} {name}", command),
            *options(command),
        ]
    return body


def main_page() -> str:
    """Return the page ``fusetk(1)``."""
    body = [
        ".SH SYNOPSIS",
        f"{bold('fusetk')} {italic('COMMAND')} [{italic('OPTIONS')}] ...",
        ".SH DESCRIPTION",
    ]
    summary, _, rest = inspect.cleandoc(fusetk_command.help or "").partition("\n")
    body += [prose(rest), ".SH COMMANDS"]
    for name, text in COMMANDS.items():
        body += tagged(f"{bold(f'fusetk-{name}')}(1)", text)
    body += [".SH OPTIONS", *options(fusetk_command), *exit_codes("")]
    body += [*named_texts("ENVIRONMENT", ENVIRONMENT, ""), *named_texts("FILES", FILES, "")]
    body += see_also("")
    return page("fusetk", 1, summary, body)


def synopsis(full: str, command: click.Command) -> str:
    """Return one line with the command, its required options and its arguments."""
    words = [bold(full)]
    for option in command.params:
        if isinstance(option, click.Option) and option.required:
            words.append(f"{bold(option.opts[0])} {italic(metavar(option))}")
    words.append(f"[{italic('OPTIONS')}]")
    for argument in command.params:
        if isinstance(argument, click.Argument):
            words.append(italic(argument.make_metavar(context_of(command))))
    return " ".join(words)


def metavar(option: click.Option) -> str:
    """Return the placeholder of an option's value."""
    return option.make_metavar(click.Context(fusetk_command)).replace(" RANGE", "")


def options(command: click.Command) -> Iterator[str]:
    """Yield every option with its help and default, under the command's headings if it has any."""
    context = context_of(command)
    if isinstance(command, Sections):
        for title, members in command.by_section(context).items():
            yield f".SS {escape(title)}"
            yield from option_entries(members, context)
    else:
        parameters = command.get_params(context)
        members = [option for option in parameters if isinstance(option, click.Option)]
        yield from option_entries(members, context)


def option_entries(options: Iterable[click.Option], context: click.Context) -> Iterator[str]:
    for option in options:
        if option.hidden:
            continue
        names = ", ".join(bold(name) for name in sorted(option.opts, key=len))
        if option.secondary_opts:
            names += " / " + ", ".join(bold(name) for name in option.secondary_opts)
        value = "" if option.is_flag or option.count else f" {italic(metavar(option))}"
        extra = option.get_help_extra(context)
        notes = [f"Default: {extra['default']}."] if "default" in extra else []
        notes += [f"Range: {extra['range']}."] if "range" in extra else []
        notes += ["Required."] if option.required else []
        yield ".TP"
        yield names + value
        yield " ".join([prose(option.help or ""), *map(escape, notes)])


def exit_codes(name: str) -> list[str]:
    """Return the section EXIT STATUS of a command; an empty name means all commands."""
    texts = {
        0: "Success.",
        1: "A class outside fusetk failed.",
        FusetkError.exit_code: "A user error; standard error says what it is and what to do.",
    }
    for error, special_commands in SPECIAL.items():
        if not name or name in special_commands:
            known = texts.get(error.exit_code)
            text = inspect.getdoc(error) or ""
            texts[error.exit_code] = f"{known}\n\n{text}" if known else text
    texts[EXIT_INTERRUPTED] = "Ctrl-C stopped the command."
    if name in SPECIAL[Interrupted]:
        del texts[EXIT_INTERRUPTED]
    body = [".SH EXIT STATUS"]
    for code, text in texts.items():
        body += tagged(bold(str(code)), text)
    return body


def named_texts(title: str, texts: Mapping[str, tuple[str, set[str]]], name: str) -> list[str]:
    """Return a section with the texts that concern a command; an empty name means all commands.

    ``texts`` maps a name to its text and its commands; no commands means all. Without texts, there
    is no section.
    """
    body: list[str] = []
    for key, (text, concerned) in texts.items():
        if not name or not concerned or name in concerned:
            body += tagged(bold(key), text)
    return [f".SH {title}", *body] if body else []


def see_also(name: str) -> list[str]:
    """Return the section SEE ALSO; the main page lists the commands elsewhere."""
    others = ["fusetk", *(f"fusetk-{other}" for other in COMMANDS if other != name)] if name else []
    references = [f"{bold(other)}(1)" for other in others]
    return [".SH SEE ALSO", ", ".join([*references, f"{bold('fusetk-config')}(5)"])]


# Writing ------------------------------------------------------------------------------------------


@cache
def pages() -> dict[str, str]:
    """Return every page by its file name."""
    by_name = {"fusetk.1": main_page()}
    for name, command in commands().items():
        by_name[f"fusetk-{name}.1"] = command_page(name, command)
    by_name["fusetk-config.5"] = config_page()
    return by_name


def write(folder: Path) -> None:
    """Write all pages. Delete the pages of commands that were removed."""
    folder.mkdir(parents=True, exist_ok=True)
    by_name = pages()
    for old in [*folder.glob("fusetk*.1"), *folder.glob("fusetk*.5")]:
        if old.name not in by_name:
            old.unlink()
    for name, text in by_name.items():
        (folder / name).write_text(text, encoding="ascii")


def main() -> None:
    parser = argparse.ArgumentParser(description="write the manual pages")
    parser.add_argument("folder", type=Path)
    write(parser.parse_args().folder)


if __name__ == "__main__":
    main()
