"""Speed and accuracy against peers, in one run on one machine.

Each benchmark is a function ``rows(quick)`` that returns JSON-able rows. Peers are timed interleaved and the median of
many rounds is taken, because machines are noisy; a ratio is only ever formed from times of the same run.
"""

#: name -> module and function
BENCHMARKS = {
    "constructions": ("solvers", "construction_rows"),
    "labels": ("solvers", "label_rows"),
    "portfolio": ("portfolio_solver", "portfolio_rows"),
    "exactness": ("portfolio_exactness", "exactness_rows"),
    "qp": ("peers", "qp_rows"),
    "layers": ("peers", "layer_rows"),
    "hard": ("peers", "hard_rows"),
    "warm": ("warm", "warm_rows"),
    "projection": ("portfolio", "projection_rows"),
    "neural": ("solvers", "neural_rows"),
    "oracle": ("portfolio", "oracle_rows"),
    "lmc": ("portfolio", "lmc_rows"),
    "decide": ("portfolio", "decide_rows"),
    "serve": ("serving", "serve_rows"),
}
