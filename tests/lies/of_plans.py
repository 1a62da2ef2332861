"""Lies that a plan file tells of its model: tensors, lives, places, order and releases."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lies.told import Lie, Told


def cut_reader(told: Told) -> None:
    """Cut the last reader of b off, and put c, which that one's sibling makes, on top."""
    told.tensor("b")["last"] = 3
    told.tensor("d")["alias_of"] = None
    told.tensor("e")["alias_of"] = "d"
    told.tensor("d")["offset"] = told.tensor("e")["offset"] = 0
    told.tensor("f")["offset"] = told.tensor("j")["offset"] = 1024
    told.tensor("h")["offset"] = 0
    told.settle()


def cut_short(told: Told) -> None:
    told.tensor("c")["last"] = 5
    told.tensor("g")["alias_of"] = None
    told.settle()


def start_late(told: Told) -> None:
    told.tensor("i")["first"] = 9
    told.settle()


def end_late(told: Told) -> None:
    told.tensor("i").update(last=12, offset=1536)
    told.settle()


def rename(told: Told) -> None:
    told.tensor("i")["name"] = "nobody"
    for release in told.plan["releases"]:
        release["tensors"] = ["nobody" if name == "i" else name for name in release["tensors"]]
    for peak in told.report["peak"]["tensors"]:
        peak["name"] = "nobody" if peak["name"] == "i" else peak["name"]


def drop(told: Told) -> None:
    told.plan["tensors"] = [row for row in told.plan["tensors"] if row["name"] != "i"]
    told.report["model"]["intermediates"] -= 1
    told.settle()


def leave_out(told: Told) -> None:
    told.plan["tensors"] = [row for row in told.plan["tensors"] if row["name"] != "i"]
    refusal = {"name": "i", "reason": "its shape is not known before the run"}
    told.report["unplanned"].append(refusal)
    told.plan["unplanned"] = told.report["unplanned"]
    told.report["coverage"] = 10 / 11
    told.report["partial"] = True
    told.settle()


def invent(told: Told) -> None:
    told.plan["tensors"].append({**told.tensor("i"), "name": "extra", "offset": 576})
    told.report["model"]["intermediates"] += 1
    told.settle()


def invent_unplanned(told: Told) -> None:
    told.report["unplanned"].append({"name": "ghost", "reason": "strings have no size"})
    told.plan["unplanned"] = told.report["unplanned"]


def another_type(told: Told) -> None:
    told.tensor("c")["dtype"] = told.tensor("g")["dtype"] = "int32"


def another_shape(told: Told) -> None:
    told.tensor("h")["shape"] = [16, 8]


def smaller(told: Told) -> None:
    told.tensor("h")["shape"], told.tensor("h")["bytes"] = [8, 8], 256
    told.settle()


def fewer_bytes(told: Told) -> None:
    told.tensor("h")["bytes"] = 256
    told.settle()


def symbol(told: Told) -> None:
    """Call a dim otherwise, its number with it: the plan agrees with itself."""
    symbol_without_number(told)
    told.report["bindings"]["other"] = told.report["bindings"].pop("batch")


def symbol_without_number(told: Told) -> None:
    for row in told.plan["tensors"]:
        row["shape"] = [dim if dim != "batch" else "other" for dim in row["shape"]]
    told.plan["arenas"] = [
        {**arena, "unit": arena["unit"].replace("batch", "other")}
        for arena in told.plan["arenas"]
    ]
    report = told.report
    report["symbolic"] = {
        name: text.replace("batch", "other") for name, text in report["symbolic"].items()
    }


def another_block(told: Told) -> None:
    told.tensor("is_positive")["block"] = ""
    for release in told.plan["releases"]:
        release["tensors"] = [
            name.replace("last_state/Loop.body/is_", "is_") for name in release["tensors"]
        ]


def share_with_needed(told: Told) -> None:
    """Let h lie on g's bytes, which its product still reads."""
    told.tensor("h").update(alias_of="c", offset=512)
    told.tensor("i")["offset"], told.tensor("k")["offset"] = 1024, 1088
    told.settle()


def share_overwritten(told: Told) -> None:
    """Let k, a product, lie on j, which it reads row by row while it writes."""
    told.tensor("k").update(alias_of="f", offset=0)
    told.settle()


def share_outlived(told: Told) -> None:
    """Let d, which overwrites b, end before c is made of b: c then reads d's bytes."""
    order = told.plan["order"][0]["nodes"]
    order[2], order[3] = order[3], order[2]
    nodes = list(told.model.graph.node)
    nodes[2], nodes[3] = nodes[3], nodes[2]
    copies = deepcopy(nodes)
    del told.model.graph.node[:]
    told.model.graph.node.extend(copies)
    told.tensor("c")["first"], told.tensor("d")["first"] = 3, 2
    told.settle()


