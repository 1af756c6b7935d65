"""A transformer whose weights are written down runs gradient descent: one layer is one iteration."""

import torch

from time2decide import random_qp, solve
from time2decide.attention.gradient import GradientDescent

qp = random_qp(1, n=4, seed=0)
step = 1 / torch.linalg.eigvalsh(qp.A)[:, -1]
model = GradientDescent(n=4)
print({name: tuple(weight.shape) for name, weight in model.named_buffers()})

tokens = torch.cat([model.data_tokens(qp), model.iterate_token(torch.zeros(1, 4, dtype=torch.float64))], dim=1)
x = torch.zeros(1, 4, dtype=torch.float64)
for _ in range(300):
    tokens = model(tokens, step)  # attention over all tokens, residual on the last row
    x = x - step * (torch.einsum("bij,bj->bi", qp.A, x) + qp.b)  # the textbook step
print("layer and step differ by", (tokens[:, -1, :4] - x).abs().max().item())
print("distance to the exact solution", (x - solve(qp).x).abs().max().item())
