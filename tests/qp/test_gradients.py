"""Derivatives of answers: against finite differences for every class, at large condition numbers, and as a layer."""

import numpy as np
import pytest
import torch

from time2decide import QP, DegenerateWarning, InputError, QPLayer, random_qp, solve

D = torch.float64


def parts(seed=2, batch=3, n=5, m=4):
    made = random_qp(batch, n, m, seed=seed)
    return torch.linalg.cholesky(made.A), 3 * made.b, made.C, made.d


def outputs(qp, method="exact"):
    answer = solve(qp, method)
    assert set(answer.status) == {"optimal"}
    found = (answer.x, answer.dual, answer.dual_eq, answer.dual_box)
    return tuple(v for v in found if v is not None and v.numel())


def checked(make, *values, method="exact"):
    inputs = [v.clone().requires_grad_() for v in values]
    return torch.autograd.gradcheck(lambda *a: outputs(make(*a), method), inputs, eps=1e-6, atol=1e-6, rtol=1e-5)


L, B, C, DD = parts()
E, F = torch.randn(3, 2, 5, dtype=D, generator=torch.Generator().manual_seed(0)), torch.full((3, 2), 0.05, dtype=D)
LEVEL = torch.tensor([0.5, 0.4, 0.2], dtype=D)
LOW, HIGH = torch.full((3, 5), -0.3, dtype=D), torch.full((3, 5), 0.25, dtype=D)


CLASSES = {
    "U": (lambda r, b: QP(r @ r.mT, b, check=False), (L, B)),
    "LC": (lambda r, b, c, d: QP(r @ r.mT, b, c, d, check=False), (L, B, C, DD)),
    "equations": (lambda r, b, e, f: QP(r @ r.mT, b, E=e, f=f, check=False), (L, B, E, F)),
    "bounds": (lambda r, b, low, high: QP(r @ r.mT, b, lb=low, ub=high, check=False), (L, B, LOW, HIGH)),
    "all": (
        lambda r, b, c, d, e, f, low, high: QP(r @ r.mT, b, c, d, E=e, f=f, lb=low, ub=high, check=False),
        (L, B, C, DD, E, F, LOW, HIGH),
    ),
    "R": (lambda r, b, level: QP(r @ r.mT, b, l1_penalty=level, check=False), (L, B, LEVEL)),
    "C": (lambda r, b, radius: QP(r @ r.mT, b, l1_radius=radius, check=False), (L, B, LEVEL)),
    "LC+R": (
        lambda r, b, c, d, level: QP(r @ r.mT, b, c, d, l1_penalty=level, check=False),
        (L, B, C, 0.1 * DD, LEVEL),
    ),
}


@pytest.mark.parametrize(("make", "values"), CLASSES.values(), ids=list(CLASSES))
def test_gradients_of_every_class(make, values):
    assert checked(make, *values)


MORE = CLASSES | {
    "one in the ball": (lambda r, b, radius: QP(r @ r.mT, b, l1_radius=radius, check=False), (L, B, 0.1 * LEVEL)),
    "C+R": (
        lambda r, b, radius, level: QP(r @ r.mT, b, l1_radius=radius, l1_penalty=level, check=False),
        (L, B, LEVEL, 0.2 * LEVEL),
    ),
    "all+C": (
        lambda r, b, c, d, e, f, low, radius: QP(r @ r.mT, b, c, d, E=e, f=f, lb=low, l1_radius=radius, check=False),
        (L, B, C, DD, E[:, :1], F[:, :1], LOW, LEVEL),
    ),
}


