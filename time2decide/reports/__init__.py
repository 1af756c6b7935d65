"""Figures, pages and the report as pure functions of stored results, backtests and decisions."""

from time2decide.core import lazy_names

__getattr__, __all__ = lazy_names(__name__, {"figures": "draw", "page": "results_of write_report"})
