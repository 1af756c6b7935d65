"""Zero wrong "optimal": defects of the past, problems built around their answer, and certificates that must not lie."""

import numpy as np
import pytest
import torch

from time2decide import QP, project_portfolio, random_qp, solve, solve_qp
from time2decide.attention.methods import has_definite_curvature
from time2decide.bench import hard
from time2decide.qp.certificate import (
    Arrays,
    Form,
    OptimalityRule,
    Point,
    distinct_entries,
    is_optimal,
    is_surely_optimal,
    proves_infeasible,
    proves_unbounded,
)
from time2decide.qp.engines import EngineAnswer
from time2decide.qp.exact import solve_exact

I = np.eye  # noqa: E741


def test_a_far_row_hides_nothing():
    assert solve(QP(I(1), [0.0], [[1.0], [-1.0], [1.0]], [0.0, -1.0, 1e20])).status == "infeasible"
    np.testing.assert_allclose(solve_qp(I(2), [-2.0, -2.0], I(2), [1.0, 1.0], lb=[0, 0], ub=[1e20, 1e20]), [1, 1])
    rng = np.random.default_rng(0)
    for far in (1e8, 1e11, 1e14, 1e20, 1e30, np.inf):
        qp = random_qp(8, 4, 3, seed=1)
        C = torch.cat([qp.C, torch.from_numpy(rng.normal(size=(8, 1, 4)))], 1)
        d = torch.cat([qp.d, torch.full((8, 1), far, dtype=torch.float64)], 1)
        answer = solve(QP(qp.A, qp.b, C, d))
        assert set(answer.status) == {"optimal"}
        torch.testing.assert_close(answer.x, solve(qp).x)


def test_a_false_certificate_is_not_given():
    qp = QP(1e-8 * I(2), [-1.0, -1.0], [[1.0, 0], [0, 1], [1, 1]], [1, 1, 1.5])
    for method in ("exact", "neural+polish"):
        answer = solve(qp, method)
        assert answer.status == "optimal"
        assert answer.kkt_residual < 1e-8
        np.testing.assert_allclose(answer.x, [0.75, 0.75])


def test_unbounded_problems_are_refused():
    with pytest.raises(ValueError, match="unbounded"):
        solve_qp([[1.0, 1], [1, 1]], [1.0, -1.0])
    assert solve(QP([[1.0, 1], [1, 1]], [1.0, -1.0])).status == "unbounded"
    assert solve(QP(np.zeros((1, 1)), [-1.0], [[1.0]], [1e20])).status == "unbounded"  # 1e20 means no bound


def test_a_linear_program_with_large_coefficients():
    qp = QP(np.zeros((2, 2)), [0, 1e6], [[-1.0, 0], [2, -2e6], [-2, 2e6]], [4.0, 1, 2])
    answer = solve(qp)
    assert answer.status == "optimal"
    assert answer.objective == pytest.approx(-4.5, rel=1e-12)


