"""``fusetk ablate``."""

from pathlib import Path

import click

from fusetk import display
from fusetk.cli.common_options import inform
from fusetk.cli.options import (
    device_option,
    json_option,
    quiet_option,
    run_argument,
    threads_option,
    tokenized_option,
    use_threads,
)
from fusetk.cli.parameters import FilePath
from fusetk.cli.tables import print_json, show
from fusetk.errors import DataError, quantity


@click.command(
    "ablate",
    epilog="Example: fusetk ablate -m runs/my -i raw/valid.de -r raw/valid.en",
)
@run_argument("model")
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
@json_option
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
    """Show how much each site of a model needs each layer.

    A site reads several layers: a fusion (`fuse`), the attention to the encoder (`attend`) or a
    connection (`connect`). For each layer that a site of RUN reads, the table has the loss of the
    text if the site reads the mean of the layer instead of the layer. The mean is computed over the
    positions of up to 200 sentence pairs. The rest of the model still reads the layer itself, so
    the table shows how much the site alone needs it. The difference is this loss minus the loss of
    the unchanged model. A layer that the site ignores has the difference 0. `attend: top`,
    `connect: last` and `residual` are not measured.

    Layer 0 is the word embedding. If a fusion or `attend` reads a stack with summary layers, layer
    0 is the output of the last one, and the layers above keep their numbers. All inputs that a
    connection makes from a layer read the mean. `connect: cross` reads the difference between the
    output and the input of a layer, so there the mean is that of the difference. The attention of
    `kind: conv` adds the source embedding to its values, whatever `attend` is. In the row of layer
    0, the values keep this embedding.

    The loss is the mean over the target tokens, EOS included, in nats, without dropout and label
    smoothing. Pairs with a blank source are left out.
    """
    if source == reference == "-":
        raise click.UsageError("standard input can be only one of the files")
    use_threads(threads)
    from fusetk import system
    from fusetk.decoding.config import FORCED_BATCH_TOKENS
    from fusetk.evaluation import ablation
    from fusetk.evaluation.rescore import Rescorer
    from fusetk.evaluation.rescore_rows import RescoreInputs, read_rows

    loaded = system.load_model(model, device, report=inform)
    if not ablation.sites(loaded.model):
        raise DataError(
            f"{model} has no site that can be measured: give a run with `fuse` or `connect` other "
            "than last, or with `attend` other than top"
        )
    rescorer = Rescorer(loaded.translator(), FORCED_BATCH_TOKENS)
    rows, _ = read_rows(RescoreInputs((source, reference)), rescorer, tokenized, "")
    pairs = [pair.ids for row in rows for pair in row.pairs if pair is not None]
    if not pairs:
        raise DataError(f"{source} has no sentence: give text with words")
    with display.Display(quiet), display.task("", "layers") as done:
        loss = ablation.loss(loaded.model, pairs)
        losses = []
        for layer_loss in ablation.layer_losses(loaded.model, pairs):
            losses.append(layer_loss)
            done.advance()
    if as_json:
        layers = [{"fusion": each.site, "layer": each.layer, "loss": each.loss} for each in losses]
        print_json({"loss": loss, "layers": layers})
        return
    cells = [[each.title, f"{each.loss:.4f}", f"{each.loss - loss:+.4f}"] for each in losses]
    title = f"loss of {quantity(len(pairs), 'sentence pair')}"
    show(title, ["without", "loss", "difference"], [["-", f"{loss:.4f}", ""], *cells], [])