def share_at_pool(told: Told) -> None:
    """Let a view have its own input's slot, and move the others out of its way."""
    told.tensor("e")["alias_of"] = "d"
    for slot, names in ((2, "egj"), (1, "fk")):
        for name in names:
            told.tensor(name).update(slot=slot, offset=512 * slot)
    told.settle()


def share_unlike(told: Told) -> None:
    """Let a broadcast's small input be overwritten by its large result."""
    told.tensor("i").update(bytes=512, shape=[8, 16], offset=512)
    told.tensor("j").update(alias_of="i", offset=512)
    told.tensor("k")["offset"] = 1536
    told.settle()


def share_capture(told: Told) -> None:
    """Let a branch's result lie on what the other branch may still be asked for."""
    told.tensor("cool_product")["alias_of"] = "projected"
    told.tensor("cool_product")["offset"] = 0


def share_next_turn(told: Told) -> None:
    """Let what a turn hands on lie on what it was handed."""
    path = "last_state/Loop.body"
    told.tensor("keep_going_out").update(alias_of=f"{path}/keep_going", offset=24640)
    told.plan["arenas"][0]["lower_bound"] -= 64
    told.memory["live_peak"] -= 1
    told.note(live_peak=told.memory["live_peak"])
    told.report["reuses"] += 1
    peak = told.report["peak"]
    peak["tensors"] = [t for t in peak["tensors"] if t["name"] != f"{path}/keep_going"]


def capture_cut(told: Told) -> None:
    """Say that what a loop captures ends at its first turn."""
    told.tensor("context")["last"] = 8


def overlap(told: Told) -> None:
    told.tensor("k")["offset"] = told.tensor("h")["offset"]
    told.settle()


def overlap_partly(told: Told) -> None:
    told.tensor("i")["offset"] = 64
    told.settle()


def misalign(told: Told) -> None:
    told.tensor("i")["offset"] += 4
    told.settle()


def short_arena(told: Told) -> None:
    told.plan["arenas"][0]["height"] -= 64


def tall_arena(told: Told) -> None:
    told.plan["arenas"][0]["height"] += 64
    memory = told.memory
    memory["planned"] += 64
    memory["total"] += 64
    levels = told.report["levels"]
    levels |= {name: max(levels[name], memory["planned"]) for name in levels}
    told.note(planned=memory["planned"], total=memory["total"])


def no_arena(told: Told) -> None:
    told.tensor("i")["arena"] = 7


def slot_type(told: Told) -> None:
    told.tensor("i").update(slot=0, offset=0, first=told.tensor("i")["first"])
    told.settle()


def slot_shape(told: Told) -> None:
    told.tensor("i").update(slot=told.tensor("e")["slot"], offset=told.tensor("e")["offset"])
    told.settle()


def no_slot(told: Told) -> None:
    told.tensor("i")["slot"] = None


def unpin(told: Told) -> None:
    told.tensor("c").update(pinned=None, first=2, last=7)
    told.report["unplanned"] = told.plan["unplanned"] = []
    told.settle()


def pin(told: Told) -> None:
    told.tensor("i").update(pinned="a friend of mine", first=0, last=12, offset=1536)
    refusal = {"name": "i", "reason": "a friend of mine"}
    told.report["unplanned"] = told.plan["unplanned"] = [refusal]
    told.settle()


def forget_exclusion(told: Told) -> None:
    told.plan["settings"]["exclude"] = []


def exclude_more(told: Told) -> None:
    told.plan["settings"]["exclude"] = ["c", "h"]


def early_consumer(told: Told) -> None:
    order = told.plan["order"][0]["nodes"]
    order[0], order[1] = order[1], order[0]
    _relabel(told)


def early_in_both(told: Told) -> None:
    early_consumer(told)
    nodes = deepcopy(list(told.model.graph.node))
    nodes[0], nodes[1] = nodes[1], nodes[0]
    del told.model.graph.node[:]
    told.model.graph.node.extend(nodes)
    told.renote()


def swap_nodes(told: Told) -> None:
    order = told.plan["order"][0]["nodes"]
    order[5], order[6] = order[6], order[5]
    _relabel(told)


def _relabel(told: Told) -> None:
    order = told.plan["order"][0]["nodes"]
    for release in told.plan["releases"]:
        release["node"] = order[release["step"]]
    told.report["peak"]["node"] = order[told.report["peak"]["step"]]


