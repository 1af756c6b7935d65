"""Tables as people have them: read as the plain table that they say, or refused with the option that settles it."""

import numpy as np
import pandas as pd
import pytest

from time2decide import InputError, load_returns
from time2decide.markets.table_files import Reading, SourceTable, read_source
from time2decide.markets.tables import load_market, read_by_asset, with_absent_assets

DAYS = pd.bdate_range("2024-01-10", periods=30)


@pytest.fixture
def prices():
    moves = np.random.default_rng(0).normal(0, 0.02, (30, 3))
    return pd.DataFrame(np.round(1500 * np.exp(moves.cumsum(0)), 2), DAYS, ["A", "B", "C"])


def write(path, prices, dates="%Y-%m-%d", separator=",", number="{:.2f}", corner="date"):
    rows = [separator.join([corner, *prices.columns])]
    for day, row in zip(prices.index, prices.to_numpy(), strict=True):
        rows.append(separator.join([day.strftime(dates), *map(number.format, row)]))
    path.write_text("\n".join(rows) + "\n")
    return path


def comma(number):
    return f"{number:,.2f}".translate(str.maketrans(",.", ".,"))


class Comma:
    def format(self, number):
        return comma(number)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, ()),
        ({"separator": ";"}, ("semicolon",)),
        ({"separator": "\t"}, ("tab",)),
        ({"separator": "|"}, ("bar",)),
        ({"separator": "   "}, ("space",)),
        ({"separator": ";", "number": Comma()}, ("semicolon", "decimal comma")),
        ({"separator": ";", "number": "${:,.2f}"}, ("semicolon", "without currency signs")),
        ({"dates": "%d/%m/%Y"}, ("day first",)),
        ({"dates": "%d.%m.%Y", "separator": ";", "number": Comma()}, ("semicolon", "decimal comma", "day first")),
        ({"dates": "%m/%d/%Y"}, ("month first",)),
        ({"dates": "%d-%b-%Y"}, ("dates in words",)),
        ({"dates": "%d %B %Y"}, ("dates in words",)),
        ({"dates": "%Y/%m/%d"}, ()),
        ({"dates": "%Y%m%d"}, ()),
        ({"dates": "%d/%m/%y"}, ("day first",)),
    ],
)
def test_a_table_is_read_as_it_says(tmp_path, prices, options, said):
    source = read_source(write(tmp_path / "p.csv", prices, **options))
    assert source.read_as == said
    returns, values = load_market(source)
    assert values == "prices"
    pd.testing.assert_frame_equal(
        returns, prices.pct_change().iloc[1:], check_freq=False, check_names=False, check_index_type=False
    )


def test_comments_newest_first_and_a_column_of_row_numbers(tmp_path, prices):
    path = write(tmp_path / "p.csv", prices.iloc[::-1])
    path.write_text("# downloaded, with commas\n" + path.read_text())
    source = read_source(path)
    assert source.read_as == ("without its comment lines", "newest first")
    np.testing.assert_array_equal(source.frame.to_numpy(dtype=float), prices.to_numpy())
    prices.rename_axis("Date").reset_index().to_csv(tmp_path / "i.csv")
    source = read_source(tmp_path / "i.csv")
    assert source.read_as == ("without its column of row numbers",)
    expected = prices.pct_change().iloc[1:]
    for one in (source, prices.reset_index(), prices.rename_axis("Date").reset_index()):
        np.testing.assert_allclose(load_market(one)[0].to_numpy(), expected.to_numpy(), atol=1e-15)
    returns = expected.rename_axis("Date").reset_index()
    np.testing.assert_array_equal(load_returns(returns).to_numpy(), expected.to_numpy())


def test_months_per_cent_and_words_for_nothing(tmp_path):
    numbers = np.random.default_rng(1).normal(0, 3, (30, 2)).round(2)
    months = pd.period_range("2020-01", periods=30, freq="M")
    lines = [f"{month:%Y%m},{a}%,{b}%" for month, (a, b) in zip(months, numbers, strict=True)]
    lines[4] = lines[4].rpartition(",")[0] + ",N/A"
    (tmp_path / "m.csv").write_text("\n".join(["month,A,B", *lines]))
    source = read_source(tmp_path / "m.csv")
    assert source.read_as == ("N/A and the like as empty", "per cent as fractions", "dates as months")
    table = load_market(source, gaps="keep")[0]
    assert table.index[0] == pd.Timestamp("2020-01-31")
    assert np.isnan(table.iloc[4, 1])
    np.testing.assert_allclose(table["A"], numbers[:, 0] / 100)


