"""Figures, pages and the report as pure functions of stored results."""

from time2decide.reports.content import results_of
from time2decide.reports.figures import draw
from time2decide.reports.page import write_report

__all__ = ["draw", "results_of", "write_report"]
