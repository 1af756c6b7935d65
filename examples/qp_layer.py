"""
# A quadratic program as a layer of a network

`QPLayer` has exact derivatives with respect to all data of the problem, for
batches. Here a small network learns the demand from features by what the decision
costs afterwards: energy is bought ahead within a capacity, and what is missing
costs four times as much as what is left over.
"""

import torch
from matplotlib import pyplot

from time2decide import QPLayer

generator = torch.Generator().manual_seed(0)
features = torch.randn(512, 3, generator=generator, dtype=torch.float64)
demand = (
    features
    @ torch.tensor([[1.0, 0.2], [-0.3, 0.8], [0.4, 0.1]], dtype=torch.float64)
).abs() + 0.5
demand = demand * torch.exp(
    0.4 * torch.randn(512, 2, generator=generator, dtype=torch.float64)
)  # uncertain

torch.manual_seed(0)
network = torch.nn.Sequential(
    torch.nn.Linear(3, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2)
).double()
layer = QPLayer()
P = torch.eye(2).double().expand(512, 2, 2)
G = (
    torch.cat([torch.ones(1, 2), -torch.eye(2)]).double().expand(512, 3, 2)
)  # x1 + x2 ≤ 4, x ≥ 0
h = torch.tensor([4.0, 0.0, 0.0]).double().expand(512, 3)

# %%
# The network proposes, the layer makes it feasible, and the loss is what the
# decision costs.

optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
losses = []
for _ in range(150):
    bought = layer(P, -network(features), G, h)
    short = demand - bought
    loss = torch.where(short > 0, 4 * short, -short).sum(-1).mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    losses.append(loss.item())
print(
    f"cost {losses[0]:.2f} -> {losses[-1]:.2f}; most bought {bought.sum(-1).max().item():.4f} of a capacity of 4"
)
assert losses[-1] < losses[0]

# %%
# Training through the solver.

figure, axis = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
axis.plot(losses)
axis.set(xlabel="step", ylabel="cost of the decision")
