from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from time2decide.backtesting.baselines import SoftForecast, Uniform
from time2decide.backtesting.registry import make_strategy
from time2decide.core.validation import InputError
from time2decide.markets import LMCConfig, oracle_path, synthetic_returns
from time2decide.markets.constraints import LONG_ONLY
from time2decide.markets.portfolio import nearest_portfolio
from time2decide.qp.projections import project_portfolio
from time2decide.simulation.engine import Observation, _project, rollout

GAMMAS = (0.5, 2.0)
SHORT = LMCConfig(channels=6, length=130)


@pytest.fixture(scope="module")
def returns():
    return synthetic_returns("noisy", count=3, config=SHORT)


@dataclass
class Probe:
    """Records what it is given, damages it, and answers with something infeasible."""

    name: str = "probe"
    wants_hindsight: bool = True
    seen: list[Observation] = field(default_factory=list)

    def decide(self, past: Observation) -> np.ndarray:
        self.seen.append(
            Observation(past.returns.copy(), past.allocations.copy(), past.hindsight.copy(), *self.rest(past))
        )
        answer = np.random.default_rng(len(self.seen)).normal(size=past.previous.shape)
        for array in (past.returns, past.allocations, past.hindsight, past.turnover_l1, past.current):
            array[...] = np.nan
        return answer

    @staticmethod
    def rest(past):
        return past.turnover_l1.copy(), past.risk_aversion


def test_the_past_is_a_copy_that_ends_before_the_decision(returns):
    probe = Probe()
    oracle = oracle_path(returns, GAMMAS)
    result = rollout(returns, probe, GAMMAS, oracle=oracle)
    assert len(probe.seen) == 130 - 96
    for t, past in zip(range(96, 130), probe.seen, strict=True):
        np.testing.assert_array_equal(past.returns, returns[:, t - 96 : t])
        np.testing.assert_array_equal(past.hindsight, oracle[:, :, t - 96 : t])
        np.testing.assert_array_equal(past.allocations, result.allocations[:, :, t - 96 : t])
        np.testing.assert_array_equal(past.previous, result.allocations[:, :, t - 1])
        np.testing.assert_array_equal(past.turnover_l1, GAMMAS)


def test_no_array_of_the_past_leads_to_the_future(returns):
    @dataclass
    class Climber:
        name: str = "climber"
        wants_hindsight: bool = True

        def decide(self, past: Observation) -> np.ndarray:
            for array in (past.returns, past.allocations, past.hindsight):
                assert array.base is None  # a view would carry the whole array with it
            return np.ones(past.returns.shape[-1])

    rollout(returns, Climber(), GAMMAS)


def test_hindsight_is_that_of_the_risk_aversion_of_the_rollout(returns):
    probe = Probe()
    rollout(returns, probe, GAMMAS, risk_aversion=100.0)
    oracle = oracle_path(returns, GAMMAS, 100.0)
    np.testing.assert_array_equal(probe.seen[-1].hindsight, oracle[:, :, 33:129])
    assert np.abs(oracle - oracle_path(returns, GAMMAS)).max() > 0.1  # so that the two can be told apart


def test_hindsight_is_given_only_to_those_who_ask(returns):
    @dataclass
    class Plain:
        name: str = "plain"
        wants_hindsight: bool = False

        def decide(self, past: Observation) -> np.ndarray:
            assert past.hindsight is None
            return past.previous

    rollout(returns, Plain(), 1.0, oracle=oracle_path(returns, [1.0]))


def test_answers_are_projected_and_both_are_kept(returns):
    result = rollout(returns, Probe(), GAMMAS)
    held, raw = result.allocations, result.raw
    assert raw.shape == held.shape == (3, 2, 130, 6)
    np.testing.assert_allclose(held[:, :, :96], 1 / 6)
    np.testing.assert_allclose(held.sum(-1), 1, atol=1e-12)
    assert held.min() >= 0
    moved = np.abs(np.diff(held, axis=2)).sum(-1)
    assert (moved <= np.asarray(GAMMAS)[:, None] + 1e-12).all()
    for t in (96, 110, 129):
        expected = project_portfolio(raw[:, 0, t], held[:, 0, t - 1], 0.5)
        np.testing.assert_allclose(held[:, 0, t], expected, atol=1e-12)


