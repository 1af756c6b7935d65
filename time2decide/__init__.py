"""Transformers that solve quadratic programs and make covariance-aware decisions."""

from time2decide.qp import QP, InputError, Solution, kkt, project_portfolio, random_qp
from time2decide.solving import METHODS, solve, solve_qp

__version__ = "0.1.0"
__all__ = [
    "METHODS",
    "QP",
    "InputError",
    "Solution",
    "kkt",
    "project_portfolio",
    "random_qp",
    "solve",
    "solve_qp",
]
