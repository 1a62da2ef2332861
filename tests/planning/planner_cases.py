"""Models that tests of the planner share, in ONNX's text syntax."""

CHAIN = """g (float[8,8] x, float[8,8] w) => (float[8,8] z) {
    a = MatMul(x, w) b = MatMul(a, w) c = MatMul(b, w) d = MatMul(c, w) z = MatMul(d, w) }"""

STEP = """step (float[4,8] x, float[8,8] w) => (float loss, float[8,8] w_new) {
    h = MatMul(x, w)  s = Mul(h, h)  loss = ReduceMean<keepdims=0>(s)
    two = Constant<value_float=2.0>()  dh = Mul(h, two)
    xt = Transpose<perm=[1,0]>(x)  w_grad = MatMul(xt, dh)
    rate = Constant<value_float=0.1>()  w_step = Mul(w_grad, rate)  w_new = Sub(w, w_step) }"""

TENSOR = 8 * 8 * 4
"""Bytes of each tensor of the chain."""
