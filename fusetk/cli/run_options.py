"""The options of ``fusetk run``, and their headings in the help."""

from pathlib import Path

import click

from fusetk.cli.options import config_argument, device_option, set_option, threads_option
from fusetk.cli.parameters import Decorator, FilePath, all_of
from fusetk.experiment import STEPS

SECTIONS = {
    "Text and output": ["raw", "dataset", "any_data", "out", "overrides", "seeds", "jobs"],
    "Devices": ["device", "devices", "threads", "slurm", "sbatch"],
    "Steps": ["dry_run", "smoke", "until", "average", "metrics"],
}

OPTIONS: tuple[Decorator, ...] = (
    config_argument,
    click.option(
        "--raw",
        metavar="DIR",
        type=FilePath(path_type=Path),
        help="Folder of the raw text. It replaces the folders of all paths in `data`: for "
        "raw/train, it has train.de and train.en, plain or .gz. Different texts must have "
        "different file names.",
    ),
    click.option(
        "--dataset",
        is_flag=True,
        help="First make missing raw text in the folder of --raw, as `fusetk dataset` does: from "
        "DIR/archives, where missing archives are downloaded if they are public.",
    ),
    click.option(
        "--any-data",
        is_flag=True,
        help="Accept raw text that does not have the published number of pairs.",
    ),
    click.option(
        "--out",
        metavar="DIR",
        type=FilePath(file_okay=False, path_type=Path),
        help="Folder of all output. Default: work/PAPER_TASK for a row of a paper in a folder "
        "PAPER/TASK, and work/NAME for another config.",
    ),
    set_option,
    click.option(
        "--seed",
        "seeds",
        type=click.IntRange(0),
        multiple=True,
        metavar="N",
        help="Set training.seed. Repeat the option for a training with each seed.",
    ),
    click.option(
        "--jobs",
        default=1,
        show_default=True,
        type=click.IntRange(1),
        metavar="N",
        help="Number of processes for the preparation.",
    ),
    device_option,
    click.option(
        "--devices",
        default=1,
        show_default=True,
        type=click.IntRange(1),
        metavar="N",
        help="Train and translate on N devices of this machine, with a process for each "
        "(torchrun).",
    ),
    threads_option,
    click.option(
        "--slurm",
        is_flag=True,
        help="Prepare the text here, then submit a job of Slurm that trains, and a second job for "
        "the other steps. --sbatch gives the devices of the job.",
    ),
    click.option(
        "--sbatch",
        multiple=True,
        metavar="OPTION",
        help="Option of sbatch for the training, such as --sbatch=--nodes=2; repeatable. "
        "Default: one node with four GPUs.",
    ),
    click.option(
        "--dry-run",
        is_flag=True,
        help="Only print the plan: the folders, the device, and for each step whether it is done.",
    ),
    click.option(
        "--smoke",
        is_flag=True,
        help="Test all steps on the first 3,000 pairs, with three updates, in OUT.smoke. The "
        "scores mean nothing.",
    ),
    click.option(
        "--until",
        type=click.Choice(STEPS),
        default=STEPS[-1],
        show_default=True,
        help="Last step.",
    ),
    click.option(
        "--average",
        type=click.IntRange(1),
        metavar="N",
        help="Also score an average of the last N checkpoints. A config without a published score "
        "is scored at the best checkpoint and at an average of the last checkpoints that training "
        "keeps (`training.keep_last`).",
    ),
    click.option(
        "--metric",
        "metrics",
        metavar="NAME",
        multiple=True,
        help="Another metric of `fusetk score`, besides that of the published score, or all; "
        "repeatable. The default without a published score is multi-bleu (multi-bleu-lc if the "
        "config lowercases the target, sacrebleu with the step sentencepiece). multi-bleu, "
        "multi-bleu-lc and multi-bleu-joined score tokenised text, and are refused with the step "
        "sentencepiece. Others score raw text, and ignore case if the config lowercases the "
        "target.",
    ),
)
run_options = all_of(OPTIONS)
