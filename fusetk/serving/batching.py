"""Computation of concurrent requests in common batches, with a bounded queue."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from fusetk.decoding.threads import cancelled_by

Item = TypeVar("Item")  # a sentence with the data of its computation
Options = TypeVar("Options")  # the options of a request
Result = TypeVar("Result")  # the result of a sentence


class QueueFull(Exception):
    """The queue has no room for the sentences of a request."""


class Closed(Exception):
    """The batcher is closed."""


@dataclass
class Job(Generic[Item, Options, Result]):
    """The sentences of one request."""

    items: Sequence[Item]
    options: Options
    result: "Future[list[Result]]" = field(default_factory=Future)


class Batcher(Generic[Item, Options, Result]):
    """A queue of requests and a thread that computes their results.

    The thread takes the oldest request, waits up to ``window`` seconds for others, and computes
    those with the same options together, up to ``batch`` sentences (or one larger request). The
    queue holds ``queue`` sentences, those in computation not counted. The search of a batch ends
    early if all requests of the batch are cancelled.
    """

    def __init__(
        self,
        compute: Callable[[Sequence[Item], Options], list[Result]],
        batch: int,
        queue: int,
        window: float = 0.005,
    ):
        """``compute`` returns the result of each sentence of a batch."""
        self.compute = compute
        self.batch = batch
        self.queue = queue
        self.window = window
        self._jobs: deque[Job[Item, Options, Result]] = deque()
        self._cancelled = threading.Event()  # cancels the current batch
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="batches", daemon=True)
        self._thread.start()

    def submit(self, items: Sequence[Item], options: Options) -> "Future[list[Result]]":
        """Return a future of the results. Cancel it if they are not needed any more.

        Raises QueueFull if the queue has no room, and Closed after ``close``.
        """
        job: Job[Item, Options, Result] = Job(items, options)
        with self._changed:
            if self._closed:
                raise Closed
            # Cancelled requests do not count, so they must not fill the memory.
            self._jobs = deque(job for job in self._jobs if not job.result.cancelled())
            if self.waiting + len(items) > self.queue:
                raise QueueFull
            self._jobs.append(job)
            self._changed.notify()
        return job.result

    def close(self) -> None:
        """Cancel the requests in the queue and the current batch, and wait for its end."""
        with self._changed:
            self._closed = True
            self._cancelled.set()
            for job in self._jobs:
                job.result.cancel()
            self._jobs.clear()
            self._changed.notify()
        self._thread.join()

    @property
    def waiting(self) -> int:
        """The number of sentences in the queue, without those of cancelled requests."""
        return sum(len(job.items) for job in list(self._jobs) if not job.result.cancelled())

    def _run(self) -> None:
        while jobs := self._next_batch():
            self._compute(jobs)

    def _next_batch(self) -> list[Job[Item, Options, Result]]:
        """Wait for requests and take those of one batch; an empty list after ``close``."""
        with self._changed:
            while True:
                while not self._jobs and not self._closed:
                    self._changed.wait()
                end = time.monotonic() + self.window
                while self.waiting < self.batch and not self._closed:
                    if not self._changed.wait(max(0.0, end - time.monotonic())):
                        break
                if self._closed:
                    return []
                if jobs := self._take():
                    self._cancelled = threading.Event()
                    return jobs

    def _take(self) -> list[Job[Item, Options, Result]]:
        """Remove the oldest request and those that fit into its batch, without cancelled ones."""
        taken: list[Job[Item, Options, Result]] = []
        size = 0
        for job in list(self._jobs):
            fits = not taken or (
                job.options == taken[0].options and size + len(job.items) <= self.batch
            )
            if not fits:
                continue
            self._jobs.remove(job)
            if not job.result.cancelled():
                taken.append(job)
                size += len(job.items)
        return taken

    def _compute(self, jobs: Sequence[Job[Item, Options, Result]]) -> None:
        items = [item for job in jobs for item in job.items]
        cancelled = self._cancelled

        def cancel_batch(future: "Future[list[Result]]") -> None:
            if all(job.result.cancelled() for job in jobs):
                cancelled.set()

        for job in jobs:
            job.result.add_done_callback(cancel_batch)
        results: list[Result] = []
        failure: Exception | None = None
        try:
            with cancelled_by(cancelled):
                results = self.compute(items, jobs[0].options)
        except CancelledError:
            failure = Closed()
        except Exception as error:  # a failure of one batch must not end the thread
            failure = error
        start = 0
        for job in jobs:
            end = start + len(job.items)
            # A request can be cancelled until here.
            if job.result.set_running_or_notify_cancel():
                if failure is None:
                    job.result.set_result(results[start:end])
                else:
                    job.result.set_exception(failure)
            start = end
