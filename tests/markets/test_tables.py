import numpy as np
import pandas as pd
import pytest

from time2decide.core.validation import InputError
from time2decide.markets import load_returns
from time2decide.markets.decision_file import label_texts
from time2decide.markets.tables import read_weights
from time2decide.markets.validation import validate_returns

DAYS = pd.date_range("2024-01-01", periods=30, freq="B")


@pytest.fixture
def table():
    return pd.DataFrame(np.random.default_rng(0).normal(0, 0.01, (30, 3)), index=DAYS, columns=["A", "B", "C"])


def write(path, table, **replace):
    """A CSV of the table, with some cells replaced: {"B": (row, text)}."""
    text = table.astype(object)
    for column, (row, value) in replace.items():
        text.loc[text.index[row - 1], column] = value
    text.to_csv(path, index_label="date", date_format="%Y-%m-%d")
    return path


def test_csv_frame_and_prices_agree(tmp_path, table):
    from_csv = load_returns(write(tmp_path / "r.csv", table))
    pd.testing.assert_frame_equal(from_csv, load_returns(table), check_freq=False, check_index_type=False)
    prices = (1 + table).cumprod() * 50
    from_prices = load_returns(prices, values="prices")
    np.testing.assert_allclose(from_prices.to_numpy(), table.to_numpy()[1:], atol=1e-12)
    assert list(from_prices.index) == list(DAYS[1:])


def test_text_is_read_to_the_nearest_number(tmp_path, table):
    """Also by pandas 2, whose own reading stops after 16 digits: decision files fit every version of pandas."""
    rng = np.random.default_rng(1)
    table[:] = rng.normal(size=(30, 3)) * 10.0 ** rng.integers(-12, -1, (30, 3))
    loaded = load_returns(write(tmp_path / "r.csv", table, B=(3, f"{0.1:.55f}"), C=(4, " 1e-310")))
    table.loc[DAYS[2], "B"], table.loc[DAYS[3], "C"] = 0.1, 1e-310
    np.testing.assert_array_equal(loaded.to_numpy(), table.to_numpy())
    texts = table.astype(str)
    np.testing.assert_array_equal(load_returns(texts).to_numpy(), table.to_numpy())


def test_step_numbers_instead_of_dates(tmp_path, table):
    numbered = table.set_axis(range(5, 35))
    path = tmp_path / "n.csv"
    numbered.to_csv(path, index_label="step")
    assert list(load_returns(path).index) == list(range(5, 35))


def test_a_table_that_is_too_wide_is_refused_by_its_header(tmp_path, monkeypatch):
    names = [f"A{i}" for i in range(1001)]
    path = tmp_path / "wide.csv"
    path.write_text(f"date,{','.join(names)}\n" + '2024-01-01,"never closed\n')  # an error, if it were read
    with pytest.raises(InputError, match=r"wide\.csv: expected at most 1000 assets, found 1001"):
        load_returns(path)
    frame = pd.DataFrame(np.full((3, 1002), np.nan), DAYS[:3], [*names, "A1001"])
    frame.to_parquet(tmp_path / "wide.parquet")
    monkeypatch.setattr(pd, "read_parquet", None)
    with pytest.raises(InputError, match=r"wide\.parquet: expected at most 1000 assets, found 1002"):
        load_returns(tmp_path / "wide.parquet")
    with pytest.raises(InputError, match="returns: expected at most 1000 assets, found 1002"):
        load_returns(frame)
    with pytest.raises(InputError, match="returns: expected at most 1000 assets, found 1001"):
        validate_returns(0.01 * np.random.default_rng(0).standard_normal((30, 1001)), 20, 20)


def test_parquet_of_returns_and_prices_equals_the_frame(tmp_path, table):
    path = tmp_path / "r.parquet"
    table.to_parquet(path)
    pd.testing.assert_frame_equal(load_returns(path), load_returns(table), check_freq=False)
    prices = (1 + table).cumprod() * 50
    prices.to_parquet(tmp_path / "p.pq")
    from_prices = load_returns(tmp_path / "p.pq", values="prices")
    np.testing.assert_array_equal(from_prices.to_numpy(), load_returns(prices, values="prices").to_numpy())
    assert list(from_prices.index) == list(DAYS[1:])


@pytest.mark.parametrize("dates", [DAYS, DAYS.date, DAYS.strftime("%Y-%m-%d")])
def test_parquet_with_dates_in_its_first_column(tmp_path, table, dates):
    path = tmp_path / "r.parquet"
    table.reset_index(drop=True).assign(date=dates)[["date", "A", "B", "C"]].to_parquet(path, index=False)
    loaded = load_returns(path)
    assert list(loaded.index) == list(DAYS)
    np.testing.assert_array_equal(loaded.to_numpy(), table.to_numpy())