@pytest.mark.parametrize(("make", "values"), MORE.values(), ids=list(MORE))
def test_a_gradient_is_the_slope_along_every_way(make, values):
    """Of a random sum of the answer and its multipliers, where all data move at once."""
    generator = torch.Generator().manual_seed(0)
    inputs = [v.clone().requires_grad_() for v in values]
    found = outputs(make(*inputs))
    weights = [torch.randn(v.shape, dtype=D, generator=generator) for v in found]

    def loss(parts):
        return sum((part * weight).sum() for part, weight in zip(parts, weights, strict=True))

    loss(found).backward()
    for _ in range(3):
        way = [torch.randn(v.shape, dtype=D, generator=generator) for v in values]
        with torch.no_grad():
            ahead, behind = (
                loss(outputs(make(*(v + step * w for v, w in zip(values, way, strict=True))))).item()
                for step in (1e-6, -1e-6)
            )
        slope = sum((v.grad * w).sum().item() for v, w in zip(inputs, way, strict=True))
        assert slope == pytest.approx((ahead - behind) / 2e-6, rel=1e-5, abs=1e-5)


def test_polished_predictions_have_the_same_gradients():
    assert checked(lambda r, b, c, d: QP(r @ r.mT, b, c, d, check=False), L, B, C, DD, method="neural+polish")


@pytest.mark.parametrize("kappa", [1e2, 1e5, 1e8])
def test_ill_conditioned_gradients(kappa):
    """Against the derivative worked out by hand on the active set, x = −A⁻¹(b + Cᵀλ), in extended precision."""
    import mpmath

    rng = np.random.default_rng(3)
    basis = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    A = basis @ np.diag(np.logspace(0, np.log10(kappa), 4)) @ basis.T
    A, b, row = (A + A.T) / 2, rng.normal(size=4), rng.normal(size=4)
    b = -A @ row - 0.7 * row  # x = row is the answer: the row is active with multiplier 0.7
    t = [torch.tensor(v, dtype=D, requires_grad=True) for v in (A, b, row[None], [row @ row])]
    answer = solve(QP(*t))
    weight = torch.tensor(rng.normal(size=4))
    (answer.x * weight).sum().backward()
    with mpmath.workdps(60):
        K = mpmath.matrix(5, 5)
        for i in range(4):
            for j in range(4):
                K[i, j] = mpmath.mpf(A[i, j])
            K[i, 4] = K[4, i] = mpmath.mpf(row[i])
        side = mpmath.matrix([-mpmath.mpf(float(w)) for w in weight] + [mpmath.mpf(0)])
        u = mpmath.lu_solve(K, side)
        expected = np.array([float(v) for v in u])
    size = np.abs(expected[:4]).max()
    np.testing.assert_allclose(t[1].grad, expected[:4], rtol=1e-6, atol=1e-6 * size)
    np.testing.assert_allclose(t[3].grad, [-expected[4]], rtol=1e-6, atol=1e-6 * abs(expected[4]))


def test_gradients_in_batches_equal_those_alone_and_shared_data_is_summed():
    root, b, c, d = parts(seed=7, batch=40)
    shared = (root[0] @ root[0].mT).requires_grad_()
    (solve(QP(shared, b, c, d)).x.sum()).backward()
    total = torch.zeros_like(shared)
    for i in range(40):
        alone = shared.detach().clone().requires_grad_()
        solve(QP(alone, b[i], c[i], d[i])).x.sum().backward()
        total += alone.grad
    torch.testing.assert_close(shared.grad, total, rtol=1e-9, atol=1e-11)


def test_degenerate_answers_are_told():
    """x ≤ 0 at the minimiser 0 of ½x²: the derivative is 1 on one side and 0 on the other."""
    d = torch.zeros(1, dtype=D, requires_grad=True)
    x = solve(QP(torch.eye(1, dtype=D), torch.zeros(1, dtype=D), torch.ones(1, 1, dtype=D), d)).x
    with pytest.warns(DegenerateWarning, match="problem 0 has no derivative"):
        x.sum().backward()


