"""Run the jobs of a sweep: in this process, or in several worker processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from itertools import islice

from memplan_cli.api.sweeping.sweep import Job, Runner, do_job, failed
from memplan_cli.core.children import end_with_parent
from memplan_cli.reporting.commands.sweep import Row

Numbered = Iterator[tuple[int, Row]]


def runner(jobs: int | None) -> Runner:
    """Return the function that runs the jobs in this many processes, by default one per core."""
    count = jobs or len(os.sched_getaffinity(0))
    return one_by_one if count == 1 else partial(in_processes, count=count)


def one_by_one(jobs: Sequence[Job]) -> Numbered:
    """Do the jobs here, one after the other."""
    for place, job in enumerate(jobs):
        yield place, do_job(job)


def in_processes(jobs: Sequence[Job], *, count: int) -> Numbered:
    """Do the jobs in processes; one that dies costs a row, never the sweep.

    A broken pool does not say which job broke it: those that were running are done again,
    each alone in a process.
    """
    left = list(enumerate(jobs))
    while left:
        done: set[int] = set()
        with _pool(min(count, len(left))) as pool:
            running: dict[Future[Row], int] = {}
            for place, row in _drain(pool, left, running, count):
                done.add(place)
                yield place, row
        suspects = sorted(set(running.values()) - done)
        yield from ((place, _alone(jobs[place])) for place in suspects)
        done.update(suspects)
        left = [(place, job) for place, job in left if place not in done]


@contextmanager
def _pool(count: int) -> Iterator[ProcessPoolExecutor]:
    """Start a pool whose processes end with it, also where it is left before they are done."""
    # Not forked: a fork of a process with threads (numpy's, the runtime's) may hang.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        count, mp_context=context, initializer=end_with_parent, initargs=(os.getpid(),)
    )
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.kill()
        raise
    finally:
        pool.shutdown()


def _drain(
    pool: ProcessPoolExecutor,
    left: Sequence[tuple[int, Job]],
    running: dict[Future[Row], int],
    count: int,
) -> Numbered:
    """Keep as many jobs running as there are processes; stop when the pool breaks.

    What is still in ``running`` then may have broken it; nothing else was given to it.
    """
    waiting = iter(left)
    while True:
        try:
            for place, job in islice(waiting, count - len(running)):
                running[pool.submit(do_job, job)] = place
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
    with _pool(1) as pool:
        try:
            return pool.submit(do_job, job).result()
        except BrokenProcessPool:
            return failed(job, "the process that planned it died")