def test_parquet_of_other_number_types(tmp_path, table):
    path = tmp_path / "r.parquet"
    small, nullable = table.astype("float32"), table.round(3).astype("Float64")
    small.to_parquet(path)
    np.testing.assert_array_equal(load_returns(path).to_numpy(), small.to_numpy(dtype=float))
    nullable.to_parquet(path)
    np.testing.assert_array_equal(load_returns(path).to_numpy(), table.round(3).to_numpy())
    nullable.iloc[4, 1] = pd.NA
    nullable.to_parquet(path)
    with pytest.raises(InputError, match=r"column 'B', row 5 \(2024-01-05\): expected a number"):
        load_returns(path)


def test_bad_parquet_is_refused(tmp_path, table):
    path = tmp_path / "r.parquet"
    path.write_text("date,A\n2024-01-01,0.1\n")
    with pytest.raises(InputError, match=r"r\.parquet: expected a Parquet file"):
        load_returns(path)
    table.assign(B="text").to_parquet(path)
    with pytest.raises(InputError, match=r"column 'B', row 1 \(2024-01-01\): expected a number, found 'text'"):
        load_returns(path)


@pytest.mark.parametrize(
    ("column", "found"),
    [
        (True, "true or false"),
        (1j, "complex"),
        (np.array([True, 0.1] * 15, dtype=object), "true or false"),
        (pd.to_timedelta(range(30), unit="D"), "dates or durations"),
        (DAYS, "dates or durations"),
    ],
)
def test_flags_and_complex_numbers_are_refused(table, column, found):
    with pytest.raises(InputError, match=f"column 'B': expected real numbers, found {found}"):
        load_returns(table.assign(B=column))


def test_sp500_is_loaded_and_clean():
    returns = load_returns("sp500")
    assert returns.shape == (8312, 20)
    assert returns.index[0] == pd.Timestamp("1990-01-03")
    assert np.isfinite(returns.to_numpy()).all()


@pytest.mark.parametrize(
    ("cell", "found"),
    [
        ("n/a", "an empty cell (gaps='keep', or --gaps keep, allows them)"),
        ("n/b", "'n/b'"),
        ("", "an empty cell (gaps='keep', or --gaps keep, allows them)"),
        ("inf", "'inf'"),
        ("1_000", "'1_000'"),
    ],
)
def test_a_bad_cell_is_named_by_column_and_row(tmp_path, table, cell, found):
    path = write(tmp_path / "bad.csv", table, B=(7, cell))
    with pytest.raises(InputError) as caught:
        load_returns(path)
    assert str(caught.value) == f"bad.csv: column 'B', row 7 (2024-01-09): expected a number, found {found}"


def test_missing_cells_of_a_frame_are_not_filled(table):
    table.iloc[3, 2] = np.nan
    with pytest.raises(InputError, match=r"column 'C', row 4 \(2024-01-04\): expected a number, found nan"):
        load_returns(table)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.iloc[[0, 1, 3, 2, *range(4, 30)]], "row 4: expected increasing dates"),
        (lambda t: t.iloc[[0, 1, 1, *range(2, 30)]], "row 3: expected distinct dates"),
        (lambda t: t.iloc[[*range(10), *range(25, 30)]], "row 11: expected no gap"),
        (lambda t: t * 0 + 0.01, "column 'A': expected numbers that vary, found 0.01 in every row"),
        (lambda t: t.set_axis(["A", "B", "A"], axis=1), "column 'A': expected distinct names"),
        (lambda t: t.set_axis(["A", "B", " "], axis=1), "column 3: expected the name of an asset, found none"),
        (lambda t: t.set_axis(["A", None, "C"], axis=1), "column 2: expected the name of an asset, found none"),
        (
            lambda t: t.assign(B=pd.Series([10**400] * 30, index=t.index, dtype=object)),
            "column 'B': expected numbers, found one of more digits",
        ),
        (lambda t: t.assign(C=t["C"].where(t.index != DAYS[5], -1.5)), r"column 'C', row 6 .* at least -1"),
        (lambda t: t.iloc[:1], "at least 2 rows"),
        (lambda t: t.set_axis(["²", *map(str, range(1, 30))]), "row 1: expected a date"),
        (lambda t: t.set_axis(["x", *map(str, DAYS[1:])]), "row 1: expected a date like 2024-01-31"),
    ],
)
def test_bad_tables_are_refused(table, change, message):
    with pytest.raises(InputError, match=message):
        load_returns(change(table))


def test_dates_of_summer_and_winter(tmp_path, table):
    zones = ["-05:00"] * 15 + ["-04:00"] * 15
    labels = [f"{day:%Y-%m-%d} 00:00:00{zone}" for day, zone in zip(DAYS, zones, strict=True)]
    table.set_axis(labels).to_csv(tmp_path / "zones.csv", index_label="Date")
    assert (load_returns(tmp_path / "zones.csv").index == DAYS).all()


