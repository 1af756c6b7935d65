"""``time2decide run``: the decision of the day for a portfolio whose state and journal are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from time2decide.cli.console import AsJson, console, echo, use_one_thread
from time2decide.core.files import validate_input_file

if TYPE_CHECKING:
    from time2decide.policy.portfolio_config import PortfolioConfig
    from time2decide.policy.portfolio_run import Outcome


def run(
    portfolio: Annotated[Path, typer.Argument(help="A .toml: table, turnover, risk_aversion, cost, constraints, …")],
    holdings: Annotated[
        Path | None,
        typer.Option(help="Holdings today: a CSV asset,weight or asset,shares; else the last target after drift."),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Add the reasons and the records of the forecasts.")
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="Show every asset, also those without a trade.")] = False,
    as_json: AsJson = False,
) -> None:
    """Decide for the last date of a table that grows day by day, and append the decision to a journal.

    New rows are read into the kept state. One decision per date: a second run on the same table changes nothing, and
    says so if its terms are others. A table whose past differs from what was seen is refused. A state or an older
    decision file that could not be written is made by the next run; exit code 1 until then. `backtest TABLE --journal
    FILE` decides again and compares.

    Example: time2decide run portfolio.toml
    """
    validate_input_file(portfolio)
    use_one_thread()
    from time2decide.policy.portfolio_config import read_portfolio
    from time2decide.policy.portfolio_run import run_portfolio

    config = read_portfolio(portfolio)
    outcome = run_portfolio(config, holdings)
    for message in outcome.messages:
        echo(f"time2decide: {message}", err=True)
    if as_json:
        answer = {"entry": outcome.entry, "number": outcome.number, "new": outcome.decision is not None}
        answer |= {"differs": outcome.differs, "unwritten": outcome.unwritten, "warning": outcome.stale or None}
        echo(json.dumps(answer, allow_nan=False))
    else:
        _print(outcome, config, explain, every)
    if outcome.unwritten:
        raise typer.Exit(1)


def _print(outcome: Outcome, config: PortfolioConfig, explain: bool, every: bool) -> None:
    place = f"{config.path('journal')}, line {outcome.number}"
    if outcome.decision is None:
        echo(f"Nothing new: {outcome.entry['date']} was decided on {outcome.entry['made']} ({place}).")
        return
    if outcome.stale:  # in the output, too: it is what is kept and passed on
        echo(outcome.stale)
    _show(outcome, explain, every)
    echo(f"Current weights: {outcome.entry['holdings']}. Rows read: {outcome.entry['rows_read']}. Written: {place}.")


def _show(outcome: Outcome, explain: bool, every: bool) -> None:
    from time2decide.cli.decide import show_decision
    from time2decide.policy.decision_facts import describe_decision

    assert outcome.decision is not None
    facts = describe_decision(outcome.network, outcome.decision, outcome.constraints, with_explanation=explain)
    facts["input"] |= {"source": "", "values": "the table", "values_guessed": False, "explained": explain}
    if outcome.orders is not None:
        facts["orders"] = outcome.orders.to_json(list(facts["weights"]))
    show_decision(facts, console(120), every)
