import json

import numpy as np
import pandas as pd
import pytest
import typer
from threadpoolctl import threadpool_info
from typer.testing import CliRunner

from time2decide.backtesting.baselines import SoftForecast
from time2decide.backtesting.walk_forward import backtest
from time2decide.cli.backtest import backtest as command
from time2decide.core.validation import InputError
from time2decide.policy.model import Time2Decide
from time2decide.reports.decision_figures import write_backtest_figures

PLAIN = ("uniform", "lag1-oracle", "soft-persistence", "pto-persistence", "pto-ar1", "pto-ridge", "averaged-oracle")


class Silent:
    name = "silent"
    wants_hindsight = False


@pytest.fixture(scope="module")
def table():
    days = pd.date_range("2024-01-01", periods=130, freq="B")
    values = np.random.default_rng(0).normal(0, 0.01, (130, 4))
    return pd.DataFrame(values, index=days, columns=list("ABCD"))


@pytest.fixture(scope="module")
def outcome(table):
    return backtest(table, [*PLAIN, "oracle"], [0.2, 1.0], cost_bps=20)


def test_the_frame_is_tidy_and_complete(outcome, table):
    frame = outcome.frame
    assert len(frame) == (len(PLAIN) + 1) * 2 * 34
    assert not frame.isna().any().any()
    assert not frame.duplicated(["strategy", "turnover_l1", "series", "time"]).any()
    assert frame["time"].min() == table.index[96]
    assert frame["time"].max() == table.index[-1]
    assert len(outcome.summary) == (len(PLAIN) + 1) * 2


def test_wealth_is_gross_return_less_cost_of_what_was_traded(outcome, table):
    path = outcome.frame.query("strategy == 'pto-ar1' and turnover_l1 == 0.2")
    weights = outcome.weights("pto-ar1", 0.2)
    np.testing.assert_allclose(path["gross"], (weights * table[96:].to_numpy()).sum(axis=1))
    np.testing.assert_allclose(path["cost"], 0.0020 * path["traded"])
    np.testing.assert_allclose(path["wealth"], ((1 - path["cost"]) * (1 + path["gross"])).cumprod())
    np.testing.assert_allclose(path["net"].iloc[1:], path["wealth"].pct_change().iloc[1:], atol=1e-12)
    assert (path["turnover"] <= 0.2 + 1e-12).all()


def test_the_oracle_has_no_regret_and_earned_most_here(outcome):
    best = outcome.summary[outcome.summary["strategy"] == "oracle"].set_index("turnover_l1")
    assert (best["regret"] == 0).all()
    assert (best["mse"] == 0).all()
    free = outcome.summary[outcome.summary["turnover_l1"] == 1.0]
    assert (free["utility"] <= best.loc[1.0, "utility"] + 1e-12).all()


def test_costs_cost(table):
    free, dear = (backtest(table, ["pto-persistence"], 1.0, cost_bps=bps).summary for bps in (0, 50))
    assert free["annual_return"][0] > dear["annual_return"][0]
    assert free["regret"][0] == dear["regret"][0]


def test_costs_are_charged_on_what_is_traded_after_drift(table):
    frame = backtest(table, ["uniform"], 1.0, cost_bps=100, budget_from="previous").frame
    grown = 1 + table[95:-1].to_numpy()
    drifted = grown / grown.sum(axis=1, keepdims=True)
    expected = np.abs(0.25 - drifted).sum(axis=1)
    expected[0] = 0.0  # the first decision starts from equal weights
    assert (frame["turnover"] == 0).all()
    np.testing.assert_allclose(frame["traded"], expected, atol=1e-15)
    np.testing.assert_allclose(frame["net"], (1 - 0.01 * expected) * (1 + frame["gross"]) - 1)


def test_regret_is_measured_with_the_risk_aversion_asked_for(table):
    result = backtest(table, ["uniform", "oracle"], 1.0, risk_aversion=100.0)
    steps = result.frame.groupby("strategy")["regret"]
    assert np.abs(steps.get_group("oracle")).max() == 0
    means = result.summary.set_index("strategy")["regret"]
    assert steps.mean()["uniform"] == pytest.approx(means["uniform"])