def test_labels_of_rows_do_not_depend_on_the_offset_of_later_ones(tmp_path):
    hours = pd.date_range("2024-03-08 09:30", "2024-03-12 15:30", freq="3h", tz="America/New_York")  # over 10 March
    numbers = 0.01 * np.random.default_rng(0).standard_normal((len(hours), 2))
    winter = int((hours < "2024-03-10 02:00-05:00").sum())
    for index in (hours, hours.tz_convert("UTC"), hours.tz_convert("Asia/Tokyo")):
        table = pd.DataFrame(numbers, index, ["A", "B"])
        table.to_csv(tmp_path / "bars.csv")
        read = {rows: label_texts(_first(tmp_path / "bars.csv", rows).index) for rows in (winter, len(hours))}
        assert read[winter] == read[len(hours)][:winter]
        assert read[len(hours)] == label_texts(table.index)  # a frame says what its file says
        assert label_texts(table.index[:winter]) == read[winter]
        assert read[winter][0] == "2024-03-08T14:30:00+00:00"
    days = pd.date_range("2024-03-07", periods=5, tz="Asia/Tokyo")
    assert label_texts(days) == [f"2024-03-{day:02}" for day in range(7, 12)]  # dates, those of Tokyo


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Berlin", None])
@pytest.mark.parametrize("begin", ["2024-03-04 19:00", "2024-03-04 00:00", "2024-10-14 00:00"])
@pytest.mark.parametrize("freq", ["1D", "24h", "12h", "1h"])
def test_labels_of_rows_do_not_depend_on_later_rows(tmp_path, zone, begin, freq):
    """At 19:00 in New York it is midnight in UTC, in winter only; 24 hours after midnight may be another time."""
    index = pd.date_range(begin, periods=700 if freq == "1h" else 100, freq=freq, tz=zone)
    table = pd.DataFrame(0.01 * np.random.default_rng(0).standard_normal((len(index), 2)), index, ["A", "B"])
    table.to_csv(tmp_path / "bars.csv")
    whole, framed = label_texts(load_returns(tmp_path / "bars.csv").index), label_texts(index)
    assert len(set(whole)) == len(set(framed)) == len(index)
    for rows in (2, 20, 40, 60):
        assert label_texts(_first(tmp_path / "bars.csv", rows).index) == whole[:rows]
        assert label_texts(index[:rows]) == framed[:rows]
    days, shifted = begin.endswith("00:00") and freq in ("1D", "24h"), freq == "24h" and zone is not None
    assert whole == framed or (days and shifted)
    if days and not shifted:
        assert whole == [str(day.date()) for day in index]


def test_a_time_of_day_that_comes_later_changes_no_label(tmp_path, table):
    days = [str(day.date()) for day in DAYS]
    for offset in ("", "+01:00"):
        labels = [f"{day} 00:00:00{offset}" for day in days[:-1]] + [f"{days[-1]} 16:00:00{offset}"]
        table.set_axis(labels).to_csv(tmp_path / "r.csv", index_label="date")
        found = label_texts(load_returns(tmp_path / "r.csv").index)
        assert found == [*days[:-1], f"{days[-1]}T16:00:00"]
        assert found[:20] == label_texts(_first(tmp_path / "r.csv", 20).index)


def _first(path, rows):
    """The table of the first rows of a file."""
    lines = path.read_text().splitlines(keepends=True)
    (path.parent / "first.csv").write_text("".join(lines[: rows + 1]))
    return load_returns(path.parent / "first.csv")


@pytest.mark.parametrize("odd", ["2024-01-15 09:00:00", "2024-01-15"])
def test_an_offset_in_some_rows_only_is_refused(tmp_path, table, odd):
    labels = [f"{day:%Y-%m-%d} 09:00:00+01:00" for day in DAYS]
    labels[10] = odd
    table.set_axis(labels).to_csv(tmp_path / "r.csv", index_label="date")
    with pytest.raises(InputError, match=rf"row 11: expected an offset .* in every row or in none, found '{odd}'"):
        load_returns(tmp_path / "r.csv")


def test_prices_must_be_positive(table):
    prices = (1 + table).cumprod()
    prices.iloc[4, 0] = 0.0
    with pytest.raises(InputError, match=r"column 'A', row 5 \(2024-01-05\): expected a positive price, found 0"):
        load_returns(prices, values="prices")


