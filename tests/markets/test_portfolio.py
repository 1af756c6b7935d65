import os
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from time2decide.bench.portfolio_solver import check_portfolio, is_wrong_portfolio, random_portfolio_covariance
from time2decide.bench.portfolio_solver import random_portfolio_problem as draw_problem
from time2decide.core.validation import InputError
from time2decide.markets import (
    Constraints,
    FactorCovariance,
    Limit,
    mean_variance_step,
    portfolio_layer,
    solve_portfolio,
    turnover_kernels,
)
from time2decide.markets import portfolio as portfolio_file
from time2decide.markets.constraints import LONG_ONLY
from time2decide.markets.portfolio import build_portfolio_problem
from time2decide.markets.smallest_trade import solve_without_small_trades


def random_problem(seed, most=30):
    return draw_problem(np.random.default_rng(seed), most, bounds=False)


@pytest.mark.parametrize("part", range(10))
def test_random_problems_are_feasible_certified_and_equal_to_a_second_family(part):
    rng = np.random.default_rng(part)
    wrong = [one for one in (check_portfolio(draw_problem(rng, 40)) for _ in range(40)) if is_wrong_portfolio(one)]
    assert wrong == []


def test_compiled_and_numpy_forms_agree(monkeypatch):
    from time2decide.markets import turnover_decision, turnover_kernels

    for seed in range(150):
        arguments = random_problem(1000 + seed)
        answers = []
        for module in (turnover_decision, turnover_kernels):
            monkeypatch.setattr(portfolio_file, "turnover_engine", lambda rows, m, module=module: module)
            answers.append(solve_portfolio(**arguments))
        size = max(np.ptp(arguments["mean"]), 1e-12)
        assert answers[0].utility == pytest.approx(answers[1].utility, abs=1e-11 * size, rel=1e-10)
        assert max(answers[0].gap, answers[1].gap) < 1e-12


@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e12])
def test_covariances_are_checked_beside_their_size(unit):
    rest = {"mean": np.zeros(2), "previous": np.full(2, 0.5), "risk_aversion": 1.0}
    assert solve_portfolio(covariance=unit * np.ones((2, 2)), **rest).gap < 1e-12
    with pytest.raises(InputError, match="covariance: expected positive semidefinite"):
        solve_portfolio(covariance=unit * np.diag([1.0, -1e-3]), **rest)
    with pytest.raises(InputError, match="covariance: expected symmetric"):
        solve_portfolio(covariance=unit * np.array([[1.0, 1e-3], [0.0, 1.0]]), **rest)


def test_without_a_budget_a_portfolio_may_be_sold_once():
    """‖s − p‖₁ ≤ 2: any change of long-only weights, and no more where weights may be short."""
    short = Constraints(-5.0, 5.0)
    found = solve_portfolio([1.0, 0.0, -1.0], np.zeros((3, 3)), np.full(3, 1 / 3), risk_aversion=0.0, constraints=short)
    assert found.turnover == pytest.approx(2.0, abs=1e-12)
    np.testing.assert_allclose(found.weights, [4 / 3, 1 / 3, -2 / 3], atol=1e-12)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_decision_has_its_own_covariance(count):
    """Or one for all: weights and utility are those of each decision alone."""
    rng = np.random.default_rng(0)
    mean, p = rng.normal(size=(3, 5)) * 1e-2, rng.dirichlet(np.ones(5), 3)
    S = np.stack([random_portfolio_covariance(rng, 5, "definite") for _ in range(count)])
    rows = 3 if count == 1 else count
    together = solve_portfolio(mean[:rows], S[0] if count == 1 else S, p[:rows], risk_aversion=2.0)
    for i in range(rows):
        alone = solve_portfolio(mean[i], S[min(i, count - 1)], p[i], risk_aversion=2.0)
        np.testing.assert_allclose(together.weights[i], alone.weights, atol=1e-12)
        s = alone.weights
        assert together.utility[i] == pytest.approx(mean[i] @ s - 2 * s @ S[min(i, count - 1)] @ s, abs=1e-13)
        assert together.gap[i] < 1e-12


@pytest.mark.parametrize("cost", [0.0, 1e-4])
def test_batches_broadcast_and_threads_do_not_matter(cost):
    rng = np.random.default_rng(0)
    mean = rng.standard_normal((6, 1, 12)) * 1e-3
    S = np.stack([random_portfolio_covariance(rng, 12, "definite") for _ in range(6)])[:, None] * 1e-4
    p = rng.dirichlet(np.ones(12), (6, 3))
    gamma = np.array([0.1, 0.5, 2.0])
    together = solve_portfolio(mean, S, p, risk_aversion=5.0, turnover_l1=gamma, cost=cost)
    assert together.weights.shape == (6, 3, 12)
    assert together.utility.shape == together.status.shape == together.turnover.shape == (6, 3)
    for i in range(6):
        for k in range(3):
            alone = solve_portfolio(mean[i, 0], S[i, 0], p[i, k], risk_aversion=5.0, turnover_l1=gamma[k], cost=cost)
            np.testing.assert_allclose(together.weights[i, k], alone.weights, atol=1e-14)
    threaded = solve_portfolio(mean, S, p, risk_aversion=5.0, turnover_l1=gamma, cost=cost, threads=2)
    np.testing.assert_array_equal(threaded.weights, together.weights)


