"""The one problem type.

Glossary of the paper's symbols, used as names everywhere:

========== ============================ ==========================================
name       in the paper                 meaning
========== ============================ ==========================================
A          A (n × n, symmetric, ⪰ 0)    quadratic term of ½ xᵀAx + bᵀx
b          b (n)                        linear term
C, d       C (m × n), d (m)             linear constraints Cx ≤ d
E, f       –                            linear equations Ex = f
lb, ub     –                            bounds lb ≤ x ≤ ub
l1_penalty λ of problem (R)             weight of λ‖x‖₁ in the objective
l1_radius  B of problem (C)             radius of the constraint ‖x‖₁ ≤ B
dual       λ of problem (LC)            multipliers of Cx ≤ d, non-negative
turnover_l1 γ of the portfolio problem  bound on ‖s_t − s_{t−1}‖₁
========== ============================ ==========================================
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy.linalg import lapack
from torch import Tensor

from time2decide.core.validation import (
    ArrayLike,
    InputError,
    as_tensor,
    expect,
    labels_of,
    validate_finite,
    validate_labels,
)


class QP:
    """A batch of convex quadratic programs, checked when it is made.

    .. math:: \\min_x ½ xᵀA x + bᵀx + λ‖x‖₁ \\quad s.t. \\quad Cx ≤ d, Ex = f, lb ≤ x ≤ ub, ‖x‖₁ ≤ B

    Every argument may carry a leading batch dimension; one that lacks it is shared by the batch. When none has
    it, the problem is a single one and answers come back without a batch dimension. Answers are numpy arrays
    unless an argument was a torch tensor.

    Parameters
    ----------
    A : (batch, n, n) or (n, n)
        Symmetric positive semidefinite.
        Numbers beyond ±`LARGEST` are refused here and in b, C, E and f.
    b : (batch, n) or (n,)
    C, d : (batch, m, n) or (m, n), and (batch, m) or (m,)
        Both or neither. An entry of d that is infinite, or at least `NO_BOUND` and far beyond the size of its row,
        means no constraint.
    l1_penalty, l1_radius : number or (batch,)
        Non-negative.
    E, f : (batch, p, n) or (p, n), and (batch, p) or (p,)
        Both or neither.
    lb, ub : (batch, n), (n,) or number
        Either may be left out; infinite entries and those beyond ±`NO_BOUND` mean no bound.
    check : bool
        False skips the checks of values (finite, symmetric, semidefinite) for data known to be good.

    Attributes
    ----------
    A, b, C, d : Tensor
        Always batched, on one device, of one float dtype; C and d have m = 0 rows when there are none. A row without
        a bound is kept as 0·x ≤ 1.
    E, f, lb, ub : Tensor or None
    l1_penalty, l1_radius : Tensor (batch,) or None
    single, numpy : bool
        The shape and the array type in which answers are given back.
    """

    def __init__(
        self,
        A: ArrayLike,
        b: ArrayLike,
        C: ArrayLike = None,
        d: ArrayLike = None,
        l1_penalty: ArrayLike = None,
        l1_radius: ArrayLike = None,
        *,
        E: ArrayLike = None,
        f: ArrayLike = None,
        lb: ArrayLike = None,
        ub: ArrayLike = None,
        check: bool = True,
    ) -> None:
        values = (A, b, C, d, E, f, lb, ub, l1_penalty, l1_radius)
        if check and l1_penalty is None and l1_radius is None and self._take_batch(A, b, C, d, E, f, lb, ub):
            return
        if l1_penalty is None and l1_radius is None and _is_clean(A, b, C, d, E, f, lb, ub):
            factor = cholesky_factor(A)
            if _is_semidefinite(A, factor):
                self._take_arrays(*values[:8])
                self.factor = factor
                return
        fields = {name: value for name, value in zip(_DIMS, values, strict=True) if value is not None}
        for name in ("A", "b"):
            if name not in fields:
                raise InputError(f"{name}: expected an array, found None")
        for pair, meaning in ((("C", "d"), "the constraints Cx <= d"), (("E", "f"), "the equations Ex = f")):
            missing = [name for name in pair if name not in fields]
            if len(missing) == 1:
                other = pair[1 - pair.index(missing[0])]
                raise InputError(f"{missing[0]}: expected together with {other} ({meaning}), found nothing")
        _check_labels(fields)
        tensors = {name: as_tensor(name, value) for name, value in fields.items()}
        n = tensors["A"].shape[-1] if tensors["A"].dim() else 0
        for name in ("lb", "ub"):
            if name in tensors and not tensors[name].dim():
                tensors[name] = tensors[name].expand(n)  # one number for all variables
        self.numpy = not any(isinstance(value, Tensor) for value in fields.values())
        tensors = _one_dtype_and_device(tensors, fields)
        self._check_shapes(tensors)
        batches = {name: len(t) for name, t in tensors.items() if t.dim() == _DIMS[name] + 1}
        self.single = not batches
        batch = max(batches.values(), default=1)
        for name, size in batches.items():
            largest = max(batches, key=lambda key: batches[key])
            expect(size in (1, batch), name, f"a batch of {batch} as in {largest}", size)
        expect(batch != 0 and 0 not in batches.values(), "A", "at least one problem", "an empty batch")
        traced = any(_is_traced(tensor) for tensor in tensors.values())
        if check and not traced:
            for name, tensor in tensors.items():
                if name not in ("d", "lb", "ub"):
                    validate_finite(name, tensor)
                    most = float(tensor.detach().abs().max()) if tensor.numel() else 0.0
                    expect(most <= LARGEST, name, f"numbers of at most {LARGEST:g}", f"{most:g}")
                elif bool(tensor.isnan().any()):
                    raise InputError(f"{name}: expected numbers, found NaN")
            _check_semidefinite(tensors["A"].detach())
            for name in (name for name in ("l1_penalty", "l1_radius") if name in tensors):
                least = tensors[name].min().item()
                expect(least >= 0, name, "a non-negative number", least)

        def batched(name: str) -> Tensor:
            tensor = tensors[name]
            if tensor.dim() == _DIMS[name]:
                tensor = tensor.unsqueeze(0)
            return tensor.expand(batch, *tensor.shape[1:])

        self.A, self.b = batched("A"), batched("b")
        self.C = batched("C") if "C" in tensors else self.A.new_zeros(batch, 0, self.n)
        self.d = batched("d") if "d" in tensors else self.A.new_zeros(batch, 0)
        for name in _OPTIONAL:
            setattr(self, name, batched(name) if name in tensors else None)
        if not traced:
            self._drop_free_rows()

    def _take_batch(self, *values: ArrayLike) -> bool:
        """Many problems from plain arrays, all with the batch dimension, that one compiled pass finds good."""
        A, b = values[:2]
        if type(b) is not np.ndarray or b.ndim != 2 or len(b) < BATCH or (values[2] is None) != (values[3] is None):
            return False
        (batch, n), rows = b.shape, [len(v[0]) if type(v) is np.ndarray and v.ndim == 3 else 0 for v in values]
        shapes = [(n, n), (n,), (rows[2], n), (rows[2],), (rows[4], n), (rows[4],), (n,), (n,)]
        for value, shape in zip(values, shapes, strict=True):
            plain = type(value) is np.ndarray and value.dtype == np.float64 and value.shape == (batch, *shape)
            if value is not None and not plain:
                return False
        if A is None or (values[4] is None) != (values[5] is None) or (values[6] is None) != (values[7] is None):
            return False
        try:
            from time2decide.qp.bulk import are_plain
        except ImportError:
            return False
        empty = [(0, n), (0,), (0, n), (0,), (0,), (0,)]
        arrays = [np.array(v, order="C") for v in values[:2]]
        arrays += [
            np.zeros((batch, *e)) if v is None else np.array(v, order="C")
            for v, e in zip(values[2:], empty, strict=True)
        ]
        if not are_plain(*arrays):
            return False
        tensors = [torch.from_numpy(array) for array in arrays]
        self.A, self.b, self.C, self.d = tensors[:4]
        for name, tensor, value in zip(_OPTIONAL, tensors[4:], values[4:], strict=False):
            setattr(self, name, None if value is None else tensor)
        self.l1_penalty = self.l1_radius = None
        self.single, self.numpy = False, True
        return True

    def _take_arrays(self, A, b, C, d, E, f, lb, ub) -> None:  # type: ignore[no-untyped-def]
        """One problem from arrays that need no further check: the short way."""
        if C is None:
            C, d = np.zeros((0, len(b))), np.zeros(0)
        self.A, self.b, self.C, self.d = (torch.from_numpy(array[None].copy()) for array in (A, b, C, d))
        self.E = self.f = self.lb = self.ub = self.l1_penalty = self.l1_radius = None
        if E is not None:
            self.E, self.f = torch.from_numpy(E[None].copy()), torch.from_numpy(f[None].copy())
        if lb is not None:
            self.lb = torch.from_numpy(np.where(lb[None] <= -NO_BOUND, -np.inf, lb[None]))
        if ub is not None:
            self.ub = torch.from_numpy(np.where(ub[None] >= NO_BOUND, np.inf, ub[None]))
        self.single = self.numpy = True

    factor: CholeskyFactor | None = None  # of A, where it is known: spares the solver of one problem to form it again
    E: Tensor | None
    f: Tensor | None
    lb: Tensor | None
    ub: Tensor | None
    l1_penalty: Tensor | None
    l1_radius: Tensor | None

    def _drop_free_rows(self) -> None:
        """Rows without a bound become 0·x ≤ 1, impossible ones 0·x ≤ −1; beyond ±`NO_BOUND`, lb and ub become infinite.

        A row whose coefficients are themselves as large as its bound is a constraint in other units and stays.
        """
        if bool((self.d.abs() >= NO_BOUND).any()):
            size = self.C.detach().abs().amax(-1)  # (batch, m)
            free = (self.d == torch.inf) | ((self.d >= NO_BOUND) & (self.d >= _FAR * size))
            gone = free | (self.d == -torch.inf)
            self.C = torch.where(gone.unsqueeze(-1), 0.0, self.C)
            self.d = torch.where(free, 1.0, torch.where(gone, -1.0, self.d))
        for name, sign in (("lb", -1.0), ("ub", 1.0)):
            bound = getattr(self, name)
            if bound is not None:
                setattr(self, name, torch.where(sign * bound >= NO_BOUND, sign * torch.inf, bound))

    @staticmethod
    def _check_shapes(tensors: dict[str, Tensor]) -> None:
        """Raise unless all shapes fit those of A, C and E; a leading batch dimension may be there."""
        shapes = {name: tuple(tensors[name].shape) for name in _AXES if name in tensors}
        for name, shape in shapes.items():
            meaning = f"shape {_shape_text(*_AXES[name])} or {_shape_text('batch', *_AXES[name])}"
            expect(len(shape) - _DIMS[name] in (0, 1), name, meaning, shape)
        sizes = {"n": shapes["A"][-1]}
        expect(sizes["n"] != 0, "A", "at least one variable", f"shape {shapes['A']}")
        for name, shape in shapes.items():
            axes, own = _AXES[name], shape[len(shape) - _DIMS[name] :]
            like = {"d": "C", "f": "E"}.get(name, "A")
            fitting = f"{_shape_text(*(str(sizes.get(axis, axis)) for axis in axes))} to match {like}"
            if axes[:1] in ("m", "p"):
                sizes.setdefault(axes[0], own[0])  # C and E come before d and f
            fits = own == tuple(sizes[axis] for axis in axes)
            expect(fits, name, f"shape {'square (n, n)' if name == 'A' else fitting}", shape)

    @property
    def n(self) -> int:
        """Number of variables."""
        return self.A.shape[-1]

    @property
    def m(self) -> int:
        """Number of rows of C."""
        return self.C.shape[-2]

    @property
    def traced(self) -> bool:
        """Whether a transform of torch.func hides the values, which are then checked by the layer that solves."""
        return not self.numpy and any(_is_traced(getattr(self, name)) for name in FIELDS)

    @property
    def in_numpy(self) -> bool:
        """Whether the problem was given as arrays of float64, so that answers need no conversion."""
        return self.numpy and self.A.dtype == torch.float64

    @property
    def plain(self) -> bool:
        """Whether Cx ≤ d is all there is by way of linear constraints."""
        return self.E is None and self.lb is None and self.ub is None

    @property
    def kind(self) -> str:
        """The paper's class: U, LC, R or C; combinations are joined by '+', as in 'LC+R'."""
        present = {
            "LC": self.m > 0 or not self.plain,
            "R": self.l1_penalty is not None,
            "C": self.l1_radius is not None,
        }
        return "+".join(name for name, is_there in present.items() if is_there) or "U"

    def __len__(self) -> int:
        return self.A.shape[0]

    def __repr__(self) -> str:
        return f"QP({self.kind}, batch={len(self)}, n={self.n}, m={self.m}, {str(self.A.dtype).removeprefix('torch.')})"

    def __getitem__(self, index: int | np.integer | slice | Tensor) -> QP:
        """The problems at `index`, as a batch (of one for an integer)."""
        if isinstance(index, (int, np.integer)):
            place = int(index) + (len(self) if index < 0 else 0)
            if not 0 <= place < len(self):
                raise IndexError(f"problem {index} of a batch of {len(self)}")
            index = slice(place, place + 1)
        chosen = self._map(lambda tensor: tensor[index])
        if not len(chosen):
            raise IndexError("expected at least one problem, found an empty selection")
        return chosen

    def to(self, *args: torch.device | torch.dtype | str) -> QP:
        """The same problems on another device or in another precision, as in `torch.Tensor.to`."""
        return self._map(lambda tensor: tensor.to(*args))

    def detached(self) -> QP:
        """The same problems in float64 on the CPU, outside autograd, as the exact solver takes them."""
        return self._map(lambda tensor: tensor.detach().to("cpu", torch.float64))

    def objective(self, x: Tensor) -> Tensor:
        """½ xᵀAx + bᵀx + λ‖x‖₁ for x of shape (batch, n); returns (batch,)."""
        quadratic = torch.einsum("bi,bij,bj->b", x, self.A, x) / 2 + (self.b * x).sum(-1)
        return quadratic if self.l1_penalty is None else quadratic + self.l1_penalty * x.abs().sum(-1)

    def _map(self, change) -> QP:  # type: ignore[no-untyped-def]
        """Apply `change` to every tensor; shape and array type of the answers are kept."""
        other = object.__new__(QP)
        for name in _DIMS:
            value = getattr(self, name)
            setattr(other, name, None if value is None else change(value))
        other.single, other.numpy = self.single, self.numpy
        return other

    def as_inequalities(self) -> QP:
        """The same problem with equations as pairs of rows and bounds as rows, for methods that take Cx ≤ d only."""
        if self.plain:
            return self
        batch, eye = len(self), torch.eye(self.n, dtype=self.A.dtype, device=self.A.device)
        rows, bounds = [self.C], [self.d]
        if self.E is not None and self.f is not None:
            rows, bounds = [*rows, self.E, -self.E], [*bounds, self.f, -self.f]
        for sign, bound in ((1.0, self.ub), (-1.0, self.lb)):
            if bound is not None:
                rows, bounds = [*rows, (sign * eye).expand(batch, -1, -1)], [*bounds, sign * bound]
        other = QP(
            self.A, self.b, torch.cat(rows, 1), torch.cat(bounds, 1), self.l1_penalty, self.l1_radius, check=False
        )
        other.single, other.numpy = self.single, self.numpy
        return other

    def split_dual(self, dual: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Multipliers of C, E and the bounds from those of `as_inequalities`; the last are positive at ub."""
        m, p = self.m, 0 if self.E is None else self.E.shape[1]
        rows, plus, minus = dual[:, :m], dual[:, m : m + p], dual[:, m + p : m + 2 * p]
        box = dual[:, m + 2 * p :]
        sides = [box[:, i : i + self.n] for i in range(0, box.shape[1], self.n)]
        upper = sides.pop(0) if self.ub is not None else torch.zeros_like(self.b)
        lower = sides.pop(0) if self.lb is not None else torch.zeros_like(self.b)
        return rows, plus - minus, upper - lower


#: Problems from which on a batch is worth the compiled kernels.
BATCH = 32
#: A bound of this size or more means that there is none.
NO_BOUND = 1e20
#: Larger numbers are refused: products of two would overflow, and with them every check of an answer.
LARGEST = 1e150
_LARGE = 48  # variables from which on it pays to see whether A is diagonal
_FAR = 1e15  # a bound counts as none only where it is this much larger than the coefficients of its row
_AXES = {"A": "nn", "b": "n", "C": "mn", "d": "m", "E": "pn", "f": "p", "lb": "n", "ub": "n"}
_AXES |= {"l1_penalty": "", "l1_radius": ""}
_DIMS = {name: len(axes) for name, axes in _AXES.items()}
#: Names of everything that a problem is made of.
FIELDS = tuple(_DIMS)
_OPTIONAL = ("E", "f", "lb", "ub", "l1_penalty", "l1_radius")


def _is_traced(value: Tensor | None) -> bool:
    return value is not None and bool(torch._C._functorch.is_functorch_wrapped_tensor(value))


def _shape_text(*axes: str) -> str:
    """A shape as Python prints it."""
    return f"({', '.join(axes)}{',' if len(axes) == 1 else ''})"


def _check_labels(fields: dict[str, ArrayLike]) -> None:
    """Raise where objects of pandas name variables or rows otherwise than others do."""
    for axis, what in (("n", "variables"), ("m", "rows"), ("p", "rows")):
        found = {name: labels_of(fields[name]) for name in fields if _AXES[name].endswith(axis)}
        found |= {f"{name}'s rows": labels_of(fields[name], 0) for name in fields if _AXES[name] in (axis + "n",)}
        validate_labels(found, what)


def _is_clean(A, b, C, d, E, f, lb, ub) -> bool:  # type: ignore[no-untyped-def]
    """Whether one problem is given as float64 arrays that fit, with a symmetric A."""
    for array in (A, b, C, d, E, f, lb, ub):
        if array is not None and (type(array) is not np.ndarray or array.dtype != np.float64):
            return False
    if A is None or b is None or b.ndim != 1 or not len(b) or A.shape != (len(b), len(b)):
        return False
    n, total = len(b), float(np.vdot(A, A)) + float(np.vdot(b, b))  # small only if every entry is
    for matrix, side in ((C, d), (E, f)):
        if (matrix is None) != (side is None):
            return False
        if matrix is not None:
            if side.ndim != 1 or matrix.shape != (len(side), n):
                return False
            total += float(np.vdot(matrix, matrix)) + float(np.vdot(side, side))
    if not total <= LARGEST**2 or (d is not None and len(d) and max(d.max(), -d.min()) >= NO_BOUND):
        return False
    for bound in (lb, ub):
        if bound is not None and (bound.shape != b.shape or bound.max() != bound.max()):  # NaN is not itself
            return False
    return bool((A == A.T).all())


class CholeskyFactor(NamedTuple):
    """Result of Cholesky's method on A."""

    L: np.ndarray  # A = LLᵀ, in the lower triangle
    singular: bool  # L is not complete
    diagonal: bool  # whether A was found to be diagonal


def cholesky_factor(A: np.ndarray) -> CholeskyFactor:
    """The factor of a symmetric A; a large diagonal one costs a square root."""
    if len(A) >= _LARGE and not A[0, 1:].any():
        main = A.diagonal()
        if main.min() >= 0 and np.count_nonzero(A != 0) == np.count_nonzero(main):
            return CholeskyFactor(np.sqrt(A), not main.all(), True)
    L, singular = lapack.dpotrf(A.T, lower=1, clean=0)  # Aᵀ is A in the order of LAPACK
    return CholeskyFactor(L, singular != 0, False)


def _is_semidefinite(A: np.ndarray, factor: CholeskyFactor) -> bool:
    """Whether Cholesky's method went through, or does without rows of zeros or after a shift by rounding."""
    if not factor.singular or factor.diagonal or (2 * A.diagonal() >= np.abs(A).sum(axis=1)).all():
        return True
    used = np.flatnonzero(A.any(axis=1))
    if len(used) < len(A):
        A = A[np.ix_(used, used)]
        if not len(A) or not cholesky_factor(A).singular:
            return True
    shifted = A.T.copy(order="K")
    shifted.flat[:: len(A) + 1] += 1e-9 * np.abs(A).max() * len(A)
    return int(lapack.dpotrf(shifted, clean=0, overwrite_a=1)[1]) == 0


def _one_dtype_and_device(tensors: dict[str, Tensor], values: dict[str, ArrayLike]) -> dict[str, Tensor]:
    """Float32 only where every array is float32; Python numbers do not count. Torch inputs must share a device."""
    arrays = [t for name, t in tensors.items() if hasattr(values[name], "dtype")] or list(tensors.values())
    dtype = torch.float32 if all(t.dtype == torch.float32 for t in arrays) else torch.float64
    devices = {tensors[name].device for name, value in values.items() if isinstance(value, Tensor)}
    expect(len(devices) <= 1, "A", "all tensors on one device", sorted(map(str, devices)))
    device = devices.pop() if devices else torch.device("cpu")
    return {name: t.to(device=device, dtype=dtype) for name, t in tensors.items()}


def _check_semidefinite(A: Tensor) -> None:
    """Raise unless every A is symmetric and positive semidefinite up to rounding."""
    A = A if A.dim() == 3 else A.unsqueeze(0)
    scale = A.abs().amax(dim=(-2, -1)).clamp_min(torch.finfo(A.dtype).tiny)
    tolerance = 1e-9 if A.dtype == torch.float64 else 1e-4
    asymmetry = (A - A.mT).abs().amax(dim=(-2, -1))
    if bool((asymmetry > tolerance * scale).any()):
        worst = int((asymmetry / scale).argmax())
        raise InputError(f"A: expected symmetric, found max |A - A^T| = {asymmetry[worst]:.3g} in problem {worst}")
    # Cholesky of a slightly shifted A fails only when A has a clearly negative eigenvalue.
    shift = tolerance * scale * A.shape[-1]
    shifted = A + torch.diag_embed(shift.unsqueeze(-1).expand(A.shape[:-1]))
    _, info = torch.linalg.cholesky_ex(shifted)
    if bool((info > 0).any()):
        bad = int((info > 0).nonzero()[0])
        lowest = torch.linalg.eigvalsh(A[bad])[0].item()
        raise InputError(f"A: expected positive semidefinite, found eigenvalue {lowest:.3g} in problem {bad}")