def test_what_can_be_read_in_two_ways_is_refused_with_the_option(tmp_path, prices):
    first = prices.iloc[:3].set_axis(pd.to_datetime(["2024-01-02", "2024-02-02", "2024-03-02"]))
    path = write(tmp_path / "d.csv", first, dates="%d/%m/%Y")
    with pytest.raises(InputError, match=r"d\.csv: .* found '02/01/2024': say which \(--dates"):
        read_source(path)
    assert read_source(path, Reading(dates="day-first")).frame.index[1] == pd.Timestamp("2024-02-02")
    assert read_source(path, Reading(dates="month-first")).frame.index[1] == pd.Timestamp("2024-02-02")
    (tmp_path / "n.csv").write_text("date;A;B\n2024-01-02;1,234;2,345\n2024-01-03;1,235;2,346\n")
    with pytest.raises(InputError, match=r"n\.csv: .* found '1,234': say which \(--decimal\)"):
        read_source(tmp_path / "n.csv")
    assert load_market(read_source(tmp_path / "n.csv", Reading(decimal=",")))[0].iloc[0, 0] == 1.235 / 1.234 - 1
    assert read_source(tmp_path / "n.csv", Reading(decimal=".")).frame.iloc[0, 0] == "1234"
    (tmp_path / "s.csv").write_text("date;A|B;C\n2024-01-02;1|2;3\n")
    with pytest.raises(InputError, match=r"s\.csv: .* \(--separator\)"):
        read_source(tmp_path / "s.csv")
    assert list(read_source(tmp_path / "s.csv", Reading(separator=";")).frame.columns) == ["A|B", "C"]
    for bad in ({"separator": "x"}, {"decimal": ";"}, {"dates": "iso"}):
        with pytest.raises(InputError, match=next(iter(bad))):
            Reading(**bad)


@pytest.mark.parametrize("closes", ["Adj Close", "Close"])
@pytest.mark.parametrize("as_file", [False, True])
def test_a_frame_of_yfinance_gives_its_closes(tmp_path, prices, closes, as_file):
    fields = {"High": prices * 1.01, "Volume": prices * 1e4, closes: prices}
    fields |= {"Close": prices * 2} if closes == "Adj Close" else {}
    frame = pd.concat(fields, axis=1, names=["Price", "Ticker"])
    if as_file:
        frame.rename_axis("Date").to_csv(tmp_path / "y.csv")
    source = read_source(tmp_path / "y.csv" if as_file else frame)
    assert source.read_as == ("adjusted closes" if closes == "Adj Close" else "closes",)
    found = load_market(source)[0]
    assert list(found.columns) == ["A", "B", "C"]
    np.testing.assert_allclose(found.to_numpy(), prices.pct_change().iloc[1:].to_numpy(), atol=1e-15)
    with pytest.raises(InputError, match="expected one row of names"):
        read_source(frame.drop(columns=[closes, "Close"], level=0, errors="ignore"))


def test_excel_and_polars(tmp_path, prices):
    polars = pytest.importorskip("polars")
    expected = prices.pct_change().iloc[1:]
    table = polars.DataFrame({"date": DAYS.to_numpy(), **{name: prices[name].to_numpy() for name in prices}})
    found = load_market(table)[0]
    assert list(found.index) == list(expected.index)
    np.testing.assert_array_equal(found.to_numpy(), expected.to_numpy())


def test_an_excel_sheet_is_read(tmp_path, prices):
    pytest.importorskip("openpyxl")
    prices.to_excel(tmp_path / "p.xlsx", index_label="date")
    pd.testing.assert_frame_equal(
        load_market(tmp_path / "p.xlsx")[0],
        prices.pct_change().iloc[1:],
        check_freq=False,
        check_names=False,
        check_index_type=False,
    )
    (tmp_path / "bad.xlsx").write_text("x")
    with pytest.raises(InputError, match=r"bad\.xlsx: expected an Excel file"):
        load_returns(tmp_path / "bad.xlsx")


def test_python_guesses_prices_as_the_shell_does(prices):
    np.testing.assert_array_equal(load_returns(prices).to_numpy(), load_returns(prices, "prices").to_numpy())
    with pytest.raises(InputError, match="say that these are prices"):
        load_returns(prices, "returns")


@pytest.mark.parametrize("head", ["asset,weight", "ticker,weight", "Ticker,Weight", "symbol;Weight"])
def test_holdings_by_other_names_and_with_cash(tmp_path, head):
    separator = ";" if ";" in head else ","
    (tmp_path / "w.csv").write_text("\n".join([head, f"A{separator}0.4", f"CASH{separator}0.6"]))
    weights, absent = with_absent_assets(read_by_asset(tmp_path / "w.csv", "weight", "shares"), ["A", "B"])
    assert weights.name == "weight"
    assert weights.to_dict() == {"A": 0.4, "B": 0.0}
    assert absent == ["B"]
    assert weights.attrs == {"cash": 0.6}
    (tmp_path / "q.csv").write_text("Symbol,Quantity\nA,12\n")
    assert read_by_asset(tmp_path / "q.csv", "weight", "shares").name == "shares"


def test_a_source_is_read_once(prices):
    source = read_source(prices)
    assert isinstance(source, SourceTable)
    assert read_source(source) is source
