"""
# A transformer whose weights are written down

One attention layer is one iteration of gradient descent on ½ xᵀAx + bᵀx, exactly.
The rows of [A, b] are tokens, the iterate is the last token, and the weights of the
layer are fixed matrices.
"""

import torch
from matplotlib import pyplot

from time2decide import random_qp, solve
from time2decide.attention.gradient import GradientDescent

qp = random_qp(1, n=4, seed=0)
step = 1 / torch.linalg.eigvalsh(qp.A)[:, -1]
model = GradientDescent(n=4)
print({name: tuple(weight.shape) for name, weight in model.named_buffers()})

# %%
# Layers and textbook steps side by side.

tokens = torch.cat(
    [
        model.data_tokens(qp),
        model.iterate_token(torch.zeros(1, 4, dtype=torch.float64)),
    ],
    dim=1,
)
x = torch.zeros(1, 4, dtype=torch.float64)
best = solve(qp).x
layers, steps = [], []
for _ in range(300):
    tokens = model(
        tokens, step
    )  # attention over all tokens, residual on the last row
    x = x - step * (torch.einsum("bij,bj->bi", qp.A, x) + qp.b)  # the textbook step
    layers.append((tokens[:, -1, :4] - best).norm().item())
    steps.append((x - best).norm().item())
print("layer and step differ by", (tokens[:, -1, :4] - x).abs().max().item())
assert (tokens[:, -1, :4] - x).abs().max() < 1e-12

# %%
# The distance to the exact solution falls at the same rate.

figure, axis = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
axis.semilogy(layers, linewidth=4, alpha=0.4, label="attention layers")
axis.semilogy(steps, "k--", linewidth=1, label="gradient descent")
axis.set(xlabel="layer", ylabel="distance to the solution")
axis.legend(frameon=False)