@pytest.mark.parametrize("method", ["gradient", "nesterov", "admm", "newton_schulz", "exact", "neural+polish"])
@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_tolerances_are_relative(method, unit):
    np.testing.assert_allclose(solve(QP([[unit]], [unit]), method).x, [-1.0], rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_lasso_with_uneven_columns_and_exact_zeros(scale):
    rng = np.random.default_rng(1)
    for seed in range(10):
        n = 6
        M, x = rng.normal(size=(n, n)), rng.normal(size=n) * (rng.random(n) < 0.5)
        column = np.where(rng.random(n) < 0.5, scale, 1.0)
        A = (M @ M.T) * column * column[:, None]
        level = rng.uniform(0.1, 1)
        point = x / column
        b = -A @ point - np.where(x != 0, level * np.sign(x), level * rng.uniform(-0.9, 0.9, n))
        answer = solve(QP(A, b, l1_penalty=level))
        assert answer.status == "optimal", seed
        np.testing.assert_array_equal(answer.x == 0, x == 0)
        np.testing.assert_allclose(answer.x, point, rtol=1e-6)
        beyond = solve(QP(A, b, l1_penalty=1.001 * np.abs(b).max()))
        np.testing.assert_array_equal(beyond.x, np.zeros(n))


def test_lasso_in_bulk_has_exact_zeros():
    qp = random_qp(64, 8, kind="R", seed=3)
    bulk, one_by_one = solve(qp), [solve(qp[i]) for i in range(64)]
    assert set(bulk.status) == {"optimal"}
    alone = torch.cat([answer.x for answer in one_by_one])
    torch.testing.assert_close(bulk.x, alone, rtol=1e-9, atol=1e-12)
    assert torch.equal(bulk.x == 0, alone == 0)
    assert (bulk.x == 0).any()


def test_projected_sums_are_exact_at_any_score():
    for y in ([1.1e8, 3.3e7, 7e6, 0.123], [9e8, 1e-3, 0.0, -5.0], [3e5, 3e5, 1.0, 0.0]):
        for gamma in (0.01, 0.3, 2.0):
            x = project_portfolio(y, [0.1, 0.2, 0.3, 0.4], gamma)
            assert abs(x.sum() - 1) < 1e-14
            assert np.abs(x - [0.1, 0.2, 0.3, 0.4]).sum() <= gamma + 1e-14


@pytest.mark.parametrize("family", hard.FAMILIES)
def test_nothing_wrong_is_said_of_hard_problems(family):
    for seed in range(12):
        problem = hard.draw_hard_problem(family, 10_000 + seed)
        answer = solve(QP(**problem.fields))
        assert hard.judge_hard_answer(problem, str(answer.status), answer.x) == "right", (seed, answer.status)


@pytest.mark.parametrize("method", ["admm", "arrow_hurwicz", "neural", "neural+polish"])
def test_nothing_wrong_is_said_by_other_methods(method):
    for family in ("plain", "bounds", "columns", "rows", "infeasible", "far", "tiny"):
        for seed in range(3):
            problem = hard.draw_hard_problem(family, 20_000 + seed)
            qp = QP(**problem.fields)
            if method != "neural+polish" and not bool(has_definite_curvature(qp).all()):
                continue
            answer = solve(qp, method, **({} if "neural" in method else {"max_steps": 300}))
            off = 1e-3 if method == "neural" else 1e-6
            assert hard.judge_hard_answer(problem, str(answer.status), answer.x, off) != "wrong", (
                family,
                seed,
                answer.status,
            )


@pytest.mark.parametrize("seed", [42, 64, 67])
def test_rounding_of_a_singular_matrix_does_not_hold_an_answer(seed):
    """Unbounded, but the smallest eigenvalue is rounded to 1e-15 instead of zero: x of 1e15 is no answer."""
    problem = hard.draw_hard_problem("unbounded", seed)
    for method in ("exact", "neural+polish"):
        assert solve(QP(**problem.fields), method).status == "unbounded"


def test_a_mixed_batch_equals_its_parts():
    problems = [
        hard.draw_hard_problem(family, seed)
        for family in ("plain", "infeasible", "unbounded", "singular")
        for seed in range(40)
    ]
    same = [p.fields for p in problems if p.fields["C"].shape == problems[0].fields["C"].shape] or [problems[0].fields]
    answer = solve(QP(*(np.stack([fields[name] for fields in same]) for name in ("A", "b", "C", "d"))))
    for i, fields in enumerate(same):
        assert answer.status[i] == solve(QP(**fields)).status


@pytest.mark.parametrize("seed", range(5))
def test_the_rule_does_not_depend_on_units(seed):
    """Rows, columns and objective scaled by powers of two: the same verdicts on the same points, right and wrong."""
    rng = np.random.default_rng(seed)
    qp = random_qp(16, 5, 4, seed=seed)
    answer = solve(qp)
    x, dual = answer.x.numpy() * (1 + 10.0 ** rng.uniform(-12, -4, (16, 1))), answer.dual.numpy()
    column, row, whole = (2.0 ** rng.integers(-40, 40, size) for size in (5, 4, 1))
    A, b, C, d = (t.numpy() for t in (qp.A, qp.b, qp.C, qp.d))
    other = QP(whole * A * column * column[:, None], whole * b * column, row[:, None] * C * column, row * d)
    zeros = np.zeros((16, 0)), np.zeros((16, 5))
    for tol in (1e-10, 1e-8, 1e-6):
        one = is_optimal(Arrays.of(qp), Point(x, dual, *zeros), tol)
        two = is_optimal(Arrays.of(other), Point(x / column, dual * whole / row, *zeros), tol)
        np.testing.assert_array_equal(one, two)


def test_the_gap_tells_points_that_small_residuals_do_not():
    """κ = 1e10: half the answer has residuals of 1e-10 of their terms, and half the objective."""
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
    A = basis @ np.diag([1.0, 1.0, 1.0, 1e-10]) @ basis.T
    qp = QP((A + A.T) / 2, basis[:, 3])
    x = solve(qp).x
    p, none = Arrays.of(qp), (np.zeros((1, 0)), np.zeros((1, 0)), np.zeros((1, 4)))
    assert is_optimal(p, Point(x[None], *none), 1e-8)[0]
    assert not is_optimal(p, Point(0.5 * x[None], *none), 1e-8)[0]


def test_rounding_excuses_a_gap_whatever_is_inactive():
    """Ax is what is left of terms 1e9 times its size: rounding alone moves the objective by more than the tolerance."""
    A, x = np.array([[1.0, -1.0], [-1.0, 1.0 + 2.0**-30]]), np.array([2.0**27, 2.0**27])
    rounding = 50 * np.finfo(float).eps * np.abs(A) @ x
    row, none = np.ones((1, 2)), np.zeros((1, 0))
    for size, accepted in ((1.0, True), (10.0, False)):
        for slack in (1.0, 2.0):  # inactive, without a multiplier
            p = Arrays.of(QP(A, -A @ x + size * rounding, row, [slack * 2.0**29]))
            assert is_optimal(p, Point(x[None], np.zeros((1, 1)), none, np.zeros((1, 2))), 1e-8)[0] == accepted
            bounds = Arrays.of(QP(A, -A @ x + size * rounding, ub=slack * 2.0**29))
            assert is_optimal(bounds, Point(x[None], none, none, np.zeros((1, 2))), 1e-8)[0] == accepted


def test_equations_and_bounds_are_part_of_a_problem():
    rng = np.random.default_rng(2)
    for seed in range(10):
        problem = hard.draw_hard_problem("all", 500 + seed)
        qp = QP(**problem.fields)
        answer, rows = solve(qp), solve(qp.as_inequalities())
        assert answer.status == rows.status == "optimal"
        assert answer.objective == pytest.approx(rows.objective, rel=1e-8)
        assert answer.dual_eq.shape == (len(problem.fields["f"]),)
        assert answer.dual_box.shape == problem.fields["b"].shape
    weights = solve(QP(I(3), rng.normal(size=3), E=np.ones((1, 3)), f=[1.0], lb=0.0))
    assert weights.x.sum() == pytest.approx(1, abs=1e-15)
    assert weights.x.min() >= 0
    assert solve(QP(I(1), [0.0], lb=[1.0], ub=[0.0])).status == "infeasible"
    assert solve(QP(I(1), [0.0], lb=[np.inf])).status == "infeasible"
    assert solve(QP(I(1), [0.0], [[1.0]], [-np.inf])).status == "infeasible"


def test_the_kernel_and_the_careful_path_agree():
    qp = random_qp(64, 6, 5, seed=9)
    qp = QP(qp.A, qp.b, qp.C, qp.d, E=qp.C[:, :1] + 1, f=qp.d[:, :1] * 0.1, lb=-0.2, ub=torch.full((6,), 0.4).double())
    bulk = solve_exact(qp)
    for i in range(64):
        alone = solve_exact(qp[i])
        assert bulk.status[i] == alone.status[0]
        if bulk.status[i] == "optimal":
            torch.testing.assert_close(bulk.x[i], alone.x[0], rtol=1e-8, atol=1e-10)
            torch.testing.assert_close(bulk.dual_box[i], alone.dual_box[0], rtol=1e-6, atol=1e-8)


def test_proofs_are_checked():
    form = Form(
        np.zeros((1, 1)),
        np.array([-1.0]),
        np.array([[1.0], [-1.0]]),
        np.full(3, -np.inf),
        np.array([np.inf, 0.0, -1.0]),
    )
    assert proves_infeasible(form, np.array([0.0, 1.0, 1.0]))
    assert proves_infeasible(form, np.array([0.0, 1.0, 0.999])) is False
    assert proves_unbounded(form, np.array([1.0])) is False
    free = form._replace(high=np.array([np.inf, np.inf, 1.0]))
    assert proves_unbounded(free, np.array([1.0]))
    assert proves_unbounded(free, np.array([-1.0])) is False


def _quick_and_full(qp, x, rows, equal, box, tol):
    """What the quick test says of a point, and the rule with and without rounding, of which it must be a part."""
    from time2decide.qp.exact import _form_of, _One

    p, point = Arrays.of(qp), Point(x[None], rows[None], equal[None], box[None])
    one = _One(p, _form_of(qp))
    return one.is_surely_optimal(EngineAnswer(x, np.concatenate([box, rows, equal])), tol), one.level(point, tol)


@pytest.mark.parametrize("seed", range(60))
def test_the_quick_test_is_a_part_of_the_rule(seed):
    """Answers pass it; and what passes it, moved or not, passes the rule."""
    rng = np.random.default_rng(seed)
    n, m, e = rng.integers(1, 9), rng.integers(0, 6), rng.integers(0, 3)
    G = rng.normal(size=(n, rng.integers(1, n + 1)))  # often singular
    x0, span = rng.normal(size=n), rng.exponential(size=n)
    C, E = rng.normal(size=(m, n)), rng.normal(size=(min(e, n), n))
    A = G @ G.T * 10.0 ** rng.integers(-6, 7)
    qp = QP(
        (A + A.T) / 2,
        rng.normal(size=n),
        C,
        C @ x0 + rng.exponential(size=m),
        E=E,
        f=E @ x0,
        lb=x0 - span,
        ub=x0 + span,
    )
    answer = solve(qp)
    assert answer.status == "optimal"
    quick, level = _quick_and_full(qp, answer.x, answer.dual, answer.dual_eq, answer.dual_box, 1e-8)
    assert quick
    assert level <= 1e-10
    for size in 10.0 ** np.arange(-18, 0):
        for part in range(4):
            moved = [answer.x, answer.dual, answer.dual_eq, answer.dual_box]
            moved[part] = moved[part] * (1 + size * rng.normal(size=moved[part].shape))
            quick, level = _quick_and_full(qp, *moved, 1e-8)
            assert level <= 1e-12 or not quick


def test_the_quick_test_refuses_answers_that_hang_by_rounding():
    """The smallest eigenvalue is rounding: x of 1e15 meets every condition, and there is no answer."""
    A = np.array([[1.0, 1.0], [1.0, 1.0 + 2e-16]])
    assert solve(QP(A, np.array([1.0, -1.0]), np.ones((1, 2)), np.array([1e3]))).status == "unbounded"
    free = QP(np.ones((2, 2)), np.array([1.0, -1.0]), lb=np.full(2, -np.inf), ub=np.array([1.0, np.inf]))
    assert solve(free).status == "unbounded"


def test_the_quick_test_leaves_forces_that_drown_to_the_rule():
    """f = ½(x₁ − x₂)² + gᵀx at its upper bounds: beside the curvature of large x, a small g may be rounding."""
    H, x = np.array([[1.0, -1.0], [-1.0, 1.0]]), np.full(2, 1e3)
    for g, sure in ((-1.0, True), (-1e-10, False)):
        form = Form(H, np.full(2, g), np.zeros((0, 2)), np.full(2, -np.inf), x)
        assert is_surely_optimal(form, x, np.full(2, -g), 1e-12) == sure
    still = Form(H, np.zeros(2), np.zeros((0, 2)), np.full(2, -np.inf), x)
    assert is_surely_optimal(still, x, np.zeros(2), 1e-12)  # nothing pulls


def test_the_quick_test_asks_for_no_gap_below_rounding():
    """f = 5000 (x₁ − x₂)² + gᵀx: Hx = ±0.02 is what is left of ±10,000, and so is its rounding, 1e-12."""
    H, x = 1e4 * np.array([[1.0, -1.0], [-1.0, 1.0]]), np.array([1 + 2e-6, 1.0])
    for residual, sure in ((0.0, True), (1e-11, True), (1e-8, False)):
        form = Form(H, residual - H @ x, np.zeros((0, 2)), np.full(2, -np.inf), np.full(2, np.inf))
        assert is_surely_optimal(form, x, np.zeros(2), 1e-12) == sure
    for slack, sure in ((0.0, True), (1e-15, True), (1e-8, False)):  # of the bound of x₂, which pulls
        high = np.array([np.inf, 1 + slack])
        form = Form(H, 1e-11 - H @ x - np.array([0.0, 1e-3]), np.zeros((0, 2)), np.full(2, -np.inf), high)
        assert is_surely_optimal(form, x, np.array([0.0, 1e-3]), 1e-12) == sure


def test_what_a_batch_shares_is_read_once():
    own = np.arange(6.0).reshape(3, 2)
    assert distinct_entries(own) is own
    assert distinct_entries(np.broadcast_to(own[0], (3, 2))).tolist() == [[0.0, 1.0]]


def dependent_equations(rng):
    """½c(aᵀx)² + q·aᵀx with aᵀx = v said twice: P is singular, the objective is known. P, b, E, f and that value."""
    n = int(rng.integers(2, 5))
    a = rng.integers(-3, 4, n).astype(float)
    a[0] = a[0] or 1.0
    curve, slope, value = float(rng.integers(1, 5)), float(rng.integers(-4, 5)), float(rng.integers(-3, 4))
    times = rng.integers(2, 5)
    rows = np.array([times - 1.0, times])
    return curve * np.outer(a, a), slope * a, np.outer(rows, a), rows * value, curve / 2 * value**2 + slope * value


@pytest.mark.parametrize("copies", [1, 40])
def test_no_row_is_lost_beside_variables_that_nothing_holds(copies):
    """With x of 1e16 along the null space, |E||x| excused every row: 385 of 3,000 such answers were wrong."""
    rng = np.random.default_rng(0)
    for _ in range(150 if copies == 1 else 5):
        *data, value = dependent_equations(rng)
        P, b, E, f = data if copies == 1 else (np.stack([part] * copies) for part in data)
        answer = solve(QP(P, b, E=E, f=f))
        assert set(np.atleast_1d(answer.status)) == {"optimal"}
        for x in np.atleast_2d(answer.x):
            np.testing.assert_allclose(data[2] @ x, data[3], atol=1e-6)
            assert x @ data[0] @ x / 2 + data[1] @ x == pytest.approx(value, abs=1e-6)


def test_what_asks_for_the_size_of_a_variable():
    """Curvature, a row, a variable in other units in the same row, or a bound: these allow a variable of any size."""
    even, far, none = np.array([[1.0, -1.0]]), 2.0**60, np.zeros((2, 2))
    cases = (
        (QP(I(2), [-far, -far], E=even, f=[1e-3]), [far, far], [0.0]),  # the curvature
        (QP(none, [1.0, 1.0], E=np.vstack([even, [[1.0, 1.0]]]), f=[1e-3, 2 * far]), [far, far], [0.0, -1.0]),  # a row
        (QP(np.diag([0.0, 1.0]), [0.0, -1.0], E=[[1.0, -far]], f=[1e-3]), [far, 1.0], [0.0]),  # the rest of its row
        (QP(none, [-1.0, 1.0], E=even, f=[1e-3], ub=[far, np.inf]), [far, far], [1.0]),  # a bound
    )
    for qp, x, equal in cases:
        point = Point(*(np.array([part]) for part in (x, [], equal, [0.0, 0.0])))
        assert is_optimal(Arrays.of(qp), point, 1e-8)[0]
    mixed = np.array([[-1.0, -1, 1e9], [1, -1, 0]]), [0.0, 0.0]  # two rows fix two variables together
    for qp in (
        QP(np.zeros((3, 3)), [1.0, 1, 0], E=mixed[0], f=mixed[1], lb=[0.0, 0, 1], ub=[np.inf, np.inf, 1]),
        QP(np.zeros((3, 3)), [0.0, 0, -1], C=[[1.0, -1, 0]], d=[1e-9], l1_radius=1.0),
        QP(np.diag([1.0, 0]), [0.0, -1.0], ub=[1.0, np.inf], l1_radius=1e9),
    ):
        assert solve(qp).status == "optimal"
    noise = QP(*(np.stack([part] * 40) for part in (np.diag([1.0, 0, 0]), np.array([-1.0, 0, 0]))),
               E=np.stack([np.array([[1.0, -1, -1], [0, 1, -2]])] * 40), f=np.tile([0, 1e-15], (40, 1)))  # fmt: skip
    assert set(solve(noise).status) == {"optimal"}
    adrift = QP(np.array([[4.0, -4], [-4, 4]]), np.zeros(2), E=[[2.0, -2], [3, -3]], f=[-4.0, -6])
    huge = Point(*(np.array([part]) for part in ([1e16, 1e16], [], [0.0, 0.0], [0.0, 0.0])))
    assert not is_optimal(Arrays.of(adrift), huge, 1e-8)[0]


@pytest.mark.parametrize(("penalty", "radius"), [(0.0, 0.5), (0.3, 0.5), (0.3, 50.0), (2.0, 0.5)])
def test_the_gap_of_l1_terms_is_that_of_duality(penalty, radius):
    """At the answer, and for points a little inside of it: at least what is missing, beside its terms."""
    rng = np.random.default_rng(0)
    G = rng.normal(size=(4, 6))
    qp = QP(G @ G.T, 3 * rng.normal(size=4), l1_penalty=penalty, l1_radius=radius)
    A, b, best = qp.A.numpy()[0], qp.b.numpy()[0], solve(qp).x
    rule, none = OptimalityRule(Arrays.of(qp)), (np.zeros((1, 0)), np.zeros((1, 0)), np.zeros((1, 4)))

    def value(x):
        return x @ A @ x / 2 + b @ x + penalty * np.abs(x).sum()

    assert rule.residual(Point(best[None], *none))[0] < 1e-14
    for off in (1e-9, 1e-8, 3e-7):
        x = best * (1 - off)
        size, used, gradient = np.abs(x), x != 0, A @ x + b
        binds = size.sum() >= radius * (1 - 1e-6)
        price = max(penalty, (-np.sign(x) * gradient)[used].mean()) if binds else penalty
        left = (gradient + price * np.sign(x))[used]
        gap = (price - penalty) * (radius - size.sum() if price > penalty else 0.0) + size[used] @ np.abs(left)
        worth = size @ (np.abs(A @ x) + np.abs(b) + price)
        assert rule.measure(Point(x[None], *none)).worst[0] == pytest.approx(gap / worth, rel=1e-6)
        assert value(x) - value(best) <= gap + 1e-15


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_proves_nothing(wrong):
    low, high = np.array([-np.inf, -np.inf, 2.0]), np.array([9, 1, np.inf])
    form = Form(np.zeros((1, 1)), np.ones(1), np.ones((2, 1)), low, high)
    assert proves_infeasible(form, np.array([0.0, 1.0, -1.0])) is True
    assert proves_infeasible(form, np.array([0.0, 1.0, wrong])) is False
    assert proves_infeasible(form, np.array([-1.0, 1.0, 0.0])) is False  # a bound that is not there
    assert proves_infeasible(form, np.zeros(3)) is False
    free = form._replace(low=np.full(3, -np.inf), high=np.full(3, np.inf))
    assert proves_unbounded(free, np.array([-1.0])) is True
    assert proves_unbounded(free, np.array([wrong])) is False
    assert proves_unbounded(free, np.zeros(1)) is False


@pytest.mark.parametrize("n", [2, 5, 10])
@pytest.mark.parametrize("noise", [0.0, 1e-17])
def test_at_the_apex_of_a_cone_all_that_is_left_is_rounding(n, noise):
    """min ½o|x|² + qᵀx with Gx ≤ 0, −q inside the cone of the rows: x = 0, in bulk and one by one, in any units."""
    rng = np.random.default_rng(n)
    G, pull = rng.normal(size=(40, 2 * n, n)), rng.exponential(size=(40, 2 * n))
    q, h = -np.einsum("bmn,bm->bn", G, pull), noise * rng.normal(size=(40, 2 * n))
    answer = solve(QP(np.broadcast_to(I(n), (40, n, n)), q, G, h) if not noise else QP(I(n), q[:8], G[:8], h[:8]))
    assert set(answer.status) == {"optimal"}
    assert np.abs(answer.x).max() <= 1e-12
    for i in range(3):
        whole, column = 10.0 ** rng.uniform(-8, 8), 10.0 ** rng.uniform(-4, 4, n) if not noise else np.ones(n)
        one = solve(QP(whole * np.diag(column**2), whole * q[i] * column, G[i] * column, h[i]))
        assert one.status == "optimal"
        assert np.abs(one.x * column).max() <= 1e-12


def test_contradictions_that_are_rounding_are_none():
    """A robot at the edge of its foot asks for 0·x ≤ −7e-18; bounds cross by one unit in the last place."""
    x = np.array([1.0, 2.0])
    walk = QP(I(2), -x, [[0.0, 0.0], [1.0, 1.0]], [-7e-18, 1.0])
    crossed = QP(I(2), -x, lb=[0.3, -np.inf], ub=[0.3 * (1 - 1e-16), np.inf])
    twice = QP(I(2), -x, E=[[1.0, -1.0], [2.0, -2.0]], f=[1e-17, -1e-17])
    for qp, expected in ((walk, [0.0, 1.0]), (crossed, [0.3, 2.0]), (twice, [1.5, 1.5])):
        answer = solve(qp)
        assert answer.status == "optimal"
        np.testing.assert_allclose(answer.x, expected, atol=1e-15)
    assert solve(QP(I(2), -x, [[0.0, 0.0], [1.0, 1.0]], [-1e-9, 1.0])).status == "infeasible"
    assert solve(QP(I(2), -x, lb=[0.3, 0.0], ub=[0.3 - 1e-9, 1.0])).status == "infeasible"


@pytest.mark.parametrize("share", [1e-7, 1e-8, 1e-9, 1e-12])
def test_small_contradictions_are_proved_or_said_to_be_within_rounding(share):
    """The last row contradicts a combination of the others by a share of the terms: HiGHS sees nothing below 1e-7."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        C, y = rng.normal(size=(3, 4)) * 10.0 ** rng.uniform(-3, 3, 4), rng.exponential(size=3)
        d = C @ rng.normal(size=4)
        C, d = np.vstack([C, -(y @ C)]), np.append(d, -(y @ d) - share * (y @ np.abs(d)))
        answer = solve(QP(I(4), rng.normal(size=4), C, d), tol=1e-12)
        if share >= 1e-9:
            assert answer.status == "infeasible"
        else:  # what is left when the rows are added up is as large
            assert answer.status in ("infeasible", "infeasible within rounding", "optimal")
            if answer.status == "infeasible within rounding":
                assert (C @ answer.x - d <= 1e-8 * (np.abs(d) + np.abs(C) @ np.abs(answer.x))).all()
