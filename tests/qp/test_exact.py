import clarabel
import numpy as np
import pytest
import torch
from scipy import sparse

from time2decide import QP, InputError, random_qp, solve, solve_qp
from time2decide.qp import PAPER_SIZES, exact, reference_problems
from time2decide.qp.certificate import Arrays, Form
from time2decide.qp.engines import lift_l1
from time2decide.qp.exact import solve_exact


@pytest.mark.parametrize("reference", reference_problems(), ids=lambda r: r.name)
def test_answers_known_on_paper(reference):
    solution = solve(reference.qp)
    np.testing.assert_allclose(solution.x, reference.x, atol=1e-12)
    np.testing.assert_allclose(solution.dual, reference.dual, atol=1e-12)
    assert solution.status == "optimal"


def by_clarabel(qp, i):
    """An interior-point answer of the lifted problem: another solver, another family."""
    form = lift_l1(Arrays.of(qp), i)
    bounded = np.flatnonzero(np.isfinite(form.high[len(form.g) :]))
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    P = sparse.triu(sparse.csc_matrix(form.H)).tocsc()
    G = sparse.csc_matrix(form.G[bounded])
    cones = [clarabel.NonnegativeConeT(G.shape[0])] if G.shape[0] else []
    solved = clarabel.DefaultSolver(P, form.g, G, form.high[len(form.g) :][bounded], cones, settings).solve()
    assert str(solved.status) == "Solved"
    return np.array(solved.x)[: qp.n]


@pytest.mark.parametrize("kind", ["U", "LC", "R", "C"])
def test_agrees_with_a_second_solver_family(kind):
    for n, m in PAPER_SIZES:
        qp = random_qp(6, n, m if kind == "LC" else 0, kind=kind, seed=n + m)
        solution = solve_exact(qp)
        assert solution.kkt_residual.max() < 1e-11
        for i in range(len(qp)):
            np.testing.assert_allclose(solution.x[i].numpy(), by_clarabel(qp, i), rtol=0, atol=1e-8)


def test_every_class_at_once():
    rng = np.random.default_rng(0)
    base = random_qp(20, 6, 4, seed=5)
    qp = QP(base.A, base.b, base.C, base.d, l1_penalty=rng.uniform(0.1, 0.5, 20), l1_radius=rng.uniform(0.2, 1.0, 20))
    solution = solve(qp)
    assert set(solution.status) == {"optimal"}
    assert solution.kkt_residual.max() < 1e-10
    assert (solution.x.abs().sum(-1) <= qp.l1_radius + 1e-12).all()


def test_infeasible_and_unbounded_are_reported_per_instance():
    A = np.stack([np.eye(2), np.eye(2), np.diag([1.0, 0.0]), np.diag([1.0, 0.0])])
    b = np.array([[1.0, 1.0], [1.0, 1.0], [0.0, -1.0], [0.0, -1.0]])
    C = np.array([[[1.0, 0.0], [-1.0, 0.0]]] * 3 + [[[0.0, 1.0], [-1.0, 0.0]]])
    d = np.array([[1.0, 1.0], [-1.0, -1.0], [1.0, 1.0], [1.0, 1.0]])
    solution = solve(QP(A, b, C, d))
    assert solution.status.tolist() == ["optimal", "infeasible", "unbounded", "optimal"]
    assert np.isnan(solution.x[1:3]).all()
    assert np.isnan(solution.dual[1:3]).all()
    np.testing.assert_allclose(solution.x[3], [0.0, 1.0], atol=1e-8)
    assert np.isinf(solution.kkt_residual[1])
    assert solve(QP(np.zeros((1, 1)), [1.0])).status == "unbounded"
    assert solve(QP(np.zeros((1, 1)), [1.0], l1_penalty=2.0)).status == "optimal"
    assert solve(QP(np.eye(1), [0.0], [[1.0]], [-3.0], l1_radius=1.0)).status == "infeasible"


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("curve", [0.0, 1.0])
def test_equations_from_either_side_prove_that_there_is_no_answer(sign, curve):
    A, b, row = curve * np.eye(2), np.ones(2), sign * np.array([[1.0, 0.0]])
    assert solve(QP(A, b, row, [0.0], E=sign * row, f=[sign * 1.0])).status == "infeasible"  # x1 ≥ 1 against x1 ≤ 0
    assert solve(QP(A, b, E=np.vstack([row, row]), f=[1.0, 2.0])).status == "infeasible"
    bound = {"ub": 0.0} if sign > 0 else {"lb": 0.0}
    assert solve(QP(A, b, E=np.array([[1.0, 0.0]]), f=[sign], **bound)).status == "infeasible"
    assert (
        solve(QP(A, b, row, [-1.0], lb=-1.0 if sign < 0 else 0.0, ub=0.0 if sign < 0 else 1.0)).status == "infeasible"
    )


