"""``fusetk serve``."""

from pathlib import Path

import click

from fusetk.cli.common_options import inform, inform_of_warning, is_quiet
from fusetk.cli.options import (
    device_option,
    precision_option,
    raw_option,
    runs_argument,
    threads_option,
    use_threads,
)
from fusetk.cli.server_options import check_libraries, host_option, limit_option, port_option
from fusetk.errors import ConfigError, join_names
from fusetk.runs import CONFIG, run_and_checkpoint

EXAMPLES = (
    'Examples: fusetk serve runs/my; curl -d \'{"text": "Ein Hund schläft.", "n_best": 2}\''
    " http://127.0.0.1:8080/translate"
)


@click.command("serve", epilog=EXAMPLES)
@runs_argument("paths")
@host_option
@port_option
@limit_option("max-sentences", 64, "Largest number of sentences in a request.")
@limit_option("max-characters", 2000, "Largest number of characters in a sentence.")
@limit_option("max-n-best", 10, "Largest number of translations of a sentence.")
@limit_option(
    "queue", 1024, "Largest number of sentences that wait; more are refused with status 503."
)
@limit_option("batch", 64, "Largest number of sentences that are translated together.")
@precision_option
@raw_option
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a key of the section `decoding`, such as decoding.beam=4. Repeat the option for"
    " several keys.",
)
@device_option
@threads_option
def command(
    paths: tuple[Path, ...],
    host: str,
    port: int,
    max_sentences: int,
    max_characters: int,
    max_n_best: int,
    queue: int,
    batch: int,
    precision: str,
    raw: bool,
    overrides: tuple[str, ...],
    device: str,
    threads: int | None,
) -> None:
    """Translate over HTTP with the model of RUN, or with an ensemble of several RUNs.

    POST /translate takes a JSON object: `text` is a string or a list of strings, `n_best` (default
    1) the number of translations, `alignment` (default false) whether to align tokens. The settings
    of the search are those of the first model's config. --set changes them. The beam is at least
    `n_best`. For a string the answer has `text` and `translations`, a list with `text`, `score` and
    `normalized`; for a list it has one such object for each sentence in `sentences`. With
    `alignment`, `source_tokens`, `tokens` and the pairs `alignment` (source, target) are added. A
    blank sentence has no translations. A sentence also has none if the settings of the search allow
    none. GET /health has the number of waiting sentences.

    A wrong request has status 400 and an `error`. Status 403 means that a browser sent it for a
    page of another site. Status 408 means that its body did not arrive within 30 seconds. Status
    413 means that it is too large, or that a sentence has more tokens than the model reads. Status
    500 means that the translation failed, for example because the model returned NaN. Status 503
    means that the queue is full or that the service ends. If only this machine can reach the
    address, a request whose header Host is not localhost, 127.0.0.1, [::1] or the value of --host
    has status 400, without an `error`.

    Requests that arrive together are translated in one batch. Standard output gets the URL of the
    service, standard error a line for each request (not with -q). Ctrl-C ends the service: requests
    that are not answered within a second are cancelled. A search also ends when all clients that
    wait for it have disconnected.
    """
    if queue < max_sentences:
        raise ConfigError(
            f"--queue {queue} is less than --max-sentences {max_sentences}: raise "
            "--queue or lower --max-sentences"
        )
    for setting in overrides:
        if not setting.startswith("decoding."):
            raise ConfigError(
                f"--set {setting}: fusetk serve changes only keys of the section decoding, such as "
                "decoding.beam=4"
            )
    models = [str(path) for path in paths]
    check_libraries()
    from fusetk.serving import server

    listener = server.listen(host, port)  # before the models are loaded, which takes seconds
    from fusetk import recipe, system
    from fusetk.serving.app import Limits, make_app
    from fusetk.serving.http import trusted_hosts

    use_threads(threads)
    ensemble = system.load_ensemble(models, device, precision, raw, inform_of_warning)
    ensemble.pipeline.import_libraries()
    search = ensemble.recipe.decoding
    if overrides:
        run, _ = run_and_checkpoint(paths[0])
        search = recipe.load(run / CONFIG, overrides).decoding
    loaded = system.System(ensemble.models, ensemble.pipeline, search)
    limits = Limits(max_sentences, max_characters, max_n_best, queue, batch)
    click.echo(server.address(listener))
    inform(f"translating with {join_names(models)}; Ctrl-C ends the service")
    app = make_app(loaded, limits, trusted_hosts(host, listener))
    server.serve(app, listener, access_log=not is_quiet())
