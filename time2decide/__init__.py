"""Transformers that solve quadratic programs and make covariance-aware decisions."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from time2decide.core.validation import InputError
from time2decide.qp import QP, Solution, kkt, project_portfolio, random_qp
from time2decide.solving import METHODS, solve, solve_qp

if TYPE_CHECKING:
    from time2decide.backtesting.walk_forward import backtest
    from time2decide.markets import load_returns, oracle_path
    from time2decide.policy.model import Time2Decide

__version__ = "0.1.0"
__all__ = [
    "METHODS",
    "QP",
    "InputError",
    "Solution",
    "Time2Decide",
    "backtest",
    "kkt",
    "load_returns",
    "oracle_path",
    "project_portfolio",
    "random_qp",
    "solve",
    "solve_qp",
]

#: Names whose folders need pandas and more; they are imported when first used.
_LATER = {
    "Time2Decide": "time2decide.policy",
    "backtest": "time2decide.backtesting",
    "load_returns": "time2decide.markets",
    "oracle_path": "time2decide.markets",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'time2decide' has no attribute {name!r}")
