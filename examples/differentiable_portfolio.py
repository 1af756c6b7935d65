"""The portfolio projection inside gradient descent: learn raw scores whose feasible portfolio tracks a target."""

import torch

from time2decide import project_portfolio

previous = torch.full((1, 5), 0.2, dtype=torch.float64)
target = torch.tensor([[0.45, 0.25, 0.15, 0.10, 0.05]], dtype=torch.float64)
scores = torch.zeros(1, 5, dtype=torch.float64, requires_grad=True)
optimiser = torch.optim.SGD([scores], lr=0.5)
for _ in range(200):
    weights = project_portfolio(scores, previous, turnover_l1=0.3)
    loss = (weights - target).square().sum()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
best = project_portfolio(target, previous, turnover_l1=0.3)
print("learned ", weights.detach().numpy().round(4))
print("nearest ", best.numpy().round(4))
print("turnover", (weights - previous).abs().sum().item())
assert (weights - best).abs().max() < 1e-3
