"""One attention network for strictly convex QPs of every size.

The network works on the dual of  min ½xᵀAx + bᵀx  s.t.  Cx ≤ d,  a linear complementarity problem. With X = A⁻¹,

    M = CXCᵀ,   q = d + CXb,   slack = M·dual + q ≥ 0,   dual ≥ 0,   dualᵀslack = 0,   x = −X(b + Cᵀ·dual).

Tokens attend to tokens throughout; nothing is inverted, solved or factorised.

1. *Data attention.* The rows of A attend to each other: Newton–Schulz steps X ← X(2I − AX).
2. *Exact normalisation.* S = diag(M)^½ and σ = rms(q/S) give scores M̂ = S⁻¹MS⁻¹ of unit diagonal and q̂ = q/(Sσ).
   The answer is thereby invariant to the scale of (A, b) and of every row (cᵢ, dᵢ), and equivariant to
   permutations of variables and constraints and to rotations of x.
3. *Looped constraint layer*, the same weights at every depth. Each constraint has a state of `width` numbers, reads
   the others by linear attention with scores M̂ and says by a gate g in (0, 1) whether it is active. The gated
   tokens then attend to each other, again by Newton–Schulz, which inverts the gated scores:

       K = gM̂g + (1 − g²)I,   u = g·dual,   dual ← u − gK⁻¹g(M̂u + q̂).

   For g in {0, 1} this is a step of semismooth Newton, the primal-dual active set method. The untrained layer gates
   by a sigmoid of dual − slack and so is a soft form of that classical method, which is often exact and sometimes
   cycles. Training buys the tail: gates that do not cycle.
4. *Closing passes.* A few passes with gates of exactly 0 and 1, without learned weights, of which the candidate with
   the smallest violation |min(dual, slack)| is kept. Where the set is right they leave nothing but rounding, and
   the derivative of the answer is that of its active KKT system.

It is trained on fresh problems of another size, with another depth, at every step (`train_equivariant`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from time2decide.core.checkpoints import PretrainedModel
from time2decide.core.training import STATE, LoopConfig, Report, fit_model
from time2decide.core.validation import expect, validate_count, validate_fields, validate_interval
from time2decide.qp import PAPER_SIZES, random_qp, solve_exact

#: Checkpoints that come with the package, by name.
PRETRAINED = {"qp": Path(__file__).parent / "pretrained" / "qp"}
_INVERSE = 1e-3  # largest entry of AX − I for which derivatives with respect to the data are right
_NUMBERS_READ = 5  # dual, slack, q, clipped slack and dual − slack of a constraint, beside its state


@dataclass(frozen=True)
class EquivariantConfig:
    """Shape of `EquivariantSolver`; nothing depends on the size of a problem."""

    width: int = 32  # state of a constraint token
    hidden: int = 128  # hidden units of the shared MLP
    depth: int = 6  # passes through the looped layer, unless the caller says otherwise; with 0 all is classical
    closing: int = 3  # passes with gates of 0 and 1 after them
    sharpness: float = 4.0  # slope of the classical gate before training
    floor: float = 1e-4  # smallest over largest eigenvalue that Newton–Schulz is to invert
    data_steps: tuple[int, int] = (8, 3)  # accelerated and plain Newton–Schulz steps on A and in closing passes
    gate_steps: tuple[int, int] = (6, 3)  # the same on the gated scores of a pass

    def __post_init__(self) -> None:
        validate_fields(self, count="width hidden", natural="depth closing", positive="sharpness")
        validate_interval("floor", self.floor, "(0, 1)")
        for name in ("data_steps", "gate_steps"):
            accelerated, plain = getattr(self, name)
            validate_count(name, accelerated, least=0)
            validate_count(name, plain)  # the last plain step is the one that carries the gradient
            object.__setattr__(self, name, (accelerated, plain))


@dataclass(frozen=True)
class DualProblem:
    """The normalised complementarity problem of a batch, and the way back."""

    X: Tensor  # (batch, n, n) inverse of A
    scores: Tensor  # (batch, m, m) M̂, unit diagonal
    q: Tensor  # (batch, m, 1) q̂, unit root mean square
    unit: Tensor  # (batch, m, 1) multiplier = unit · normalised multiplier; 0 for an all-zero row of C


class EquivariantSolver(PretrainedModel):
    """Permutation-equivariant looped attention solver for any (n, m), m = 0 included."""

    CONFIG = EquivariantConfig
    BUNDLED = PRETRAINED

    def __init__(self, config: EquivariantConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or EquivariantConfig()
        self.embed = nn.Linear(3, config.width)
        self.norm = nn.LayerNorm(config.width)
        first = nn.Linear(2 * config.width + _NUMBERS_READ, config.hidden)
        last = nn.Linear(config.hidden, config.width + 1)  # what is added to the state, and the learned gate
        self.mlp = nn.Sequential(first, nn.GELU(), last)
        self.sharpness = nn.Parameter(torch.tensor(config.sharpness))
        with torch.no_grad():  # start as the classical method: the learned part of the gate is silent
            last.weight[-1:].zero_()
            last.bias[-1:].zero_()

    def forward(self, A: Tensor, b: Tensor, C: Tensor, d: Tensor, depth: int | None = None) -> tuple[Tensor, Tensor]:
        """Solve a batch.

        Parameters
        ----------
        A, b, C, d : (batch, n, n) positive definite, (batch, n), (batch, m, n), (batch, m)
        depth : int, optional
            Passes through the looped layer; that of the configuration by default.

        Returns
        -------
        x (batch, n) and dual (batch, m) ≥ 0; the predicted active set is dual > 0.
        """
        problem = self.dual_problem(A, b, C, d)
        if torch.is_grad_enabled() and any(data.requires_grad for data in (A, b, C, d)):
            _refuse_wrong_gradients(A, problem.X)
        dual = torch.zeros_like(d).unsqueeze(-1)  # (batch, m, 1)
        if C.shape[1]:
            trace = self.iterate(problem, depth)
            dual = self.close(problem, trace[-1][0] if trace else dual) * problem.unit
        x = _free_primal(A, problem.X, b.unsqueeze(-1) + C.mT @ dual)
        return x.squeeze(-1), dual.squeeze(-1)

    def dual_problem(self, A: Tensor, b: Tensor, C: Tensor, d: Tensor) -> DualProblem:
        """Data attention and normalisation: no learned weights. Shapes as in `forward`."""
        root = A.diagonal(dim1=1, dim2=2).sqrt().unsqueeze(-1)  # (batch, n, 1)
        scale = root * root.mT  # Jacobi scaling: unit diagonal, smaller condition number
        X = approximate_inverse(A / scale, self.config.floor, self.config.data_steps)
        X = 0.5 * (X + X.mT) / scale
        M = C @ X @ C.mT  # (batch, m, m)
        diagonal = M.diagonal(dim1=1, dim2=2).unsqueeze(-1)  # (batch, m, 1)
        used = diagonal > 0  # an all-zero row of C constrains nothing: a padding token
        S = torch.where(used, diagonal, 1.0).sqrt()
        eye = torch.eye(M.shape[-1], dtype=M.dtype, device=M.device)
        scores = M / (S * S.mT) * (1 - eye) + eye
        free_slack = d.unsqueeze(-1) - C @ _free_primal(A, X, b.unsqueeze(-1))  # (batch, m, 1)
        q = torch.where(used, free_slack / S, 0.0)
        count = used.sum(1, keepdim=True).clamp_min(1)
        sigma = (q.square().sum(1, keepdim=True) / count).sqrt().clamp_min(1e-20)  # (batch, 1, 1)
        return DualProblem(X, scores, torch.where(used, q / sigma, 1.0), used * sigma / S)

    def iterate(self, problem: DualProblem, depth: int | None = None) -> list[tuple[Tensor, Tensor]]:
        """The looped layer: (normalised dual, gate logit) after every pass, each (batch, m, 1)."""
        passes = self.config.depth if depth is None else validate_count("depth", depth, least=0)
        scores, q = problem.scores, problem.q
        eye = torch.eye(q.shape[1], dtype=q.dtype, device=q.device)
        attention = scores / scores.norm(dim=2, keepdim=True)  # (batch, m, m), rows of unit length
        energy = scores.square().sum(2, keepdim=True).log()  # how much a row overlaps with the others
        state = self.embed(torch.cat([q, attention @ torch.relu(-q), energy], -1))  # (batch, m, width)
        dual, trace = torch.zeros_like(q), []
        for _ in range(passes):
            slack = torch.baddbmm(q, scores, dual)
            clipped = torch.baddbmm(q, scores, torch.relu(dual)).clamp(-3, 3)
            token = self.norm(state)
            classical = _signed_log(dual - slack)
            read = [token, attention @ token, _signed_log(dual), _signed_log(slack), q, clipped, classical]
            update = self.mlp(torch.cat(read, -1))  # (batch, m, width + 1)
            state = state + update[..., :-1]
            logit = 2 * (self.sharpness * classical + update[..., -1:])
            g = torch.sigmoid(logit.clamp_min(-18))  # smaller gates only make denormal, slow numbers
            K = g * scores * g.mT + (1 - g * g) * eye  # (batch, m, m): unit diagonal, identity on closed gates
            inverse = approximate_inverse(K, self.config.floor, self.config.gate_steps)
            u = g * dual
            dual = u - g * (inverse @ (g * torch.baddbmm(q, scores, u)))
            trace.append((dual, logit))
        return trace

    def close(self, problem: DualProblem, dual: Tensor) -> Tensor:
        """The closing passes: the least violated of all candidates, (batch, m, 1) and ≥ 0.

        With a the constraints whose multiplier is larger than their slack:  dual ← −aK⁻¹aq̂,  K = aM̂a + (1 − a)I,
        refined once.
        """
        scores, q = problem.scores, problem.q
        eye = torch.eye(q.shape[1], dtype=q.dtype, device=q.device)
        best = torch.where(dual > torch.baddbmm(q, scores, dual), torch.relu(dual), 0.0)
        for _ in range(self.config.closing):
            a = (dual > torch.baddbmm(q, scores, dual)).to(q.dtype)
            inverse = approximate_inverse(a * scores * a.mT + (1 - a) * eye, self.config.floor, self.config.data_steps)
            dual = -a * (inverse @ (a * q))
            dual = dual - a * (inverse @ (a * torch.baddbmm(q, scores, dual)))
            candidate = torch.relu(dual)
            best = torch.where(_violation(problem, candidate) <= _violation(problem, best), candidate, best)
        return best


def approximate_inverse(K: Tensor, floor: float, steps: tuple[int, int]) -> Tensor:
    """Approximate inverse of symmetric positive definite K (batch, t, t) by products alone.

        Y₀ = cI / ‖K⁴‖_F^¼,   Y ← sₖ(2Y − YKY),   sₖ = 1 in the plain steps.

    The norm bounds the largest eigenvalue from above, by a factor of at most t^⅛. Only the last step is
    differentiated: at Y = K⁻¹ held fixed, d[2Y − YKY] = −Y·dK·Y, the derivative of the inverse itself, without the
    memory of the loop.
    """
    start, scales = _acceleration(floor, steps[0])
    with torch.no_grad():
        fixed = K.detach()
        size = fixed.flatten(1).norm(dim=1).view(-1, 1, 1)  # scaled first, so that K⁴ cannot overflow
        unit = fixed / size
        square = unit @ unit
        top = size * (square @ square).flatten(1).norm(dim=1).pow(0.25).view(-1, 1, 1)  # (batch, 1, 1)
        Y = start / top * torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)  # (batch, t, t)
        for scale in scales + [1.0] * (steps[1] - 1):
            Y = torch.baddbmm(Y, Y, fixed @ Y, beta=2 * scale, alpha=-scale)
        Y = 0.5 * (Y + Y.mT)
    return torch.baddbmm(Y, Y, K @ Y, beta=2, alpha=-1)


def _acceleration(floor: float, steps: int) -> tuple[float, list[float]]:
    """Scales under which a step quadruples, rather than doubles, the small eigenvalues.

    If the spectrum of KY lies in [l, 2 − l], that of KY(2 − KY) lies in [l(2 − l), 1]; the factor
    2/(1 + l(2 − l)) centres it about 1 again.
    """
    low = 2 * floor / (1 + floor)
    scales = []
    for _ in range(steps):
        scales.append(2 / (1 + low * (2 - low)))
        low = scales[-1] * low * (2 - low)
    return 2 / (1 + floor), scales


@torch.no_grad()
def _refuse_wrong_gradients(A: Tensor, X: Tensor) -> None:
    """Raise where X is not the inverse of A to 1e-3: derivatives with respect to the data would be wrong."""
    root = A.diagonal(dim1=1, dim2=2).sqrt()
    left = (A @ X) * root.unsqueeze(1) / root.unsqueeze(2) - torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    worst = left.abs().amax((1, 2))
    found = f"an inverse that is off by {worst.max().item():.2g} in problem {int(worst.argmax())}"
    what = "a better conditioned matrix for gradients of the data (solve with method='exact' has them for any)"
    expect(worst.max().item() <= _INVERSE, "A", what, found)


def _signed_log(v: Tensor) -> Tensor:
    """sign(v)·log(1 + |v|): the identity near 0, and large multipliers are compressed."""
    return torch.sign(v) * torch.log1p(v.abs())


def _violation(problem: DualProblem, dual: Tensor) -> Tensor:
    """max |min(dual, slack)|, zero at the solution and only there; (batch, 1, 1), without gradient."""
    with torch.no_grad():
        return torch.minimum(dual, torch.baddbmm(problem.q, problem.scores, dual)).abs().amax(1, keepdim=True)


def _free_primal(A: Tensor, X: Tensor, linear: Tensor) -> Tensor:
    """−A⁻¹·linear (batch, n, 1), refined once by x ← x − X(Ax + linear) against the rounding of float32."""
    x = -(X @ linear)
    return x - X @ torch.baddbmm(linear, A, x)


#: Sizes (n, m) that training never sees, to measure how the solver carries over.
UNSEEN_SIZES = ((4, 2), (12, 12), (30, 20), (40, 10))


@dataclass(frozen=True)
class EquivariantTraining:
    """The recipe; the defaults made the bundled checkpoint."""

    steps: int = 16_000
    batch: int = 256  # problems in a step, all of one size
    lr: float = 4e-3  # highest learning rate: linear warm-up, then a cosine down to 0
    warmup: int = 200  # steps
    weight_decay: float = 1e-4
    clip_norm: float = 1.0  # bound on the norm of the gradient
    decay: float = 0.998  # of the running average of the weights, which is what is kept in the end
    depths: tuple[int, int] = (5, 10)  # passes through the looped layer, drawn anew for every step
    largest: int = 24  # n and m of the sizes drawn at random
    seed: int = 0
    model: EquivariantConfig = field(default_factory=EquivariantConfig)

    def __post_init__(self) -> None:
        validate_fields(self, count="steps batch warmup", natural="seed", share="decay")
        validate_fields(self, positive="lr clip_norm", non_negative="weight_decay")
        validate_count("largest", self.largest, least=2)
        low, high = self.depths
        expect(1 <= low <= high, "depths", "1 <= low <= high", self.depths)


#: name -> recipe: a look at whether it runs, and the one that made the bundled checkpoint.
PRESETS = {"smoke": EquivariantTraining(steps=20, batch=16, warmup=5, largest=8), "cpu": EquivariantTraining()}


def train_equivariant(
    config: EquivariantTraining,
    out_dir: str | Path,
    *,
    device: str | torch.device = "cpu",
    report: Report | None = None,
    notes: dict[str, Any] | None = None,
) -> EquivariantSolver:
    """Train a solver, or resume an interrupted run, and write it to `out_dir`.

    Parameters
    ----------
    out_dir : folder
        Gets ``model.safetensors`` and ``config.json``, for `EquivariantSolver.from_pretrained`, and
        ``state.safetensors``, from which a run resumes. Belongs to one recipe.
    report : callable, optional
        Called after every step with the steps done, the steps in all and the loss; may raise KeyboardInterrupt.
    notes : dict, optional
        Facts to be stored in ``config.json`` beside the recipe.
    """
    place = torch.device(device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)  # the first weights; the caller's generator is left as it was
        model = EquivariantSolver(config.model).to(place)

    def loss(step: int) -> Tensor:
        rng = np.random.default_rng([config.seed, step])
        n, m = draw_problem_size(rng, config.largest)
        depth = int(rng.integers(config.depths[0], config.depths[1] + 1))
        problems = {name: tensor.to(place) for name, tensor in draw_training_problems(rng, config.batch, n, m).items()}
        return equivariant_loss(model, problems, depth)

    loop = LoopConfig.of(config, averaging=config.decay)
    recipe = asdict(config)
    state = Path(out_dir) / STATE
    done = fit_model(model, loss, loop, report, state=state, settings=recipe)
    made = {"recipe": recipe, "skipped_steps": done.skipped, "seconds": round(done.seconds)}
    model.cpu().save_pretrained(out_dir, made | (notes or {}))
    return model


def draw_problem_size(rng: np.random.Generator, largest: int) -> tuple[int, int]:
    """In half the steps a size of the paper, in the others any 2 ≤ n ≤ largest, 1 ≤ m ≤ largest but the unseen."""
    if rng.random() < 0.5:
        n, m = PAPER_SIZES[rng.integers(len(PAPER_SIZES))]
        return n, m
    while True:
        size = int(rng.integers(2, largest + 1)), int(rng.integers(1, largest + 1))
        if size not in UNSEEN_SIZES:
            return size


def draw_training_problems(rng: np.random.Generator, count: int, n: int, m: int) -> dict[str, Tensor]:
    """`count` problems of the paper's distribution with exact x and dual, float32."""
    qp = random_qp(count, n, m, seed=rng)
    answer = solve_exact(qp, workers=1)
    tensors = {"A": qp.A, "b": qp.b, "C": qp.C, "d": qp.d, "x": answer.x, "dual": answer.dual}
    return {name: tensor.float() for name, tensor in tensors.items()}