@pytest.mark.parametrize("term", ["l1_penalty", "l1_radius"])
def test_zeros_that_hang_by_nothing_are_told(term):
    """A force on a zero that is just that of the ℓ1 term: a little more and the zero is none."""
    for share, warns in ((1.0, True), (0.9, False)):
        b = torch.tensor([-3.0, -share], dtype=D, requires_grad=True)
        answer = solve(QP(torch.eye(2, dtype=D), b, **{term: 1.0 if term == "l1_penalty" else 2.0}))
        torch.testing.assert_close(answer.x.detach(), torch.tensor([2.0, 0.0], dtype=D))
        if warns:
            with pytest.warns(DegenerateWarning):
                answer.x.sum().backward()
        else:
            answer.x.sum().backward()
            expected = [-1.0, 0.0] if term == "l1_penalty" else [0.0, 0.0]
            torch.testing.assert_close(b.grad, torch.tensor(expected, dtype=D))


@pytest.mark.parametrize("side", ["lb", "ub"])
def test_bounds_that_hang_by_nothing_are_told(side):
    sign = 1.0 if side == "ub" else -1.0
    for force, warns in ((1e-10, True), (0.1, False)):
        bound = torch.tensor([sign], dtype=D, requires_grad=True)
        answer = solve(QP(torch.eye(1, dtype=D), torch.tensor([-sign * (1 + force)], dtype=D), **{side: bound}))
        if warns:
            with pytest.warns(DegenerateWarning):
                answer.x.sum().backward()
        else:
            answer.x.sum().backward()
            torch.testing.assert_close(bound.grad, torch.ones(1, dtype=D))


def test_problems_without_an_answer_do_not_disturb_the_others():
    d = torch.tensor([[1.0, 1.0], [-1.0, -1.0]], dtype=D, requires_grad=True)
    rows = torch.tensor([[1.0], [-1.0]], dtype=D)
    answer = solve(QP(torch.eye(1, dtype=D), torch.full((1,), -3.0, dtype=D), rows, d))
    assert answer.status.tolist() == ["optimal", "infeasible"]
    answer.x[0].sum().backward()
    torch.testing.assert_close(d.grad, torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=D))


def test_the_layer():
    root, b, c, d = parts(batch=8)
    P, h = (root @ root.mT).requires_grad_(), d.clone().requires_grad_()
    x = QPLayer()(P, b, c, h)
    torch.testing.assert_close(x.detach(), solve(QP(P.detach(), b, c, d)).x)
    x.square().sum().backward()
    torch.testing.assert_close(P.grad, P.grad.mT)
    x, z, y, box = QPLayer(duals=True)(P, b, c, h, torch.ones(1, 5, dtype=D), torch.zeros(1, dtype=D), lb=-1.0)
    assert (x.shape, z.shape, y.shape, box.shape) == ((8, 5), (8, 4), (8, 1), (8, 5))
    with pytest.raises(InputError, match="A: expected symmetric"):
        QPLayer()(torch.tensor([[1.0, 0.5], [0.0, 1.0]]), torch.zeros(2))
    with pytest.raises(ValueError, match="problem 0: expected one with an answer, found it infeasible"):
        QPLayer()(torch.eye(1), torch.zeros(1), torch.tensor([[1.0], [-1.0]]), torch.tensor([-1.0, -1.0]))


def test_methods_without_gradients_say_so():
    qp = QP(torch.eye(2, dtype=D, requires_grad=True), torch.ones(2, dtype=D))
    for method in ("gradient", "admm", "neural"):
        with pytest.raises(InputError, match="are differentiable"):
            solve(qp, method)
    with torch.no_grad():
        assert solve(qp, "gradient").status == "optimal"


def test_float32_in_float32_out():
    b = torch.tensor([3.0, -1.0], requires_grad=True)
    x = solve(QP(torch.eye(2), b, torch.eye(2), torch.zeros(2))).x
    assert x.dtype == torch.float32
    x.sum().backward()
    torch.testing.assert_close(b.grad, torch.tensor([-1.0, 0.0]))


