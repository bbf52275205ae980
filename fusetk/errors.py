"""Errors that a user can cause. The command line prints each as one sentence, without a traceback."""


class FusetkError(Exception):
    """What is wrong, where, and what to do about it, in one sentence."""

    exit_code = 2


class ConfigError(FusetkError):
    """A config file that is missing, unreadable or invalid."""


class DataError(FusetkError):
    """Text or prepared data that cannot be used as it is."""


class CheckpointError(FusetkError):
    """A run folder or checkpoint that is missing, damaged or does not fit."""


class Diverged(FusetkError):
    """A model that returns NaN."""

    def __init__(self) -> None:
        super().__init__(
            "the model gives no probabilities (NaN): its training has diverged, take an earlier checkpoint"
        )


class DiskFull(CheckpointError):
    """There is no space for a checkpoint. The one before it is whole; with space, the same command goes on from there."""

    exit_code = (
        74  # EX_IOERR: a batch system should not requeue the job before somebody has made room
    )


class Interrupted(FusetkError):
    """A signal ended the work; everything up to the last update is saved."""

    exit_code = 75  # EX_TEMPFAIL: a batch system may requeue the job
