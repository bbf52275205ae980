"""``fusetk serve``."""

import click

from fusetk.cli.options import (
    Decorator,
    device_option,
    precision_option,
    quiet_option,
    raw_option,
    threads_option,
)
from fusetk.errors import ConfigError

EXAMPLE = (
    'Example: fusetk serve runs/my, then curl -d \'{"text": "Ein Hund schläft.", "n_best": 2}\''
    " http://127.0.0.1:8080/translate"
)
MISSING = "the service needs starlette and uvicorn: pip install 'fusetk[serve]'"


def _limit(name: str, default: int, text: str) -> Decorator:
    return click.option(
        f"--{name}", default=default, show_default=True, type=click.IntRange(1), help=text
    )


@click.command("serve", epilog=EXAMPLE)
@click.argument("models", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. The service has no passwords: other addresses than 127.0.0.1 open "
    "it to the network.",
)
@click.option(
    "--port",
    default=8080,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 chooses a free port.",
)
@_limit("max-sentences", 64, "Largest number of sentences in a request.")
@_limit("max-characters", 2000, "Largest number of characters in a sentence.")
@_limit("max-n-best", 10, "Largest number of translations of a sentence.")
@_limit("queue", 1024, "Largest number of sentences that wait; more are refused with status 503.")
@_limit("batch", 64, "Largest number of sentences that are translated together.")
@precision_option
@raw_option
@device_option
@threads_option
@quiet_option
def command(
    models: tuple[str, ...],
    host: str,
    port: int,
    max_sentences: int,
    max_characters: int,
    max_n_best: int,
    queue: int,
    batch: int,
    precision: str,
    raw: bool,
    device: str,
    threads: int | None,
    quiet: bool,
) -> None:
    """Translate over HTTP with the model of RUN, or with an ensemble of several RUNs.

    POST /translate takes a JSON object: `text` is a string or a list of strings, `n_best` (default
    1) the number of translations, `alignment` (default false) whether to align tokens. For a string
    the answer has `text` and `translations`, a list with `text`, `score` and `normalized`; for a
    list it has one such object for each sentence in `sentences`. With `alignment`, `source_tokens`,
    `tokens` and the pairs `alignment` (source, target) are added. A wrong request has status 400
    or 413 and an `error`; 503 means that the queue is full. GET /health has the number of waiting
    sentences.

    Requests that arrive together are translated in one batch. Ctrl-C ends the service.
    """
    if queue < max_sentences:
        raise ConfigError(
            f"--queue {queue} has no room for a request of --max-sentences {max_sentences}: raise "
            "--queue or lower --max-sentences"
        )
    try:
        import uvicorn

        from fusetk.serving.app import Limits, make_app
    except ModuleNotFoundError as error:
        if error.name not in ("uvicorn", "starlette"):
            raise
        raise ConfigError(MISSING) from None
    import torch

    from fusetk import system

    if threads:
        torch.set_num_threads(threads)
    ensemble = system.load_ensemble(models, device, precision, raw)
    loaded = system.System(ensemble.models, ensemble.pipeline, ensemble.recipe.decoding)
    limits = Limits(max_sentences, max_characters, max_n_best, queue, batch)
    level = "warning" if quiet else "info"
    uvicorn.run(make_app(loaded, limits), host=host, port=port, log_level=level)
