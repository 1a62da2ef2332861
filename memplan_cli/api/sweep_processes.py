"""Run the jobs of a sweep in this process, or in several worker processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
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

    A pool whose process dies does not tell which of its jobs was running. Each process is therefore
    a pool of its own, which has one job at a time.
    """
    waiting = iter(enumerate(jobs))
    running: dict[Future[Row], tuple[int, ProcessPoolExecutor]] = {}
    with ExitStack() as stack:
        for index, job in islice(waiting, count):
            pool = stack.enter_context(_one_process())
            running[pool.submit(do_job, job)] = index, pool
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                index, pool = running.pop(future)
                try:
                    row = future.result()
                except BrokenProcessPool:
                    row = failed_row(jobs[index], "the process that planned it died")
                    pool = stack.enter_context(_one_process())
                yield index, row
                for next_index, job in islice(waiting, 1):
                    running[pool.submit(do_job, job)] = next_index, pool


@contextmanager
def _one_process() -> Iterator[ProcessPoolExecutor]:
    """Provide a pool of one process, which ends with the block even if it is not done."""
    # Forking a process with threads (numpy's, ONNX Runtime's) may hang.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        1, mp_context=context, initializer=end_with_parent, initargs=(os.getpid(),)
    )
    try:
        yield pool
    except BaseException:  # an interrupt, too: its process must not go on
        for process in tuple(pool._processes.values()):  # noqa: SLF001 - `kill_workers` is new in 3.14
            process.kill()
        raise
    finally:
        pool.shutdown()  # waits until the process has ended
