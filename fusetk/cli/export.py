"""``fusetk export``."""

from pathlib import Path
from typing import Any

import click

from fusetk.cli.common_options import inform, inform_of_warning
from fusetk.cli.options import raw_option, run_argument
from fusetk.cli.parameters import FilePath

QUANTIZATIONS = ("float32", "float16", "bfloat16", "int16", "int8", "int8_float16", "int8_float32")
EXAMPLE = "Example: fusetk export runs/my --to ctranslate2 -o my.ct2 --quantization int8"


class ExportFormat(click.Choice[str]):
    """The formats of ``--to``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if str(value).lower() == "onnx":
            self.fail(
                "there is no export to ONNX; use ctranslate2, or read the tensors of "
                "RUN/checkpoints/best/model.safetensors with safetensors.torch.load_file",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


@click.command("export", epilog=EXAMPLE)
@run_argument("run")
@click.option(
    "--to",
    "form",
    type=ExportFormat(["ctranslate2"]),
    default="ctranslate2",
    show_default=True,
    help="Format of the model.",
)
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    required=True,
    type=FilePath(path_type=Path),
    help="New folder for the model.",
)
@click.option(
    "--quantization",
    type=click.Choice(QUANTIZATIONS),
    help="Type of the weights. Default: float32, which gives the scores of fusetk.",
)
@raw_option
def command(run: Path, form: str, output: Path, quantization: str | None, raw: bool) -> None:
    """Write the model of RUN, a run folder or a checkpoint, for another program.

    CTranslate2 translates with plain Transformers on CPU and GPU, also with 8-bit weights. Models
    with fusions, other connections or other backbones are refused with the reason. The new folder
    also has the text preparation of the run in `text`: CTranslate2 reads and writes tokens, and
    `fusetk.data.pipeline.Pipeline` converts raw text to tokens and back.
    """
    from fusetk import ctranslate2
    from fusetk.system import check_raw, load_model

    loaded = load_model(run, "cpu", raw, inform_of_warning)
    check_raw(raw, [run], [loaded])
    ctranslate2.export(loaded, output, quantization)
    inform(f"{output}: model for {form}, {quantization or 'float32'} weights")
