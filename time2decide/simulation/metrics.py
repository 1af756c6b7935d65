"""Scores of decisions: distance to the oracle, utility, regret, turnover; net returns, Sharpe ratio, bootstrap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from time2decide.markets.constraints import Constraints
from time2decide.simulation.engine import Rollout
from time2decide.simulation.execution import drifted_weights, portfolio_returns


@dataclass(frozen=True)
class Score:
    """Scores of a rollout, each (series, budgets): means over the steps from `window` on.

    mse : of the raw output to the oracle, mean over steps **and assets**, as in the paper's tables
    mse_projected : the same for the projected weights
    utility : sᵀr_t − λ sᵀΣ̂_t s of the weights held, what cash earns included
    regret : the oracle's utility minus this one
    turnover : ‖s_t − p_t‖₁ from the weights p_t that the budget is measured from
    """

    mse: np.ndarray
    mse_projected: np.ndarray
    utility: np.ndarray
    regret: np.ndarray
    turnover: np.ndarray

    def rows(self) -> list[dict[str, float]]:
        """One row per budget: the mean over series of every score, and `mse_error`, its standard error."""
        count = len(self.mse)
        means = {key: value.mean(axis=0) for key, value in vars(self).items()}
        if count > 1:
            means["mse_error"] = self.mse.std(axis=0, ddof=1) / np.sqrt(count)
        return [{key: float(value[k]) for key, value in means.items()} for k in range(self.mse.shape[1])]


def score(result: Rollout, returns: np.ndarray, oracle: np.ndarray) -> Score:
    """Score a rollout on returns (series, time, m) against the oracle's path (series, budgets, time, m)."""
    start = result.window
    best = utility_path(returns, oracle, result.risk_aversion, start).mean(-1)
    own = utility_path(returns, result.allocations, result.risk_aversion, start, result.constraints).mean(-1)
    return Score(
        mse=squared_distance_to_oracle(result.raw, oracle, start),
        mse_projected=squared_distance_to_oracle(result.allocations, oracle, start),
        utility=own,
        regret=best - own,
        turnover=rollout_turnover(result, returns).mean(-1),
    )


def squared_distance_to_oracle(allocations: np.ndarray, oracle: np.ndarray, window: int) -> np.ndarray:
    """Mean over steps from `window` on and over assets, (series, budgets)."""
    return np.asarray(((allocations[:, :, window:] - oracle[:, :, window:]) ** 2).mean(axis=(2, 3)))


def utility_path(
    returns: np.ndarray,
    allocations: np.ndarray,
    risk_aversion: float,
    window: int,
    constraints: Constraints | None = None,
) -> np.ndarray:
    """sᵀr_t − λ sᵀΣ̂_t s for t = window …, (series, budgets, time − window).

    sᵀΣ̂_t s is the variance that these weights would have had over the `window` steps before t.
    """
    series, budgets, time, _ = allocations.shape
    utility = np.empty((series, budgets, time - window))
    for t in range(window, time):
        weights = allocations[:, :, t]
        path = returns[:, t - window : t] @ weights.swapaxes(-1, -2)  # (series, window, budgets)
        earned = portfolio_returns(weights, returns[:, None, t], constraints)
        utility[:, :, t - window] = earned - risk_aversion * path.var(axis=1, ddof=1)
    return utility


def rollout_turnover(result: Rollout, returns: np.ndarray) -> np.ndarray:
    """‖s_t − p_t‖₁ from the weights p_t that the budget is measured from, (series, budgets, time − window)."""
    if result.budget_from == "drifted":
        return rollout_traded(result, returns)
    return np.asarray(np.abs(np.diff(result.allocations[:, :, result.window - 1 :], axis=2)).sum(-1))


def rollout_traded(result: Rollout, returns: np.ndarray) -> np.ndarray:
    """‖s_t − drifted s_{t−1}‖₁, the share of wealth that really changes hands, (series, budgets, time − window).

    Between two trades weights drift with the returns: s ⊙ (1 + r) / (1 + sᵀr).
    """
    held, last = result.allocations, result.window - 1
    before = drifted_weights(held[:, :, last:-1], returns[:, None, last:-1], result.constraints)
    before[:, :, 0] = held[:, :, last]  # the first decision starts from the uniform portfolio itself
    return np.asarray(np.abs(held[:, :, last + 1 :] - before).sum(-1))