def test_budgets_and_series_do_not_influence_each_other(returns):
    strategy = SoftForecast(temperature=0.3)
    together = rollout(returns, strategy, GAMMAS)
    alone = rollout(returns[1], strategy, GAMMAS[0])
    np.testing.assert_allclose(together.allocations[1:2, :1], alone.allocations, atol=1e-12)


def test_bad_answers_and_arguments_are_named(returns):
    @dataclass
    class Wrong:
        answer: np.ndarray
        name: str = "wrong"
        wants_hindsight: bool = False

        def decide(self, past: Observation) -> np.ndarray:
            return self.answer

    with pytest.raises(InputError, match=r"wrong: expected weights of shape \(3, 1, 6\), found \(5,\)"):
        rollout(returns, Wrong(np.ones(5)), 1.0)
    with pytest.raises(InputError, match="wrong: expected finite weights, found nan"):
        rollout(returns, Wrong(np.full(6, np.nan)), 1.0)
    with pytest.raises(InputError, match="turnover_l1"):
        rollout(returns, Uniform(), [-1.0])
    with pytest.raises(InputError, match="oracle"):
        rollout(returns, make_strategy("lag1-oracle"), 1.0, oracle=np.zeros((1, 1, 1, 1)))
    with pytest.raises(InputError, match="strategies: expected some of market"):
        make_strategy("magic")


@dataclass
class Says:
    """Answers with whatever it was given."""

    answer: object
    name: str = "says"
    wants_hindsight: bool = False

    def decide(self, past):
        return self.answer


def test_answers_that_would_lose_something_on_the_way_are_refused(returns):
    masked = np.ma.masked_array(np.full(6, 1 / 6), mask=[1, 0, 0, 0, 0, 0])
    for answer, words in (
        (masked, "masked"),
        (np.full(6, 1 / 6 + 1j), "complex"),
        (torch.eye(6).to_sparse(), "sparse"),
    ):
        with pytest.raises(InputError, match=rf"says: expected .*{words}"):
            rollout(returns, Says(answer), 1.0)
    with pytest.raises(InputError, match=r"says: expected weights within 1e\+09, found 1e\+17"):
        rollout(returns, Says(np.full(6, 1e17)), 1.0)
    with pytest.raises(InputError, match="strategy: expected an object, found the class Uniform"):
        rollout(returns, Uniform, 1.0)


BAD_TURNOVER = ("x", 1j, {}, object(), [[1], [1, 2]], 10**400, np.array(["a"]), [], [[1.0]], -1.0, np.nan)


def test_impossible_returns_and_what_no_budget_can_be():
    plain = np.random.default_rng(0).normal(0, 0.01, (1, 30, 3))
    fallen = plain.copy()
    fallen[0, 5, 1] = -1.5
    with pytest.raises(InputError, match=r"returns: expected returns of at least -1, found -1.5 at index \(0, 5, 1\)"):
        rollout(fallen, Uniform(), 1.0, window=20)
    with pytest.raises(InputError, match="returns: expected real numbers, found dtype bool"):
        rollout(plain > 0, Uniform(), 1.0, window=20)
    for bad in BAD_TURNOVER:
        for call in (rollout, lambda r, s, g, window: oracle_path(r, g, window=window)):
            with pytest.raises(InputError, match=r"^turnover_l1: expected"):
                call(plain, Uniform(), bad, window=20)


@pytest.mark.parametrize("answer", ["x", 1j, {}, object(), None, [[1], [1, 2]], 10**400])
def test_an_answer_that_is_no_array_is_the_strategys_fault(answer):
    plain = np.random.default_rng(0).normal(0, 0.01, (1, 30, 3))
    with pytest.raises(InputError, match=r"^says: expected"):
        rollout(plain, Says(answer), 1.0, window=20)


@pytest.mark.parametrize("oracle", ["x", np.nan, np.full((1, 1, 30, 3), np.nan), np.zeros((1, 30, 3))])
def test_a_path_that_is_no_oracle(oracle):
    plain = np.random.default_rng(0).normal(0, 0.01, (1, 30, 3))
    with pytest.raises(InputError, match=r"^oracle: expected finite numbers of shape \(1, 1, 30, 3\)"):
        rollout(plain, Probe(), 1.0, window=20, oracle=oracle)


