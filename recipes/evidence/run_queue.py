"""Run the trainings of a plan that have no result yet, one after the other or several at a time.

`recipes/run_evidence.sh` calls this script and describes its options. The result files say which
trainings are done, so the queue continues after any interruption, also in a new checkout.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from evidence_plan import METRICS, Job, PlanConfig, Results, count_left, jobs_left, own_values

from fusetk import config as configs
from fusetk.data import manifest
from fusetk.data.text import cannot_write
from fusetk.errors import EX_DIVERGED, EX_TEMPFAIL, ConfigError, FusetkError
from fusetk.experiment.launch import command as fusetk_command
from fusetk.experiment.launch import ends_with_parent, module_path
from fusetk.experiment.places import places
from fusetk.files import lock, locked, open_lock_file
from fusetk.processor import usable_processors
from fusetk.recipe import load
from fusetk.reporting.result_columns import duration
from fusetk.reporting.result_files import read_results

POLL = 0.5  # seconds
RETRY = 60  # seconds between two checks whether trainings of other queues have ended
JOB_LOCKS = ".locks"  # folder in the results; has a file for each job, which its queue locks


def now() -> str:
    return time.strftime("%H:%M:%S")


class Queue:
    """Runs the jobs of a plan, several at a time, until none is left or a signal arrives."""

    locks: Sequence[int] = ()  # open files that the jobs hold until they end

    def __init__(self, plan: PlanConfig, options: argparse.Namespace):
        self.plan = plan
        self.options = options
        self.folder = options.recipes
        self.own = own_values(plan, self.folder)
        self.running: dict[Job, subprocess.Popen[bytes]] = {}
        self.preparing: set[Job] = set()  # jobs in ``running`` whose text is being prepared
        self.saving: set[Job] = set()  # jobs in ``running`` whose result is being saved
        self.job_locks: dict[Job, IO[bytes]] = {}  # locked files of the jobs in ``running``
        self.elsewhere: set[Job] = set()  # jobs that other queues with the same results run
        self.next_try = 0.0  # the time of the next check of the jobs in ``elsewhere``
        self.failed: set[str] = set()
        self.stopped = False
        self.error: ConfigError | None = None  # the reason why the queue stopped itself

    def results(self) -> Results:
        if not self.options.results.is_dir():  # `--left` does not make it
            return Results(self.plan, [])
        with locked(self.options.results):  # a process that saves a result may rename others
            return Results(self.plan, list(read_results(self.options.results).values()))

    def results_and_diverged(self) -> Results:
        """Return the results, with the trainings that have diverged, and report these."""
        results = self.results()
        while diverged := [
            job
            for job in jobs_left(self.plan, self.own, results)
            if self.diverged_file(job).exists()
        ]:  # the loss of a trial makes further trainings known
            for job in diverged:
                results.add_diverged(job, self.own[job.system])
                self.fail_diverged(job)
        return results

    def log(self, job: Job) -> Path:
        return self.options.out / job.setting / f"{job.system}.seed{job.seed}.log"

    def diverged_file(self, job: Job) -> Path:
        """Return the path of the file that exists if the training of a job has diverged.

        All queues with the same results read it.
        """
        lock_file = self.lock_file(job)
        return lock_file.with_name(f"{lock_file.name}.diverged")

    def lock_file(self, job: Job) -> Path:
        name = f"{job.system}.seed{job.seed}.{job.setting}"
        return Path(self.options.results, JOB_LOCKS, name)

    def run(self) -> int:
        """Return the exit status: 0, 1 if a training failed, 75 after a signal.

        Raises ConfigError if the results are those of another text.
        """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self.stop())
        if not self.stopped:
            self.start()
        while True:
            # New jobs can start only after a process ends. This queue sees at once that one of its
            # own processes has ended. It checks those of other queues every RETRY seconds.
            changed = self.collect()
            changed |= bool(self.elsewhere) and time.monotonic() >= self.next_try
            if changed and not self.stopped:
                self.start()
            if not self.running and (self.stopped or not self.elsewhere):
                break
            time.sleep(POLL)
        if self.error:
            raise self.error
        if self.stopped:
            print("stopped; the same command continues from here", flush=True)
            return EX_TEMPFAIL
        return 1 if self.failed else 0

    def start(self) -> None:
        """Start jobs that no other queue runs, up to the number that may run at once."""
        self.next_try = time.monotonic() + RETRY
        if len(self.running) >= self.options.jobs:
            return
        left = jobs_left(self.plan, self.own, self.results_and_diverged())
        self.elsewhere.intersection_update(left)
        for job in left:
            if self.stopped or len(self.running) >= self.options.jobs:
                return
            if job.name in self.failed or job in self.running:
                continue
            if self.lock_job(job):
                self.elsewhere.discard(job)
                self.launch(job)
            elif job not in self.elsewhere:
                self.elsewhere.add(job)
                print(f"{now()} {job.name}: another queue runs it, or has run it", flush=True)

    def lock_job(self, job: Job) -> bool:
        """Lock a job, so that no other queue starts it. Return whether this queue can start it.

        Another queue may run the job or have completed it. The lock holds until `fusetk run` ends,
        also if the queue is killed.
        """
        path = self.lock_file(job)
        path.parent.mkdir(exist_ok=True)
        file = open_lock_file(path)
        # Another queue may have ended the job after the results were read.
        if lock(file) and not (
            self.diverged_file(job).exists() or self.results().has(job, self.own[job.system])
        ):
            self.job_locks[job] = file
            return True
        file.close()
        return False

    def launch(self, job: Job) -> None:
        self.log(job).parent.mkdir(parents=True, exist_ok=True)
        print(f"{now()} {job.name}: {self.log(job)}", flush=True)
        self.preparing.add(job)
        self.start_step(job, self.prepare_command(job))

    def start_step(self, job: Job, command: list[str]) -> None:
        """Start a step that a signal stops, also if it came after the last check."""
        self.start_process(job, command)
        if self.stopped:
            self.running[job].terminate()

    def start_process(self, job: Job, command: list[str]) -> None:
        """Start a process of a job. Its output goes to the log of the job.

        If the queue is killed, the process gets SIGTERM, so that a training saves its state.
        """
        with open(self.log(job), "ab") as file:
            self.running[job] = subprocess.Popen(
                command,
                stdout=file,
                stderr=file,
                start_new_session=True,
                pass_fds=[*self.locks, self.job_locks[job].fileno()],
                preexec_fn=ends_with_parent(),
                env={**module_path(), **os.environ, "OMP_NUM_THREADS": str(self.options.threads)},
            )

    def command(self, job: Job) -> list[str]:
        """Return the command line of a job."""
        options = self.options
        words = [self.folder / f"{job.system}.yaml", "--raw", options.raw]
        words += ["--out", self.log(job).parent, "--seed", job.seed, "--quiet"]
        words += ["--threads", options.threads]
        words += [f"--metric={metric}" for metric in METRICS]
        words += [f"--set={override}" for override in job.overrides]
        return self.fusetk("run", *words)

    def fusetk(self, *words: object) -> list[str]:
        """Return the command line of a command of fusetk with the niceness of the queue."""
        return ["nice", "-n", str(self.options.nice), *fusetk_command(*words)]

    def prepare_command(self, job: Job) -> list[str]:
        """Return the command line that prepares the text of a job."""
        return [*self.command(job), "--until", "prep"]

    def collect(self) -> bool:
        """Take the next step of each job whose process ended: prepare, train, save, check.

        Return whether a process ended.
        """
        ended = False
        for job, process in list(self.running.items()):
            status = process.poll()
            if status is None:
                continue
            ended = True
            del self.running[job]
            if job in self.saving:
                self.saving.remove(job)
                self.check_result(job, status)
            elif status == 0 and job in self.preparing:
                self.preparing.remove(job)
                self.check_text(job)
                if not self.stopped:
                    self.start_step(job, self.command(job))
            elif status == 0:
                self.saving.add(job)
                self.start_process(job, self.save_command(job))
            # SIGTERM between two steps of `fusetk run` ends it with the status -SIGTERM.
            elif status == EX_TEMPFAIL or (self.stopped and status == -signal.SIGTERM):
                self.stop()
            else:
                self.preparing.discard(job)
                if status == EX_DIVERGED:
                    self.diverged_file(job).touch()
                    self.fail_diverged(job)
                else:
                    self.fail(job, f"failed with status {status}")
            if job not in self.running:
                self.job_locks.pop(job).close()
        return ended

    def check_text(self, job: Job) -> None:
        """Stop the queue if the text of a job is not that of the results with the same settings."""
        config = self.folder / f"{job.system}.yaml"
        recipe = load(config, [f"training.seed={job.seed}", *job.overrides])
        folder = places(config, recipe, self.log(job).parent).prepared(recipe.data)
        if not self.results().fits(recipe.data, manifest.read(folder)):
            self.error = ConfigError(
                f"{self.options.results} has results of another text than {self.options.raw}: give "
                "another --results and another --out"
            )
            self.stop()

    def check_result(self, job: Job, status: int) -> None:
        """Check the result of a job; ``status`` is that of the process that saved it.

        A job without a result counts as failed.
        """
        if status or not self.results().has(job, self.own[job.system]):
            self.fail(job, "was trained, but has no result")
        else:
            print(f"{now()} {job.name}: done", flush=True)

    def save_command(self, job: Job) -> list[str]:
        """Return the command line that saves the result of a job."""
        words = ["--runs", self.options.out, "--save", self.options.results, "--quiet"]
        return self.fusetk("report", self.folder / f"{job.system}.yaml", *words)

    def fail(self, job: Job, reason: str) -> None:
        """Report a job without a result. This queue does not start it again."""
        self.failed.add(job.name)
        print(f"{job.name} {reason}: see {self.log(job)}", flush=True)

    def fail_diverged(self, job: Job) -> None:
        """Report a training that has diverged, once."""
        if job.name not in self.failed:
            file = self.diverged_file(job)
            self.fail(job, f"has diverged; to train it again, delete its run folder and {file}")

    def stop(self) -> None:
        """Stop the trainings. A result that is being saved is completed."""
        self.stopped = True
        for job, process in self.running.items():
            if job not in self.saving:
                process.terminate()

    def describe(self) -> None:
        """Print the trainings that are left, and an estimate of their time.

        It assumes that each one takes the mean time of the complete trainings on a device of the
        same kind.
        """
        results = self.results_and_diverged()
        for job in jobs_left(self.plan, self.own, results):
            print(job.name)
        left = count_left(self.plan, self.own, results)
        text = f"trainings left: {left}"
        if results.hours:
            most = max(1, usable_processors() // self.options.threads)
            at_once = min(self.options.jobs, most)
            hours = left * sum(results.hours) / len(results.hours) / at_once
            text += f", about {duration(3600 * hours)} with {at_once} at a time"
        print(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", type=Path)
    for name in ("recipes", "raw", "results", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("jobs", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--nice", type=int, default=10)
    parser.add_argument("--left", action="store_true")
    options = parser.parse_args()
    for name in ("results", "out"):
        folder = getattr(options, name)
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"{folder} is not a folder: give another path with --{name}")
    queue = Queue(configs.parse(configs.load(options.plan), PlanConfig), options)
    if options.left:
        queue.describe()
        return 0
    for folder in (options.results, options.out):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):  # the results are written hours later
                pass
        except OSError as error:
            raise cannot_write(folder, error) from None
    try:
        with open_lock_file(options.out / ".queue.lock") as file:
            if not lock(file):
                raise ConfigError(
                    f"another queue, or a training of a killed queue, still writes to "
                    f"{options.out}: wait until it ends"
                )
            queue.locks = [file.fileno()]
            return queue.run()
    except OSError as error:
        if error.filename is None or isinstance(error, FileNotFoundError):
            raise
        raise cannot_write(error.filename, error) from None


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FusetkError as error:
        print(f"run_queue.py: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the program that reads the output has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
