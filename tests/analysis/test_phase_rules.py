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


def test_a_gradient_of_an_activation_makes_the_activation_no_parameter() -> None:
    """``da`` has the shape of the activations, and needs what the loss computes."""
    phases = find_phases(training_step(f"{RESULTS}, float[8,6] da"))
    assert set(phases.parameters) == {"w1", "w2"}
    assert set(phases.gradients) == {"p", "q"}


def test_a_gradient_of_two_parts_is_their_sum() -> None:
    """A parameter that is read twice has two gradients, which are added."""
    update = UPDATE.replace("Mul(p, rate)", "Mul(g, rate)")
    program = training_step(RESULTS, update=f"more = MatMul(xt, dh) g = Add(p, more) {update}")
    assert set(find_phases(program).gradients) == {"g", "q"}


def test_the_gradient_of_a_scalar_may_be_scaled_by_a_stored_number() -> None:
    phases = find_phases(
        parse("""g (float[8,4] x, float[4,4] w, float t) => (float loss, float[4,4] gw, float gt)
        <float scale = {2.0}> {
        h = MatMul(x, w) m = Mul(h, t) a = Tanh(m) loss = ReduceMean<keepdims=0>(a)
        d = Mul(a, a) xt = Transpose(x) gw = MatMul(xt, d)
        e = Mul(d, h) sum = ReduceSum<keepdims=0>(e) gt = Mul(sum, scale) }""")
    )
    assert phases.parameters == ("w", "t")
    assert phases.gradients == ("gw", "gt")


def test_a_parameter_may_be_cast_for_the_forward_part_and_its_gradient_back() -> None:
    phases = find_phases(
        parse("""g (float[8,4] x, float[4,4] w) => (float loss, float[4,4] gw) {
        x16 = Cast<to=10>(x) w16 = Cast<to=10>(w) h = MatMul(x16, w16) a = Tanh(h)
        mean = ReduceMean<keepdims=0>(a) loss = Cast<to=1>(mean)
        d = Mul(a, a) xt = Transpose(x16) g = MatMul(xt, d) gw = Cast<to=1>(g) }""")
    )
    assert (phases.kind, phases.parameters, phases.gradients) == ("train", ("w",), ("gw",))