@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize("side", ["lb", "ub"])
def test_one_bound_has_its_multipliers(batch, side):
    """Given alone or in a batch: positive at ub, negative at lb."""
    b = np.array([2.0, -3.0]) if side == "lb" else np.array([-2.0, 3.0])
    answer = solve(QP(np.eye(2), b if not batch else np.tile(b, (batch, 1)), **{side: 0.0}))
    expected = [-2.0, 0.0] if side == "ub" else [2.0, 0.0]
    np.testing.assert_allclose(answer.dual_box, -np.array(expected) + np.zeros_like(answer.x), atol=1e-12)
    np.testing.assert_allclose(answer.x, np.array([0.0, -b[1]]) + np.zeros_like(answer.x), atol=1e-12)
    assert answer.dual_eq is None


def test_ill_conditioned_is_not_unbounded():
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(60, 6, 6)))[0]
    A = basis @ (np.logspace(0, 10, 6)[:, None] * basis.transpose(0, 2, 1))
    qp = QP((A + A.transpose(0, 2, 1)) / 2, rng.normal(size=(60, 6)), rng.normal(size=(60, 4, 6)), np.ones((60, 4)))
    assert set(solve(qp).status) <= {"optimal", "not_converged"}


@pytest.mark.parametrize("objective", [1e-10, 1.0, 1e12])
@pytest.mark.parametrize("row", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e6])
def test_units_do_not_matter(objective, row, unit):
    """min over x1 + x2 <= 0.8 of the distance to (1, 1), in other units of objective, row and x."""
    from time2decide import solve_qp

    A, b, C, d = np.eye(2), -np.ones(2), np.ones((1, 2)), np.array([0.8])
    arguments = objective * A, objective * unit * b, row * C, row * unit * d
    solution = solve(QP(*arguments))
    assert solution.status == "optimal"
    np.testing.assert_allclose(solution.x, [0.4 * unit] * 2, rtol=1e-9)
    np.testing.assert_allclose(solution.dual, [0.6 * objective * unit / row], rtol=1e-9)
    np.testing.assert_allclose(solve_qp(*arguments), [0.4 * unit] * 2, rtol=1e-9)


def test_linear_programs():
    box = QP(np.zeros((2, 2)), [-1.0, -2.0], np.vstack([np.eye(2), -np.eye(2)]), [1.0, 1.0, 0.0, 0.0])
    solution = solve(box)
    assert solution.status == "optimal"
    np.testing.assert_allclose(solution.x, [1.0, 1.0], atol=1e-9)


def test_problems_in_autograd_and_one_by_one():
    solution = solve(QP(torch.eye(2, requires_grad=True), torch.ones(2)))
    torch.testing.assert_close(solution.x, -torch.ones(2))
    assert len(list(random_qp(3, 2, seed=0))) == 3
    with pytest.raises(IndexError, match="problem 3 of a batch of 3"):
        random_qp(3, 2, seed=0)[3]


@pytest.mark.parametrize("workers", [0, -1, 1.5])
def test_a_number_of_threads_is_one(workers):
    with pytest.raises(InputError, match="workers"):
        solve_exact(random_qp(2, 3, seed=0), workers=workers)


def test_threads_give_the_same_rows():
    qp = random_qp(400, 5, 3, seed=2)
    one, two = (solve_exact(qp, workers=count) for count in (1, 2))
    assert torch.equal(one.x, two.x)
    assert torch.equal(one.dual, two.dual)


def test_kkt_residual_sees_every_kind_of_error():
    qp = random_qp(1, 4, 3, seed=0)
    good = solve(qp)
    assert good.kkt_residual.item() < 1e-12
    from time2decide.qp import kkt

    x, dual = good.x, good.dual
    assert kkt(qp, x + 0.1, dual).stationarity.item() > 0.01
    far = torch.full_like(x, 100.0) * torch.sign(qp.C[:, 0])
    assert kkt(qp, far, dual).primal.item() > 1
    assert kkt(qp, x, dual - 1).dual.item() >= 1 - dual.max().item()
    slack = random_qp(1, 4, 3, seed=0)
    slack.d = slack.d + 5
    assert kkt(slack, x, torch.ones_like(dual)).complementarity.item() > 1


