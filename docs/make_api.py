"""Write docs/api.md from the docstrings: python docs/make_api.py."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

#: module -> names; the order of the page.
PAGES = {
    "time2decide": (
        "Time2Decide",
        "backtest",
        "load_returns",
        "check_returns",
        "Finding",
        "oracle_path",
        "project_portfolio",
        "QP",
        "Solution",
        "solve",
        "solve_qp",
        "kkt",
        "random_qp",
    ),
    "time2decide.simulation": ("Strategy", "Observation", "rollout", "score"),
    "time2decide.backtesting": ("Backtest", "with_intervals"),
    "time2decide.policy.decision_facts": ("decision_facts",),
    "time2decide.policy.market_decision": ("MarketDecision", "MarketStrategy", "Verdict", "ForecastRecord"),
    "time2decide.policy.market_policy": ("MarketPolicy", "PolicyConfig", "Seen", "PosedProblem"),
    "time2decide.forecasting.market_state": ("MarketState",),
    "time2decide.markets.prior": ("random_market", "Market"),
    "time2decide.policy.explanation": ("Uncertainty", "decision_uncertainty"),
    "time2decide.service.app": ("Limits", "make_app", "DecisionRequest"),
    "time2decide.backtesting.skfolio_estimator": ("Time2DecidePortfolio",),
    "time2decide.markets.estimators": (
        "OnlineCovariance",
        "EWMA",
        "IteratedEWMA",
        "CombinedIEWMA",
        "RollingQIS",
        "qis",
    ),
    "time2decide.backtesting.skfolio_covariance": (
        "OnlineCovarianceEstimator",
        "IEWMACovariance",
        "TwoScaleCovariance",
        "CMIEWMACovariance",
        "ReactiveCovariance",
        "QISCovariance",
    ),
    "time2decide.markets.tables": ("read_weights", "write_weights"),
    "time2decide.reports.backtest_page": ("write_page",),
}
HEADER = "# API\n\nMade from the docstrings by `python docs/make_api.py`; a test checks that it is up to date.\n"


def api() -> str:
    """The page as text."""
    parts = [HEADER]
    for module_name, names in PAGES.items():
        module = importlib.import_module(module_name)
        parts.append(f"## {module_name}\n")
        for name in names:
            thing = getattr(module, name)
            parts.append(f"### {name}\n\n{_block(thing)}")
            if inspect.isclass(thing):
                parts += [f"#### {name}.{key}\n\n{_block(member)}" for key, member in _methods(thing)]
    return "\n".join(parts)


def _methods(thing: type) -> list[tuple[str, object]]:
    """Public methods with a docstring of their own, in the order of the source."""
    found = []
    for key, member in vars(thing).items():
        function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if not key.startswith("_") and inspect.isfunction(function) and function.__doc__:
            found.append((key, function))
    return found


def _block(thing: object) -> str:
    try:
        signature = re.sub(r" at 0x[0-9a-f]+>", ">", str(inspect.signature(thing)))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        signature = ""
    name = getattr(thing, "__name__", "")
    return f"```text\n{name}{signature}\n\n{inspect.getdoc(thing) or ''}\n```\n"


if __name__ == "__main__":
    Path(__file__).with_name("api.md").write_text(api(), encoding="utf-8")
