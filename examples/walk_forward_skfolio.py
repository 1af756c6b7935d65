"""
# Walk-forward in skfolio

The estimator beside three optimisers of skfolio, walk-forward on 8 stocks, before
costs.
"""

import numpy as np
from matplotlib import pyplot
from skfolio.model_selection import WalkForward, cross_val_predict
from skfolio.optimization import EqualWeighted, InverseVolatility, MeanRisk

from time2decide import load_returns
from time2decide.backtesting.skfolio_estimator import Time2DecidePortfolio

returns = load_returns("sp500").iloc[-300:, :8]
walk = WalkForward(
    train_size=200, test_size=5, purged_size=1
)  # decide anew every week, trade at the next close
figure, axis = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
for optimiser in (
    Time2DecidePortfolio(turnover_l1=0.5),
    EqualWeighted(),
    InverseVolatility(),
    MeanRisk(),
):
    path = cross_val_predict(optimiser, returns, cv=walk)
    name = type(optimiser).__name__
    axis.plot(np.cumprod(1 + path.returns), label=name)
    print(
        f"{name:22} annual Sharpe ratio {path.annualized_sharpe_ratio:+.2f} before costs"
    )
axis.set(xlabel="trading day", ylabel="wealth before costs")
axis.legend(frameon=False)