def test_equals_the_step_without_costs():
    rng = np.random.default_rng(1)
    S = np.stack([random_portfolio_covariance(rng, 8, "definite") for _ in range(20)]) * 1e-3
    mean, p = rng.standard_normal((20, 8)) * 1e-2, rng.dirichlet(np.ones(8), 20)
    ours = solve_portfolio(mean, S, p, risk_aversion=5.0, turnover_l1=0.7)
    np.testing.assert_allclose(ours.weights, mean_variance_step(mean, S, p, 0.7, 5.0), atol=1e-8)


def test_a_start_from_another_solution_gives_the_same_answer():
    rng = np.random.default_rng(2)
    S, p = random_portfolio_covariance(rng, 40, "factors") * 1e-4, rng.dirichlet(np.ones(40))
    mean = rng.standard_normal(40) * 1e-3
    first = solve_portfolio(mean, S, p, risk_aversion=5.0, turnover_l1=0.8)
    for other in (mean + 1e-5 * rng.standard_normal(40), rng.standard_normal(40)):
        cold = solve_portfolio(other, S, p, risk_aversion=5.0, turnover_l1=0.8)
        warm = solve_portfolio(other, S, p, risk_aversion=5.0, turnover_l1=0.8, start=first)
        np.testing.assert_allclose(warm.weights, cold.weights, atol=1e-12)


def test_factor_covariance_equals_the_dense_one():
    rng = np.random.default_rng(3)
    model = FactorCovariance(rng.standard_normal((5, 30, 4)) * 0.01, rng.uniform(0.5, 2, (5, 30)) * 1e-4)
    mean, p = rng.standard_normal((5, 30)) * 1e-3, rng.dirichlet(np.ones(30), 5)
    options = {"risk_aversion": 5.0, "turnover_l1": 0.6, "cost": 1e-4, "benchmark": rng.dirichlet(np.ones(30))}
    ours, dense = solve_portfolio(mean, model, p, **options), solve_portfolio(mean, model.dense(), p, **options)
    np.testing.assert_allclose(ours.weights, dense.weights, atol=1e-12)
    np.testing.assert_allclose(ours.utility, dense.utility, rtol=1e-12)


def test_shadow_price_is_the_derivative_of_the_utility():
    rng = np.random.default_rng(4)
    S, p, mean = (
        random_portfolio_covariance(rng, 20, "factors") * 1e-4,
        rng.dirichlet(np.ones(20)),
        rng.standard_normal(20) * 1e-3,
    )
    at = [
        solve_portfolio(mean, S, p, risk_aversion=5.0, turnover_l1=g, cost=2e-4) for g in (0.5 - 1e-6, 0.5, 0.5 + 1e-6)
    ]
    assert (at[2].utility - at[0].utility) / 2e-6 == pytest.approx(float(at[1].turnover_price), rel=1e-4)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.floats(0, 2), st.floats(0, 2))
def test_more_budget_is_never_worse_and_no_trade_is_always_allowed(seed, one, other):
    arguments = random_problem(seed, most=12) | {"turnover_l1": np.sort([one, other])}
    solution = solve_portfolio(**arguments)
    stay = solution.problem.utility(np.stack([arguments["previous"]] * 2))
    size = max(np.abs(solution.utility).max(), np.abs(stay).max())
    assert solution.utility[1] >= solution.utility[0] - 1e-12 * size
    assert (solution.utility >= stay - 1e-12 * size).all()
    assert solution.turnover_price[0] >= solution.turnover_price[1] - 1e-9 * size


def test_gradients():
    rng = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=rng, dtype=torch.float64)  # noqa: E731
    A, specific = draw(2, 5, 7), draw(2, 5).abs() + 0.5
    common = (
        0.5 * draw(2, 5),
        draw(2, 5),
        torch.full((2,), 1.3).double(),
        torch.full((2,), 0.6).double(),
        draw(2, 5).abs() * 0.02,
    )

    def decide(mean, logits, risk, gamma, cost, factor, diagonal, model, constraints):
        covariance = FactorCovariance(factor, diagonal) if model else factor @ factor.mT / 7
        return portfolio_layer(mean, covariance, logits.softmax(-1), risk, gamma, cost, constraints=constraints)

    for model in (False, True):
        for constraints in (None, Constraints(lower=-0.2, upper=0.6, cash=(0.0, 1.0))):
            inputs = [t.clone().requires_grad_() for t in (*common, A, specific)]
            layer, close = (
                partial(decide, model=model, constraints=constraints),
                {"eps": 1e-7, "atol": 1e-4, "rtol": 1e-3},
            )
            torch.autograd.gradcheck(layer, inputs, **close)
            torch.autograd.gradgradcheck(layer, inputs, **close)
            again = [
                torch.autograd.grad(layer(*inputs).pow(3).sum(), inputs, create_graph=graph, allow_unused=True)
                for graph in (False, True)
            ]
            for one, other in zip(*again, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)
            torch.testing.assert_close(torch.func.vmap(layer)(*inputs), layer(*inputs))
            every = tuple(range(len(inputs)))
            found = torch.func.vmap(torch.func.jacrev(layer, every))(*inputs)
            for one, whole in zip(found, torch.autograd.functional.jacobian(layer, tuple(inputs)), strict=True):
                torch.testing.assert_close(one[1], whole[1, :, 1])


