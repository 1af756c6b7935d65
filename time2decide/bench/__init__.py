"""Speed and accuracy beside other solvers, in one run on one machine.

Each benchmark is a function ``rows(quick)`` that returns JSON-able rows. Solvers are timed interleaved and the median
of many rounds is taken, because machines are noisy; a ratio is only ever formed from times of the same run.
"""

from importlib.util import find_spec

#: name -> module and function
BENCHMARKS = {
    "constructions": ("solvers", "construction_rows"),
    "labels": ("solvers", "label_rows"),
    "portfolio": ("portfolio_solver", "portfolio_rows"),
    "limits": ("portfolio_solver", "limit_rows"),
    "exactness": ("portfolio_solver", "exactness_rows"),
    "qp": ("qp_core", "qp_rows"),
    "layers": ("qp_core", "layer_rows"),
    "head": ("decision_head", "head_rows"),
    "sparse": ("sparse", "sparse_rows"),
    "hard": ("hard", "hard_rows"),
    "warm": ("warm", "warm_rows"),
    "projection": ("markets", "projection_rows"),
    "neural": ("solvers", "neural_rows"),
    "oracle": ("markets", "oracle_rows"),
    "lmc": ("markets", "lmc_rows"),
    "decide": ("markets", "decide_rows"),
    "faults": ("faults", "fault_rows"),
    "serve": ("serving", "serve_rows"),
}


def installed(package: str) -> bool:
    """Whether a package to compare with is there; none of them is a dependency."""
    return find_spec(package) is not None
