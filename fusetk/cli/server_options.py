"""Options and checks of the commands that answer over HTTP."""

import click

from fusetk.cli.parameters import Decorator
from fusetk.errors import ConfigError

MISSING = "the service needs starlette and uvicorn: pip install 'fusetk[serve]'"

host_option: Decorator = click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. The service has no passwords: other addresses than 127.0.0.1 open "
    "it to the network.",
)
port_option: Decorator = click.option(
    "--port",
    default=8080,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 chooses a free port.",
)


def limit_option(name: str, default: int, text: str) -> Decorator:
    """Return an option for a number from 1."""
    return click.option(
        f"--{name}", default=default, show_default=True, type=click.IntRange(1), help=text
    )


def check_libraries() -> None:
    """Raise ConfigError if a library of the extra ``serve`` is missing."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name not in ("uvicorn", "starlette"):
            raise
        raise ConfigError(MISSING) from None
