"""``fusetk explore``."""

from pathlib import Path

import click

from fusetk.cli.common_options import inform, inform_of_warning
from fusetk.cli.options import (
    device_option,
    raw_option,
    runs_argument,
    threads_option,
    use_threads,
)
from fusetk.cli.server_options import check_libraries, host_option, limit_option, port_option
from fusetk.errors import join_names

EXAMPLE = "Example: fusetk explore runs/base runs/fused --open"


@click.command("explore", epilog=EXAMPLE)
@runs_argument("paths", "RUN [RUN2]", most=2)
@click.option("--open", "open_page", is_flag=True, help="Open the page in a web browser.")
@host_option
@port_option
@limit_option("max-characters", 500, "Largest number of characters in a sentence.")
@limit_option("max-beam", 20, "Largest beam that the page offers.")
@limit_option(
    "max-cells", 1_000_000, "Largest number of cells of the attention heatmaps of one view."
)
@raw_option
@device_option
@threads_option
def command(
    paths: tuple[Path, ...],
    open_page: bool,
    host: str,
    port: int,
    max_characters: int,
    max_beam: int,
    max_cells: int,
    raw: bool,
    device: str,
    threads: int | None,
) -> None:
    """Show on a local web page how the model of RUN translates, and that of RUN2 beside it.

    The page translates a sentence and shows the probability of each token, the other translations
    of the beam with their scores, the weights of the layers at each word (fusions and connections),
    and the attention of each layer and head. A click on a token shows the most probable tokens of
    its step; a click on one of these forces the translation to begin with the tokens up to it, and
    the page shows what changes. "Load again" loads the best checkpoint of a run that is still in
    training.

    Standard output gets the URL of the page. Only this machine can read it, unless --host is given.
    Ctrl-C ends the service. The page needs no network; docs/explore.md describes its requests.
    """
    runs = [str(path) for path in paths]
    check_libraries()
    from fusetk.serving import server

    listener = server.listen(host, port)  # before the models are loaded, which takes seconds
    from fusetk import system
    from fusetk.exploring.app import ExploreLimits, make_explore_app
    from fusetk.exploring.explorer import Explorer
    from fusetk.serving.http import trusted_hosts

    use_threads(threads)

    def load(number: int) -> Explorer:
        model = system.load_model(runs[number], device, raw, inform_of_warning)
        return Explorer(runs[number], model, max_cells)

    loaded = [system.load_model(run, device, raw, inform_of_warning) for run in runs]
    system.check_raw(raw, runs, loaded)
    explorers = [Explorer(run, model, max_cells) for run, model in zip(runs, loaded, strict=True)]
    del loaded  # a model that is loaded again replaces the old one in memory
    limits = ExploreLimits(max_characters, max_beam)
    app = make_explore_app(explorers, load, limits, trusted_hosts(host, listener))
    url = server.address(listener)
    click.echo(url)
    inform(f"showing {join_names(runs)}; Ctrl-C ends the service")
    if open_page:
        click.launch(url)
    server.serve(app, listener)