def test_kkt_residual_sees_equations_and_bounds():
    """½‖x‖² − (3, 1, −3)ᵀx with x1 + x2 = 1 in the box of ±1: x = (1, 0, −1), μ = 1, z = (1, 0, −2)."""
    from time2decide.qp import kkt

    qp = QP(np.eye(3), [-3.0, -1.0, 3.0], E=[[1.0, 1.0, 0.0]], f=[1.0], lb=-1.0, ub=1.0)
    x, none, mu, z = np.array([[1.0, 0, -1]]), np.zeros((1, 0)), np.array([[1.0]]), np.array([[1.0, 0, -2]])
    found = solve(qp)
    for value, expected in ((found.x, x), (found.dual_eq, mu), (found.dual_box, z)):
        np.testing.assert_allclose(value, expected[0], atol=1e-12)
    assert found.kkt_residual < 1e-12
    assert kkt(qp, x, none, mu, z).worst.item() == 0
    assert kkt(qp, x, none, mu + 0.5, z).stationarity.item() == 0.5
    assert kkt(qp, x, none, mu, z - 0.25).stationarity.item() == 0.25
    assert kkt(qp, x, none).stationarity.item() == 2  # without multipliers nothing holds the gradient
    assert kkt(qp, x + np.array([0, 0.125, 0]), none, mu, z).primal.item() == 0.125
    assert kkt(qp, x + np.array([0.5, -0.5, 0]), none, mu, z).primal.item() == 0.5  # above ub, the equation holds
    assert kkt(qp, x - np.array([0, 0, 0.75]), none, mu, z).primal.item() == 0.75  # below lb
    inside = x + np.array([-0.5, 0.5, 0.25])
    assert kkt(qp, inside, none, mu, z).primal.item() == 0
    assert kkt(qp, inside, none, mu, z).complementarity.item() == 0.5  # 1 · 0.5 at ub, 2 · 0.25 at lb
    assert kkt(qp, inside, none, mu, 2 * z).complementarity.item() == 1.0
    free = QP(np.eye(3), [-3.0, -1.0, 3.0], E=[[1.0, 1.0, 0.0]], f=[1.0])
    assert kkt(free, x, none, mu, z).stationarity.item() == 2  # without bounds they have no multipliers


def test_singular_objectives_between_opposite_rows_are_solved():
    """Equalities as pairs of rows and a singular A: DAQP alone takes some of them for infeasible."""
    rng = np.random.default_rng(1)
    for _ in range(150):
        n = int(rng.integers(2, 7))
        half = int(rng.integers(1, n))
        G = rng.normal(size=(n, int(rng.integers(1, n)))) * 10 ** rng.uniform(-2, 2)
        A, C = G @ G.T, rng.normal(size=(half, n))
        b, d = A @ rng.normal(size=n), C @ rng.normal(size=n)
        answer = solve_exact(QP(A, b, np.vstack([C, -C]), np.append(d, -d)))
        assert answer.status == "optimal"
        assert solve_qp(A, b, np.vstack([C, -C]), np.append(d, -d)) is not None


def test_a_radius_of_zero_and_no_objective_are_solved():
    rng = np.random.default_rng(0)
    G = rng.normal(size=(40, 5, 4))
    point = solve_exact(QP(G @ G.transpose(0, 2, 1), rng.normal(size=(40, 5)), l1_radius=0.0))
    assert (point.status == "optimal").all()
    assert (point.x == 0).all()
    C = rng.normal(size=(40, 2, 4))
    anywhere = solve_exact(QP(np.zeros((4, 4)), np.zeros(4), C, rng.normal(size=(40, 2))))
    assert (anywhere.status == "optimal").all()


