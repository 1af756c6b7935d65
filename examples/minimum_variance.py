"""
# Minimum variance beside Ledoit–Wolf, out of sample

The covariance of the market policy as an skfolio estimator, and skfolio's
Ledoit–Wolf, in the same optimiser and the same walk-forward: 20 stocks, decided
anew every two weeks from what came before.
"""

from matplotlib import pyplot
from skfolio.model_selection import WalkForward, cross_val_predict
from skfolio.moments import LedoitWolf
from skfolio.optimization import MeanRisk
from skfolio.prior import EmpiricalPrior

from time2decide import load_returns
from time2decide.backtesting.skfolio_covariance import ReactiveCovariance

returns = load_returns("sp500").iloc[-1000:]
walk = WalkForward(
    train_size=500, test_size=10, purged_size=1
)  # traded at the next close
estimators = {"Ledoit–Wolf": LedoitWolf(), "reactive": ReactiveCovariance()}
paths = {
    name: cross_val_predict(
        MeanRisk(prior_estimator=EmpiricalPrior(covariance_estimator=one)),
        returns,
        cv=walk,
    )
    for name, one in estimators.items()
}

# %%
# Volatilities, a year.

for name, path in paths.items():
    print(f"{name:12} volatility {path.annualized_standard_deviation:.4f} a year")

# %%
# Realised volatility over half a year.

figure, axis = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
for name, path in paths.items():
    axis.plot(path.returns_df.rolling(126).std() * 252**0.5, label=name)
axis.set(ylabel="volatility a year, last 126 days")
axis.tick_params(axis="x", rotation=30)
axis.legend(frameon=False)
