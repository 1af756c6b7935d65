"""``time2decide decide``: the next rebalancing for a table of returns or prices, and on demand how sure and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from time2decide.cli.console import (
    Accept,
    AsJson,
    DateOrder,
    Decimal,
    Prices,
    Returns,
    Separator,
    console,
    constraint_sources,
    echo,
    finding_lines,
    reading_flags,
    use_one_thread,
    validate_source,
    values_flag,
)
from time2decide.core.files import validate_not_read, validate_output_file
from time2decide.core.validation import expect, printable, validate_count, validate_positive
from time2decide.markets.orders import TRADED, quoted_orders, read_quotes, weights_of_shares

if TYPE_CHECKING:
    from rich.table import Table

    from time2decide.markets.orders import Orders
    from time2decide.policy.market_decision import MarketDecision

_YEARS = 504  # rows below which the market policy is said to know little
_LIMITS = 6  # groups and exposures that are shown
_BAR = 40  # characters of the longest bar
_NO_TRADE = 1e-9  # change of a weight that is rounding
_SPREAD = 1.5  # periods from which a cost is said to be spread
_LOSS = 1e-9  # of utility, below which a trade is made for the constraints
_REASONS = {"risk": "risk", "mean": "prior", "forecast": "forecast"}  # column -> part of `reasons_bps`


def decide(
    file: Annotated[str, typer.Argument(help="sp500, or a .csv or .parquet file: dates first, a column per asset.")],
    turnover: Annotated[float, typer.Option(help="Turnover budget γ on ‖target − now‖₁, in (0, 2].")] = 1.0,
    previous: Annotated[
        Path | None,
        typer.Option(help="Current holdings: a CSV asset,weight, or asset,shares if prices are known; else 1/N."),
    ] = None,
    prices: Prices = False,
    returns: Returns = False,
    risk_aversion: Annotated[
        float | None, typer.Option(help="λ of the utility sᵀr − λ sᵀΣs per period; 2 unless the model has another.")
    ] = None,
    constraints: Annotated[
        Path | None,
        typer.Option(help="Bounds, short positions, groups, exposures, cash: a .toml, or a .csv asset,lower,upper."),
    ] = None,
    cost: Annotated[
        float | None,
        typer.Option("--cost-bps", "--cost", help="Cost of trading in basis points; 10 unless the model has another."),
    ] = None,
    benchmark: Annotated[
        Path | None, typer.Option(help="Weights that risk is measured from: a CSV with the columns asset,weight.")
    ] = None,
    value: Annotated[
        float | None, typer.Option(help="Value of the portfolio: adds the orders in whole shares and in money.")
    ] = None,
    price_file: Annotated[
        Path | None, typer.Option(help="Prices of the orders: a CSV asset,price; else the last ones of a price table.")
    ] = None,
    min_trade: Annotated[
        float, typer.Option(help="Smallest trade, in weights: assets whose trade would be smaller keep their weight.")
    ] = 0.0,
    frontier: Annotated[
        bool, typer.Option("--frontier", help="Add what each unit of turnover is worth, and where it stops paying.")
    ] = False,
    figure: Annotated[
        Path | None, typer.Option(help="Draw the turnover frontier to this .png or .svg; as --frontier.")
    ] = None,
    gaps: Annotated[
        str, typer.Option(help="refuse missing returns, or keep: young, halted and delisted assets by stated rules.")
    ] = "refuse",
    delay: Annotated[
        int, typer.Option(help="Rows between this decision and its trade: 1 at the next close, 0 at the last row's.")
    ] = 1,
    periods_per_year: Annotated[
        float | None, typer.Option(help="Rows of the table in a year; as the dates say by default.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="market, time2decide, time2decide-nocov, or a folder with policy.json.")
    ] = "market",
    uncertainty: Annotated[
        bool, typer.Option("--uncertainty", help="Add standard deviations over perturbed histories.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Add the reasons, the records of the forecasts, and what was read.")
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="Show every asset, also those without a trade.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write the target weights (.csv), or the decision file for `verify` (.json).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the perturbed histories.")] = 0,
    accept: Accept = None,
    separator: Separator = None,
    decimal: Decimal = None,
    dates: DateOrder = None,
    as_json: AsJson = False,
) -> None:
    """The next rebalancing of a portfolio: the trades, a verdict on the forecasts, cost, risk and proof of optimality.

    The weights are the exact optimum of expected return less risk less cost, within the turnover budget. Without
    --constraints they are long-only and fully invested; with it there are bounds, short positions, groups, exposures to
    factors and cash. Assets may come and go (--gaps keep).

    Example: time2decide decide prices.csv --turnover 0.5 --previous held.csv --value 1e6 --out decision.json
    """
    validate_source(file)
    read = (file, previous, *constraint_sources(constraints), benchmark, price_file, Path(model) / "policy.json")
    _validate_outputs(read, out, figure)
    validate_count("seed", seed, least=0)
    values = values_flag(prices, returns)
    if cost is not None:
        validate_positive("cost", cost, allow_zero=True)
    if value is not None:
        validate_positive("value", value)
    expect(
        price_file is None or _wants_orders(previous, value), "price_file", "--value or held shares with it", "neither"
    )
    from time2decide.data.check import load_checked
    from time2decide.data.terms import check_quotes
    from time2decide.markets.table_files import read_source
    from time2decide.markets.tables import read_by_asset, read_weights, with_absent_assets
    from time2decide.markets.validation import was_scaled

    current = None if previous is None else read_by_asset(previous, "weight", "shares")
    reference = None if benchmark is None else read_weights(benchmark)
    use_one_thread()
    table_source = read_source(file, reading_flags(separator, decimal, dates))
    checked = load_checked(table_source, values, gaps=gaps, accept=accept or (), live=True)
    table, found = checked.returns, checked.values
    names = [str(column) for column in table.columns]
    quotes = read_quotes(table_source, found, price_file, table) if _wants_orders(current, value) else None
    noted = checked.findings
    if quotes is not None and price_file is not None and found == "prices":
        noted += check_quotes(quotes, table_source, accept or ())
    limits = None
    if constraints is not None:
        from time2decide.markets.constraint_files import read_constraints

        limits = read_constraints(constraints, names)
    stated, total = value, 1.0
    absent: list[str] = []
    if current is not None:
        total = float(current.sum()) if current.name == "weight" else 1.0
        in_shares = current.name == "shares"
        current, absent = with_absent_assets(current, names)
        if in_shares:
            current, value = weights_of_shares(current, quotes, value, limits)
    from time2decide.policy.decision_facts import describe_decision
    from time2decide.policy.model import Time2Decide

    network = Time2Decide.from_pretrained(model)
    terms: dict[str, Any] = {"constraints": limits, "cost_bps": cost, "benchmark": reference, "gaps": gaps}
    terms |= {"min_trade": min_trade, "delay": delay, "periods_per_year": periods_per_year}
    terms |= {"accept": accept or (), "findings": noted}
    decision = network.decision(table, current, turnover, risk_aversion=risk_aversion, **terms)
    facts = describe_decision(
        network,
        decision,
        limits,
        previous_given=current is not None,
        with_uncertainty=uncertainty,
        with_explanation=explain,
        with_frontier=frontier or figure is not None,
        seed=seed,
    )
    guessed = values is None and file != "sp500"
    facts["input"] |= {"source": file, "values": found, "values_guessed": guessed, "explained": explain}
    facts["input"] |= {"read_as": checked.read_as} if checked.read_as else {}
    facts["input"] |= {"absent": absent} if absent else {}
    facts["input"] |= {"scaled_from": total} if was_scaled(total, decision.previous) else {}
    orders = None
    if quotes is not None and value is not None:
        orders = quoted_orders(decision, quotes, value, price_file)
        facts["orders"] = orders.to_json(names)
        if stated is not None and value != stated:
            facts["input"]["value_left_out"] = stated - value
    _write(decision, facts, orders, out, figure)
    if as_json:
        echo(json.dumps(facts, allow_nan=False))
        return
    show_decision(facts, console(120), every)
    for written in filter(None, (out, figure)):
        echo(f"written: {written}")


def _validate_outputs(read: tuple[str | Path | None, ...], out: Path | None, figure: Path | None) -> None:
    """Raise unless the outputs can be written and replace no file that is read."""
    for name, path, kinds in (("out", out, (".csv", ".json")), ("figure", figure, (".png", ".svg"))):
        if path is not None:
            fits = path.suffix.lower() in kinds and path.parent.is_dir()
            expect(fits, name, f"a name ending in {' or '.join(kinds)} in an existing folder", path)
            validate_not_read(name, path, read)
            validate_output_file(name, path)


def _wants_orders(current: Any, value: float | None) -> bool:
    """Whether prices are needed: for orders, or for holdings in shares."""
    return value is not None or getattr(current, "name", None) == "shares" or isinstance(current, Path)


def _write(
    decision: MarketDecision,
    facts: dict[str, Any],
    orders: Orders | None,
    out: Path | None,
    figure: Path | None,
) -> None:
    if out is not None and out.suffix.lower() == ".csv":
        import pandas as pd

        from time2decide.markets.tables import write_weights

        write_weights(pd.Series(facts["weights"]), out)
    elif out is not None:
        source, values = Path(facts["input"]["source"]).name, facts["input"]["values"]
        decision.save(out, orders=orders, source=source, values=values)
    if figure is not None:
        from time2decide.reports.decision_figures import write_frontier_figure

        write_frontier_figure(facts, figure)


def show_decision(facts: dict[str, Any], screen: Any, every: bool = False) -> None:
    """The trades, a line of verdict, a line of cost and proof, then what was asked for and what was assumed."""
    traded = len(_trades(facts))
    if every or traded:
        screen.print(_title(facts, traded, every), markup=False, soft_wrap=True)
        screen.print(_trade_table(facts, every))
    else:
        screen.print(f"No trade after {facts['input']['last']}: none is worth its cost.")
    trades = (_verdict_line, _gain_line, _cost_line, limit_lines, _least_trade_line, _order_line)
    parts = (*trades, _forecast_lines, _frontier_lines, _input_lines, _assumption_line)
    lines = [line for part in parts for line in part(facts)]
    if facts["input"].get("read_as"):
        lines.append(f"The table is read as: {', '.join(facts['input']['read_as'])}.")
    gaps = [facts["gap_summary"]] if "gap_summary" in facts else []
    for line in [*gaps, *facts.get("gap_notes", []), *lines]:
        screen.print(printable(line), markup=False, soft_wrap=True)
    for line in finding_lines(facts.get("findings", ())):
        screen.print(printable(line), style="yellow", markup=False, soft_wrap=True)


def _title(facts: dict[str, Any], traded: int, every: bool) -> str:
    rest = set(facts["weights"]) - set(_trades(facts))
    kept = sum(facts["weights"][name] for name in rest)
    hint = "" if every else " (--all shows them)"
    some = any(abs(facts["change"][name]) > _NO_TRADE for name in rest)
    least = f", or by less than {TRADED:.3%}," if some else ""
    without = f"; {len(rest)} not traded{least} are {kept:.1%} of the portfolio{hint}" if rest else ""
    return f"Trades after {facts['input']['last']}: {traded} of {len(facts['weights'])} assets{without}"


def _trades(facts: dict[str, Any]) -> list[str]:
    """The traded assets, the largest trades first."""
    change = facts["change"]
    return sorted((name for name in change if abs(change[name]) > TRADED), key=lambda name: -abs(change[name]))


def _trade_table(facts: dict[str, Any], every: bool = False) -> Table:
    """The trades, or every asset: weight now, target, trade, and what was asked for beyond them."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    names = _trades(facts)
    if every:
        names += sorted(set(facts["weights"]) - set(names), key=lambda name: -facts["weights"][name])
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    rows = [_trade_cells(facts, asset) for asset in names]
    for name in ("asset", *rows[0]):
        table.add_column(name, justify="left" if name == "asset" else "right", no_wrap=True)
    for asset, row in zip(names, rows, strict=True):
        table.add_row(escape(printable(asset)), *row.values())
    return table


