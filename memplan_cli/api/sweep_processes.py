"""Run the jobs of a sweep in this process, or in several worker processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from itertools import islice

from memplan_cli.api.sweep_jobs import Job, Runner, do_job, failed_row
from memplan_cli.core.children import end_with_parent
from memplan_cli.reporting.commands.sweep import Row

IndexedRows = Iterator[tuple[int, Row]]
"""Rows, each with the index of its job."""


def runner(jobs: int | None) -> Runner:
    """Return the function that runs jobs in this many processes; None: one per core."""
    count = jobs or len(os.sched_getaffinity(0))
    return one_by_one if count == 1 else partial(in_processes, count=count)


def one_by_one(jobs: Sequence[Job]) -> IndexedRows:
    """Do the jobs in this process, one after the other."""
    for index, job in enumerate(jobs):
        yield index, do_job(job)


def in_processes(jobs: Sequence[Job], *, count: int) -> IndexedRows:
    """Do the jobs in worker processes. A job that kills its process gets a row of failure.

    A broken pool does not tell which job broke it. The jobs that were running are therefore done
    again, each alone in a process, and the others in a new pool.
    """
    remaining = list(enumerate(jobs))
    while remaining:
        done: set[int] = set()
        with _pool(min(count, len(remaining))) as pool:
            running: dict[Future[Row], int] = {}
            for index, row in _rows_until_broken(pool, remaining, running, count):
                done.add(index)
                yield index, row
        # What still runs when a pool ends may have broken it; otherwise nothing runs.
        suspects = sorted(set(running.values()) - done)
        yield from ((index, _alone(jobs[index])) for index in suspects)
        done.update(suspects)
        remaining = [(index, job) for index, job in remaining if index not in done]


@contextmanager
def _pool(count: int) -> Iterator[ProcessPoolExecutor]:
    """Provide a pool whose processes end with the block, even if they are not done."""
    # Forking a process with threads (numpy's, ONNX Runtime's) may hang.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        count, mp_context=context, initializer=end_with_parent, initargs=(os.getpid(),)
    )
    try:
        yield pool
    except BaseException:  # an interrupt, too: no process may go on
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.kill()
        raise
    finally:
        pool.shutdown()


def _rows_until_broken(
    pool: ProcessPoolExecutor,
    jobs: Sequence[tuple[int, Job]],
    running: dict[Future[Row], int],
    count: int,
) -> IndexedRows:
    """Yield the rows of jobs as they are completed; stop if the pool breaks.

    At most ``count`` jobs are submitted at a time. ``running`` is updated: if the pool breaks, it
    has the jobs that may have broken it.
    """
    waiting = iter(jobs)
    while True:
        try:
            for index, job in islice(waiting, count - len(running)):
                running[pool.submit(do_job, job)] = index
        except BrokenProcessPool:
            return
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            try:
                row = future.result()
            except BrokenProcessPool:
                return
            yield running.pop(future), row


def _alone(job: Job) -> Row:
    """Do a job in a process of its own. If this process dies, the row says so."""
    with _pool(1) as pool:
        try:
            return pool.submit(do_job, job).result()
        except BrokenProcessPool:
            return failed_row(job, "the process that planned it died")