def test_bad_files_are_refused(tmp_path, table):
    short = tmp_path / "short.csv"
    short.write_text("date,A,B\n2024-01-01,1,2\n2024-01-02,1\n")
    with pytest.raises(InputError, match=r"short.csv: row 2 \(2024-01-02\): expected 3 cells, found 2"):
        load_returns(short)
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    with pytest.raises(InputError, match="empty file"):
        load_returns(empty)
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00\x01,\x80")
    with pytest.raises(InputError, match="UTF-8"):
        load_returns(binary)
    with pytest.raises(InputError, match="expected a file"):
        load_returns(tmp_path / "none.csv")
    other = tmp_path / "table.xls"
    other.write_text("x")
    with pytest.raises(InputError, match=r"\.csv or \.parquet"):
        load_returns(other)
    with pytest.raises(InputError, match="values"):
        load_returns(table, values="yields")


@pytest.mark.parametrize("bad", ["x", None, -1, 0, np.nan, True])
def test_a_gap_that_is_no_number_is_refused(table, bad):
    with pytest.raises(InputError, match="most_gap: expected"):
        load_returns(table, most_gap=bad)


@pytest.mark.parametrize(
    ("first", "refused"),
    [
        ("2024-01-01,0.01,-0.02,0.03", True),
        ("2024-01-01,0.01,,0.03", True),  # a gap in the first row
        ("0,0.01,-0.02,0.03", True),
        ("20240101,10,20,30", True),  # prices
        ("2024-01-01 00:00:00,0.01,-0.02,0.03", True),
        ("date,7203,6758,9984", False),  # codes of stocks
        (",005930,000660,035420", False),
        ("date,0.25,0.5,10", False),  # years to maturity
        ("2024,A,B,C", False),
    ],
)
def test_a_table_without_names_of_columns_is_refused(tmp_path, table, first, refused):
    path = write(tmp_path / "r.csv", table)
    path.write_text("\n".join([first, *path.read_text().splitlines()[1:]]))
    if refused:
        with pytest.raises(InputError, match=r"r\.csv: expected a first line with names of columns, found '2?0"):
            load_returns(path)
    else:
        assert list(load_returns(path).columns) == first.split(",")[1:]


def test_small_files_that_hold_much_are_refused(tmp_path, table, monkeypatch):
    import gzip

    from time2decide.markets import table_files

    monkeypatch.setattr(table_files, "_MOST_CELLS", 80)
    table.to_parquet(tmp_path / "r.parquet")
    for path in (write(tmp_path / "r.csv", table), tmp_path / "r.parquet"):
        with pytest.raises(InputError, match=rf"{path.name}: expected at most 80 cells, found 1\d\d"):
            load_returns(path)
    monkeypatch.setattr(table_files, "_MOST_BYTES", 1000)
    (tmp_path / "r.csv.gz").write_bytes(gzip.compress((tmp_path / "r.csv").read_bytes()))
    with pytest.raises(InputError, match="more when unpacked"):
        load_returns(tmp_path / "r.csv.gz")


@pytest.mark.parametrize(("cell", "kind"), [([1.0, 2.0], "list"), ({"a": 1}, "dict"), (b"x", "bytes")])
def test_cells_that_hold_no_number_are_refused_by_their_kind(table, cell, kind):
    frame = table.astype(object)
    frame.iat[3, 1] = cell
    with pytest.raises(InputError, match=f"column 'B': expected numbers, found {kind}"):
        load_returns(frame, gaps="keep")


@pytest.mark.parametrize("cell", ["nan", "inf", "-1e999"])
def test_a_number_by_asset_that_is_not_finite_is_named(cell, tmp_path):
    path = tmp_path / "w.csv"
    path.write_text(f"asset,weight\nA,1\nB,{cell}\n")
    with pytest.raises(InputError, match=rf"w.csv: row 2 \(B\): expected a finite number, found '{cell}'"):
        read_weights(path)


def test_words_are_no_dates_underscores_no_numbers_and_no_price_overflows(tmp_path, table):
    dates = [*(str(day.date()) for day in DAYS[:-1]), "now"]
    with pytest.raises(InputError, match="row 30: expected a date like 2024-01-31 in the first column, found 'now'"):
        load_returns(table.set_axis(dates))
    prices = (1 + table).cumprod() * 50
    prices.iloc[-2, 1] = 1e-320
    with pytest.raises(InputError, match=r"column 'B', row 30 .*: expected a price near the one before"):
        load_returns(prices, values="prices")
    (tmp_path / "w.csv").write_text("asset,weight\nA,0_0.4\nB,0.6\n")
    with pytest.raises(InputError, match=r"expected a finite number, found '0_0\.4'"):
        read_weights(tmp_path / "w.csv")


@pytest.mark.parametrize("path", [None, 3, ["w.csv"], b"w.csv"], ids=repr)
def test_what_is_no_path_of_weights_is_refused(path):
    with pytest.raises(InputError, match="weights: expected the path of a file, found"):
        read_weights(path)