def test_a_small_multiplier_is_a_multiplier():
    """A row held by a multiplier of 1e-7 moves the answer like any other."""
    row = torch.tensor([[1.0, 2.0]], dtype=D)
    b = torch.tensor([-1.0, -2.0], dtype=D) * (1 + 1e-7)
    d = torch.tensor([5.0], dtype=D, requires_grad=True)
    b.requires_grad_()
    answer = solve(QP(torch.eye(2, dtype=D), b, row, d))
    assert answer.dual.item() == pytest.approx(1e-7, rel=1e-6)
    answer.x[0].backward()
    torch.testing.assert_close(b.grad, torch.tensor([-0.8, 0.4], dtype=D))  # minus the projection along the row
    torch.testing.assert_close(d.grad, torch.tensor([0.2], dtype=D))


def test_a_multiplier_is_weak_beside_the_forces_of_all():
    """1e-7 beside 1e3 may be rounding: the answer may have no derivative there, and that is told."""
    for force, warns in ((1e3, True), (1.0, False)):
        dual = torch.tensor([force, 1e-7], dtype=D)
        d = torch.ones(2, dtype=D, requires_grad=True)
        answer = solve(QP(torch.eye(2, dtype=D), -1 - dual, torch.eye(2, dtype=D), d))
        torch.testing.assert_close(answer.dual, dual, rtol=1e-6, atol=0)
        if warns:
            with pytest.warns(DegenerateWarning):
                answer.x.sum().backward()
        else:
            answer.x.sum().backward()
        torch.testing.assert_close(d.grad, torch.ones(2, dtype=D))


def test_an_equation_that_is_there_twice_changes_no_derivative():
    rng = np.random.default_rng(0)
    row, f = torch.from_numpy(rng.normal(size=(1, 4))), torch.ones(1, dtype=D)
    b = [torch.from_numpy(rng.normal(size=4)).requires_grad_() for _ in range(1)] * 2
    b = [one.detach().clone().requires_grad_() for one in b]
    A = torch.diag(torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=D))
    solve(QP(A, b[0], E=row, f=f)).x[0].backward()
    twice = solve(QP(A, b[1], E=torch.cat([row, row]), f=torch.cat([f, f])))
    with pytest.warns(DegenerateWarning, match="depend on each other"):
        twice.x[0].backward()
    torch.testing.assert_close(b[0].grad, b[1].grad)


@pytest.mark.parametrize(("make", "values"), MORE.values(), ids=list(MORE))
def test_a_gradient_of_a_gradient_is_the_slope_of_the_gradient(make, values):
    """Along random ways in which all data move at once, for a loss that bends in every output."""
    generator = torch.Generator().manual_seed(1)

    def gradients(inputs, graph):
        found = outputs(make(*inputs))
        return torch.autograd.grad(sum((part**3).sum() + part.sum() for part in found), inputs, create_graph=graph)

    ways = [torch.randn(v.shape, dtype=D, generator=generator) for v in values]
    to = [torch.randn(v.shape, dtype=D, generator=generator) for v in values]
    inputs = [v.clone().requires_grad_() for v in values]
    first = gradients(inputs, True)
    for with_graph, without in zip(first, gradients(inputs, False), strict=True):
        torch.testing.assert_close(with_graph.detach(), without, rtol=1e-10, atol=1e-12)
    second = torch.autograd.grad(sum((g * w).sum() for g, w in zip(first, to, strict=True)), inputs)
    found = sum((s * w).sum() for s, w in zip(second, ways, strict=True)).item()
    ahead, behind = (
        sum(
            (g * w).sum()
            for g, w in zip(
                gradients(
                    [(v + step * way).requires_grad_() for v, way in zip(values, ways, strict=True)], False
                ), to, strict=True,
            )
        ).item()
        for step in (1e-6, -1e-6)
    )  # fmt: skip
    assert found == pytest.approx((ahead - behind) / 2e-6, rel=1e-5, abs=1e-4)