def _trade_cells(facts: dict[str, Any], asset: str) -> dict[str, str]:
    trade, sure, why = facts["change"][asset], facts.get("uncertainty"), facts.get("reasons_bps")
    colour = "green" if trade > TRADED else "red" if trade < -TRADED else "dim"
    cells = {"now": f"{facts['previous'][asset]:.2%}", "target": f"{facts['weights'][asset]:.2%}"}
    cells |= {"trade": f"[{colour}]{trade:+z.2%}[/]"}
    if "orders" in facts:
        orders = facts["orders"]
        price = orders["price"][asset]
        cells |= {"shares": "–", "price": "–", "money": "–"}
        if price is not None:
            cells |= {"shares": f"{orders['shares'][asset]:+z,.0f}", "price": f"{price:,.2f}"}
            cells |= {"money": f"{orders['money'][asset]:+z,.0f}"}
    if sure:
        cells |= {"± s.d.": f"{sure['weights'][asset]:.2%}"}
    if sure or "verdict" not in facts:
        cells |= {"forecast return": f"{facts['forecast'][asset]:+z.3%}"}
    if sure:
        cells |= {"its ± s.d.": f"{sure['forecast'][asset]:.3%}"}
    if why:
        cells |= {f"why: {name}": f"{why[part][asset]:+z.2f}" for name, part in _REASONS.items()}
    return cells


