"""
# A differentiable portfolio

The exact solver as a layer of torch. Here a covariance is learned by what its
minimum-variance portfolio realises, not by likelihood: two half-lives are mixed,
and the gradient of the realised variance flows back through the solver into the
mixture.
"""

import torch
from matplotlib import pyplot

from time2decide import load_returns
from time2decide.markets.portfolio_gradient import portfolio_layer

returns = torch.tensor(load_returns("sp500").iloc[-1500:, :10].to_numpy())
days = range(500, 1479, 21)


def weighted_covariance(past, half_life):
    """Exponentially weighted, (m, m)."""
    weight = 0.5 ** (torch.arange(len(past) - 1, -1, -1) / half_life)
    return (past * (weight / weight.sum())[:, None]).T @ past


fast, slow = (
    torch.stack([weighted_covariance(returns[:t], h) for t in days])
    for h in (10.0, 250.0)
)
after = torch.stack(
    [returns[t : t + 21].T @ returns[t : t + 21] / 21 for t in days]
)
equal = torch.full((len(days), 10), 0.1, dtype=torch.float64)

# %%
# 46 portfolios are solved in each step of training, all at once.

logit = torch.zeros((), dtype=torch.float64, requires_grad=True)
optimiser = torch.optim.Adam([logit], lr=0.3)
path = []
for _ in range(30):
    share = logit.sigmoid()
    sigma = share * fast + (1 - share) * slow
    weights = portfolio_layer(torch.zeros_like(equal), 1e4 * sigma, equal, 1.0)
    loss = torch.einsum("bi,bij,bj->b", weights, after, weights).mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    path.append((share.item(), (252 * loss.item()) ** 0.5))
print(f"share of the fast covariance {path[0][0]:.2f} -> {path[-1][0]:.2f}")
print(f"volatility a year            {path[0][1]:.4f} -> {path[-1][1]:.4f}")
assert path[-1][1] <= path[0][1]

# %%
# What training did.

figure, axis = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
axis.plot(
    [share for share, _ in path],
    [volatility for _, volatility in path],
    "o-",
    markersize=3,
)
axis.set(xlabel="share of the fast covariance", ylabel="realised volatility a year")
