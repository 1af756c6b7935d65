"""Problems and exact answers.

One problem type (`QP`), one answer type (`Solution`) with optimality conditions computed from the problem data
alone, random problems of the paper's distribution, exact answers in bulk, and exact projections.
"""

from time2decide.core import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "exact": "solve_exact",
        "generators": "KAPPA_RANGES PAPER_SIZES random_qp reference_problems",
        "problem": "InputError QP",
        "projections": "project_l1_ball project_portfolio project_simplex soft_threshold",
        "solution": "KKT STATUS_TEXT Solution Status kkt",
        "sparse": "SparseQP",
    },
)
