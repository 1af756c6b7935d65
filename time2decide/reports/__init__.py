"""Figures and tables as pure functions of stored results."""

from time2decide.reports.figures import draw

__all__ = ["draw"]
