"""Returns and the problem of deciding on them.

Synthetic markets by the linear model of coregionalisation, real ones from files, DataFrames or skfolio, covariances of
windows and covariances carried forward day by day, the exact mean-variance decision in bulk, and the oracle path that
every strategy is measured against.
"""

from time2decide.core import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "constraint_files": "parse_constraints read_constraints",
        "constraints": "Constraints Limit",
        "covariance": "covariance_by empirical_covariance",
        "estimators": "EWMA CombinedIEWMA IteratedEWMA OnlineCovariance RollingQIS qis two_scale",
        "frontier": "TurnoverFrontier turnover_frontier",
        "oracle": "BUDGETS RISK_AVERSION WINDOW mean_variance_step oracle_path",
        "orders": "Orders whole_shares",
        "portfolio": "FactorCovariance PortfolioProblem PortfolioSolution solve_portfolio",
        "portfolio_gradient": "portfolio_layer",
        "synthetic": "MARKETS SPLITS LMCConfig lmc_series lmc_set synthetic_oracle synthetic_returns",
        "tables": "load_returns",
    },
)
