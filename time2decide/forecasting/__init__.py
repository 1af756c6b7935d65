"""Forecasts of the next returns: the TimePFN backbone and its pretraining, and forecasts that need no training."""
