"""Results that need no market: why plugging in a forecast loses, and why a covariance has to be shown.

`toy` is the two-asset model in which the loss of predict-then-optimise is a one-dimensional integral; `parity` shows
that linear attention over data tokens alone cannot form a covariance, and what has to be added so that it can.
"""

from time2decide.core import lazy_names

__getattr__, __all__ = lazy_names(
    __name__, {"parity": "ParityConfig ParityTransformer covariance_series", "toy": "ToyModel"}
)
