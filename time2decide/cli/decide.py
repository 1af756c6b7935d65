"""`time2decide decide`: the next allocation for a table of returns or prices, and how far to trust it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from time2decide.core.validation import InputError, validate_count

if TYPE_CHECKING:
    from rich.table import Table

_SHOWN = 5  # assets named in the explanation


def decide(
    file: Annotated[str, typer.Argument(help="sp500, or a .csv or .parquet file: dates first, a column per asset.")],
    turnover: Annotated[float, typer.Option(help="Budget γ on ‖new − previous‖₁, in (0, 2].")] = 1.0,
    previous: Annotated[
        Path | None, typer.Option(help="What is held now: a CSV with the columns asset,weight; 1/m unless given.")
    ] = None,
    prices: Annotated[bool, typer.Option("--prices", help="The file holds prices; guessed unless told.")] = False,
    returns: Annotated[bool, typer.Option("--returns", help="The file holds returns; guessed unless told.")] = False,
    risk_aversion: Annotated[float, typer.Option(help="λ of the utility sᵀr − λ sᵀΣs.")] = 0.1,
    model: Annotated[str, typer.Option(help="decide, decide-utility, or a folder made by `train decide`.")] = "decide",
    out: Annotated[Path | None, typer.Option(help="Write the new weights to this CSV.")] = None,
    seed: Annotated[int, typer.Option(help="Of the ensemble behind the spread.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """The next allocation: long-only, fully invested, within a turnover budget; with its spread and its reasons.

    Example: time2decide decide returns.csv --turnover 0.5 --previous weights.csv --out new.csv
    """
    import pandas as pd
    import torch

    from time2decide.markets.tables import load_market
    from time2decide.markets.weights import read_weights, write_weights
    from time2decide.policy.decision_facts import decision_facts

    torch.set_num_threads(1)  # the tensors are small: threads would only wait for each other
    if out is not None and (out.suffix.lower() != ".csv" or not out.parent.is_dir()):
        raise InputError(f"out: expected a name ending in .csv in an existing folder, found {out}")
    if out is not None and out.resolve() == Path(file).resolve():
        raise InputError(f"out: expected another file than the one that is read, found {out}")
    validate_count("seed", seed, least=0)
    told = values_flag(prices, returns)
    held = None if previous is None else read_weights(previous)
    table, values = load_market(file, told)
    facts = decision_facts(table, held, turnover, risk_aversion=risk_aversion, model=model, seed=seed)
    facts["input"] |= {"source": file, "values": values, "values_guessed": told is None and file != "sp500"}
    if out is not None:
        write_weights(pd.Series(facts["weights"]), out)
    if as_json:
        typer.echo(json.dumps(facts, allow_nan=False))
        return
    show_decision(facts, Console(width=None if sys.stdout.isatty() else 110, highlight=False))
    if out is not None:
        typer.echo(f"written: {out}")


def values_flag(prices: bool, returns: bool) -> str | None:
    """What the two flags say a file holds; None if they say nothing."""
    if prices and returns:
        raise InputError("prices, returns: expected at most one of --prices and --returns, found both")
    return "prices" if prices else "returns" if returns else None


def show_decision(facts: dict[str, Any], console: Console) -> None:
    """The table, the checks, the reasons and what was assumed."""
    console.print(allocation_table(facts))
    for line in [*_check_lines(facts), "", *_reason_lines(facts), "", *_input_lines(facts)]:
        console.print(line, markup=False)


def allocation_table(facts: dict[str, Any]) -> Table:
    """Asset by asset: held, wanted now, and how sure."""
    from rich.table import Table

    given = facts["input"]
    table = Table(title=f"Next allocation after {given['last']}, at most {facts['turnover_l1']:g} of ℓ1 turnover")
    for name in ("asset", "previous", "new", "change", "± spread", "forecast return", "± spread"):
        table.add_column(name, justify="left" if name == "asset" else "right")
    for asset in sorted(facts["weights"], key=lambda name: -abs(facts["change"][name])):
        change = facts["change"][asset]
        colour = "green" if change > 5e-5 else "red" if change < -5e-5 else "dim"
        table.add_row(
            escape(asset),
            f"{facts['previous'][asset]:.2%}",
            f"{facts['weights'][asset]:.2%}",
            f"[{colour}]{change:+z.2%}[/]",
            f"{facts['spread']['weights'][asset]:.2%}",
            f"{facts['forecast'][asset]:+z.3%}",
            f"{facts['spread']['forecast'][asset]:.3%}",
        )
    return table


def _check_lines(facts: dict[str, Any]) -> list[str]:
    checks, used = facts["constraints"], facts["turnover"]
    verdict = "all constraints hold" if checks["satisfied"] else "A CONSTRAINT IS VIOLATED"
    return [
        f"Turnover used {used:.4f} of {facts['turnover_l1']:g} (‖new − previous‖₁; half of it is bought, half sold).",
        f"Forecast return {facts['expected_return']:+.3%} ± {facts['spread']['expected_return']:.3%} for the next step "
        f"(previous weights {facts['expected_return_previous']:+.3%}); risk {facts['risk']:.3%} "
        f"(previous {facts['risk_previous']:.3%}), one standard deviation per step.",
        f"Check: sum {checks['sum']:.10f}, smallest weight {checks['smallest_weight']:.6f}, turnover "
        f"{used:.10f} ≤ {facts['turnover_l1']:g}: {verdict}.",
    ]


def _reason_lines(facts: dict[str, Any]) -> list[str]:
    why = facts["explanation"]

    def largest(numbers: dict[str, float], sign: str) -> str:
        chosen = sorted(numbers, key=lambda name: -abs(numbers[name]))[:_SHOWN]
        return ", ".join(f"{name} {100 * numbers[name]:{sign}.2f}" for name in chosen)

    levels = "  ".join(f"{row['noise']:g}σ: {row['moved']:.3f}" for row in why["noise"])
    return [
        "Why (percentage points of the wanted trade, by derivatives through the network):",
        f"  returns that argue for (+) or against (−) the change: {largest(why['pull'], '+')}",
        f"  most sensitive to the noise in the returns of: {largest(why['sensitivity'], '')}",
        f"  most resting on the covariance rows of: {largest(why['covariance'], '')}",
        *_hindsight_line(facts),
        f"  ℓ1 change of the mean decision as noise is added to the history: {levels}",
    ]


def _hindsight_line(facts: dict[str, Any]) -> list[str]:
    """How much rests on the best past allocations, for a network that reads them."""
    if facts["input"]["history"] == "own":
        return []
    differs = facts["explanation"]["hindsight"]
    rests = "the best past allocations" if differs > facts["turnover"] / 2 else "the forecasts"
    return [f"  without the best past allocations the weights would differ by {differs:.3f} (ℓ1): it rests on {rests}"]


def _input_lines(facts: dict[str, Any]) -> list[str]:
    given = facts["input"]
    guess = " (guessed; --prices or --returns settles it)" if given["values_guessed"] else ""
    reads = "the best allocations of the past" if given["history"] == "hindsight" else "the weights held"
    lines = [
        f"Read {given['rows']} returns of {len(facts['weights'])} assets from {given['values']}{guess}. "
        f"The network {given['model']} reads {reads}."
    ]
    if given["window"] < 96:
        lines.append(
            f"The history is shorter than the 96 rows the model was trained on: all {given['window']} were used, "
            "and the forecasts are less certain than they say."
        )
    (low, high), risk = given["risk_aversion_trained"], facts["risk_aversion"]
    if not low <= risk <= high:
        lines.append(f"The model was trained for a risk aversion from {low:g} to {high:g}, not for {risk:g}.")
    if not given["previous_given"]:
        lines.append("No previous weights were given: equal weights were assumed.")
    members = facts["spread"]["members"]
    lines.append(f"± is one standard deviation over {members} histories with the noise drawn again.")
    return lines
