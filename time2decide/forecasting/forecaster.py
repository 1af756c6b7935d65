"""The backbone as a forecaster of returns: a plain function of a window, for the strategies that take one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from time2decide.forecasting.timepfn import TimePFN


@dataclass(frozen=True)
class TimePFNForecaster:
    """(series, window, m) -> (series, m), the first step of the forecast.

    `scale` multiplies returns on the way in and divides forecasts on the way out: the model adds eps to variances,
    and returns of a per cent have variances below it. 1 is the literal reading, 100 gives back LMC amplitudes.
    """

    model: TimePFN
    scale: float = 100.0
    batch: int = 64  # windows at a time

    def __call__(self, returns: np.ndarray) -> np.ndarray:
        return self.path(returns)[:, 0]

    def path(self, returns: np.ndarray) -> np.ndarray:
        """The whole forecast, (series, horizon, m)."""
        window = torch.from_numpy(np.ascontiguousarray(returns)).float() * self.scale
        was_training = self.model.training
        self.model.eval()
        with torch.inference_mode():
            parts = [self.model(part) for part in torch.split(window, self.batch)]
        self.model.train(was_training)
        return np.asarray(torch.cat(parts).double().numpy()) / self.scale