def _verdict_line(facts: dict[str, Any]) -> list[str]:
    """Whether there is anything to predict; for the market policy."""
    return [f"Verdict: {facts['verdict']['text']}"] if "verdict" in facts else []


def _gain_line(facts: dict[str, Any]) -> list[str]:
    """What the trade is expected to bring beside not trading, net of its cost; for an exact portfolio."""
    if "gain" not in facts or not _trades(facts):
        return []
    gain, days = facts["gain"], facts.get("days", 1.0)
    period, risk = facts["period"], facts["risk_aversion"]
    sizes = [1e4 * abs(gain[part]) for part in ("return", "risk", "cost", "utility")]
    digits = max(_digits(size) for size in sizes if size > 0) if any(sizes) else 0  # alike, so that the parts add up
    parts = ", ".join(f"{part} {_bp(gain[part], digits)}" for part in ("return", "risk", "cost"))
    spread = f", its cost spread over {days:.0f} {period}s" if days >= _SPREAD else ""
    forced = ". The current weights do not meet the constraints" if gain["utility"] < -_LOSS else ""
    rate = f"{_bp(gain['utility'], digits)} bp a {period}"
    rate += "" if gain["a_year"] is None else f", {_bp(gain['a_year'])} bp a year at that rate"
    return [
        f"Expected gain over {gain['over']}: {rate}, net of costs ({parts} bp a {period}): "
        f"utility at λ = {risk:g}{spread}{forced}."
    ]