def rename_node(told: Told) -> None:
    told.plan["order"][0]["nodes"][4] = "n_x"
    _relabel(told)


def drop_node(told: Told) -> None:
    """Leave out the last node, which nothing that is released waits for."""
    told.plan["order"][0]["nodes"].pop()
    told.report["model"]["nodes"] -= 1
    told.report["phases"]["forward"] -= 1


def swap_indices(told: Told) -> None:
    order = told.plan["order"][0]["nodes"]
    order[1], order[2] = order[2], order[1]
    for release in told.plan["releases"]:
        release["node"] = (
            release["node"].replace("#1", "#x").replace("#2", "#1").replace("#x", "#2")
        )
    node = told.report["peak"]["node"]
    told.report["peak"]["node"] = (
        node.replace("#1", "#x").replace("#2", "#1").replace("#x", "#2")
    )


def far_index(told: Told) -> None:
    told.plan["order"][0]["nodes"][2] = "#77"
    for release in told.plan["releases"]:
        release["node"] = release["node"].replace("#2", "#77")


def rename_block(told: Told) -> None:
    def renamed(item: Any) -> Any:  # noqa: ANN401 - JSON
        if isinstance(item, dict):
            return {key: renamed(value) for key, value in item.items()}
        if isinstance(item, list):
            return [renamed(value) for value in item]
        return item.replace("then_branch", "first_branch") if isinstance(item, str) else item

    told.plan.update(renamed(told.plan))


def drop_block(told: Told) -> None:
    told.plan["order"].pop()


def release_early(told: Told) -> None:
    told.plan["releases"][2]["tensors"].append("h")
    told.plan["releases"][-1]["tensors"].remove("h")


def release_twice(told: Told) -> None:
    told.plan["releases"][3]["tensors"].append(told.plan["releases"][2]["tensors"][0])


def release_twice_at_once(told: Told) -> None:
    told.plan["releases"][2]["tensors"] *= 2


def release_never(told: Told) -> None:
    told.plan["releases"].pop()


def settings(**values: object) -> Callable[[Told], None]:
    """Say that the plan was made with other settings; nothing else changes."""

    def lie(told: Told) -> None:
        told.plan["settings"] |= values

    return lie


def release_behind(told: Told) -> None:
    told.plan["releases"][2]["node"] = "n_k"