def test_the_summary_is_the_mean_over_series(table):
    pair = [table.to_numpy(), 0.5 * table.to_numpy()[::-1].copy()]
    both = backtest(np.stack(pair), ["pto-ar1"], 0.5).summary
    alone = pd.concat([backtest(one, ["pto-ar1"], 0.5).summary for one in pair])
    columns = both.select_dtypes("number").columns
    np.testing.assert_allclose(both[columns].iloc[0], alone[columns].mean())


def test_arrays_and_several_series(table):
    both = backtest(np.stack([table, -table]), ["uniform", SoftForecast(name="soft")], 0.5)
    assert sorted(both.frame["series"].unique()) == [0, 1]
    single = backtest(table.to_numpy(), ["uniform"], 0.5)
    np.testing.assert_allclose(
        single.frame["gross"], both.frame.query("strategy == 'uniform' and series == 0")["gross"]
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strategies": []}, "strategies"),
        ({"strategies": "uniform"}, "strategies"),
        ({"strategies": ["uniform", "guess"]}, "found 'guess'"),
        ({"strategies": ["uniform", "uniform"]}, "twice"),
        ({"cost_bps": -1}, "cost_bps"),
        ({"cost_bps": float("nan")}, "cost_bps"),
        ({"cost_bps": 5000}, r"cost_bps: expected a number in \[0, 4999\]"),
        (
            {"strategies": [object()]},
            r"strategy: expected name .* wants_hindsight .* decide\(observation\), found none in object",
        ),
        ({"strategies": [Silent()]}, r"strategy: expected decide\(observation\), found none in Silent"),
        ({"strategies": ["pto-ridge"], "window": 2}, "window: expected more than the 16 lags .* found 2"),
        ({"strategies": ["averaged-oracle"], "window": 16}, "window: expected more than the 16 lags .* found 16"),
        ({"returns": np.full((130, 4), True)}, "returns: expected real numbers, found dtype bool"),
        ({"returns": np.full((130, 4), 1j)}, "returns: expected real numbers"),
        ({"window": 130}, "130 steps"),
        ({"turnover_l1": -0.5}, "turnover_l1"),
        ({"periods_per_year": 0}, "periods_per_year"),
    ],
)
def test_bad_arguments_are_named(table, change, message):
    with pytest.raises(InputError, match=message):
        backtest(**({"returns": table, "strategies": ["uniform"]} | change))


def test_nobody_loses_more_than_everything(table):
    array = table.to_numpy().copy()
    array[50, 2] = -1.5
    with pytest.raises(InputError, match=r"returns: expected returns of at least -1, found -1.5 at index \(50, 2\)"):
        backtest(array, ["uniform"])
    array[50, 2] = -1.0
    assert len(backtest(array, ["uniform"]).summary) == 1


@pytest.mark.parametrize("name", ["uniform", "time2decide", "minimum-variance"])
def test_wealth_that_no_number_holds_is_refused(table, name):
    with pytest.raises(InputError, match="returns: expected returns that keep wealth finite, found returns up to"):
        backtest(np.maximum(table.to_numpy() * 1e22, -0.5), [name])


def test_wealth_that_only_some_paths_reach_is_refused_there():
    array = np.random.default_rng(0).normal(0, 0.01, (130, 4))
    array[::2, 0] = array[1::2, 1] = 1.5e9  # equal weights end near 1e291, the oracle beyond 1e308
    assert np.isfinite(backtest(array, ["uniform"], 2.0, periods_per_year=12).summary["annual_return"][0])
    for name, year in (("oracle", 12), ("uniform", 252)):  # 252 such steps are too many
        with pytest.raises(InputError, match="returns: expected returns that keep wealth finite"):
            backtest(array, [name], 2.0, periods_per_year=year, risk_aversion=0)


@pytest.mark.parametrize("window", [17, 18])
def test_the_shortest_windows_of_ridge(table, window):
    summary = backtest(table, ["pto-ridge", "averaged-oracle"], window=window).summary
    assert np.isfinite(summary["mse"]).all()


def test_unknown_weights_are_named(outcome):
    with pytest.raises(InputError, match="strategy: expected one of"):
        outcome.weights("uniform", 0.3)


@pytest.fixture(scope="module")
def app():
    application = typer.Typer()
    application.command()(command)
    return application


