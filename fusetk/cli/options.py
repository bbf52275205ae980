"""Options that several commands share."""

from collections.abc import Callable
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

SET_HELP = "Change a key of the config, e.g. training.seed=3; repeatable, the last wins."

config_argument: Decorator = click.argument("config", type=click.Path(dir_okay=False))
set_option: Decorator = click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help=SET_HELP)
device_option: Decorator = click.option("-d", "--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
threads_option: Decorator = click.option("--threads", type=click.IntRange(1), help="Processor threads; all cores by default.")
quiet_option: Decorator = click.option("-q", "--quiet", is_flag=True, help="No progress on standard error.")
