"""Problems and exact answers.

One problem type (`QP`), one answer type (`Solution`) with optimality conditions computed from the problem data
alone, random problems of the paper's distribution, exact answers in bulk, and exact projections. Everything
else in the package stands on this folder; it imports nothing from the others.
"""

from time2decide.core.validation import InputError
from time2decide.qp.exact import solve_exact
from time2decide.qp.generators import KAPPA_RANGES, PAPER_SIZES, random_qp, reference_problems
from time2decide.qp.problem import QP
from time2decide.qp.projections import project_l1_ball, project_portfolio, project_simplex, soft_threshold
from time2decide.qp.solution import KKT, Solution, Status, kkt

__all__ = [
    "KAPPA_RANGES",
    "KKT",
    "PAPER_SIZES",
    "QP",
    "InputError",
    "Solution",
    "Status",
    "kkt",
    "project_l1_ball",
    "project_portfolio",
    "project_simplex",
    "random_qp",
    "reference_problems",
    "soft_threshold",
    "solve_exact",
]