def test_gradients_in_single_precision_of_a_shared_covariance():
    rng = np.random.default_rng(5)
    S = torch.tensor(random_portfolio_covariance(rng, 6, "definite"), dtype=torch.float32, requires_grad=True)
    mean = torch.tensor(rng.standard_normal((4, 6)), dtype=torch.float32, requires_grad=True)
    weights = portfolio_layer(mean, S, torch.full((6,), 1 / 6), 1.0, 0.8)
    weights.square().sum().backward()
    assert weights.dtype == S.grad.dtype == torch.float32
    assert S.grad.shape == (6, 6)
    assert mean.grad.abs().sum() > 0


BAD = [
    ({"mean": [0.1, np.nan]}, "mean"),
    ({"mean": ["a", "b"]}, "mean"),
    ({"mean": [0.1, 0.2, 0.3]}, "mean"),
    ({"mean": np.ma.array([0.1, 0.2], mask=[True, False])}, "mean: .* masked"),
    ({"covariance": [np.ma.array([1.0, 0.0], mask=[True, False]), [0.0, 1.0]]}, "covariance: .* masked"),
    ({"previous": np.ma.array([0.5, 0.5], mask=[True, False])}, "previous: .* masked"),
    ({"cost": np.ma.array([0.1, 0.2], mask=[True, False])}, "cost: .* masked"),
    ({"benchmark": np.ma.array([0.1, 0.2], mask=[True, False])}, "benchmark: .* masked"),
    ({"threads": "x"}, "threads: expected a whole number"),
    ({"start": 3}, "start: expected a PortfolioSolution"),
    ({"covariance": np.eye(3)}, "covariance"),
    ({"covariance": -np.eye(2)}, "covariance"),
    ({"covariance": [[1.0, 0.5], [0.0, 1.0]]}, "covariance"),
    ({"covariance": FactorCovariance(np.ones((3, 1)), np.ones(3))}, "covariance"),
    ({"previous": [0.5, 0.6]}, "previous"),
    ({"previous": [1.5, -0.5]}, "previous"),
    ({"risk_aversion": -1.0}, "risk_aversion"),
    ({"turnover_l1": -1.0}, "turnover_l1"),
    ({"cost": -1e-3}, "cost"),
    ({"benchmark": [0.1, np.inf]}, "benchmark"),
    ({"constraints": Constraints(lower=0.6, upper=0.5)}, "lower"),
    ({"constraints": Constraints(upper=[0.5, 0.5, 0.5])}, "upper"),
    ({"constraints": Constraints(upper=[0.1, 1.0]), "turnover_l1": 0.1}, "turnover_l1"),
]


@pytest.mark.parametrize(("change", "name"), BAD)
def test_bad_input_is_named(change, name):
    arguments = {"mean": [0.1, 0.2], "covariance": np.eye(2), "previous": [0.5, 0.5], "risk_aversion": 1.0}
    with pytest.raises(InputError, match=name):
        solve_portfolio(**(arguments | change))


@pytest.mark.parametrize("seed", range(60))
def test_bounds_cash_shorts_and_benchmarks_against_cvxpy(seed):
    import cvxpy as cp

    rng = np.random.default_rng(seed)
    m = int(rng.integers(3, 12))
    S, mean, p = (
        random_portfolio_covariance(rng, m, "definite") * 0.01,
        rng.standard_normal(m) * 0.01,
        rng.dirichlet(np.ones(m)),
    )
    lower = -rng.random(m) * 0.2 if seed % 2 else np.zeros(m)
    upper = np.full(m, 1.5 / m) if seed % 3 else np.ones(m)
    cash, rate = ((0.0, 0.5), 1e-3) if seed % 5 < 3 else ((0.0, 0.0), 0.0)
    cost, b = rng.random(m) * 1e-3, rng.dirichlet(np.ones(m))
    least = np.abs(p - np.clip(p, lower, upper)).sum()
    gamma = least + rng.uniform(0.3, 1.5)
    ours = solve_portfolio(
        mean, S, p, risk_aversion=2.0, turnover_l1=gamma, cost=cost, benchmark=b,
        constraints=Constraints(lower, upper, cash=cash, cash_return=rate),
    )  # fmt: skip
    s = cp.Variable(m)
    left = 1 - cp.sum(s)
    utility = mean @ s - 2.0 * cp.quad_form(s - b, cp.psd_wrap(S)) - cost @ cp.abs(s - p) + rate * left
    limits = [s >= lower, s <= upper, left >= cash[0], left <= cash[1], cp.norm1(s - p) <= gamma]
    cp.Problem(cp.Maximize(utility), limits).solve(solver="CLARABEL")
    assert float(ours.utility) == pytest.approx(utility.value, abs=1e-8)
    np.testing.assert_allclose(ours.weights, s.value, atol=2e-4)
    assert (ours.weights >= lower - 1e-13).all()
    assert (ours.weights <= upper + 1e-13).all()
    assert -1e-13 + cash[0] <= 1 - ours.weights.sum() <= cash[1] + 1e-13


