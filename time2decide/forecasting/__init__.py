"""Forecasts of the next returns: the TimePFN backbone and its pretraining, and forecasts that need no training."""

from time2decide.core import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "pretraining": "PRESETS PretrainingConfig pretrain",
        "simple": "ar1 persistence ridge",
        "timepfn": "TimePFN TimePFNConfig TimePFNForecaster",
    },
)