def test_the_budget_can_be_measured_from_drifted_weights():
    returns = np.random.default_rng(3).normal(0, 0.05, (2, 120, 4))
    probe = Probe(wants_hindsight=True)
    result = rollout(returns, probe, [0.1, 0.5], budget_from="drifted", cost_bps=7.0)
    held = result.allocations
    for t in range(96, 120):
        before = held[:, :, t - 1]
        if t > 96:  # the first decision starts from the uniform portfolio itself
            grown = before * (1 + returns[:, None, t - 1])
            before = grown / grown.sum(-1, keepdims=True)
        turnover = np.abs(held[:, :, t] - before).sum(-1)
        assert (turnover <= np.array([0.1, 0.5]) + 1e-9).all()
        assert turnover.max() > 0.49  # random answers use all of it
    assert result.budget_from == "drifted"


def test_a_strategy_is_told_the_current_weights_and_the_cost():
    returns = np.random.default_rng(3).normal(0, 0.05, (100, 3))

    @dataclass
    class Holds:
        name: str = "holds"
        wants_hindsight: bool = False

        def decide(self, past):
            assert past.cost_bps == 7.0
            return past.previous

    held = rollout(returns, Holds(), 0.1, budget_from="drifted", cost_bps=7.0).allocations[0, 0]
    wealth = np.cumprod(1 + returns[96:], axis=0)  # of 1/3 in each, never traded
    np.testing.assert_allclose(held[-1], wealth[-2] / wealth[-2].sum())


@pytest.mark.parametrize("bad", [{"budget_from": "wealth"}, {"cost_bps": -1.0}, {"cost_bps": 5000.0}])
def test_bad_conventions(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        rollout(np.random.default_rng(0).normal(0, 0.01, (100, 3)), Uniform(), 1.0, **bad)


def test_progress_is_told_before_every_decision(returns):
    told = []
    rollout(returns, Uniform(), GAMMAS, progress=lambda step, steps: told.append((step, steps)))
    assert told == [(step, 130 - 96) for step in range(130 - 96)]


def test_an_answer_that_is_feasible_to_rounding_stays_as_it_is():
    """Bit by bit: a projection would change the last digits of weights that need none."""
    held = np.full((1, 2, 4), 0.25)
    raw = np.array([[[0.3, 0.2, 0.3, 0.2 - 5e-13], [0.0, 0.5, 0.25, 0.25 + 5e-13]]])
    np.testing.assert_array_equal(_project(raw, held, np.array([0.2, 0.5])), raw)
    for off in (raw + 1e-9, raw - np.array([0.1, -0.1, 0, 0]), held + np.array([0.2, 0.1, -0.1, -0.2])):
        found = _project(off, held, np.array([0.2, 0.5]))
        assert found.min() >= 0
        np.testing.assert_allclose(found.sum(-1), 1, atol=1e-14)
        assert (np.abs(found - held).sum(-1) <= np.array([0.2, 0.5]) + 1e-14).all()


def test_weights_that_cannot_change_stay_and_the_others_are_the_nearest():
    rng = np.random.default_rng(5)
    raw, held = rng.normal(0.2, 0.3, (4, 2, 5)), rng.dirichlet(np.ones(5), (4, 2))
    budgets, frozen = np.array([0.2, 0.9]), np.array([True, False, False, True, False])
    found = _project(raw, held, budgets, None, frozen)
    np.testing.assert_array_equal(found[..., frozen], held[..., frozen])
    for i, k in np.ndindex(4, 2):
        rules = LONG_ONLY.fix(held[i, k], frozen)
        expected = nearest_portfolio(raw[i, k, None], held[i, k, None], budgets[k, None], rules)
        np.testing.assert_allclose(found[i, k], expected[0], atol=1e-9)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_answer_is_taken_and_the_next_number_refused(sign):
    @dataclass
    class Says:
        answer: np.ndarray
        name: str = "says"
        wants_hindsight: bool = False

        def decide(self, past: Observation) -> np.ndarray:
            return self.answer

    returns = np.random.default_rng(0).normal(0, 0.01, (98, 3))
    held = rollout(returns, Says(sign * np.array([1e9, 0.0, 0.0])), 2.0).allocations
    np.testing.assert_allclose(held[0, 0, 97], [1, 0, 0] if sign > 0 else [0, 0.5, 0.5], atol=1e-6)
    with pytest.raises(InputError, match=r"says: expected weights within 1e\+09"):
        rollout(returns, Says(sign * np.array([np.nextafter(1e9, np.inf), 0.0, 0.0])), 2.0)