def _bp(share: float, digits: int | None = None) -> str:
    """A share in basis points with its sign; more digits of a small one."""
    points = 1e4 * share
    return f"{points:+z.{_digits(abs(points)) if digits is None else digits}f}"


def _digits(points: float) -> int:
    return 0 if points >= 100 else 1 if points >= 10 else 2 if points >= 0.1 else 4


def _cost_line(facts: dict[str, Any]) -> list[str]:
    """What the trade costs, what it does to risk, what binds, and whether it is allowed and the best."""
    checks, exact = facts["constraints"], facts.get("exact")
    parts = [f"Turnover {facts['turnover']:.4f}, {facts['turnover_l1']:g} allowed"]
    parts += [f"cost {1e4 * exact['cost']:.2f} bp"] if exact else []
    parts.append(f"risk {facts['risk_previous']:.2%} → {facts['risk']:.2%} a {facts['period']}")
    if "active_risk" in facts:
        parts.append(f"tracking error {facts['active_risk_previous']:.2%} → {facts['active_risk']:.2%}")
    parts += [f"cash {facts['cash']:.1%}"] if facts.get("cash", 0.0) > TRADED else []
    waiting, held = checks.get("waiting"), "all constraints hold" if checks["satisfied"] else "A CONSTRAINT IS VIOLATED"
    if waiting and checks["satisfied"]:
        held = f"NOT MET, because it cannot be traded: {_several(waiting)}; all other constraints hold"
    held += " for the target" if facts.get("orders", {}).get("broken") else ""  # and not for its whole shares
    chosen = " with these small trades left out" if "min_trade" in facts else ""
    proof = f", optimal{chosen}: {_proof_words(exact, facts['period'])}" if exact else ""
    return [f"{', '.join(parts)}; {held}{proof}{_binding(facts)}."]