def test_command_prints_and_writes(app, table, tmp_path):
    file = tmp_path / "returns.csv"
    table.to_csv(file, index_label="date")
    arguments = ["--data", str(file), "--strategies", "uniform,pto-ar1", "--turnover", "0.2,1"]
    arguments += ["--out", str(tmp_path / "out")]
    shown = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert shown.exit_code == 0
    assert "pto-ar1" in shown.output
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["backtest-turnover-0.2.png", "backtest-turnover-1.png", "steps.csv", "summary.csv", "weights.csv"]
    weights, steps = (pd.read_csv(tmp_path / "out" / name) for name in ("weights.csv", "steps.csv"))
    assert list(weights.columns) == ["time", "strategy", "turnover_l1", *table.columns]
    keys = ["time", "strategy", "turnover_l1"]
    assert len(weights.merge(steps, on=keys)) == len(weights) == len(steps)
    np.testing.assert_allclose(weights[list(table.columns)].sum(axis=1), 1, atol=1e-9)
    assert "arithmetic mean (not the compound rate)" in " ".join(shown.output.split())
    rows = json.loads(CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False).stdout)
    assert [row["strategy"] for row in rows] == ["uniform", "uniform", "pto-ar1", "pto-ar1"]
    assert "NaN" not in json.dumps(rows)


def test_command_trades_at_the_next_close_unless_told(app, table, tmp_path):
    file = tmp_path / "weeks.csv"
    table.set_axis(pd.date_range("2020-01-03", periods=130, freq="W-FRI")).to_csv(file, index_label="date")
    arguments = ["--data", str(file), "--returns", "--strategies", "uniform,pto-ar1", "--out", str(tmp_path / "out")]
    shown = CliRunner().invoke(app, arguments, catch_exceptions=False)
    words = " ".join(shown.output.split())
    assert "52 a year" in words
    assert "traded at the next close" in words
    assert "per week, as a share of wealth" in words
    rows = {}
    for delay in ("0", "1"):
        told = CliRunner().invoke(app, [*arguments, "--delay", delay, "--json"], catch_exceptions=False)
        rows[delay] = json.loads(told.stdout)[1]["sharpe"]
    assert rows["0"] != rows["1"]
    assert "nobody can trade" in CliRunner().invoke(app, [*arguments, "--delay", "0"], catch_exceptions=False).output
    per_row = CliRunner().invoke(app, [*arguments, "--periods-per-year", "1", "--json"], catch_exceptions=False)
    assert json.loads(per_row.stdout)[1]["sharpe"] == pytest.approx(rows["1"] / 52**0.5)


def test_command_reads_parquet(app, table, tmp_path):
    table.to_parquet(tmp_path / "returns.parquet")
    ((1 + table).cumprod() * 20).to_parquet(tmp_path / "prices.parquet")
    figures = []
    for kind in ("returns", "prices"):
        arguments = ["--data", str(tmp_path / f"{kind}.parquet"), f"--{kind}", "--strategies", "pto-ar1"]
        arguments += ["--last", "110", "--out", str(tmp_path / "out"), "--json"]
        shown = CliRunner().invoke(app, arguments, catch_exceptions=False)
        figures.append(json.loads(shown.stdout)[0]["annual_return"])
    assert figures[0] == pytest.approx(figures[1])


def test_command_prints_null_for_figures_that_do_not_exist(app, table, tmp_path):
    file = tmp_path / "returns.csv"
    table.to_csv(file, index_label="date")
    arguments = ["--data", str(file), "--strategies", "uniform", "--last", "97", "--out", str(tmp_path / "out")]
    shown = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert "NaN" not in shown.stdout
    assert json.loads(shown.stdout)[0]["sharpe"] is None


def test_command_leaves_no_temporary_file_when_it_cannot_write(app, table, tmp_path):
    file = tmp_path / "returns.csv"
    table.to_csv(file, index_label="date")
    for blocked in ("summary.csv", "backtest-turnover-1.png"):
        out = tmp_path / blocked.replace(".", "-")
        (out / blocked).mkdir(parents=True)
        result = CliRunner().invoke(app, ["--data", str(file), "--strategies", "uniform", "--out", str(out)])
        assert isinstance(result.exception, InputError)
        assert [path.name for path in out.iterdir()] == [blocked]


