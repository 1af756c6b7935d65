"""Return series and the referee that knows them in advance.

Synthetic markets by the linear model of coregionalisation, real ones from files, DataFrames or skfolio, covariance
of windows, one exact mean-variance decision in bulk, and the oracle path that every strategy is measured against.
"""

from time2decide.markets.allocation import mean_variance_step
from time2decide.markets.covariance import covariance_by, empirical_covariance
from time2decide.markets.lmc import LMCConfig, lmc_series, lmc_set
from time2decide.markets.oracle import BUDGETS, RISK_AVERSION, WINDOW, oracle_path
from time2decide.markets.synthetic import MARKETS, SPLITS, synthetic_oracle, synthetic_returns
from time2decide.markets.tables import load_returns

__all__ = [
    "BUDGETS",
    "MARKETS",
    "RISK_AVERSION",
    "SPLITS",
    "WINDOW",
    "LMCConfig",
    "covariance_by",
    "empirical_covariance",
    "lmc_series",
    "lmc_set",
    "load_returns",
    "mean_variance_step",
    "oracle_path",
    "synthetic_oracle",
    "synthetic_returns",
]