def _proof_words(exact: dict[str, Any], period: str) -> str:
    """What the duality gap says, as a quant would: how much more utility any allowed portfolio can have."""
    points = 1e4 * exact["utility_gap"]
    most = "0.000001" if points < 1e-6 else f"{points:.1g}"
    return f"no allowed portfolio has as much as {most} bp a {period} more utility"


def limit_lines(facts: dict[str, Any]) -> list[str]:
    """Groups and exposures with their limits: those that bind first, the others as far as there is room."""
    ends, active = facts.get("limit_ends", {}), facts.get("active", [])
    names = sorted(ends, key=lambda name: name not in active)
    lines = []
    for name in names[:_LIMITS]:
        form = "{:.2%}" if name.startswith("group ") else "{:.4g}"
        stated = zip(("at least", "at most"), ends[name], strict=True)
        parts = [f"{word} {form.format(end)}" for word, end in stated if end is not None]
        parts += ["binding"] if name in active else []
        lines.append(f"  {name}: {form.format(facts['limits'][name])} ({', '.join(parts)})")
    more = len(names) - _LIMITS
    return [*lines, *([f"  and {more} more limits (--json has all)"] if more > 0 else [])]


def _least_trade_line(facts: dict[str, Any]) -> list[str]:
    """What a smallest trade has prevented, and what it could not."""
    if "min_trade" not in facts:
        return []
    least, kept = facts["min_trade"]["weight"], len(facts["min_trade"]["fixed"])
    small = sum(TRADED < abs(trade) < least * (1 - 1e-6) for trade in facts["change"].values())
    remain = "trade remains" if small == 1 else "trades remain"
    why = "no portfolio without it was found" if small == 1 else "no portfolio without them was found"
    forced = f"; {small} smaller {remain}: {why} that meets the constraints" if small else ""
    keep = "1 asset keeps its weight" if kept == 1 else f"{kept} assets keep their weight"
    return [f"Trades smaller than {least:.2%} are not made: {keep} for that{forced}."]


def _binding(facts: dict[str, Any]) -> str:
    """The constraints that bind; bounds counted, the largest weights at one named."""
    from time2decide.policy.decision_facts import listed_names

    active = [name for name in facts.get("active", []) if name != "cash"]
    bounds = [name for name in active if name.startswith("weight of ")]
    named = [name for name in active if name not in bounds]
    if bounds:
        weights = {name: facts["weights"][name] for name in (bound.removeprefix("weight of ") for bound in bounds)}
        at = [f"{name} at {weights[name]:.2%}" for name in sorted(weights, key=lambda name: -abs(weights[name]))]
        named.append(f"{len(bounds)} bound{'s' if len(bounds) > 1 else ''} ({listed_names(at)})")
    return f"; binding: {', '.join(named)}" if named else ""


def _order_line(facts: dict[str, Any]) -> list[str]:
    """What the whole shares leave over."""
    if "orders" not in facts:
        return []
    orders = facts["orders"]
    lines = [
        f"Orders in whole shares at {orders['at']}: value {orders['value']:,.2f}, cost {orders['cost']:,.2f}, "
        f"cash left {orders['cash']:,.2f} ({orders['cash'] / orders['value']:.2%}), weights within "
        f"{orders['largest_difference']:.3%} of the target."
    ]
    if orders["broken"]:
        lines.append(f"In whole shares these are not met: {_several(orders['broken'])}.")
    if orders["unpriced"]:
        lines.append(
            f"No order for {_several(orders['unpriced'])}: no current price. Proceeds of a sale are not spent."
        )
    return lines


def _several(names: list[str]) -> str:
    """The first of some names."""
    from time2decide.policy.decision_facts import listed_names

    return listed_names(names)