@pytest.mark.parametrize("seed", range(40))
def test_groups_and_exposures_against_cvxpy(seed):
    import cvxpy as cp

    rng = np.random.default_rng(seed)
    m = int(rng.integers(4, 14))
    S, mean, p = (
        random_portfolio_covariance(rng, m, "definite") * 0.01,
        rng.standard_normal(m) * 0.01,
        rng.dirichlet(np.ones(m)),
    )
    group, beta = (rng.random(m) < 0.5).astype(float), rng.uniform(0.5, 1.5, m)
    share = group @ p
    limits = (
        Limit("group", group, max(share - 0.1, 0.0), share + 0.05),
        Limit("beta", beta, -np.inf, beta @ p + 0.02),
    )
    cash = (0.0, 0.3) if seed % 2 else (0.0, 0.0)
    cost, gamma = rng.random(m) * 1e-3, rng.uniform(0.1, 1.5)
    ours = solve_portfolio(
        mean, S, p, risk_aversion=2.0, turnover_l1=gamma, cost=cost,
        constraints=Constraints(0.0, 0.8, cash=cash, limits=limits),
    )  # fmt: skip
    assert ours.gap < 1e-12
    s = cp.Variable(m)
    utility = mean @ s - 2.0 * cp.quad_form(s, cp.psd_wrap(S)) - cost @ cp.abs(s - p)
    rows = [s >= 0, s <= 0.8, cp.sum(s) <= 1 - cash[0], cp.sum(s) >= 1 - cash[1], cp.norm1(s - p) <= gamma]
    rows += [group @ s >= limits[0].low, group @ s <= limits[0].high, beta @ s <= limits[1].high]
    cp.Problem(cp.Maximize(utility), rows).solve(solver="CLARABEL")
    assert float(ours.utility) == pytest.approx(utility.value, abs=1e-8)
    assert group @ ours.weights <= limits[0].high + 1e-12
    assert group @ ours.weights >= limits[0].low - 1e-12
    assert beta @ ours.weights <= limits[1].high + 1e-12


def test_a_conflict_is_named():
    limit = Limit("group x", np.array([1.0, 1, 0, 0]), 0.9, 1.0)
    options = {"risk_aversion": 1.0, "turnover_l1": 0.1, "constraints": Constraints(limits=(limit,))}
    with pytest.raises(InputError, match=r"group x \(0.9 to 1\) and the turnover budget \(0.1\)"):
        solve_portfolio(np.zeros(4), np.eye(4), np.full(4, 0.25), **options)


@pytest.mark.parametrize("form", ["numpy", "compiled"])
def test_the_path_alone_solves_what_is_not_degenerate(form, monkeypatch):
    """The second family repairs what the path gives up; here it may not."""
    from time2decide.markets import portfolio_general, turnover_decision, turnover_kernels

    def refuse(*_):
        raise AssertionError("the path gave up")

    module = turnover_decision if form == "numpy" else turnover_kernels
    monkeypatch.setattr(portfolio_general, "repair_general_rows", refuse)
    monkeypatch.setattr(portfolio_file, "turnover_engine", lambda rows, m: module)
    monkeypatch.setattr(portfolio_file, "_solve_single", lambda *arguments: None)
    rng = np.random.default_rng(6)
    for _ in range(60):
        arguments = draw_problem(rng, 30)
        m = len(arguments["mean"])
        arguments |= {"covariance": random_portfolio_covariance(rng, m, "factors"), "mean": rng.standard_normal(m)}
        assert solve_portfolio(**arguments).gap < 1e-12


