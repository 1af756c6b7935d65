"""Transformers that solve quadratic programs and make covariance-aware decisions."""

from typing import TYPE_CHECKING

from time2decide.core import lazy_names

if TYPE_CHECKING:
    from time2decide.backtesting.walk_forward import backtest as backtest
    from time2decide.core.validation import InputError as InputError
    from time2decide.data.check import check_returns as check_returns
    from time2decide.data.findings import Finding as Finding
    from time2decide.markets.decision_file import verify_decision as verify_decision
    from time2decide.markets.oracle import oracle_path as oracle_path
    from time2decide.markets.tables import load_returns as load_returns
    from time2decide.policy.model import Time2Decide as Time2Decide
    from time2decide.qp.generators import random_qp as random_qp
    from time2decide.qp.gradients import DegenerateWarning as DegenerateWarning
    from time2decide.qp.gradients import QPLayer as QPLayer
    from time2decide.qp.problem import QP as QP
    from time2decide.qp.projections import project_portfolio as project_portfolio
    from time2decide.qp.solution import Solution as Solution
    from time2decide.qp.solution import kkt as kkt
    from time2decide.qp.sparse import SparseQP as SparseQP
    from time2decide.qpsolvers_api import solve_qp as solve_qp
    from time2decide.solving import METHODS as METHODS
    from time2decide.solving import solve as solve

__version__ = "0.1.0"
__getattr__, __all__ = lazy_names(
    __name__,
    {
        "backtesting.walk_forward": "backtest",
        "core.validation": "InputError",
        "data.check": "check_returns",
        "data.findings": "Finding",
        "markets.decision_file": "verify_decision",
        "markets.oracle": "oracle_path",
        "markets.tables": "load_returns",
        "policy.model": "Time2Decide",
        "qp.generators": "random_qp",
        "qp.gradients": "DegenerateWarning QPLayer",
        "qp.problem": "QP",
        "qp.projections": "project_portfolio",
        "qp.solution": "Solution kkt",
        "qp.sparse": "SparseQP",
        "qpsolvers_api": "Problem ProblemError ProblemSolution register_in_qpsolvers solve_problem solve_qp",
        "solving": "METHODS solve",
    },
)