def _forecast_lines(facts: dict[str, Any]) -> list[str]:
    """The forecast of the portfolio, and what forecasts change."""
    sure, lines = facts.get("uncertainty"), []
    if sure or "verdict" not in facts:
        error = f" ± {sure['forecast_return']:.3%}" if sure else ""
        lines.append(
            f"Forecast return {facts['forecast_return']:+.3%}{error} for the next step (current weights "
            f"{facts['forecast_return_previous']:+.3%})."
        )
    if sure:
        lines.append(f"± is one standard deviation over {sure['members']} perturbed histories.")
    if "reasons_bps" in facts:
        weights, without = facts["weights"], facts["without_forecasts"]
        differs = sum(abs(weights[name] - without[name]) for name in weights)
        risk = "risk away from the benchmark" if "active_risk" in facts else "risk"
        reasons = [
            f"Why: basis points a {facts['period']} that one more unit of the asset brings beside the target "
            f"portfolio, by its {risk}, its expected mean and its forecast. Their sum is greater for what is bought "
            "than for what is sold, trades that a limit forces apart."
        ]
        lines += [
            *(reasons if _trades(facts) else []),
            f"Cost is weighed over the {facts['days']:.0f} {facts['period']}s that a trade lasts.",
            f"Without forecasts the weights would differ by {differs:.4f} (ℓ1). Record of the forecasts:",
            *(_record_line(one, facts["period"]) for one in facts["verdict"]["records"]),
        ]
    return lines


def _record_line(record: dict[str, Any], period: str) -> str:
    from time2decide.markets.verdict import horizon_label

    low, high = record["interval"]
    return (
        f"  {horizon_label(record['first'], record['last'], period)}, from {record['reads']}: outcomes followed "
        f"{record['slope']:.0%} of it (95 %: {low:.0%} to {high:.0%}), followed at {record['follow']:.0%}"
    )


def _frontier_lines(facts: dict[str, Any]) -> list[str]:
    """The turnover frontier as a table with bars."""
    lines = []
    if "frontier" in facts:
        frontier = facts["frontier"]
        points = frontier["points"]
        most = max(points[0]["price"], 1e-300)
        days, period = facts.get("days", 1.0), facts["period"]
        over = f"over {days:.0f} {period}s" if days >= _SPREAD else f"over a {period}"
        lines.append(
            f"Turnover frontier: what it brings {over} beside no trade, net of cost, and what the next unit is worth"
        )
        if points[0]["turnover_l1"] > TRADED:
            lines.append(f"  The constraints ask for a turnover of {points[0]['turnover_l1']:.3f}.")
        for point in points:
            bar = "█" * round(_BAR * point["price"] / most)
            amounts = f"{point['turnover_l1']:.3f}  {point['gain'] * 1e4:+z.3f} bp  {point['price'] * 1e4:.3f} bp/unit"
            lines.append(f"  {amounts} {bar}")
        lines.append(f"  More than {frontier['stops_paying_at']:.3f} does not pay.")
    return lines


def _input_lines(facts: dict[str, Any]) -> list[str]:
    """What was read, with the reasons; and what is wrong with it, always."""
    from time2decide.simulation.execution import when_traded

    source, lines = facts["input"], []
    if source.get("explained"):
        lines.append(
            f"Read {source['rows']} returns of {len(facts['weights'])} assets from {source['values']}. "
            f"The policy {source['model']} decides for a trade {when_traded(source['delay'], facts['period'])}."
        )
    if source["rows"] < _YEARS:
        lines.append(f"The policy wants years of returns; with {source['rows']} rows it knows little.")
    return lines


def _assumption_line(facts: dict[str, Any]) -> list[str]:
    """What was not said and had to be assumed."""
    source = facts["input"]
    assumed = [] if source["previous_given"] else ["equal current weights (--previous)"]
    if "absent" in source:
        from time2decide.policy.decision_facts import listed_names

        assumed.append(f"weight 0 of {listed_names(source['absent'])}, which --previous leaves out")
    if "scaled_from" in source:
        assumed.append(f"the weights of --previous, of sum {source['scaled_from']:.9g}, are scaled to the sum 1")
    if source["values_guessed"]:
        assumed.append(f"the file holds {source['values']} (--prices or --returns settles it)")
    if "value_left_out" in source:
        assumed.append(
            f"{source['value_left_out']:,.2f} of --value is in no share and stays out: weights are of the shares alone "
            "(cash takes part where --constraints allow cash)"
        )
    return [f"Assumed: {'; '.join(assumed)}."] if assumed else []