def refuse_to_run(*arguments, **options):
    raise AssertionError("the work began before its outputs were checked")


def test_command_never_replaces_its_input(app, table, tmp_path, monkeypatch):
    monkeypatch.setattr("time2decide.backtesting.walk_forward", refuse_to_run)
    for name in ("steps.csv", "summary.csv", "weights.csv"):
        table.to_csv(tmp_path / name, index_label="date")
        before = (tmp_path / name).read_bytes()
        monkeypatch.chdir(tmp_path)
        for out in (".", str(tmp_path)):
            result = CliRunner().invoke(app, [name, "--strategies", "uniform", "--out", out])
            assert isinstance(result.exception, InputError), result.exception
            assert "out: expected another file than those that are read" in str(result.exception)
        assert (tmp_path / name).read_bytes() == before


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (["--out", "returns.csv"], "out: expected a folder that can be written to, found returns.csv"),
        (["--out", "returns.csv/sub"], "out: expected a folder that can be written to, found returns.csv"),
        (["--out", "/proc/sub/out"], "out: expected a folder that can be written to, found /proc/sub/out"),
        (["--out", "x" * 5000], "out: expected a folder that can be written to"),
        (["--report", "folder.html"], "report: expected a file, found the folder folder.html"),
        (["--report", "/proc/page.html"], "report: expected a folder that can be written to, found /proc"),
    ],
)
def test_command_checks_outputs_before_the_work(app, table, tmp_path, monkeypatch, outputs, message):
    monkeypatch.setattr("time2decide.backtesting.walk_forward", refuse_to_run)
    monkeypatch.chdir(tmp_path)
    table.to_csv("returns.csv", index_label="date")
    (tmp_path / "folder.html").mkdir()
    result = CliRunner().invoke(app, ["returns.csv", "--strategies", "uniform", *outputs])
    assert isinstance(result.exception, InputError), result.exception
    assert message in str(result.exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.html", "returns.csv"]


def test_every_budget_has_its_picture(table, tmp_path):
    paths = write_backtest_figures(backtest(table, ["uniform"], [0.12345678, 0.12345679, 1.0]), tmp_path)
    numbers = ("0.12345678", "0.12345679", "1")
    assert [path.name for path in paths] == [f"backtest-turnover-{number}.png" for number in numbers]
    assert sorted(tmp_path.iterdir()) == paths


def test_command_refuses_bad_rows_and_writes_nothing(app, table, tmp_path):
    file = tmp_path / "bad.csv"
    cells = table.astype(object)
    cells.iloc[40] = "??"
    cells.to_csv(file)
    result = CliRunner().invoke(app, ["--data", str(file), "--out", str(tmp_path / "out")])
    assert isinstance(result.exception, InputError)
    assert "column 'A', row 41" in str(result.exception)
    assert not (tmp_path / "out").exists()
    result = CliRunner().invoke(app, ["--data", str(file), "--turnover", "much", "--out", str(tmp_path / "out")])
    assert "turnover: expected numbers" in str(result.exception)


def test_a_folder_with_a_policy_is_the_named_strategy(table, tmp_path):
    folder = Time2Decide.from_pretrained("time2decide").save_pretrained(tmp_path / "mine").parent
    result = backtest(table, ["time2decide", str(folder)], [0.5, 2.5])
    named, own = (result.rollouts[i].allocations for i in (0, 1))
    np.testing.assert_array_equal(named, own)
    free = backtest(table, ["time2decide"], 2.0).rollouts[0].allocations
    np.testing.assert_allclose(named[:, 1:], free, atol=1e-12)  # a budget above 2 means the same as 2


def test_the_linear_algebra_has_one_thread_while_strategies_run(table):
    class Asks:
        name, wants_hindsight, threads = "asks", False, set()

        def decide(self, observation):
            libraries = [one for one in threadpool_info() if one["user_api"] == "blas"]
            self.threads |= {one["num_threads"] for one in libraries}
            return np.full(4, 0.25)

    before = threadpool_info()
    backtest(table, [Asks()], 1.0)
    assert Asks.threads == {1}
    assert threadpool_info() == before