@pytest.mark.parametrize("seed", range(6))
def test_variables_in_very_different_units_are_all_solved(seed):
    rng = np.random.default_rng(seed)
    qp = random_qp(32, 6, 4, seed=seed)
    expected = solve_exact(qp)
    r, w = (torch.from_numpy(10 ** rng.uniform(-5, 5, size)) for size in (6, (4, 1)))  # units of x and of the rows
    uneven = QP(qp.A * r * r.unsqueeze(-1), qp.b * r, qp.C * r * w, qp.d * w.squeeze(-1))
    answer = solve_exact(uneven)
    assert (answer.status == "optimal").all()
    torch.testing.assert_close(answer.x * r, expected.x, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(answer.dual * w.squeeze(-1), expected.dual, rtol=1e-6, atol=1e-8)
    for i in range(8):
        A, b, C, d = (getattr(uneven, name)[i].numpy() for name in ("A", "b", "C", "d"))
        np.testing.assert_allclose(solve_qp(A, b, C, d) * r.numpy(), expected.x[i], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("batch", [1, 40])
def test_rows_that_are_bounds_are_met_exactly(batch):
    """x ≥ 0 written as −x ≤ 0: what is zero is zero, alone and in bulk, and needs no second engine."""
    from time2decide.qp.bulk import solve_bulk

    rng = np.random.default_rng(0)
    G = rng.normal(size=(batch, 6, 6))
    qp = QP(G @ G.transpose(0, 2, 1), rng.normal(size=(batch, 6)), -np.eye(6), np.zeros(6))
    answer = solve(qp)
    assert set(answer.status) == {"optimal"}
    np.testing.assert_array_equal(answer.x[answer.dual > 0], 0)
    assert (answer.x >= 0).all()
    assert solve_bulk(Arrays.of(qp), 1e-8)[1].all()


@pytest.mark.parametrize("seed", range(3))
def test_large_sparse_singular_problems_around_a_known_answer(seed, monkeypatch):
    """Interior points, sparse factorisations and one linear system: exact, degenerate vertices included."""
    from time2decide.qp import engines

    rng = np.random.default_rng(seed)
    n, p = 340, 180
    E = np.where(rng.random((p, n)) < 0.02, rng.normal(size=(p, n)), 0.0)
    H = np.diag(np.where(rng.random(n) < 0.4, rng.exponential(size=n), 0.0))
    x = np.where(rng.random(n) < 0.5, rng.exponential(size=n), 0.0)
    pull = np.where((x == 0) & (rng.random(n) < 0.9), rng.exponential(size=n), 0.0)  # some at zero without a multiplier
    b = -H @ x + E.T @ rng.normal(size=p) + pull
    asked = []
    real = engines.by_piqp
    monkeypatch.setattr(engines, "by_piqp", lambda form: asked.append(engines.is_sparse(form)) or real(form))
    answer = solve(QP(H, b, E=E, f=E @ x, lb=0.0))
    assert asked[:1] == [True]
    assert answer.status == "optimal"
    assert answer.objective == pytest.approx(x @ H @ x / 2 + b @ x, rel=1e-9)
    assert np.abs(E @ answer.x - E @ x).max() < 1e-8  # the tolerance asked for, of numbers of size one
    assert answer.x.min() >= 0


@pytest.mark.parametrize("kind", ["infeasible", "unbounded"])
def test_engines_that_answer_where_there_is_no_answer_are_not_believed(kind, monkeypatch):
    """Both say that zero is the answer: the proof that there is none is looked for all the same."""
    from time2decide.qp import engines

    def zero(form, *_, **__):
        return engines.EngineAnswer(np.zeros(len(form.g)), np.zeros(len(form.low)))

    monkeypatch.setattr(engines, "by_daqp", zero)
    monkeypatch.setattr(engines, "by_piqp", zero)
    A, b = np.diag([1.0, 0.0]), np.array([1.0, -1.0])
    rows = {"infeasible": ([[0.0, 1.0], [0.0, -1.0]], [-1.0, -1.0]), "unbounded": ([[0.0, -1.0]], [1.0])}[kind]
    for batch in (1, 2):
        answer = solve_exact(QP(np.stack([A] * batch), np.stack([b] * batch), *map(np.array, rows)))
        assert answer.status.tolist() == [kind] * batch
        assert np.isnan(answer.x).all()


INFEASIBLE = Form(np.eye(1), np.zeros(1), np.ones((2, 1)), np.array([-9, -9, 2.0]), np.array([9, 1.0, 9]))


def test_a_proof_must_hold_in_the_units_given_and_in_units_of_size_one(monkeypatch):
    real = exact.proves_infeasible
    assert exact._diagnose(INFEASIBLE) == "infeasible"
    for refused in (True, False):
        monkeypatch.setattr(exact, "proves_infeasible", lambda form, y, no=refused: (form is INFEASIBLE) != no)
        assert exact._diagnose(INFEASIBLE) is None
    monkeypatch.setattr(exact, "proves_infeasible", real)
    monkeypatch.setattr(exact.engines, "by_highs", lambda form: None)
    assert exact._diagnose(INFEASIBLE) is None  # no proof from an engine without an answer


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_a_proof_is_cleaned_in_whatever_units_it_has(size):
    """Multipliers far below the largest go, and what should cancel does."""
    rng = np.random.default_rng(0)
    G = np.vstack([rng.normal(size=(2, 4)), np.zeros((2, 4))])
    G[2] = -G[:2].sum(0)
    form = Form(np.eye(4), np.zeros(4), G, np.full(8, -np.inf), np.append(np.full(4, np.inf), -np.ones(4)))
    y = size * np.array([0, 0, 0, 0, 1.0, 1.0 + 1e-7, 1.0, 1e-10])
    found = exact._cleaned_proof(form, y)
    np.testing.assert_allclose(found[4:7] / size, 1.0, atol=1e-6)
    assert found[7] == 0
    assert np.abs(G.T @ found[4:]).max() < 1e-14 * size
