"""Run the tasks of a sweep in this process, or in several worker processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice

from memplan_cli.api.sweep_tasks import Runner, Task, do_task, failed_row
from memplan_cli.core.children import end_with_parent
from memplan_cli.reporting.commands.sweep import Row

IndexedRows = Iterator[tuple[int, Row]]
"""Rows, each with the index of its task."""


def runner(processes: int | None) -> Runner:
    """Return the function that does tasks in this many processes; None: one per core."""
    count = processes or len(os.sched_getaffinity(0))
    return one_by_one if count == 1 else partial(in_processes, count=count)


def one_by_one(tasks: Sequence[Task]) -> IndexedRows:
    """Do the tasks in this process, one after the other."""
    for index, task in enumerate(tasks):
        yield index, do_task(task)


def in_processes(tasks: Sequence[Task], *, count: int) -> IndexedRows:
    """Do the tasks in worker processes. A task that kills its process gets a row of failure.

    A pool whose process dies does not tell which of its tasks was running. Each process is therefore
    a pool of its own, which has one task at a time.
    """
    waiting = iter(enumerate(tasks))
    running: dict[Future[Row], tuple[int, ProcessPoolExecutor]] = {}
    with ExitStack() as stack:
        for index, task in islice(waiting, count):
            pool = stack.enter_context(_one_process())
            running[pool.submit(do_task, task)] = index, pool
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                index, pool = running.pop(future)
                try:
                    row = future.result()
                except BrokenProcessPool:
                    row = failed_row(tasks[index], "the process that planned it died")
                    pool = stack.enter_context(_one_process())
                yield index, row
                for next_index, task in islice(waiting, 1):
                    running[pool.submit(do_task, task)] = next_index, pool


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
