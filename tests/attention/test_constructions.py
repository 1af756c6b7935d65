"""L layers equal L classical steps, whatever the form, the size and the batch."""

import pytest
import torch

from time2decide import InputError, random_qp, solve
from time2decide.attention import METHODS, build
from time2decide.attention.layers import SoftThresholdFFN
from time2decide.attention.projected_gradient import projected_gradient_form, projection_threshold_loop
from time2decide.qp import PAPER_SIZES, soft_threshold

PLAIN = {"U": "gradient", "LC": "arrow_hurwicz", "R": "ista", "C": "projected_gradient"}
ACCELERATED = [("U", "nesterov"), ("R", "fista"), ("C", "fista"), ("LC", "admm"), ("R", "admm"), ("C", "admm")]


@torch.no_grad()
def largest_difference(qp, method, layers, forms=("state", "literal")):
    """Over all layers and instances, between each form and the classical iteration."""
    algorithms = {form: build(qp, method, form) for form in ("classical", *forms)}
    zero = qp.b.new_zeros(len(qp), qp.n), qp.b.new_zeros(len(qp), qp.m)
    states = {form: algorithm.start(*zero) for form, algorithm in algorithms.items()}
    worst = 0.0
    for _ in range(layers):
        states = {form: algorithms[form].step(state) for form, state in states.items()}
        x, dual = algorithms["classical"].read(states["classical"])
        for form in forms:
            other_x, other_dual = algorithms[form].read(states[form])
            worst = max(worst, (x - other_x).abs().max().item(), (dual - other_dual).abs().sum().item())
    return worst


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLAIN)
def test_layers_equal_classical_steps(kind):
    """200 problems of each class, n from 2 to 64, 1,000 layers, both forms."""
    for n, count in ((2, 40), (3, 40), (5, 40), (9, 30), (17, 24), (33, 16), (64, 10)):
        qp = random_qp(count, n, max(1, n // 2) if kind == "LC" else 0, kind=kind, seed=n)
        assert largest_difference(qp, PLAIN[kind], 1000) <= (1e-10 if kind == "C" else 1e-12)


@pytest.mark.parametrize("kind", PLAIN)
def test_one_problem_alone_equals_itself_in_a_batch(kind):
    batch = random_qp(6, 11, 4 if kind == "LC" else 0, kind=kind, seed=1)
    together = solve(batch, PLAIN[kind], steps=300)
    for i in range(len(batch)):
        assert largest_difference(batch[i], PLAIN[kind], 300) <= 1e-12
        alone = solve(batch[i], PLAIN[kind], steps=300)
        torch.testing.assert_close(alone.x[0], together.x[i], rtol=0, atol=1e-12)
        torch.testing.assert_close(alone.dual[0], together.dual[i], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("kind", "method"), [*ACCELERATED, ("U", "newton_schulz")])
def test_accelerated_forms_agree(kind, method):
    for n in (2, 9, 20):
        qp = random_qp(8, n, max(1, n // 2) if kind == "LC" else 0, kind=kind, seed=n)
        layers = 25 if method == "newton_schulz" else 200
        assert largest_difference(qp, method, layers) <= 1e-11


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "method"), [*PLAIN.items(), *ACCELERATED, ("U", "newton_schulz"), ("LC", "newton_schulz")]
)
def test_converges_to_the_exact_solution(kind, method):
    """200 problems of the paper's sizes to a KKT residual of 1e-8."""
    for n, m in PAPER_SIZES:
        qp = random_qp(23, n, m if kind == "LC" else 0, kind=kind, seed=100 * n + m)
        solution = solve(qp, method, tol=1e-8, check_every=25)
        assert set(solution.status) == {"optimal"}
        assert solution.kkt_residual.max() <= 1e-8
        exact = solve(qp)
        # strong convexity with constant 0.1 bounds the distance by the residual
        assert (solution.x - exact.x).abs().max() < 1e-5


@pytest.mark.parametrize("method", ["gradient", "nesterov"])
def test_history_and_steps(method):
    qp = random_qp(3, 5, seed=0)
    solution = solve(qp, method, tol=1e-6, history=True)
    assert solution.history.shape == (int(solution.steps.max()) + 1, 3)
    for i, steps in enumerate(solution.steps):
        assert solution.history[steps, i] <= 1e-6 < solution.history[steps - 1, i]
    fixed = solve(qp, method, steps=7)
    assert set(fixed.status) == {"not_converged"}
    assert torch.equal(fixed.x, solve(qp, method, steps=7).x)


@pytest.mark.parametrize(("kind", "method"), [("U", "nesterov"), ("LC", "admm"), ("R", "fista"), ("C", "admm")])
def test_single_precision(kind, method):
    qp = random_qp(8, 6, 3 if kind == "LC" else 0, kind=kind, seed=2)
    solution = solve(qp.to(torch.float32), method, max_steps=5000)
    assert solution.x.dtype == torch.float32
    assert set(solution.status) == {"optimal"}
    assert (solution.x - solve(qp).x).abs().max() < 1e-3


def test_a_good_start_saves_layers():
    qp = random_qp(20, 10, 6, seed=4)
    exact = solve(qp)
    for method in ("arrow_hurwicz", "admm"):
        warm = solve(qp, method, initial=(exact.x, exact.dual), tol=1e-6, check_every=1)
        assert warm.steps.max() <= 1


def test_newton_schulz_depth_grows_with_the_logarithm():
    depth = {}
    for spread in (1e1, 1e2, 1e3, 1e4):
        values = torch.logspace(0, torch.log10(torch.tensor(spread)).item(), 8, dtype=torch.float64)
        basis = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0]
        from time2decide import QP

        qp = QP(basis @ torch.diag(values) @ basis.mT, torch.ones(8, dtype=torch.float64))
        depth[spread] = int(solve(qp, "newton_schulz", tol=1e-8, check_every=1).steps)
    grown = [depth[b] - depth[a] for a, b in ((1e1, 1e2), (1e2, 1e3), (1e3, 1e4))]
    assert max(grown) <= 5  # log2(10) = 3.3 more layers for ten times the condition number


def test_the_papers_loop_step_agrees_with_ours():
    """η = 1/n as in the paper reaches the same threshold as η = 1/|active set|, only slower."""
    qp = random_qp(5, 6, kind="C", seed=3)
    step = 1 / torch.linalg.eigvalsh(qp.A)[:, -1]
    ours, theirs = (projected_gradient_form(qp, step, "literal", eta=eta) for eta in ("active", "paper"))
    zero = qp.b.new_zeros(5, 6), qp.b.new_zeros(5, 0)
    one, two = ours.start(*zero), theirs.start(*zero)
    for _ in range(5):
        one, two = ours.step(one), theirs.step(two)
        torch.testing.assert_close(ours.read(one)[0], theirs.read(two)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("radius", [0.0, 0.3, 2.0, 100.0])
@pytest.mark.parametrize("start", [0.0, 0.5, 1e6])
def test_threshold_loop_is_exact_from_any_start(batch, radius, start):
    size = torch.rand(batch, 1, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(batch))
    bound, theta = torch.full((batch, 1, 1), radius, dtype=torch.float64), torch.full((batch, 1, 1), start).double()
    level = projection_threshold_loop(size, bound, theta)
    total = (size - level).clamp_min(0).sum(-1, keepdim=True)
    torch.testing.assert_close(total, torch.minimum(size.sum(-1, keepdim=True), bound), rtol=0, atol=1e-13)
    assert (level >= 0).all()


@pytest.mark.parametrize("batch", [1, 3])
def test_threshold_loop_ends_at_ties(batch):
    """Entries that sit on the threshold up to rounding must not make it turn for ever."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        size = torch.rand(batch, 1, 10, dtype=torch.float64, generator=generator)
        bound = torch.rand(batch, 1, 1, dtype=torch.float64, generator=generator)
        tied = torch.maximum(size, projection_threshold_loop(size, bound, torch.zeros_like(bound)))
        level = projection_threshold_loop(tied, bound, torch.zeros_like(bound))
        torch.testing.assert_close((tied - level).clamp_min(0).sum(-1, keepdim=True), bound, rtol=0, atol=1e-12)


def test_feed_forward_network_is_soft_thresholding():
    y = torch.linspace(-3, 3, 61, dtype=torch.float64).expand(2, 61)
    theta = torch.tensor([[0.7], [0.0]], dtype=torch.float64)
    torch.testing.assert_close(SoftThresholdFFN(61)(y, theta), soft_threshold(y, theta), rtol=0, atol=1e-15)


def test_the_papers_dual_step_condition_is_not_enough():
    """At γa = 1.9 and ηγc² = 0.9 the paper's conditions hold, and the iterates leave every bound."""
    from time2decide import QP
    from time2decide.attention import classical

    qp = QP([[1.0]], [-2.0], [[1.0]], [1.0])  # the solution is x = 1, λ = 1
    step, dual_step = (torch.tensor([v], dtype=torch.float64) for v in (1.9, 0.9 / 1.9))
    algorithm = classical.classical_arrow_hurwicz(qp, step, dual_step)
    near = torch.ones(1, 1, dtype=torch.float64)
    state = algorithm.start(near + 1e-6, near)
    drift = []
    for _ in range(60):
        state = algorithm.step(state)
        drift.append((state[0] - 1).abs().item())
    assert max(drift[-2:]) > 1e-2 > 1e-4 > drift[0]
    with pytest.raises(InputError, match=r"4 - 2\*step_size\*L"):
        solve(qp, "arrow_hurwicz", step_size=1.9, dual_step=0.9 / 1.9)


@pytest.mark.parametrize(
    ("kind", "method", "options", "message"),
    [
        (
            "U",
            "ista",
            {},
            "method: expected one of exact, gradient, nesterov, admm, newton_schulz for a problem of class U",
        ),
        ("LC", "gradient", {}, "method: expected one of exact, arrow_hurwicz, admm"),
        ("U", "sgd", {}, "method: expected one of exact, gradient"),
        ("U", "gradient", {"form": "fast"}, "form: expected one of state, literal, classical"),
        ("U", "gradient", {"step_size": 100.0}, "step_size: expected 0 < step_size < 2/L"),
        ("R", "ista", {"step_size": 100.0}, "step_size: expected 0 < step_size <= 1/L"),
        ("U", "gradient", {"step_size": -1.0}, "step_size: expected 0 < step_size"),
        ("LC", "arrow_hurwicz", {"dual_step": 1e9}, "dual_step: expected dual_step > 0 and"),
        ("LC", "admm", {"rho": -1.0}, "rho: expected a positive number"),
        ("LC", "admm", {"alpha": 2.5}, "alpha: expected 0 < alpha < 2"),
        ("U", "gradient", {"speed": 3}, "speed: expected step_size for method 'gradient'"),
        ("U", "gradient", {"steps": -1}, "steps: expected a whole number"),
        ("U", "gradient", {"tol": 0.0}, "tol: expected a positive number"),
        ("U", "exact", {"steps": 3}, "steps: expected no such option for method 'exact'"),
        ("U", "gradient", {"initial": 1}, "initial: expected a pair (x, dual), found int"),
        ("U", "gradient", {"initial": (float("nan"), 0.0)}, "initial x: expected finite numbers"),
        ("U", "gradient", {"initial": ("a", None)}, "initial x: expected an array of numbers"),
        ("U", "gradient", {"initial": (torch.zeros(3, 3), torch.zeros(3, 0))}, "initial x: expected shape (3, 4)"),
    ],
)
def test_bad_options_name_the_condition(kind, method, options, message):
    qp = random_qp(3, 4, 2 if kind == "LC" else 0, kind=kind, seed=0)
    with pytest.raises(InputError) as caught:
        solve(qp, method, **options)
    assert str(caught.value).startswith(message)


def test_singular_matrix_is_refused_by_iterations():
    from time2decide import QP

    with pytest.raises(InputError, match="positive definite for an iterative method"):
        solve(QP([[1.0, 0.0], [0.0, 0.0]], [1.0, 0.0]), "gradient")


def test_methods_are_modules_with_weights():
    from time2decide.attention.arrow_hurwicz import ArrowHurwicz

    model = ArrowHurwicz(3, 2)
    assert {name.split(".")[-1] for name, _ in model.named_buffers()} == {"W_Q", "W_K", "W_V", "W_O"}
    assert set(METHODS) >= {"gradient", "arrow_hurwicz", "ista", "projected_gradient", "nesterov", "fista", "admm"}


def test_layers_over_cached_keys_equal_attention_over_all_tokens():
    """The literal forms keep keys and values of the data tokens; the modules project every token in every layer."""
    from time2decide.attention.arrow_hurwicz import ArrowHurwicz
    from time2decide.attention.gradient import GradientDescent

    qp = random_qp(5, 9, 4, seed=3)
    step, dual_step = (1 / torch.linalg.eigvalsh(qp.A)[:, -1], torch.full((5,), 0.05, dtype=torch.float64))
    model = ArrowHurwicz(9, 4)
    x, dual = torch.zeros(5, 9, dtype=torch.float64), torch.zeros(5, 4, dtype=torch.float64)
    tokens = torch.cat([model.data_tokens(qp), model.iterate_tokens(x, dual)], dim=1)
    algorithm = METHODS["arrow_hurwicz"].forms["literal"](qp, step, dual_step)
    state = algorithm.start(x, dual)
    for _ in range(100):
        tokens, state = model(tokens, step, dual_step), algorithm.step(state)
    found = algorithm.read(state)
    torch.testing.assert_close(found[0], tokens[:, -2, :9], rtol=0, atol=1e-12)
    torch.testing.assert_close(found[1], tokens[:, -1, 18:22], rtol=0, atol=1e-12)
    plain = GradientDescent(9)
    tokens = torch.cat([plain.data_tokens(qp), plain.iterate_token(x)], dim=1)
    algorithm = METHODS["gradient"].forms["literal"](qp, step)
    state = algorithm.start(x, dual)
    for _ in range(100):
        tokens, state = plain(tokens, step), algorithm.step(state)
    torch.testing.assert_close(algorithm.read(state)[0], tokens[:, -1, :9], rtol=0, atol=1e-12)
    assert found[0].abs().max() > 0.1
