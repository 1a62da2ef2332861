"""Where a sweep's jobs are done: in this process, in processes here, on a Dask cluster."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.children import end_with_parent
from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.reporting.findings.sweep_rows import Row
from memplan_cli.workflows.sweeping.sweep import Job, Runner, do_job, failed

if TYPE_CHECKING:
    from typing import Any

Numbered = Iterator[tuple[int, Row]]

_RETRIES = 3
"""How often a cluster may lose the worker of one job before the job is at fault."""


def runner(jobs: int | None, scheduler: str | None) -> Runner:
    """Return where jobs are done: on a cluster, or in processes here, one per core by default."""
    if scheduler is not None:
        return partial(on_cluster, address=scheduler)
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


def on_cluster(jobs: Sequence[Job], *, address: str) -> Numbered:
    """Do the jobs on the workers of a Dask cluster; those of a lost worker are done again.

    The workers must see the model files under the same paths, and have memplan installed.

    Raises:
        RuntimeUnavailableError: dask.distributed is not installed, or no scheduler answers.
    """
    try:
        from distributed import Client, as_completed
    except ImportError as error:
        raise RuntimeUnavailableError(
            "--scheduler needs dask.distributed", hint="pip install 'memplan[cluster]'"
        ) from error
    try:
        client = Client(address, timeout=20, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise RuntimeUnavailableError(f"no scheduler answers at {address}: {error}") from error
    with client, client.as_current():
        places: dict[str, int] = {}
        futures: list[Any] = []
        for place, job in enumerate(jobs):
            here = replace(job, model=str(Path(job.model).absolute()))
            name = f"memplan-{place}-{job.key}"
            futures.append(client.submit(do_job, here, key=name, retries=_RETRIES))
            places[name] = place
        for future in as_completed(futures):
            place = places[future.key]
            job = jobs[place]
            lost = future.exception()
            row = failed(job, str(lost)) if lost else future.result()
            yield place, replace(row, key=job.key, model=job.model)
