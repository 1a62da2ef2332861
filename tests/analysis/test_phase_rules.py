"""Which part an op is of that two parts read."""

from __future__ import annotations

from analysis.test_phase import UPDATE, parse, parts, training_step
from memplan_cli.analysis.phase import find_phases

RESULTS = "float z, float[4,6] n1, float[6,1] n2"


def test_what_the_update_reads_of_the_forward_part_stays_forward() -> None:
    """A step that is divided by the loss, as some schedules do."""
    scaled = UPDATE.replace("Mul(p, rate)", "Div(p, z)")
    program = training_step(RESULTS, update=scaled)
    found = parts(program, find_phases(program))
    assert found["z"] == "forward"
    assert found["s1"] == found["n1"] == "update"


def test_what_only_the_update_reads_is_of_the_update() -> None:
    decayed = f"half = Mul(rate, rate) {UPDATE.replace('Mul(p, rate)', 'Mul(p, half)')}"
    program = training_step(RESULTS, update=decayed)
    assert parts(program, find_phases(program))["half"] == "update"


def test_a_doubled_and_doubled_gradient_is_found_at_once() -> None:
    """Each of sixty sums reads the one before twice: a walk of all ways would never end."""
    sums = [
        "d0 = Sub(w1, s1)",
        *(f"d{at} = Add(d{at - 1}, w1) e{at} = Add(d{at}, d{at - 1})" for at in range(1, 30)),
    ]
    sums = [
        line.replace(f"Add(d{at - 1}, w1)", f"Add(e{at - 1}, d{at - 1})") if at > 1 else line
        for at, line in enumerate(sums)
    ]
    text = f"s1 = Mul(p, rate) {' '.join(sums)} n1 = Add(e29, d29) s2 = Mul(q, rate) n2 = Sub(w2, s2)"
    program = training_step(RESULTS, update=text)
    phases = find_phases(program)
    assert "w1" in phases.parameters


FORWARD = "g (float[8,4] x, float[4,6] w1) => (float {out}) {{ h = MatMul(x, w1) {out} = ReduceMean<keepdims=0>(h) }}"


def test_a_scalar_of_a_graph_that_does_not_train_is_a_loss_by_its_name_only() -> None:
    assert find_phases(parse(FORWARD.format(out="mean"))).loss is None
    assert find_phases(parse(FORWARD.format(out="MyLoss"))).loss == "MyLoss"


def test_a_scalar_is_a_loss_if_somebody_says_so() -> None:
    found = find_phases(parse(FORWARD.format(out="mean")), loss="mean")
    assert (found.kind, found.loss) == ("test", "mean")
