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

_SHOWN = 5  # assets named in the explanation
_YEARS = 504  # rows below which the market policy is said to know little
_READS = {"hindsight": "the oracle's past allocations", "own": "its own past weights", "years": "all of them"}
_BAR = 40  # characters of the longest bar


def decide(
    file: Annotated[str, typer.Argument(help="sp500, or a .csv or .parquet file: dates first, a column per asset.")],
    turnover: Annotated[float, typer.Option(help="Turnover budget γ on ‖new − current‖₁, in (0, 2].")] = 1.0,
    previous: Annotated[
        Path | None, typer.Option(help="Current weights: a CSV with the columns asset,weight; 1/N unless given.")
    ] = None,
    prices: Prices = False,
    returns: Returns = False,
    risk_aversion: Annotated[
        float | None, typer.Option(help="λ of the utility sᵀr − λ sᵀΣs per period; 5, or 0.1 for decide networks.")
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
    gaps: Annotated[
        str, typer.Option(help="refuse missing returns, or keep: young, halted and delisted assets by stated rules.")
    ] = "refuse",
    model: Annotated[str, typer.Option(help="market, decide, decide-utility, or a folder made by `train`.")] = "market",
    uncertainty: Annotated[
        bool, typer.Option("--uncertainty", help="Add standard deviations over perturbed histories.")
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Add the reasons, by derivatives.")] = False,
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
        with_frontier=frontier,
        gaps=gaps,
    )
    facts["input"] |= {"source": file, "values": found, "values_guessed": values is None and file != "sp500"}
    if out is not None:
        write_weights(pd.Series(facts["weights"]), out)
    if as_json:
        typer.echo(json.dumps(facts, allow_nan=False))
        return
    show_decision(facts, console(110))
    if out is not None:
        typer.echo(f"written: {out}")


def show_decision(facts: dict[str, Any], screen: Any) -> None:
    """The trades, the constraints, what was asked for beyond them, and what was assumed."""
    screen.print(trade_table(facts))
    parts = (_verdict_lines, _summary_lines, _exact_lines, _reason_lines, _gap_lines, _input_lines)
    for line in (line for part in parts for line in part(facts)):
        screen.print(line, markup=False)


def trade_table(facts: dict[str, Any]) -> Table:
    """Asset by asset: current and new weight, trade, forecast; with standard deviations where they were asked for."""
    from rich.markup import escape
    from rich.table import Table

    sure = facts.get("uncertainty")
    table = Table(title=f"Rebalancing after {facts['input']['last']}, turnover at most {facts['turnover_l1']:g} (ℓ1)")
    names = ["asset", "current", "new", "trade", "forecast return"]
    if sure:
        names[4:4], names[6:] = ["± s.d."], ["± s.d."]
    for name in names:
        table.add_column(name, justify="left" if name == "asset" else "right")
    for asset in sorted(facts["weights"], key=lambda name: -abs(facts["change"][name])):
        trade = facts["change"][asset]
        colour = "green" if trade > 5e-5 else "red" if trade < -5e-5 else "dim"
        cells = [f"{facts['previous'][asset]:.2%}", f"{facts['weights'][asset]:.2%}", f"[{colour}]{trade:+z.2%}[/]"]
        cells += [f"{sure['weights'][asset]:.2%}"] if sure else []
        cells += [f"{facts['forecast'][asset]:+z.3%}"]
        cells += [f"{sure['forecast'][asset]:.3%}"] if sure else []
        table.add_row(escape(asset), *cells)
    return table


_GAPS = {
    "delisted": "Sold, no return in the last 21 rows",
    "halted": "Not traded, no return on the last row",
    "young": "Not bought, fewer than 63 returns",
}


def _gap_lines(facts: dict[str, Any]) -> list[str]:
    """What was done with assets that miss returns."""
    return [f"{_GAPS[kind]}: {', '.join(names)}." for kind, names in facts.get("gaps", {}).items() if names]


def _verdict_lines(facts: dict[str, Any]) -> list[str]:
    """Whether there is anything to predict, and what the forecasts change; for the market policy."""
    if "verdict" not in facts:
        return []
    weights, without = facts["weights"], facts["without_forecasts"]
    differs = sum(abs(weights[name] - without[name]) for name in weights)
    return [
        f"Verdict: {facts['verdict']['text']}",
        f"Without forecasts the weights would differ by {differs:.4f} (ℓ1). The trade costs "
        f"{1e4 * facts['exact']['cost']:.2f} bp of the portfolio, spread over {facts['days']:.0f} days.",
    ]


def _summary_lines(facts: dict[str, Any]) -> list[str]:
    checks, used, sure = facts["constraints"], facts["turnover"], facts.get("uncertainty")
    verdict = "all constraints hold" if checks["satisfied"] else "A CONSTRAINT IS VIOLATED"
    error = f" ± {sure['forecast_return']:.3%}" if sure else ""
    return [
        f"Turnover {used:.4f} of {facts['turnover_l1']:g} (‖new − current‖₁: half of it is bought, half sold).",
        f"Forecast return {facts['forecast_return']:+.3%}{error} for the next step (current weights "
        f"{facts['forecast_return_previous']:+.3%}); risk {facts['risk']:.3%} (current {facts['risk_previous']:.3%}), "
        "one standard deviation per step.",
        f"Check: sum {checks['sum']:.10f}, smallest weight {checks['smallest_weight']:.6f}, turnover "
        f"{used:.10f} ≤ {facts['turnover_l1']:g}: {verdict}.",
    ]


def _reason_lines(facts: dict[str, Any]) -> list[str]:
    why = facts.get("explanation")
    if why is None:
        return _market_reason_lines(facts) if "reasons_bps" in facts else []

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


def _market_reason_lines(facts: dict[str, Any]) -> list[str]:
    """What speaks for and against each of the largest trades, in basis points a day."""
    parts = facts["reasons_bps"]
    traded = [name for name, trade in facts["change"].items() if abs(trade) > 5e-5]
    if not traded:
        return ["Why: no trade is worth its cost."]
    lines = ["Why (basis points a day that one more unit of the asset brings: prior on means, forecasts, risk):"]
    for name in sorted(traded, key=lambda one: -abs(facts["change"][one]))[:_SHOWN]:
        prior, forecast, risk = (parts[part][name] for part in ("prior", "forecast", "risk"))
        lines.append(f"  {name} {facts['change'][name]:+.2%}: {prior:+.2f} {forecast:+.2f} {risk:+.2f}")
    return lines


def _hindsight_line(facts: dict[str, Any]) -> list[str]:
    """How much rests on the oracle's past allocations, for a network that reads them."""
    if facts["input"]["history"] == "own":
        return []
    differs = facts["explanation"]["hindsight"]
    rests = "the oracle's past allocations" if differs > facts["turnover"] / 2 else "the forecasts"
    return [
        f"  without the oracle's past allocations the weights would differ by {differs:.3f} (ℓ1): it rests on {rests}"
    ]


def _exact_lines(facts: dict[str, Any]) -> list[str]:
    """What an exact portfolio rests on, and the turnover frontier as a table with bars."""
    lines = []
    if "exact" in facts:
        exact = facts["exact"]
        lines.append(
            f"Exact for these forecasts and risks: utility {exact['utility'] * 1e4:.3f} bp after a cost of "
            f"{exact['cost'] * 1e4:.3f} bp, certified to {exact['gap']:.0e}. Cash {facts['cash']:.1%}."
        )
        lines += [f"  {name}: {value:.4f}" for name, value in facts["limits"].items()]
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
