"""``time2decide decide``: the next rebalancing for a table of returns or prices, and on demand how sure and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from time2decide.cli.console import AsJson, Prices, Returns, console, validate_source, values_flag
from time2decide.core.validation import expect, validate_count, validate_positive

if TYPE_CHECKING:
    from rich.table import Table

_SHOWN = 5  # assets named in the explanation of a network
_TRADED = 5e-5  # weight from which a change is a trade
_YEARS = 504  # rows below which the market policy is said to know little
_READS = {"hindsight": "the oracle's past allocations", "own": "its own past weights", "years": "all of them"}
_BAR = 40  # characters of the longest bar
_GAPS = {
    "delisted": "Sold, no return in the last 21 rows",
    "halted": "Not traded, no return on the last row",
    "young": "Not bought, fewer than 63 returns",
    "outside": "Outside its bounds, and cannot be traded",
}
_REASONS = {"risk": "risk", "mean": "prior", "forecast": "forecast"}  # column -> part of `reasons_bps`


def decide(
    file: Annotated[str, typer.Argument(help="sp500, or a .csv or .parquet file: dates first, a column per asset.")],
    turnover: Annotated[float, typer.Option(help="Turnover budget γ on ‖new − current‖₁, in (0, 2].")] = 1.0,
    previous: Annotated[
        Path | None, typer.Option(help="Current weights: a CSV with the columns asset,weight; 1/N unless given.")
    ] = None,
    prices: Prices = False,
    returns: Returns = False,
    risk_aversion: Annotated[
        float | None, typer.Option(help="λ of the utility sᵀr − λ sᵀΣs per period; 2, or 0.1 for decide networks.")
    ] = None,
    constraints: Annotated[
        Path | None, typer.Option(help="Bounds, groups, exposures and cash: a .toml, or a .csv asset,lower,upper.")
    ] = None,
    cost: Annotated[
        float | None, typer.Option(help="Cost of trading in basis points; 10, or none for decide networks.")
    ] = None,
    benchmark: Annotated[
        Path | None, typer.Option(help="Weights that risk is measured from: a CSV with the columns asset,weight.")
    ] = None,
    frontier: Annotated[
        bool, typer.Option("--frontier", help="Add what each unit of turnover is worth, and where it stops paying.")
    ] = False,
    figure: Annotated[
        Path | None, typer.Option(help="Draw the turnover frontier to this .png or .svg; as --frontier.")
    ] = None,
    gaps: Annotated[
        str, typer.Option(help="refuse missing returns, or keep: young, halted and delisted assets by stated rules.")
    ] = "refuse",
    model: Annotated[str, typer.Option(help="market, decide, decide-utility, or a folder made by `train`.")] = "market",
    uncertainty: Annotated[
        bool, typer.Option("--uncertainty", help="Add standard deviations over perturbed histories.")
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Add the reasons, by derivatives.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Show every asset, also those without a trade.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the new weights to this CSV.")] = None,
    seed: Annotated[int, typer.Option(help="Of the perturbed histories.")] = 0,
    as_json: AsJson = False,
) -> None:
    """The next rebalancing: long-only, fully invested, within a turnover budget.

    Example: time2decide decide returns.csv --turnover 0.5 --previous weights.csv --out new.csv
    """
    validate_source(file)
    fits = out is None or (out.suffix.lower() == ".csv" and out.parent.is_dir())
    expect(fits, "out", "a name ending in .csv in an existing folder", out)
    expect(out is None or out.resolve() != Path(file).resolve(), "out", "another file than the one that is read", out)
    if figure is not None:
        drawable = figure.suffix.lower() in (".png", ".svg") and figure.parent.is_dir()
        expect(drawable, "figure", "a name ending in .png or .svg in an existing folder", figure)
        expect(figure.resolve() != Path(file).resolve(), "figure", "another file than the one that is read", figure)
    validate_count("seed", seed, least=0)
    values = values_flag(prices, returns)
    if cost is not None:
        validate_positive("cost", cost, allow_zero=True)
    from time2decide.markets.tables import read_weights, write_weights

    current = None if previous is None else read_weights(previous)
    reference = None if benchmark is None else read_weights(benchmark)
    import pandas as pd
    import torch

    from time2decide.markets.tables import load_market
    from time2decide.policy.decision_facts import decision_facts

    torch.set_num_threads(1)  # the tensors are small: threads would only wait for each other
    table, found = load_market(file, values, gaps=gaps)
    limits = None
    if constraints is not None:
        from time2decide.markets.constraint_files import read_constraints

        limits = read_constraints(constraints, [str(column) for column in table.columns])
    facts = decision_facts(
        table,
        current,
        turnover,
        risk_aversion=risk_aversion,
        model=model,
        with_uncertainty=uncertainty,
        with_explanation=explain,
        seed=seed,
        constraints=limits,
        cost_bps=cost,
        benchmark=reference,
        with_frontier=frontier or figure is not None,
        gaps=gaps,
    )
    facts["input"] |= {"source": file, "values": found, "values_guessed": values is None and file != "sp500"}
    if out is not None:
        write_weights(pd.Series(facts["weights"]), out)
    if figure is not None:
        from time2decide.reports.frontier_figure import write_frontier

        write_frontier(facts, figure)
    if as_json:
        typer.echo(json.dumps(facts, allow_nan=False))
        return
    show_decision(facts, console(110), every)
    for written in filter(None, (out, figure)):
        typer.echo(f"written: {written}")


def show_decision(facts: dict[str, Any], screen: Any, every: bool = False) -> None:
    """The trades, one line of verdict, the cost, then what was asked for beyond them and what was assumed."""
    if every or _trades(facts):
        screen.print(trade_table(facts, every))
    else:
        screen.print(f"No trade after {facts['input']['last']}: none is worth its cost.")
    parts = (
        *(() if every else (_untraded_line,)),
        *(_gap_lines, _verdict_line, _cost_lines),
        *(_forecast_lines, _frontier_lines, _reason_lines, _input_lines),
    )
    for line in (line for part in parts for line in part(facts)):
        screen.print(line, markup=False)


def _trades(facts: dict[str, Any]) -> list[str]:
    """The traded assets, the largest trades first."""
    change = facts["change"]
    return sorted((name for name in change if abs(change[name]) > _TRADED), key=lambda name: -abs(change[name]))


def trade_table(facts: dict[str, Any], every: bool = False) -> Table:
    """The trades, or every asset: trade, current and new weight, and what was asked for beyond them."""
    from rich.markup import escape
    from rich.table import Table

    names = _trades(facts)
    if every:
        names += sorted(set(facts["weights"]) - set(names), key=lambda name: -facts["weights"][name])
    title = f"Trades after {facts['input']['last']}, γ = {facts['turnover_l1']:g}"
    table = Table(title=title, title_justify="left")
    rows = [_trade_cells(facts, asset) for asset in names]
    for name in ("asset", *rows[0]):
        table.add_column(name, justify="left" if name == "asset" else "right")
    for asset, row in zip(names, rows, strict=True):
        table.add_row(escape(asset), *row.values())
    return table


def _gap_lines(facts: dict[str, Any]) -> list[str]:
    """What was done with assets that miss returns."""
    return [f"{_GAPS[kind]}: {', '.join(names)}." for kind, names in facts.get("gaps", {}).items() if names]


def _trade_cells(facts: dict[str, Any], asset: str) -> dict[str, str]:
    trade, sure, why = facts["change"][asset], facts.get("uncertainty"), facts.get("reasons_bps")
    colour = "green" if trade > _TRADED else "red" if trade < -_TRADED else "dim"
    cells = {"trade": f"[{colour}]{trade:+z.2%}[/]", "current": f"{facts['previous'][asset]:.2%}"}
    cells |= {"new": f"{facts['weights'][asset]:.2%}"}
    if sure:
        cells |= {"± s.d.": f"{sure['weights'][asset]:.2%}"}
    if sure or "verdict" not in facts:
        cells |= {"forecast return": f"{facts['forecast'][asset]:+z.3%}"}
    if sure:
        cells |= {"its ± s.d.": f"{sure['forecast'][asset]:.3%}"}
    if why:
        cells |= {f"why: {name}": f"{why[part][asset]:+z.2f}" for name, part in _REASONS.items()}
    return cells


def _untraded_line(facts: dict[str, Any]) -> list[str]:
    rest = set(facts["weights"]) - set(_trades(facts))
    held = [facts["weights"][name] for name in rest if facts["weights"][name] > _TRADED]
    if not rest:
        return []
    without = f", {len(rest) - len(held)} not held" if len(rest) > len(held) else ""
    return [f"Not traded: {len(held)} held ({sum(held):.1%} of the portfolio){without}. --all shows every asset."]


def _verdict_line(facts: dict[str, Any]) -> list[str]:
    """Whether there is anything to predict; for the market policy."""
    return [f"Verdict: {facts['verdict']['text']}"] if "verdict" in facts else []


def _cost_lines(facts: dict[str, Any]) -> list[str]:
    """What the trade costs, what it does to risk, and whether it is allowed."""
    checks, exact = facts["constraints"], facts.get("exact")
    cost = f"Cost {1e4 * exact['cost']:.2f} bp of the portfolio" if exact else "Trade"
    spread = f" (weighed over {facts['days']:.0f} days)" if "days" in facts else ""
    lines = [
        f"{cost}{spread}: turnover {facts['turnover']:.4f} of {facts['turnover_l1']:g}, bought plus sold. "
        f"Risk {facts['risk_previous']:.3%} before, {facts['risk']:.3%} after, one standard deviation per step."
    ]
    if "active_risk" in facts:
        before, after = facts["active_risk_previous"], facts["active_risk"]
        lines.append(f"Risk from the benchmark (tracking error) {before:.3%} before, {after:.3%} after.")
    held = "all constraints hold" if checks["satisfied"] else "A CONSTRAINT IS VIOLATED"
    proof = f", optimal for its forecasts and risks, certified to {exact['gap']:.0e}" if exact else ""
    cash = f", cash {facts['cash']:.1%}" if facts.get("cash", 0.0) > _TRADED else ""
    lines.append(f"Check: {held}{proof}; sum {checks['sum']:.6f}{cash}.")
    return lines + [f"  {name}: {value:.4f}" for name, value in facts.get("limits", {}).items()]


def _forecast_lines(facts: dict[str, Any]) -> list[str]:
    """The forecast of the portfolio, and what forecasts change."""
    sure, lines = facts.get("uncertainty"), []
    if sure or "verdict" not in facts:
        error = f" ± {sure['forecast_return']:.3%}" if sure else ""
        lines.append(
            f"Forecast return {facts['forecast_return']:+.3%}{error} for the next step (current weights "
            f"{facts['forecast_return_previous']:+.3%})."
        )
    if "reasons_bps" in facts:
        weights, without = facts["weights"], facts["without_forecasts"]
        differs = sum(abs(weights[name] - without[name]) for name in weights)
        reasons = [
            "Why: basis points a day that one more unit of the asset brings beside the current portfolio, by its risk, "
            "its expected mean and its forecast. Positive speaks for buying."
        ]
        lines += [
            *(reasons if _trades(facts) else []),
            f"Without forecasts the weights would differ by {differs:.4f} (ℓ1). Record of the forecasts:",
            *(_record_line(record) for record in facts["verdict"]["records"] if record["worth_error_bps"] > 0),
        ]
    return lines


def _record_line(record: dict[str, Any]) -> str:
    days = "the next day" if record["days"] == 1 else f"the next {record['days']} days"
    low, high = record["interval_bps"]
    reads = {"all assets": ", from all assets", "kernel bank": ", from the kernel bank"}.get(record["reads"], "")
    return (
        f"  {days}{reads}: earned {record['worth_bps']:.1f} bp per unit "
        f"traded (95 %: {low:.1f} to {high:.1f}), followed at {record['follow']:.0%}"
    )


def _reason_lines(facts: dict[str, Any]) -> list[str]:
    why = facts.get("explanation")
    if why is None:
        return []

    def largest(numbers: dict[str, float], sign: str) -> str:
        chosen = sorted(numbers, key=lambda name: -abs(numbers[name]))[:_SHOWN]
        return ", ".join(f"{name} {100 * numbers[name]:{sign}.2f}" for name in chosen)

    levels = "  ".join(f"{row['noise']:g}σ: {row['moved']:.3f}" for row in why["noise"])
    return [
        "Why (percentage points of the target trade, by derivatives through the network):",
        f"  returns that argue for (+) or against (−) the trade: {largest(why['pull'], '+')}",
        f"  most sensitive to the noise in the returns of: {largest(why['sensitivity'], '')}",
        f"  most resting on the covariance rows of: {largest(why['covariance'], '')}",
        *_hindsight_line(facts),
        f"  turnover of the mean decision as noise is added to the history: {levels}",
    ]


def _hindsight_line(facts: dict[str, Any]) -> list[str]:
    """How much rests on the oracle's past allocations, for a network that reads them."""
    if facts["input"]["history"] == "own":
        return []
    differs = facts["explanation"]["hindsight"]
    rests = "the oracle's past allocations" if differs > facts["turnover"] / 2 else "the forecasts"
    return [
        f"  without the oracle's past allocations the weights would differ by {differs:.3f} (ℓ1): it rests on {rests}"
    ]