def equivariant_loss(model: EquivariantSolver, problems: dict[str, Tensor], depth: int) -> Tensor:
    """Deeply supervised loss; pass l of L has weight 2^(l−L), normalised. Of every pass,

        log(1 + ‖dx‖² / mean‖x*‖²)                        what R² sees, without letting one instance rule
        + 0.3·log(1 + ‖dx‖_A / √(‖x* − x₀‖_A² + 0.05))    relative, so that easy instances count too
        + 0.3·BCE(gate, active)                           the active set itself

    with x₀ the unconstrained minimum; the second is measured in the normalised dual, where it is a product with M̂.
    """
    A, b, C, d, x, dual = (problems[name] for name in ("A", "b", "C", "d", "x", "dual"))
    problem = model.dual_problem(A, b, C, d)
    target = dual.unsqueeze(-1) / problem.unit  # (batch, m, 1)
    active = (target > 1e-9).to(target.dtype)
    energy = (target * (problem.scores @ target)).sum((1, 2))  # (batch,)
    scale = x.square().sum(1).mean()
    total, weights = x.new_zeros(()), 0.0
    for level, (hat, logit) in enumerate(model.iterate(problem, depth), start=1):
        error = torch.relu(hat) - target
        dx = problem.X @ (C.mT @ (error * problem.unit))  # (batch, n, 1)
        pooled = torch.log1p(dx.square().sum((1, 2)) / scale).mean()
        ratio = (error * (problem.scores @ error)).sum((1, 2)).clamp_min(0) / (energy + 0.05)
        relative = torch.log1p((ratio + 1e-8).sqrt()).mean()
        gate = functional.binary_cross_entropy_with_logits(logit, active)
        weight = 0.5 ** (depth - level)
        total = total + weight * (pooled + 0.3 * relative + 0.3 * gate)
        weights += weight
    return total / weights
