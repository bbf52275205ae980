"""``fusetk ablate``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusetk import display
from fusetk.cli.common_options import inform
from fusetk.cli.options import device_option, quiet_option, threads_option, tokenized_option
from fusetk.cli.parameters import FilePath
from fusetk.cli.tables import print_json, show
from fusetk.errors import DataError

if TYPE_CHECKING:
    from fusetk.decoding.target_scores import IdPair
    from fusetk.decoding.translate import Translator
    from fusetk.evaluation.texts import ScoredTexts


@click.command(
    "ablate",
    epilog="Example: fusetk ablate -m runs/my -i raw/valid.de -r raw/valid.en",
)
@click.option(
    "-m",
    "--model",
    required=True,
    metavar="RUN",
    type=FilePath(path_type=Path),
    help="A run folder (its best checkpoint is used) or a checkpoint.",
)
@click.option(
    "-i",
    "--input",
    "source",
    required=True,
    metavar="FILE",
    type=FilePath(),
    help="File with source sentences, plain or .gz; - is standard input.",
)
@click.option(
    "-r",
    "--reference",
    required=True,
    metavar="FILE",
    type=FilePath(),
    help="File with their translations, line by line.",
)
@tokenized_option("Both files are")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@device_option
@threads_option
@quiet_option
def command(
    model: Path,
    source: str,
    reference: str,
    tokenized: bool,
    as_json: bool,
    device: str,
    threads: int | None,
    quiet: bool,
) -> None:
    """Show how much a model needs each layer that its fusions read.

    For each layer of each fusion of RUN, the table has the loss of the text if the fusion reads the
    mean of the layer instead of the layer. The mean is computed over the positions of up to 200
    sentence pairs. The layers above still read the layer itself, so the table shows how much the
    fusion alone needs it. The difference is this loss minus the loss of the unchanged model. A
    layer that the fusion does not read has the difference 0. Layer 0 is the word embedding. If the
    stack has summary layers, it is the output of the last one.

    The loss is the mean over the target tokens, EOS included, in nats, without dropout and label
    smoothing. Pairs with a blank line are left out.
    """
    if threads:
        import torch

        torch.set_num_threads(threads)
    from fusetk import system
    from fusetk.decoding.translate import Translator
    from fusetk.evaluation import ablation
    from fusetk.evaluation.texts import read_texts

    texts = read_texts({"source": source}, [reference], None)
    loaded = system.load_model(model, device, report=inform)
    if not ablation.fusions(loaded.model):
        raise DataError(
            f"{model} has no fusion of several layers: give a run with `fuse` in encoder or decoder"
        )
    translator = Translator([loaded.model], loaded.pipeline, loaded.recipe.decoding)
    pairs = _encoded(translator, texts, tokenized)
    with display.Display(quiet), display.task("", "layers") as done:
        loss = ablation.loss(loaded.model, pairs)
        losses = []
        for layer_loss in ablation.layer_losses(loaded.model, pairs):
            losses.append(layer_loss)
            done.advance()
    if as_json:
        print_json({"loss": loss, "layers": [each._asdict() for each in losses]})
        return
    rows = [
        [f"{each.fusion}, layer {each.layer}", f"{each.loss:.4f}", f"{each.loss - loss:+.4f}"]
        for each in losses
    ]
    title = f"loss of {len(pairs):,} sentence pairs"
    show(title, ["without", "loss", "difference"], [["-", f"{loss:.4f}", ""], *rows], [])


def _encoded(translator: "Translator", texts: "ScoredTexts", tokenized: bool) -> "Sequence[IdPair]":
    """Return the pairs of lines as ids, without those with a blank line.

    Raises DataError, with the line, if a pair is too long for the model, or if no pair is left.
    """
    from fusetk.data.vocab import EOS
    from fusetk.decoding.target_scores import check_length

    source, reference = texts.first, texts.references[0]
    files = f"{source.file} and {reference.file}"
    pairs = []
    for number, lines in enumerate(zip(source.lines, reference.lines, strict=True), 1):
        words = translator.encode("source", lines[0], tokenized)
        translation = translator.encode("target", lines[1], tokenized)
        if words and translation:
            pairs.append(([*words, EOS], translation))
            try:
                check_length(translator.models, pairs[-1:])
            except DataError as error:
                raise DataError(f"line {number} of {files}: {error}") from None
    if not pairs:
        raise DataError(f"{files} have no pair of sentences")
    return pairs