LAYER = QPLayer()


def layer(P, q, G, h):
    return LAYER(P, q, G, h, lb=-0.3)


DATA = (L @ L.mT, B, C, DD)


def test_hessians_are_those_of_second_differences():
    P, q, G, h = (part[0] for part in DATA)

    def loss(q, h):
        return (layer(P, q, G, h) ** 3).sum()

    found = torch.autograd.functional.hessian(loss, (q, h))
    for i in range(2):
        for j, moved in enumerate((q, h)):
            for k in range(len(moved)):
                step = torch.zeros_like(moved)
                step[k] = 1e-6
                sides = []
                for sign in (1, -1):
                    inputs = [q.clone(), h.clone()]
                    inputs[j] += sign * step
                    inputs = [v.requires_grad_() for v in inputs]
                    sides.append(torch.autograd.grad(loss(*inputs), inputs[i])[0])
                slope = (sides[0] - sides[1]) / 2e-6
                torch.testing.assert_close(found[i][j][:, k], slope, rtol=1e-5, atol=1e-6)
    assert found[0][0].abs().max() > 0.1


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # torch's own, at its first jvp
def test_the_layer_works_under_the_transforms_of_torch():
    alone = [part[0] for part in DATA]
    torch.testing.assert_close(torch.func.vmap(layer)(*DATA), layer(*DATA), rtol=0, atol=0)
    torch.testing.assert_close(
        torch.func.vmap(layer, in_dims=(None, 0, None, 1))(alone[0], B, alone[2], DD.mT),
        layer(alone[0], B, alone[2], DD),
    )
    every = tuple(range(4))
    expected = torch.autograd.functional.jacobian(layer, tuple(alone))
    for found, one in zip(torch.func.jacrev(layer, every)(*alone), expected, strict=True):
        torch.testing.assert_close(found, one)
    P, *rest = torch.func.jacfwd(layer, every)(*alone)
    for found, one in zip(((P + P.mT) / 2, *rest), expected, strict=True):
        torch.testing.assert_close(found, one)
    for found, one in zip(torch.func.vmap(torch.func.jacrev(layer, every))(*DATA), expected, strict=True):
        torch.testing.assert_close(found[0], one)

    def loss(h):
        return (layer(*alone[:3], h) ** 3).sum()

    expected = torch.autograd.functional.hessian(loss, DD[0])
    assert expected.abs().max() > 0.01
    torch.testing.assert_close(torch.func.hessian(loss)(DD[0]), expected)


def test_traced_data_are_checked_in_the_layer_and_refused_by_solve():
    alone = [part[0] for part in DATA]
    bad = torch.stack([DD[0], torch.full_like(DD[0], torch.nan)])
    with pytest.raises(InputError, match="d: expected numbers, found NaN"):
        torch.func.vmap(lambda h: layer(*alone[:3], h))(bad)
    with pytest.raises(ValueError, match="problem 1: expected one with an answer, found it infeasible"):
        torch.func.vmap(lambda low: QPLayer()(*alone[:2], lb=low, ub=0.0))(torch.tensor([-1.0, 1.0], dtype=D))
    with pytest.raises(InputError, match="QPLayer works within"):
        torch.func.vmap(lambda b: solve(QP(alone[0], b)).x)(B)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch.compile looks at it itself
def test_compiled_programs_leave_the_graph_where_they_solve():
    weight = torch.eye(5, dtype=D).requires_grad_()

    def program(q):
        return 2 * layer(DATA[0], q @ weight, *DATA[2:])

    expected = torch.autograd.grad(program(B).square().sum(), weight)[0]
    found = torch.compile(program, backend="eager")(B)
    torch.testing.assert_close(found, program(B))
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), weight)[0], expected)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"QPLayer.forward solves outside the graph"):
        torch.compile(program, backend="eager", fullgraph=True)(B)