def _frontier_lines(facts: dict[str, Any]) -> list[str]:
    """The turnover frontier as a table with bars."""
    lines = []
    if "frontier" in facts:
        frontier = facts["frontier"]
        points = frontier["points"]
        most = max(points[0]["price"], 1e-300)
        lines.append("Turnover frontier: what it brings, net of cost, and what the next unit is worth")
        for point in points:
            bar = "█" * round(_BAR * point["price"] / most)
            amounts = f"{point['turnover_l1']:.3f}  +{point['gain'] * 1e4:.3f} bp  {point['price'] * 1e4:.3f} bp/unit"
            lines.append(f"  {amounts} {bar}")
        lines.append(f"  More than {frontier['stops_paying_at']:.3f} does not pay.")
    return lines


def _input_lines(facts: dict[str, Any]) -> list[str]:
    source = facts["input"]
    guess = " (guessed; --prices or --returns settles it)" if source["values_guessed"] else ""
    reads = _READS[source["history"]]
    lines = [
        f"Read {source['rows']} returns of {len(facts['weights'])} assets from {source['values']}{guess}. "
        f"The network {source['model']} reads {reads}."
    ]
    if source["history"] == "years":
        if source["rows"] < _YEARS:
            lines.append(f"The policy wants years of returns; with {source['rows']} rows it knows little.")
    elif source["window"] < 96:
        lines.append(
            f"The history is shorter than the 96 rows the network was trained on: all {source['window']} were used, "
            "and the forecasts are less certain than they say."
        )
    (low, high), risk = source.get("risk_aversion_trained", (0.0, float("inf"))), facts["risk_aversion"]
    if not low <= risk <= high:
        lines.append(f"The network was trained for a risk aversion from {low:g} to {high:g}, not for {risk:g}.")
    if not source["previous_given"]:
        lines.append("No current weights were given: equal weights were assumed.")
    if "uncertainty" in facts:
        members = facts["uncertainty"]["members"]
        lines.append(f"± is one standard deviation over {members} perturbed histories.")
    return lines