def test_the_shortest_way_gives_the_same_answer(monkeypatch):
    from time2decide.markets import turnover_kernels

    monkeypatch.setattr(portfolio_file, "turnover_engine", lambda rows, m: turnover_kernels)
    for seed in range(60):
        arguments = random_problem(seed) | {"cost": 1e-4}
        short = portfolio_file._solve_single(*arguments.values())
        with monkeypatch.context() as long:
            long.setattr(portfolio_file, "_solve_single", lambda *arguments: None)
            answer = solve_portfolio(**arguments)
        if short is not None:
            assert float(short.utility) == pytest.approx(float(answer.utility), rel=1e-11, abs=1e-13)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cost": np.full(4, 1e-3)}, r"cost: expected 3 assets as in mean, found shape \(4,\)"),
        ({"risk_aversion": np.ones(2), "turnover_l1": np.ones(3)}, "mean: expected one batch shape"),
        ({"constraints": {"upper": 0.3}}, "constraints: expected Constraints, found dict"),
        ({"benchmark": np.array([1, 0, 0], dtype=object)}, "benchmark: expected real numbers, found ndarray of object"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(InputError, match=message):
        solve_portfolio(np.zeros(3), np.eye(3), np.full(3, 1 / 3), **{"risk_aversion": 1.0, **options})


def test_a_start_of_another_shape_is_refused():
    other = solve_portfolio(np.zeros(2), np.eye(2), np.full(2, 0.5), risk_aversion=1.0)
    with pytest.raises(InputError, match=r"start: expected a solution of shape \(3,\), found \(2,\)"):
        solve_portfolio(np.zeros(3), np.eye(3), np.full(3, 1 / 3), risk_aversion=1.0, start=other)


def test_bfloat16_is_read_as_numbers():
    mean = torch.tensor([0.5, 0.25, 0.0])
    answers = [
        solve_portfolio(mean.to(kind), np.eye(3), np.full(3, 1 / 3), risk_aversion=1.0).weights
        for kind in (torch.bfloat16, torch.float64)
    ]
    np.testing.assert_array_equal(*answers)


def test_tensors_with_gradients_are_read_as_numbers():
    mean = torch.tensor([0.5, 0.25, 0.0], requires_grad=True)
    answer = solve_portfolio(mean, torch.eye(3), torch.full((3,), 1 / 3), risk_aversion=1.0)
    assert isinstance(answer.weights, np.ndarray)
    np.testing.assert_allclose(answer.weights, [0.5 - 1 / 24, 1 / 3, 0.25 - 1 / 24], atol=1e-7)


def test_the_layer_names_bad_arguments():
    mean, previous = torch.zeros(3, dtype=torch.float64), torch.full((3,), 1 / 3, dtype=torch.float64)
    for arguments, options, message in (
        ((mean.numpy(), torch.eye(3), previous, 1.0), {}, "mean: expected a tensor"),
        ((mean.long(), torch.eye(3), previous, 1.0), {}, "mean: expected a tensor"),
        ((mean, torch.eye(3), previous, 1.0, 1.0, torch.ones(2)), {}, "mean: expected shapes that fit"),
        ((mean, torch.eye(3), previous, 1.0), {"benchmark": previous.clone().requires_grad_()}, "benchmark"),
    ):
        with pytest.raises(InputError, match=message):
            portfolio_layer(*arguments, **options)


def test_labels_of_pandas_must_agree_in_order():
    rng = np.random.default_rng(0)
    names, p = list("ABC"), np.full(3, 1 / 3)
    mean = pd.Series(0.01 * rng.normal(size=3), names)
    S = pd.DataFrame(np.diag([1e-4, 4e-4, 9e-4]), names, names)
    given = {"risk_aversion": 2.0, "turnover_l1": 1.0}
    weights = solve_portfolio(mean, S, pd.Series(p, names), **given).weights
    np.testing.assert_array_equal(weights, solve_portfolio(mean.to_numpy(), S.to_numpy(), p, **given).weights)
    other = ["B", "A", "C"]
    for wrong in (
        {"covariance": S.loc[other, other]},
        {"covariance": S.loc[other]},
        {"covariance": S[other]},
        {"previous": pd.Series(p, other)},
        {"benchmark": pd.Series(p, other)},
        {"cost": pd.Series(p, other)},
        {"mean": mean[other]},
    ):
        arguments = {"mean": mean, "covariance": S, "previous": pd.Series(p, names)} | wrong
        with pytest.raises(InputError, match="in the same order, found their assets in another order"):
            solve_portfolio(**arguments, **given)
    with pytest.raises(InputError, match="previous: expected the assets of mean in the same order, found others"):
        solve_portfolio(mean, S, pd.Series(p, list("ABD")), **given)


@pytest.mark.parametrize("seed", range(20))
def test_prices_of_limits_prove_the_optimum(seed):
    """gradient − ν − Aᵀη is at most the price of a trade for assets between their bounds."""
    rng = np.random.default_rng(seed)
    m = 6
    mean, S, p = 0.01 * rng.normal(size=m), 1e-3 * np.cov(rng.normal(size=(m, 30))), np.full(m, 1 / m)
    limits = tuple(Limit(str(k), 10.0**k * rng.normal(size=m), -np.inf, 0.0) for k in (0, 3))
    limits = tuple(one._replace(high=float(one.coefficients @ p) - 0.01 * one.size) for one in limits)
    found = solve_portfolio(mean, S, p, risk_aversion=3.0, cost=1e-4, constraints=Constraints(limits=limits))
    assert found.limit_prices.shape == (2,)
    assert (found.limit_prices >= 0).all()
    slope = mean - 6.0 * S @ found.weights - found.budget_price
    slope = slope - sum(e * one.coefficients for e, one in zip(found.limit_prices, limits, strict=True))
    traded = (found.weights > 1e-9) & (np.abs(found.weights - p) > 1e-9)
    price = 1e-4 + float(found.turnover_price)
    np.testing.assert_allclose(np.abs(slope[traded]), price, atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_a_limit_that_nothing_can_reach_changes_nothing(seed):
    rng, two, beta = np.random.default_rng(seed), np.array([1.0, 1, 0, 0]), np.array([1.2, 0, 0.9, 0])
    mean, covariance, p = 1e-3 * rng.standard_normal(4), np.cov(0.01 * rng.standard_normal((4, 80))), np.full(4, 0.25)
    terms = {"risk_aversion": 2.0, "cost": 1e-3, "turnover_l1": 1.0}
    answers = []
    for far in (np.inf, 1e3, 1e12, 1e15, 1e300):
        limits = (Limit("two", two, -far, 0.6), Limit("beta", beta, 0.1, far))
        rules = Constraints(0.0, [0.9, 0.9, far, far], cash=(0.0, 0.2), cash_return=1e-4, limits=limits)
        answers.append(solve_portfolio(mean, covariance, p, constraints=rules, **terms))
        assert answers[-1].gap <= 1e-12
        np.testing.assert_allclose(answers[-1].weights, answers[0].weights, atol=1e-12)


def test_fixed_assets_under_limits_are_solved_to_rounding():
    """Bounds that meet leave interior points no interior: of this projection seven digits were lost."""
    from time2decide.markets.portfolio_general import solve_decision
    from time2decide.markets.portfolio_interior import ScaledDecision
    from time2decide.markets.turnover_path import Curvature

    p = np.array([
        1.0936198669635666e-05, 0.06688657604345434, 0.0501676660822582, 0.06670049597813724, 0.06739107288629642,
        1.0919734879564136e-05, 0.21569838721541684, 0.06685376744744538, 0.06626221164784137, 0.06688657604345434,
        0.06688657604345434, 0.06643619382068881, 0.06645015124128519, 0.066690419327274, 0.06666805028944424,
    ])  # fmt: skip
    q = np.array([
        -0.14927559378037025, -0.0826089271137036, -0.09927559378037021, -0.0826089271137036, 0.06739107288629642,
        -0.14927559378037025, -0.015942260447036977, -0.0826089271137036, -0.14927559378037025, -0.0826089271137036,
        -0.0826089271137036, -0.0826089271137036, -0.0826089271137036, -0.0826089271137036, -0.0826089271137036,
    ])  # fmt: skip
    lower, upper, fixed = np.zeros(15), np.full(15, 0.4), [0, 1, 2, 7, 9, 10]
    lower[fixed] = upper[fixed] = p[fixed]
    rows = np.stack([np.repeat([1.0, 0.0], [7, 8]), np.ones(15)])
    Q = Curvature(np.eye(15), np.zeros((0, 0)), np.zeros(0), 1.0)
    terms = np.zeros(15), rows, np.array([-np.inf, 1.0]), np.array([0.6, 1.0]), 0.29999999999999993
    found = solve_decision(ScaledDecision(Q, q, p, lower, upper, *terms))
    assert found.gap <= 1e-14
    np.testing.assert_allclose(found.s[fixed], p[fixed], rtol=0, atol=1e-15)


@pytest.mark.parametrize("benchmark", [1.0, [1.0], [0.5, 0.5]])
def test_a_benchmark_has_a_weight_for_each_asset(benchmark):
    with pytest.raises(InputError, match="benchmark: expected 3 assets as in mean"):
        solve_portfolio(np.zeros(3), np.eye(3), np.full(3, 1 / 3), risk_aversion=5.0, benchmark=benchmark)


@pytest.mark.parametrize(("done", "compiled", "name"), [
    (0, True, "turnover_decision"), (20_000, False, "turnover_decision"), (20_000, True, "turnover_kernels"),
    (1_000_000, False, "turnover_kernels"),
])  # fmt: skip
def test_code_is_compiled_for_much_work_only_and_loaded_for_some(monkeypatch, done, compiled, name):
    monkeypatch.delitem(sys.modules, portfolio_file._KERNELS, raising=False)
    monkeypatch.setattr(portfolio_file, "_done", done)
    monkeypatch.setattr(portfolio_file, "compiled_before", lambda: compiled)
    monkeypatch.setattr(portfolio_file, "import_module", lambda module: SimpleNamespace(__name__=module))
    assert portfolio_file.turnover_engine(1, 1).__name__ == f"time2decide.markets.{name}"


def test_compiled_code_counts_if_it_is_whole_and_newer_than_its_sources(monkeypatch, tmp_path):
    look = portfolio_file.compiled_before.__wrapped__
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert not look()
    (tmp_path / "a").mkdir()
    for name in portfolio_file._ENTRIES:
        assert not look()
        (tmp_path / "a" / f"turnover_decision.{name}_0badcafe-12.py311.nbi").touch()
    assert look()
    os.utime(tmp_path / "a" / f"turnover_decision.{portfolio_file._ENTRIES[0]}_0badcafe-12.py311.nbi", (1, 1))
    assert not look()


@pytest.mark.parametrize("seed", range(6))
def test_no_trade_is_small_and_the_rest_is_the_optimum_with_these_weights_fixed(seed):
    rng = np.random.default_rng(seed)
    m = 12
    mean, previous = 3e-4 * rng.normal(size=m), rng.dirichlet(np.ones(m))
    factors = rng.normal(size=(40, m)) * 0.01
    terms = {"risk_aversion": 5.0, "turnover_l1": 0.5, "cost": 1e-5}
    rules = None if seed % 2 else Constraints(upper=0.5, limits=(Limit("x", 1.0 * (np.arange(m) < 5), 0.1, 0.6),))
    free = solve_portfolio(mean, np.cov(factors.T), previous, constraints=rules, **terms)
    trades = np.abs(free.weights - previous)
    least = float(np.sort(trades[trades > 1e-6])[1]) * 1.01  # two are too small, or more as others grow
    found, fixed = solve_without_small_trades(mean, np.cov(factors.T), previous, least, rules, **terms)
    trades = np.abs(found.weights - previous)
    assert ((trades < 1e-12) | (trades >= least * (1 - 1e-6))).all()
    assert found.gap <= 1e-12
    again = solve_portfolio(mean, np.cov(factors.T), previous, constraints=fixed, **terms)
    np.testing.assert_allclose(found.weights, again.weights, atol=1e-9)
    assert found.utility <= free.utility + 1e-15


def test_a_large_smallest_trade_leaves_everything_and_forced_trades_are_made():
    mean, sigma, previous = np.array([1e-4, 0.0, 2e-4]), 1e-4 * np.eye(3), np.array([0.3, 0.3, 0.4])
    terms = {"risk_aversion": 2.0, "turnover_l1": 1.0}
    found, _ = solve_without_small_trades(mean, sigma, previous, 1.0, **terms)
    np.testing.assert_allclose(found.weights, previous, atol=1e-15)
    assert found.gap <= 1e-12
    tight = Constraints(upper=np.array([1.0, 1.0, 0.39]))  # a sale of 0.01, and a purchase from it
    found, _ = solve_without_small_trades(mean, sigma, previous, 0.5, tight, **terms)
    assert found.weights[2] <= 0.39 + 1e-12
    assert found.gap <= 1e-12
    same, untouched = solve_without_small_trades(mean, sigma, previous, 0.0, tight, **terms)
    assert untouched is tight
    assert (same.weights == solve_portfolio(mean, sigma, previous, constraints=tight, **terms).weights).all()


def test_assets_that_are_not_traded_are_not_fixed():
    """Only a small trade fixes its asset; one that stands still is free to trade in the next round."""
    mean, sigma, previous = np.array([0.02, 0.0, 0.0, -0.02]), 1e-3 * np.eye(4), np.full(4, 0.25)
    terms = {"risk_aversion": 1.0, "turnover_l1": 0.2, "cost": 0.015}
    found, fixed = solve_without_small_trades(mean, sigma, previous, 0.05, **terms)
    np.testing.assert_array_equal(np.abs(found.weights - previous) > 1e-12, [True, False, False, True])
    assert fixed is None


def test_each_kind_of_covariance_leaves_the_other_empty():
    """Rows of a problem say by their shape which of the two forms of Σ they have."""
    sigma, factors = np.eye(3), FactorCovariance(np.ones((3, 1)), np.ones(3))
    for covariance, shapes in ((sigma, ((1, 3, 3), (1, 0, 0), (1, 0))), (factors, ((1, 0, 0), (1, 3, 1), (1, 3)))):
        problem, lead = build_portfolio_problem(
            np.zeros(3), covariance, np.full(3, 1 / 3), 1.0, 1.0, 0.0, None, LONG_ONLY
        )
        assert lead == ()
        assert (problem.dense.shape, problem.loadings.shape, problem.specific.shape) == shapes


@pytest.mark.parametrize("unit", [2.0**-40, 2.0**20])
def test_the_unit_of_utility_changes_not_a_bit(unit):
    """Returns, covariance and cost times a power of two: the same weights, and prices in that unit."""
    rng = np.random.default_rng(4)
    G, mean, p = rng.normal(size=(8, 9)), rng.normal(size=(6, 8)), rng.dirichlet(np.ones(8), 6)
    gamma, limit = rng.uniform(0.6, 1.5, 6), Limit("first", 1.0 * (np.arange(8) < 3), 0.2, 0.5)
    for rules in (None, Constraints(-0.1, 0.6, cash=(0.0, 0.3), cash_return=0.1), Constraints(limits=(limit,))):
        scaled = None if rules is None else replace(rules, cash_return=unit * rules.cash_return)
        one, other = (
            solve_portfolio(
                by * mean, by * (G @ G.T), p, risk_aversion=0.3, turnover_l1=gamma, cost=by * 0.01, constraints=terms
            )
            for by, terms in ((1.0, rules), (unit, scaled))
        )
        np.testing.assert_array_equal(other.weights, one.weights)
        np.testing.assert_array_equal(other.turnover_price, unit * one.turnover_price)
        np.testing.assert_array_equal(other.gap, one.gap)
        np.testing.assert_allclose(other.utility, unit * one.utility, rtol=1e-14)


@pytest.mark.parametrize("compiled", [True, False])
def test_an_indefinite_covariance_is_refused_by_whichever_form_checks_it(compiled, monkeypatch):
    if compiled:
        monkeypatch.setitem(sys.modules, portfolio_file._KERNELS, turnover_kernels)
    else:
        monkeypatch.delitem(sys.modules, portfolio_file._KERNELS, raising=False)
    S = np.stack([np.eye(3), np.diag([1.0, -0.5, 1.0])])
    for covariance in (S, S[1]):
        with pytest.raises(InputError, match="covariance: expected positive semidefinite"):
            solve_portfolio(np.zeros(3), covariance, np.full(3, 1 / 3), risk_aversion=1.0)
    S[1, 1, 1], S[1, 0, 2] = 0.5, 0.1
    with pytest.raises(InputError, match="covariance: expected symmetric"):
        solve_portfolio(np.zeros(3), S, np.full(3, 1 / 3), risk_aversion=1.0)


def test_what_cannot_keep_its_weight_trades_enough_if_it_can():
    """Fixing all small trades breaks the group; one of its assets has to be bought, and by the smallest trade."""
    previous, mean = np.array([0.15, 0.15, 0.2, 0.2, 0.15, 0.15]), np.array([2e-4, -3e-4, -1e-4, 0, 0, 1e-4])
    rules = Constraints(limits=(Limit("x", np.array([1.0, 1, 0, 0, 0, 0]), 0.306, 1.0),))
    terms = {"risk_aversion": 2.0, "turnover_l1": 0.03}
    free = solve_portfolio(mean, 1e-3 * np.eye(6), previous, constraints=rules, **terms)
    assert (np.abs(free.weights - previous) < 0.008).any()
    found, fixed = solve_without_small_trades(mean, 1e-3 * np.eye(6), previous, 0.008, rules, **terms)
    trades = np.abs(found.weights - previous)
    assert ((trades < 1e-12) | (trades >= 0.008 * (1 - 1e-6))).all(), found.weights - previous
    assert found.gap <= 1e-12
    again = solve_portfolio(mean, 1e-3 * np.eye(6), previous, constraints=fixed, **terms)
    np.testing.assert_allclose(found.weights, again.weights, atol=1e-12)
    assert (fixed.bounds(6)[0] == fixed.bounds(6)[1]).sum() >= 2


def test_a_weight_above_its_cap_is_sold_by_the_smallest_trade_at_least():
    """It cannot keep its weight, and a sale to the cap alone would be too small."""
    previous, cap = np.array([0.302, 0.3, 0.2, 0.198]), Constraints(upper=np.array([0.3, 1.0, 1.0, 1.0]))
    terms = {"risk_aversion": 2.0, "turnover_l1": 0.1, "cost": 1e-3}
    free = solve_portfolio(np.zeros(4), 1e-4 * np.eye(4), previous, constraints=cap, **terms)
    assert 0 < previous[0] - free.weights[0] < 0.01
    found, fixed = solve_without_small_trades(np.zeros(4), 1e-4 * np.eye(4), previous, 0.01, cap, **terms)
    trades = np.abs(found.weights - previous)
    assert ((trades < 1e-12) | (trades >= 0.01 * (1 - 1e-9))).all()
    assert trades[0] >= 0.01 * (1 - 1e-9)
    again = solve_portfolio(np.zeros(4), 1e-4 * np.eye(4), previous, constraints=fixed, **terms)
    np.testing.assert_allclose(found.weights, again.weights, atol=1e-12)


def test_large_covariances_are_looked_at_in_single_precision_first(monkeypatch):
    """What it passes is definite; what it does not pass is left to the full check, and passes or is refused there."""
    rng = np.random.default_rng(0)
    m = 1_000
    B = rng.normal(size=(m, 3))
    S = B @ B.T + np.diag(rng.uniform(0.1, 0.5, m))
    assert portfolio_file._is_clearly_definite(S)
    values, vectors = np.linalg.eigh(S)
    for least, passes in ((1e-2, True), (1e-6, False), (-1e-6, False), (-1e-2, False)):
        changed = S + (least * S.diagonal().max() - values[0]) * np.outer(vectors[:, 0], vectors[:, 0])
        assert portfolio_file._is_clearly_definite((changed + changed.T) / 2) == passes
    skewed = S.copy()
    skewed[0, 1] += 1e-3
    assert not portfolio_file._is_clearly_definite(skewed)
    assert not portfolio_file._is_clearly_definite(S * np.nan)
    with pytest.raises(InputError, match="covariance: expected positive semidefinite"):
        solve_portfolio(np.zeros(m), S - 2 * np.eye(m), np.full(m, 1 / m), risk_aversion=1.0)
    low = solve_portfolio(1e-3 * rng.normal(size=m), B @ B.T, np.full(m, 1 / m), risk_aversion=1.0, turnover_l1=0.1)
    assert low.gap <= 1e-12
