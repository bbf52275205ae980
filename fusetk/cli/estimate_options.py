"""The options of ``fusetk estimate``."""

import click

from fusetk import DEVICE
from fusetk.cli.options import config_argument, json_option, set_option, threads_option
from fusetk.cli.parameters import Decorator, FiniteRange, all_of
from fusetk.cli.vocabulary_options import VOCABULARY_OPTIONS
from fusetk.estimate.devices import SHARE, UPDATES

LONGEST = 100_000  # tokens of a sentence; batches of longer ones need too much memory
# Limits with which hours and prices do not overflow.
LEAST_SHARE = 1e-6
MOST_DEVICES = 1_000_000
HIGHEST_PRICE = 1_000_000
MOST_PAIRS = 1_000_000_000_000

OPTIONS: tuple[Decorator, ...] = (
    config_argument,
    set_option,
    click.option(
        "-d",
        "--device",
        default=DEVICE,
        show_default=True,
        help="Device of the training. For h100, a100 and v100, the speed is a share of the peak in "
        "the data sheet. For auto, cpu, cuda and cuda:N, it is measured in a few updates on this "
        "machine. A V100 has no bf16.",
    ),
    click.option(
        "--share",
        type=FiniteRange(LEAST_SHARE, 1),
        metavar="S",
        help="Share of the peak that training reaches on h100, a100 or v100. Default: "
        f"{SHARE}, an assumption.",
    ),
    click.option(
        "--measure",
        type=click.IntRange(1),
        metavar="N",
        help=f"Number of updates that are measured on this machine. Default: {UPDATES}. Not for "
        "h100, a100 and v100.",
    ),
    click.option(
        "--devices",
        default=1,
        show_default=True,
        type=click.IntRange(1, MOST_DEVICES),
        metavar="N",
        help="Number of devices. N devices are taken to be N times as fast as one.",
    ),
    click.option(
        "--price",
        type=FiniteRange(0, HIGHEST_PRICE),
        metavar="P",
        help="Price of a device for an hour.",
    ),
    *VOCABULARY_OPTIONS,
    click.option(
        "--src-length",
        type=FiniteRange(1, LONGEST),
        metavar="L",
        help="Mean length of a source sentence in tokens. Default: that of the prepared text, or "
        "25.",
    ),
    click.option(
        "--tgt-length",
        type=FiniteRange(1, LONGEST),
        metavar="L",
        help="Mean length of a target sentence in tokens. Default: as for --src-length.",
    ),
    click.option(
        "--pairs",
        type=click.IntRange(1, MOST_PAIRS),
        metavar="N",
        help="Number of training pairs, for stages that end after epochs. Default: that of the "
        "prepared text.",
    ),
    threads_option,
    json_option,
)
estimate_options = all_of(OPTIONS)
