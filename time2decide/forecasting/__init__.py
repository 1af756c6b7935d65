"""Forecasts of the next returns: the TimePFN backbone and its pretraining, and forecasts that need no training."""

from time2decide.forecasting.pretraining import PRESETS, PretrainingConfig, pretrain
from time2decide.forecasting.timepfn import TimePFN, TimePFNConfig, TimePFNForecaster

__all__ = ["PRESETS", "PretrainingConfig", "TimePFN", "TimePFNConfig", "TimePFNForecaster", "pretrain"]
