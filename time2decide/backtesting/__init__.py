"""Strategies under one name each, their walk-forward comparison with costs and intervals, and skfolio estimators."""

from time2decide.core import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "baselines": "AveragedOracle LagOneOracle PredictThenOptimise SoftForecast Uniform oracle_rollout",
        "registry": "REGISTRY make_strategy",
        "skfolio_covariance": "CMIEWMACovariance IEWMACovariance ReactiveCovariance QISCovariance TwoScaleCovariance",
        "walk_forward": "Backtest backtest with_intervals",
    },
)
