"""Small graphs for the parts of the ordering search, and every order of them."""

import random
from collections.abc import Iterator, Sequence
from itertools import islice

from memplan_cli.ordering.task_graph import Order, TaskGraph


def graph_of(
    reads: Sequence[Sequence[int]],
    weight: Sequence[int],
    outlives: Sequence[int] = (),
    in_place: Sequence[int] = (),
) -> TaskGraph:
    """Make a graph in which op i makes tensor i and reads the results of ``reads[i]``."""
    size = len(reads)
    users = [{op, *(o for o in range(size) if op in reads[o])} for op in range(size)]
    replaces = [
        tuple(
            read
            for read in reads[op]
            if op in in_place and weight[read] == weight[op] and read not in outlives
        )
        for op in range(size)
    ]
    return TaskGraph(
        preds=tuple(tuple(sorted(set(read))) for read in reads),
        succs=tuple(tuple(sorted(users[op] - {op})) for op in range(size)),
        defines=tuple((op,) for op in range(size)),
        accesses=tuple(tuple(sorted({op, *read})) for op, read in enumerate(reads)),
        in_place_inputs=tuple(replaces),
        in_place_bytes=tuple(weight[op] if replaces[op] else 0 for op in range(size)),
        step_bytes=tuple(weight),
        tensor_bytes=tuple(weight),
        access_counts=tuple(len(users[op]) + (op in outlives) for op in range(size)),
        is_result=tuple(op in outlives for op in range(size)),
        initial_bytes=0,
    )


def random_graph(seed: int, most: int = 8) -> TaskGraph:
    draw = random.Random(seed)
    size = draw.randint(2, most)
    reads = [draw.sample(range(op), min(op, draw.randint(0, 2))) for op in range(size)]
    weight = [draw.choice((1, 2, 3, 5, 8)) for _ in range(size)]
    return graph_of(
        reads,
        weight,
        draw.sample(range(size), draw.randint(0, 2)),
        draw.sample(range(size), draw.randint(0, size)),
    )


def orders(graph: TaskGraph, most: int = 3000) -> list[Order]:
    def extend(done: Order) -> Iterator[Order]:
        if len(done) == graph.size:
            yield done
        for op in range(graph.size):
            if op not in done and set(graph.preds[op]) <= set(done):
                yield from extend([*done, op])

    return list(islice(extend([]), most))


GRAPHS = [random_graph(seed) for seed in range(60)]
