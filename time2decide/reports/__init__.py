"""Figures, pages and the report as pure functions of stored results."""

from time2decide.reports.figures import draw
from time2decide.reports.page import results_of, write_report

__all__ = ["draw", "results_of", "write_report"]
