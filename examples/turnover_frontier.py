"""
# What one more unit of turnover is worth

The best portfolio of every turnover budget in one solve. Its price says what one
more unit of turnover would add to utility, net of cost; where it reaches zero,
trading stops paying.
"""

import numpy as np
from matplotlib import pyplot

from time2decide import load_returns
from time2decide.markets import turnover_frontier

returns = load_returns("sp500").iloc[-500:]
covariance = np.cov(returns.to_numpy().T)
current = np.full(20, 1 / 20)
frontiers = {
    f"{bps:g} bp": turnover_frontier(
        np.zeros(20), covariance, current, risk_aversion=10.0, cost=bps / 1e4 / 63
    )
    for bps in (
        0,
        10,
        50,
    )  # a trade is kept for a quarter, so that is what its cost is spread over
}
for name, frontier in frontiers.items():
    print(
        f"cost {name:6} trading stops paying at a turnover of {frontier.stops_paying_at:.2f}"
    )

# %%
# Along the frontier.

budgets = np.linspace(0, 1.5, 200)
figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
for name, frontier in frontiers.items():
    weights = np.stack([frontier.at(budget) for budget in budgets])
    axes[0].plot(
        budgets,
        1e4 * np.array([frontier.price_at(budget) for budget in budgets]),
        label=name,
    )
    axes[1].plot(
        budgets,
        np.sqrt(252 * np.einsum("ki,ij,kj->k", weights, covariance, weights)),
    )
axes[0].set(xlabel="turnover", ylabel="price of turnover, bp of utility a day")
axes[1].set(xlabel="turnover", ylabel="volatility a year")
axes[0].legend(title="cost", frameon=False)