def net_returns(result: Rollout, returns: np.ndarray, cost_bps: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns after costs and the amount traded, (series, budgets, time − window) each.

    The cost of the amount traded, measured from drifted weights, is paid from wealth before the return is earned:
    (1 − c ‖s_t − drifted s_{t−1}‖₁)(1 + s_tᵀr_t) − 1, what cash earns included.
    """
    amount = rollout_traded(result, returns)
    return (1 - cost_bps / 1e4 * amount) * (1 + gross_returns(result, returns)) - 1, amount


def gross_returns(result: Rollout, returns: np.ndarray) -> np.ndarray:
    """What the weights earned before costs, cash included, (series, budgets, time − window)."""
    start = result.window
    return portfolio_returns(result.allocations[:, :, start:], returns[:, None, start:], result.constraints)


def realised_utility(net: np.ndarray, risk_aversion: float) -> np.ndarray:
    """mean − λ · variance of net returns (…, time), per step: what a mean-variance investor has had of them."""
    return np.asarray(net.mean(axis=-1) - risk_aversion * net.var(axis=-1))


def annual_performance(net: np.ndarray, periods_per_year: float) -> dict[str, float]:
    """Annual return and volatility, Sharpe ratio and deepest drawdown of simple net returns (time,)."""
    wealth = np.cumprod(1 + net)
    peak = np.maximum.accumulate(np.maximum(wealth, 1.0))
    volatility = float(net.std(ddof=1) * np.sqrt(periods_per_year)) if len(net) > 1 else float("nan")
    return {
        "annual_return": float(wealth[-1] ** (periods_per_year / len(net)) - 1) if wealth[-1] > 0 else -1.0,
        "annual_volatility": volatility,
        "sharpe": float(sharpe_ratio(net, periods_per_year)),
        "max_drawdown": float((1 - wealth / peak).max()),
    }


def sharpe_ratio(net: np.ndarray, periods_per_year: float) -> np.ndarray:
    """Annual mean over annual standard deviation of net returns (…, time); NaN where nothing moves."""
    deviation = net.std(axis=-1, ddof=1) if net.shape[-1] > 1 else np.zeros(net.shape[:-1])
    volatility = deviation * np.sqrt(periods_per_year)
    mean = net.mean(axis=-1) * periods_per_year
    return np.divide(mean, volatility, out=np.full(net.shape[:-1], np.nan), where=volatility > 0)


def stationary_bootstrap(length: int, draws: int, block: float, rng: np.random.Generator) -> np.ndarray:
    """Indices of the stationary bootstrap, (draws, length): blocks of geometric length, wrapped around the end."""
    fresh = rng.random((draws, length)) < 1.0 / block  # the first step begins a block in any case
    starts = rng.integers(0, length, (draws, length))
    steps = np.arange(length)
    last = np.maximum.accumulate(np.where(fresh, steps, 0), axis=1)  # where the current block began
    return np.asarray((np.take_along_axis(starts, last, axis=1) + steps - last) % length)


class PairedBootstrap:
    """Intervals of figures of net returns, and of differences between strategies, on the same drawn blocks of steps.

    A figure is a function of the mean and the variance of a path. The draws are kept as how often each step was drawn,
    (draws, time), so that the moments of every path come from one matrix product.

    Parameters
    ----------
    length : int
        Steps of the paths.
    draws, block, seed
        Of the stationary bootstrap; the blocks have mean length `block`, or the whole path if that is shorter.
    """

    def __init__(self, length: int, *, draws: int = 1000, block: float = 20.0, seed: int = 0) -> None:
        places = stationary_bootstrap(length, draws, min(block, float(length)), np.random.default_rng(seed))
        offsets = np.arange(draws)[:, None] * length
        counts = np.bincount((places + offsets).ravel(), minlength=draws * length)
        self.shares = counts.reshape(draws, length) / length  # (draws, time)

    def moments(self, net: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of net returns (…, time) in every draw, (…, draws) each."""
        centre = net.mean(axis=-1, keepdims=True)  # so that the variance is not a difference of large numbers
        first = (net - centre) @ self.shares.T
        second = (net - centre) ** 2 @ self.shares.T
        return first + centre, np.maximum(second - first**2, 0.0)

    @staticmethod
    def interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The central 95 % of drawn values (…, draws)."""
        low, high = np.quantile(values, (0.025, 0.975), axis=-1)
        return low, high
