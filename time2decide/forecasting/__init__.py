"""The TimePFN backbone, a transformer over channels and patches that forecasts 96 steps from 96, pretrained here."""

from time2decide.forecasting.forecaster import TimePFNForecaster
from time2decide.forecasting.pretraining import PRESETS, PretrainingConfig, pretrain
from time2decide.forecasting.timepfn import TimePFN, TimePFNConfig

__all__ = ["PRESETS", "PretrainingConfig", "TimePFN", "TimePFNConfig", "TimePFNForecaster", "pretrain"]