LIES: Mapping[str, Lie] = {
    "the last reader of a tensor is cut off, another lies on top": (
        "flat", cut_reader, "'b' is recorded as live from tick 1 to 3, .* from 1 to 4",
    ),
    "a tensor ends before its reader": ("flat", cut_short, "'c' is recorded as live from"),
    "a tensor begins after its maker": ("flat", start_late, "'i' is recorded as live from"),
    "a tensor ends after its last reader": ("flat", end_late, "'i' is recorded as live from"),
    "a loop's capture ends at its first turn": (
        "nested", capture_cut, "'context'|context",
    ),
    "a tensor is renamed to one that is not there": (
        "flat", rename, "places 'nobody', which the model does not compute",
    ),
    "a tensor is left out": ("flat", drop, "'i' has a size, and the plan has no place"),
    "a tensor is left out for want of a size that it has": (
        "flat", leave_out, "'i' has a size, and the plan has no place",
    ),
    "a tensor is placed that no node makes": ("flat", invent, "places 'extra', which the model does not compute"),
    "a tensor is unplanned that no node makes": (
        "flat", invent_unplanned, "unplanned is 'ghost'|unplanned tensors",
    ),
    "a tensor is of another type of that width": (
        "flat", another_type, "'c' is recorded as 'int32', it is float32",
    ),
    "a tensor has another shape of that size": (
        "flat", another_shape, r"'h' is recorded with the shape \[16, 8\]",
    ),
    "a tensor has a smaller shape": ("flat", smaller, "'h' is recorded with the shape"),
    "a tensor takes fewer bytes than its shape": ("flat", fewer_bytes, "'h' is recorded with 256"),
    "a dim is another symbol": ("free", symbol, "is recorded with the shape"),
    "a dim is a symbol without a number": (
        "free", symbol_without_number, "is recorded with the shape|naive is recorded .* it is nothing",
    ),
    "a tensor is in another block": ("nested", another_block, "is_positive"),
    "a product lies on what it reads": (
        "flat", share_with_needed, "'h' is written at tick 7 over 'g'",
    ),
    "a product lies on what it reads, at its last reader": (
        "flat", share_overwritten, "'k' is written at tick 10 over 'j'",
    ),
    "a result overwrites what a later node reads": (
        "flat", share_outlived, "'d' is written at tick 2 over 'b', .* until tick 3",
    ),
    "tensors share bytes at level 1": (
        "slots", share_at_pool, "'e' shares bytes, .* at level 1|reuses is recorded as 6, it is 7",
    ),
    "a broadcast input is overwritten by its result": (
        "flat", share_unlike, "'i' is recorded with the shape",
    ),
    "a branch's result lies on what lives on": ("nested", share_capture, "cool_product"),
    "a turn's result lies on what the turn is given": ("nested", share_next_turn, "keep_going"),
    "two tensors lie on the same bytes": (
        "flat", overlap, "'a' and 'k'|'h' and 'k' lie on the same bytes|overlap in time",
    ),
    "two tensors lie on some of the same bytes": (
        "flat", overlap_partly, "lie on the same bytes|overlap in time",
    ),
    "a tensor lies off the alignment": ("flat", misalign, "off the alignment|misaligned"),
    "an arena ends below its tensors": ("flat", short_arena, "sticks out|tensors reach 1536"),
    "an arena is taller than its tensors": ("flat", tall_arena, "tensors end at 1536"),
    "a tensor lies in no arena": ("flat", no_arena, "no arena|arena 7|takes 4"),
    "a slot is taken before it is free": ("slots", slot_type, "lie on the same bytes|overlap"),
    "a slot has tensors of two shapes at level 0": (
        "whole slots", slot_shape, "which level 0 does not allow|cannot have one slot|same bytes|overlap",
    ),
    "a tensor of a pool has no slot": ("slots", no_slot, "has no slot|lies in no slot"),
    "an excluded tensor is planned": ("excluded", unpin, "'c' has no memory of its own"),
    "a tensor is pinned that nothing asks for": (
        "flat", pin, "'i' is pinned for 'a friend of mine'",
    ),
    "a tensor is pinned and the settings exclude nothing": (
        "excluded", forget_exclusion, "'c' is pinned for .* do not ask",
    ),
    "the settings exclude what is planned": (
        "excluded", exclude_more, "'h' has no memory of its own, and is excluded",
    ),
    "the order has a consumer before its producer": (
        "flat", early_consumer, "has 'n_b' at place 0, the model has 'n_a'",
    ),
    "order and model have a consumer before its producer": (
        "flat", early_in_both, "'n_b' reads 'a' before it is defined",
    ),
    "the order has two nodes in each other's place": (
        "flat", swap_nodes, "has 'n_g' at place 5, the model has 'n_f'",
    ),
    "the order has a node that is not there": (
        "flat", rename_node, "has 'n_x' at place 4, the model has 'n_e'",
    ),
    "the order leaves a node out": ("flat", drop_node, "has 11 nodes, the model has 12|ends at"),
    "the order has two indices in each other's place": (
        "unnamed", swap_indices, "has #2 at place 1, which makes 'c'",
    ),
    "the order has an index of no node": ("unnamed", far_index, "'#77'"),
    "a subgraph has another path": ("nested", rename_block, "first_branch"),
    "a subgraph is left out": ("nested", drop_block, "has 3 blocks, the model has 4|reached|arranged|nodes"),
    "a tensor is released too early": ("flat", release_early, "releases: .*'h'"),
    "a tensor is released twice": ("flat", release_twice, "releases: "),
    "a tensor is released twice after one step": (
        "flat", release_twice_at_once, "releases: .*twice",
    ),
    "a tensor is never released": ("flat", release_never, "releases: "),
    "a tensor is released behind another node": ("flat", release_behind, "releases: .*n_k"),
    "an excluded tensor is exposed": (
        "excluded", settings(expose=True), "'c' is not an output of the model, the setting expose",
    ),
    "a tensor is excluded that is not there": (
        "flat", settings(exclude=["nobody"]), "exclude 'nobody', which the model does not have",
    ),
    "other outputs are donated by the settings": (
        "training", settings(donate={"in.fc1.*": "new.fc1.*"}), "which the settings do not ask for",
    ),
    "nothing is donated by the settings": (
        "training", settings(donate={}), "donations, which the settings do not ask for",
    ),
    "offsets have another alignment by the settings": (
        "flat", settings(alignment=32), "with alignment 64, it is 32",
    ),
    "the graph is the runtime's by the settings": (
        "flat", settings(target="cpu"), "settings.target is recorded as cpu",
    ),
    "a dim has bounds that is not there": (
        "bounds", settings(bounds={"batch": "2..16", "other": "1..4"}),
        "bind dim 'other', which the model does not have",
    ),
}  # fmt: skip
"""What is said, and the lie."""
