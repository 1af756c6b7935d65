"""The portfolio decision by attention layers whose weights are written down.

    maximise  μᵀs − λ (s−b)ᵀΣ(s−b) − Σ cᵢ|sᵢ − pᵢ|   subject to  l ≤ s ≤ u,  1ᵀs = e,  ‖s − p‖₁ ≤ γ.

Tokens are those of gradient descent: one covariance token per asset with key 2λσᵢ (row i of 2λΣ) and value eᵢ (its
slot), one forecast token with value −μ − 2λΣb, and two iterate tokens. A layer is

    y = s + β(s − s₋)                               first attention block: momentum with restart
    v = y − step·(2λΣ(y − b) − μ)                   second block: the iterate attends to covariance and forecast tokens
    s₋ ← s,  s ← clip(p + S_{a,c}(v − p), l, u)     threshold network: the exact proximal step

with S_{a,c}(x)ᵢ = (xᵢ − step·costᵢ − a)₊ − (c − xᵢ − step·costᵢ)₊, the ReLU network of soft thresholding with a bias
per unit, and thresholds a and c from `portfolio_prox`. These *threshold layers* are FISTA. They find which assets are
traded, and are slow where Σ is nearly singular. So in the second half of the layers every few of them are followed by
as many *face layers*: conjugate gradients among the assets that are traded in part, by the same covariance tokens,
exact after as many layers as there are such assets.

The step is 1/L. Weights move within 1ᵀs = e, where L is the largest eigenvalue of 2λPΣP with P = I − 11ᵀ/m: what all
assets share does not count, which for stocks is most of the risk. Power iteration finds it in layers over the same
tokens, attention followed by layer normalisation (centre, divide by the size).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain, cycle, islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from time2decide.attention.acceleration import Prox, accelerated_form
from time2decide.attention.classical import classical_accelerated
from time2decide.attention.layers import SoftThresholdFFN
from time2decide.attention.loop import Algorithm, State, iterates
from time2decide.core.validation import (
    ArrayLike,
    InputError,
    as_tensor,
    expect,
    validate_choice,
    validate_count,
    validate_finite,
)
from time2decide.qp.problem import QP
from time2decide.qp.projections import portfolio_prox

LAYERS = 192
BLOCK = 4  # of face and of threshold layers in turn, after a first half of threshold layers
_STEP_LAYERS = 12  # of the power iteration
_MARGIN = 1.1  # of its answer, which is at most L
_FARTHEST = 1e6  # most that a layer moves a score, in units of weight
_CACHED = 128  # assets up to which the state is formed
_TRADED = 1e-12  # trades below this are rounding
_ENTRIES = 2**24  # of covariance tokens at a time: 128 MB
_FORMS: dict[str, Callable[..., Algorithm]] = {
    "state": partial(accelerated_form, form="state"),
    "literal": partial(accelerated_form, form="literal"),
    "classical": classical_accelerated,
}


def attention_decision(
    mean: ArrayLike,
    covariance: ArrayLike,
    previous: ArrayLike,
    *,
    risk_aversion: ArrayLike,
    turnover_l1: ArrayLike = 2.0,
    cost: ArrayLike = 0.0,
    benchmark: ArrayLike = None,
    lower: ArrayLike = 0.0,
    upper: ArrayLike = 1.0,
    exposure: ArrayLike = 1.0,
    layers: int = LAYERS,
    step_size: ArrayLike = None,
    form: str | None = None,
    trace: bool = False,
) -> ArrayLike:
    """The answer of K attention layers to the portfolio problem: feasible, and near optimal.

    Parameters
    ----------
    mean, previous : (..., m)
        μ and the current weights p; weights outside the bounds are first brought to the nearest one.
    covariance : (..., m, m)
        Σ, symmetric and positive semidefinite.
    risk_aversion, turnover_l1 : number or (...)
        λ ≥ 0 and γ ≥ 0, the full ℓ1 distance.
    cost : number or (..., m)
        c ≥ 0, cost of trading one unit of an asset.
    benchmark : (..., m), optional
        b; 0 unless given.
    lower, upper : number or (..., m)
        l and u, finite.
    exposure : number or (...)
        e
    layers : int
        K
    step_size : number or (...), optional
        1/L from the layers of power iteration unless given.
    form : str, optional
        Of the threshold layers: "state" (attention cached), "literal" (tokens, scores, networks) or "classical" (the
        textbook iteration). They agree. Unless given "state", and "classical" above 128 assets: to form the state takes
        m³ operations.
    trace : bool
        Also the weights before each layer: (layers + 1, ..., m) instead of (..., m).

    Notes
    -----
    Autograd follows the layers to every argument that is a tensor. A numpy mean gives numpy.
    """
    validate_count("layers", layers)
    if form is not None:
        validate_choice("form", form, _FORMS)
    data, lead = _decision_rows(
        mean, covariance, previous, risk_aversion, turnover_l1, cost, benchmark, lower, upper, exposure, step_size
    )
    m = data["mean"].shape[-1]
    form = form or ("state" if m <= _CACHED else "classical")
    rows = max(1, _ENTRIES // m**2)
    tracked = isinstance(mean, Tensor) and torch.is_grad_enabled()
    with torch.set_grad_enabled(tracked):
        parts = [
            _decide({name: part[i : i + rows] for name, part in data.items()}, layers, form, trace)
            for i in range(0, len(data["mean"]), rows)
        ]
    answer = torch.cat(parts, -2)  # (layers + 1 or nothing, rows, m)
    answer = answer.reshape(*answer.shape[:-2], *lead, m)
    return answer if isinstance(mean, Tensor) else answer.detach().numpy()


class _Terms(NamedTuple):
    """What the layers know beside their tokens: p, c, l and u (rows, m), γ and missing exposure (rows, 1)."""

    previous: Tensor
    cost: Tensor
    gamma: Tensor
    lower: Tensor
    upper: Tensor
    missing: Tensor


def _decide(rows: dict[str, Tensor], layers: int, form: str, trace: bool) -> Tensor:
    """Weights (rows, m) of validated rows, or of every layer (layers + 1, rows, m)."""
    A = 2 * rows["risk_aversion"][:, None, None] * rows["covariance"]
    b = -rows["mean"]
    if "benchmark" in rows:
        b = b - (A @ rows["benchmark"].unsqueeze(-1)).squeeze(-1)
    qp, previous = QP(A, b, check=False), rows["previous"]
    gamma, missing = (rows[name].unsqueeze(-1) for name in ("turnover_l1", "missing"))
    terms = _Terms(previous, rows["cost"], gamma, rows["lower"], rows["upper"], missing)
    step = rows["step_size"] if "step_size" in rows else power_step(qp, previous, terms.cost).squeeze(-1)
    momentum = torch.ones_like(step)
    blocks = (
        _FORMS[form](qp, step, momentum, prox=_portfolio_threshold(form, terms, step[:, None])),
        face_layers(qp, terms),
    )
    path, done = [previous], 0
    for kind, count in chain([(0, max(1, layers // 2))], cycle([(1, BLOCK), (0, BLOCK)])):
        block = iterates(blocks[kind], path[-1], qp.d, min(count, layers - done))
        new = [x for x, _ in islice(block, 1, None)]
        path, done = [*path, *new] if trace else new, done + len(new)
        if done == layers:
            break
    return torch.stack(path) if trace else path[-1]


def _portfolio_threshold(form: str, terms: _Terms, step: Tensor) -> Prox:
    """The threshold layer on rows (batch, 1, m), of the classical form (batch, m)."""
    scaled = terms._replace(cost=step * terms.cost)
    p, *limits = scaled if form == "classical" else tuple(term.unsqueeze(1) for term in scaled)
    cost, gamma, lower, upper, missing = limits
    if form != "literal":
        return lambda y: portfolio_prox(y, p, gamma, cost, lower, upper, missing)[0]
    network = SoftThresholdFFN(p.shape[-1], p.dtype)

    def literal(y: Tensor) -> Tensor:
        _, buy, sell = portfolio_prox(y, p, gamma, cost, lower, upper, missing)
        biases = torch.cat([cost + buy, cost - sell], -1)  # (batch, 1, 2m)
        return torch.clamp(p + network(y - p, biases), lower, upper)

    return literal


def face_layers(qp: QP, terms: _Terms) -> Algorithm:
    """Conjugate gradients on the face of the iterate: what is bought or sold in part, the rest stays.

    The query is the direction d: the covariance tokens answer 2λΣd, and the scores ⟨d, 2λΣd⟩ and ⟨r, r⟩ of the iterate
    tokens are the step and the momentum. Sums of d over bought and sold assets are 0 (together, where the turnover
    does not bind). A row that reaches the end of its face waits there for the next threshold layer.
    """
    p, cost, gamma, lower, upper, _ = terms

    def start(x: Tensor, dual: Tensor) -> State:
        change = (x - p).detach()
        bought = (change > _TRADED) & (x < upper - _TRADED)
        sold = (change < -_TRADED) & (x > lower + _TRADED)
        side = bought.to(x.dtype) - sold.to(x.dtype)
        binds = gamma - change.abs().sum(-1, keepdim=True) <= _TRADED * p.shape[-1]
        groups = torch.stack([torch.where(binds, bought, side != 0), binds & sold]).to(x.dtype)  # (2, batch, m)
        slope = (qp.A @ x.unsqueeze(-1)).squeeze(-1) + qp.b + cost * side
        r = _on_face(-slope, groups)
        low, high = torch.where(bought, p, lower), torch.where(sold, p, upper)
        return x, r, r, low, high, side * ~binds, groups

    def layer(state: State) -> State:
        x, r, d, low, high, side, groups = state
        curved = (qp.A @ d.unsqueeze(-1)).squeeze(-1)
        size = (r * r).sum(-1, keepdim=True)
        best = _ratio(size, (d * curved).sum(-1, keepdim=True), 0.0)
        most = torch.minimum(_ratio(high - x, d, torch.inf), _ratio(x - low, -d, torch.inf)).amin(-1, keepdim=True)
        room = gamma - (x - p).abs().sum(-1, keepdim=True)
        most = torch.minimum(most, _ratio(room, (side * d).sum(-1, keepdim=True), torch.inf)).clamp_min(0)
        ends = best >= most
        length = torch.minimum(best, most)
        x = torch.minimum(torch.maximum(x + length * d, low), high)
        r = torch.where(ends, 0.0, r - length * _on_face(curved, groups))
        d = r + _ratio((r * r).sum(-1, keepdim=True), size, 0.0) * torch.where(ends, 0.0, d)
        return x, r, d, low, high, side, groups

    return Algorithm(start, layer, lambda state: (state[0], qp.d))


def _on_face(w: Tensor, groups: Tensor) -> Tensor:
    """W (batch, m) less its mean over each group of free assets (2, batch, m), 0 elsewhere."""
    mean = (groups * w).sum(-1, keepdim=True) / groups.sum(-1, keepdim=True).clamp_min(1)
    return (groups * (w - mean)).sum(0)


def _ratio(above: Tensor | float, below: Tensor, otherwise: float) -> Tensor:
    """above / below where below > 0, and `otherwise`."""
    positive = below > 0
    return torch.where(positive, above / torch.where(positive, below, 1.0), otherwise)


@torch.no_grad()
def power_step(qp: QP, x: Tensor, cost: Tensor) -> Tensor:
    """1/L on 1ᵀx = const, (batch, 1): attention to the tokens of A and layer normalisation, again and again.

    It starts from the slopes at x and the curvatures, so that assets may come in any order.
    """
    slope, tiny = (qp.A @ x.unsqueeze(-1)).squeeze(-1) + qp.b, torch.finfo(x.dtype).tiny

    def centred(w: Tensor) -> tuple[Tensor, Tensor]:
        w = w - w.mean(-1, keepdim=True)
        size = w.norm(dim=-1, keepdim=True)
        return w / size.clamp_min(tiny), size

    w = centred(centred(slope)[0] + centred(torch.diagonal(qp.A, dim1=-2, dim2=-1))[0] / 2)[0]
    for _ in range(_STEP_LAYERS):
        w, size = centred((qp.A @ w.unsqueeze(-1)).squeeze(-1))
    spread = slope.amax(-1, keepdim=True) - slope.amin(-1, keepdim=True) + cost.amax(-1, keepdim=True)
    return torch.minimum(_ratio(torch.ones_like(size), _MARGIN * size, torch.inf), _ratio(_FARTHEST, spread, 1.0))


def _decision_rows(
    mean: ArrayLike, covariance: ArrayLike, previous: ArrayLike, risk_aversion: ArrayLike, turnover_l1: ArrayLike,
    cost: ArrayLike, benchmark: ArrayLike, lower: ArrayLike, upper: ArrayLike, exposure: ArrayLike,
    step_size: ArrayLike,
) -> tuple[dict[str, Tensor], tuple[int, ...]]:  # fmt: skip
    """Everything checked, in float64 and by row: (rows, m), (rows, m, m) or (rows,); also the batch shape."""
    vectors = {"mean": mean, "previous": previous, "cost": cost, "lower": lower, "upper": upper}
    vectors |= {} if benchmark is None else {"benchmark": benchmark}
    numbers = {"exposure": exposure, "risk_aversion": risk_aversion, "turnover_l1": turnover_l1}
    numbers |= {} if step_size is None else {"step_size": step_size}
    found = {name: as_tensor(name, value).double() for name, value in (vectors | numbers).items()}
    found["covariance"] = as_tensor("covariance", covariance).double()
    m = found["mean"].shape[-1] if found["mean"].dim() else 0
    expect(m, "mean", "shape (..., m) with at least one asset", tuple(found["mean"].shape))
    shapes = {name: tuple(found[name].shape[:-1]) for name in vectors} | {n: tuple(found[n].shape) for n in numbers}
    shapes["covariance"] = tuple(found["covariance"].shape[:-2])
    for name, tensor in found.items():
        validate_finite(name, tensor)
    try:
        lead = np.broadcast_shapes(*shapes.values())
        ends = {name: (m,) for name in vectors} | dict.fromkeys(numbers, ()) | {"covariance": (m, m)}
        rows = {name: found[name].expand((*lead, *end)).reshape(-1, *end) for name, end in ends.items()}
    except (RuntimeError, ValueError):
        shown = {name: tuple(tensor.shape) for name, tensor in found.items()}
        raise InputError(f"mean: expected shapes that fit those of the other arguments, found {shown}") from None
    for name in ("cost", *list(numbers)[1:]):
        least = rows[name].min().item()
        expect(least >= 0, name, "non-negative numbers", least)
    low, high, p = rows["lower"], rows["upper"], rows["previous"]
    expect(bool((low <= high).all()), "lower", "at most upper", "more")
    middle = torch.minimum(torch.maximum(p, low), high)
    rest = rows["turnover_l1"].clamp_max(4 * m) - (p - middle).abs().sum(-1)
    missing = rows["exposure"] - middle.sum(-1)
    short = (missing.abs() - rest).max().item()
    expect(short <= 1e-9, "turnover_l1", f"at least {short:g} more to meet the bounds and the exposure", "less")
    room = torch.where(missing > 0, (high - middle).sum(-1), (middle - low).sum(-1)) - missing.abs()
    expect(room.min().item() >= -1e-9, "exposure", "one that the bounds allow", exposure)
    rows |= {"previous": middle, "turnover_l1": rest.clamp_min(0), "missing": missing}
    return rows, lead
