"""
# Bring your own forecaster

Anything that maps past returns to a forecast of the next ones can be put into
predict-then-optimise and compared walk-forward, net of costs, with the strategies
that are here.
"""

from matplotlib import pyplot

from time2decide import backtest, load_returns
from time2decide.backtesting.baselines import PredictThenOptimise


def reversal(past):
    """The loser of the last five days is expected to come back a little: (series, window, m) to (series, m)."""
    return -0.02 * past[:, -5:].sum(axis=1)


returns = load_returns("sp500").iloc[-700:, :10]
mine = PredictThenOptimise(reversal, name="pto-reversal")
result = backtest(
    returns,
    [mine, "market", "uniform"],
    turnover_l1=0.1,
    risk_aversion=5.0,
    cost_bps=10.0,
)
print(result.summary.round(4).to_string())

# %%
# Wealth after costs. Forecasts of a foundation model come in by name:
# `pto:chronos:FOLDER` (see the how-to).

figure, axis = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
for name, path in result.frame.groupby("strategy", sort=False):
    axis.plot(path["time"], path["wealth"], label=name)
axis.set(ylabel="wealth after costs")
axis.tick_params(axis="x", rotation=30)
axis.legend(frameon=False)
