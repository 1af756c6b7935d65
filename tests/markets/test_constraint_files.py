import numpy as np
import pandas as pd
import pytest

from time2decide.core.validation import InputError
from time2decide.markets import Constraints, Limit, parse_constraints, read_constraints
from time2decide.markets import constraints as constraints_file
from time2decide.markets.constraint_files import files_of_constraints
from time2decide.markets.constraints import refuse_contradictions

ASSETS = ["AAA", "BBB", "CCC", "DDD"]
GOOD = """
[weights]
upper = 0.6
[cash]
most = 0.2
return = 0.0001
[assets.AAA]
lower = 0.05
upper = 0.4
[groups.technology]
assets = ["AAA", "BBB"]
upper = 0.5
[exposures.beta]
coefficients = { AAA = 1.2, DDD = 0.5 }
lower = 0.1
"""


def test_a_file_with_every_section(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text(GOOD)
    found = read_constraints(path, ASSETS)
    np.testing.assert_array_equal(found.lower, [0.05, 0, 0, 0])
    np.testing.assert_array_equal(found.upper, [0.4, 0.6, 0.6, 0.6])
    assert found.cash == (0.0, 0.2)
    assert [limit.name for limit in found.limits] == ["group technology", "exposure beta"]
    np.testing.assert_array_equal(found.limits[1].coefficients, [1.2, 0, 0, 0.5])


def test_a_table_of_bounds_and_groups(tmp_path):
    (tmp_path / "b.csv").write_text("asset,lower,upper,group\nAAA,0.1,0.5,x\nBBB,,0.5,x\nCCC,0,,\n")
    (tmp_path / "c.toml").write_text('table = "b.csv"\n[groups.x]\nupper = 0.7\n')
    found = read_constraints(tmp_path / "c.toml", ASSETS)
    np.testing.assert_array_equal(found.lower, [0.1, 0, 0, 0])
    np.testing.assert_array_equal(found.upper, [0.5, 0.5, np.inf, np.inf])
    np.testing.assert_array_equal(found.limits[0].coefficients, [1, 1, 0, 0])


def test_a_group_of_the_table_without_limits_is_refused(tmp_path):
    (tmp_path / "b.csv").write_text("asset,lower,upper,group\nAAA,0.1,0.5,x\nBBB,,0.5,y\n")
    with pytest.raises(InputError, match=r"b.csv: group of 'AAA': expected one with limits in \[groups.x\]"):
        read_constraints(tmp_path / "b.csv", ASSETS)
    (tmp_path / "c.toml").write_text('table = "b.csv"\n[groups.x]\nupper = 0.7\n')
    with pytest.raises(InputError, match=r"group of 'BBB'.* 'y' without any in c\.toml"):
        read_constraints(tmp_path / "c.toml", ASSETS)
    both = 'table = "b.csv"\n[groups.x]\nassets = ["AAA"]\nupper = 0.7\n[groups.y]\nupper = 0.5\n'
    (tmp_path / "c.toml").write_text(both)
    with pytest.raises(InputError, match=r"\[groups.x\]: expected its assets here or in the table, found both"):
        read_constraints(tmp_path / "c.toml", ASSETS)


#: Text of a TOML file, and what the one line must name.
BAD = {
    "not TOML": ("[weights\n", "TOML"),
    "unknown section": ("[wieghts]\nupper = 1\n", "wieghts"),
    "unknown key": ("[weights]\nuper = 1\n", "uper"),
    "section that is a number": ("weights = 3\n", "weights"),
    "bound that is text": ('[weights]\nupper = "all"\n', "upper"),
    "bound that is true": ("[weights]\nupper = true\n", "upper"),
    "bound that is NaN": ("[weights]\nupper = nan\n", "upper"),
    "infinite bound": ("[weights]\nupper = inf\n", "finite"),
    "lower above upper": ("[weights]\nlower = 0.5\nupper = 0.4\n", "lower 0.5 above upper 0.4"),
    "unknown asset": ("[assets.ZZZ]\nupper = 0.1\n", "ZZZ"),
    "group of an unknown asset": ('[groups.x]\nassets = ["ZZZ"]\nupper = 0.1\n', "ZZZ"),
    "empty group": ("[groups.x]\nassets = []\nupper = 0.1\n", "groups.x"),
    "asset twice in a group": ('[groups.x]\nassets = ["AAA", "AAA"]\nupper = 0.1\n', "groups.x"),
    "group without a limit": ('[groups.x]\nassets = ["AAA"]\n', "groups.x"),
    "group with lower above upper": ('[groups.x]\nassets = ["AAA"]\nlower = 0.3\nupper = 0.2\n', "groups.x"),
    "exposure without coefficients": ("[exposures.b]\nupper = 1\n", "exposures.b"),
    "negative cash": ("[cash]\nleast = -0.1\nmost = 0.2\n", "cash"),
    "cash least above most": ("[cash]\nleast = 0.3\nmost = 0.2\n", "cash"),
    "table that is missing": ('table = "none.csv"\n', "none.csv"),
    "upper bounds below full investment": ("[weights]\nupper = 0.2\n", "the sum of weights (1)"),
    "lower bounds above full investment": ("[weights]\nlower = 0.3\n", "the lower bounds of 4 assets (sum 1.2)"),
    "group below the bounds in it": (
        '[assets.AAA]\nlower = 0.4\n[groups.x]\nassets = ["AAA"]\nupper = 0.3\n',
        "group x (at most 0.3) and the lower bound of AAA (0.4)",
    ),
    "two groups that leave no room": (
        '[groups.x]\nassets = ["AAA", "BBB"]\nupper = 0.4\n[groups.y]\nassets = ["CCC", "DDD"]\nupper = 0.5\n',
        "the sum of weights (1) and group x (at most 0.4) and group y (at most 0.5)",
    ),
    "cash and a group": (
        '[cash]\nleast = 0.5\n[groups.x]\nassets = ["AAA", "BBB", "CCC"]\nlower = 0.6\n',
        "the sum of weights (0.5) and group x (at least 0.6)",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_contradictory_and_malformed_files_are_refused_in_one_line(case, tmp_path):
    text, expected = BAD[case]
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_constraints(path, ASSETS)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("command", ["decide", "backtest"])
@pytest.mark.parametrize("case", BAD)
def test_the_command_line_refuses_them_in_one_line_with_exit_code_2(case, command, run, tmp_path):
    text, expected = BAD[case]
    days = pd.bdate_range("2024-01-01", periods=100)
    table = pd.DataFrame(np.random.default_rng(0).normal(0, 0.01, (100, 4)), days, ASSETS)
    table.to_csv(tmp_path / "returns.csv", index_label="date")
    (tmp_path / "c.toml").write_text(text)
    before = sorted(tmp_path.iterdir())
    done = run(command, "returns.csv", "--returns", "--constraints", "c.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert expected in done.stderr
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("asset,low,high\nAAA,0,1\n", "columns"),
        ("asset,lower,upper\nAAA,0\n", "row 1"),
        ("asset,lower,upper\nZZZ,0,1\n", "ZZZ"),
        ("asset,lower,upper\nAAA,0,1\nAAA,0,1\n", "again"),
        ("asset,lower,upper\nAAA,much,1\n", "much"),
        ("", "empty"),
    ],
)
def test_bad_tables_of_bounds(text, expected, tmp_path):
    (tmp_path / "b.csv").write_text(text)
    with pytest.raises(InputError, match=expected):
        read_constraints(tmp_path / "b.csv", ASSETS)


def test_a_turnover_budget_that_cannot_reach_a_group(tmp_path):
    (tmp_path / "c.toml").write_text('[groups.x]\nassets = ["AAA"]\nlower = 0.6\n')
    constraints = read_constraints(tmp_path / "c.toml", ASSETS)
    with pytest.raises(InputError, match=r"group x .* and the turnover budget \(0.1\); .* works is 0.7$"):
        refuse_contradictions(constraints, ASSETS, np.full(4, 0.25), 0.1)
    refuse_contradictions(constraints, ASSETS, np.full(4, 0.25), 0.7)


def test_many_assets_are_refused_with_few_linear_programs(monkeypatch):
    """One program per asset would be 400; the two bounds that are needed are still found among them."""
    m, solved, can_be_met = 200, [], constraints_file._can_be_met
    monkeypatch.setattr(constraints_file, "_can_be_met", lambda *terms: solved.append(1) or can_be_met(*terms))
    upper = np.full(m, 1.0)
    upper[[7, 150]] = 0.2
    pair = Limit("pair", 1.0 * np.isin(np.arange(m), [7, 150]), 0.5, 1.0)
    names = [f"A{i}" for i in range(m)]
    expected = r"none for pair \(0.5 to 1\) and the upper bound of A7 \(0.2\) and the upper bound of A150 \(0.2\)$"
    with pytest.raises(InputError, match=expected):
        refuse_contradictions(Constraints(upper=upper, limits=(pair,)), names)
    assert len(solved) < 70
    solved.clear()
    with pytest.raises(InputError, match="upper bounds of 200 assets"):
        refuse_contradictions(Constraints(upper=0.9 / m), names)
    assert len(solved) < 70


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[weights]\nupper = 5\n", r".weights.: .* found 5, which is 500 % .write 0.05 for 5 %."),
        ("[assets.B]\nlower = 2\nupper = 3\n", "bounds of 'B': .* found 2, which is 200 %"),
        ('[groups.x]\nassets = ["A"]\nupper = 30\n', r".groups.x.: .* found 30, .* .write 0.3 for 30 %."),
        ('[weights]\nupper = 1.0\n[groups.x]\nassets = ["A"]\nupper = 1\n', ""),
        ("[weights]\nupper = 1.0000001\n", ""),
        ("[cash]\nmost = 20\n", ".cash.: .* found 20, which is 2000 %"),
        ("[weights]\nlower = -1\nupper = 5\n", ""),
        ("[weights]\nexposure = 1.5\nupper = 1.2\n", ""),
    ],
)
def test_per_cent_in_place_of_shares_are_refused_where_no_weight_can_be_above_1(text, expected, tmp_path):
    path = tmp_path / "c.toml"
    path.write_text(text)
    if not expected:
        read_constraints(path, ["A", "B", "C"])
        return
    with pytest.raises(InputError, match=expected):
        read_constraints(path, ["A", "B", "C"])


def test_an_empty_cell_of_the_table_leaves_the_bounds_of_all_weights(tmp_path):
    (tmp_path / "bounds.csv").write_text("asset,lower,upper\nA,,0.4\nB,0.2,\n")
    (tmp_path / "c.toml").write_text('table = "bounds.csv"\n[weights]\nlower = 0.1\nupper = 0.5\n')
    constraints = read_constraints(tmp_path / "c.toml", ["A", "B", "C"])
    np.testing.assert_array_equal(constraints.lower, [0.1, 0.2, 0.1])
    np.testing.assert_array_equal(constraints.upper, [0.4, 0.5, 0.5])


def test_a_number_of_many_digits_is_refused_in_one_line(tmp_path):
    (tmp_path / "c.toml").write_text(f"[weights]\nupper = {'9' * 400}\n")
    with pytest.raises(InputError, match="a finite number, found 999") as caught:
        read_constraints(tmp_path / "c.toml", ["A", "B"])
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize("text", ["a = " + "9" * 5000, "a = " + "[" * 3000, "a = \xff"])
def test_what_no_reader_of_toml_takes_is_refused(tmp_path, text):
    (tmp_path / "c.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=r"c\.toml: expected TOML"):
        read_constraints(tmp_path / "c.toml", ["A", "B"])


@pytest.mark.parametrize(
    "wrong",
    [None, 3, "AB", [], ["A", "A"], [["A"], ["B"]], [["A"], ["B", "C"]], {"A": 1}, np.eye(2), np.array("A")],
    ids=repr,
)
def test_assets_that_are_no_names_are_refused(wrong, tmp_path):
    (tmp_path / "c.toml").write_text("[weights]\nupper = 0.9\n")
    for made in (lambda: parse_constraints({}, wrong), lambda: read_constraints(tmp_path / "c.toml", wrong)):
        with pytest.raises(
            InputError, match=r"^assets: expected the distinct names of all assets in their order, found .*$"
        ):
            made()


@pytest.mark.parametrize("wrong", [None, 3, ["c.toml"], b"c.toml"], ids=repr)
def test_what_is_no_path_and_no_mapping_is_refused(wrong):
    with pytest.raises(InputError, match=r"^constraints: expected the path of a file, found .*$"):
        read_constraints(wrong, ASSETS)
    with pytest.raises(InputError, match=r"^constraints: expected a mapping of sections, found .*$"):
        parse_constraints(wrong, ASSETS)


@pytest.mark.parametrize(
    "content",
    [{1: {}}, {None: {}}, {"weights": 3}, {"weights": {1: 2}}, {"weights": {"upper": [1]}}, {"assets": {1: {}}},
     {"groups": {"x": {"assets": [["A"]]}}}, {"groups": {"x": {"assets": 3, "upper": 1}}},
     {"exposures": {"x": {"coefficients": {1: 1.0}, "upper": 1}}}, {"cash": {"most": None}}],
    ids=repr,
)  # fmt: skip
def test_sections_of_another_kind_are_refused_in_one_line(content):
    with pytest.raises(InputError, match=r"^constraints:.* expected .*, found .*$"):
        parse_constraints(content, ASSETS)


def test_the_files_of_constraints_are_named(tmp_path):
    """As a path or as text: the file itself, and the table that it names."""
    (tmp_path / "c.toml").write_text('table = "b.csv"\n')
    (tmp_path / "d.toml").write_text(GOOD)
    for form in (str, lambda path: path):
        assert files_of_constraints(form(tmp_path / "c.toml")) == [tmp_path / "c.toml", tmp_path / "b.csv"]
        assert files_of_constraints(form(tmp_path / "d.toml")) == [tmp_path / "d.toml"]
        assert files_of_constraints(form(tmp_path / "b.csv")) == [tmp_path / "b.csv"]


@pytest.mark.parametrize("name", ["none.toml", "none.csv", "folder.toml"])
def test_what_is_no_file_is_refused(name, tmp_path):
    (tmp_path / "folder.toml").mkdir()
    for form in (str, lambda path: path):
        with pytest.raises(InputError, match=name):
            read_constraints(form(tmp_path / name), ASSETS)


def test_the_return_of_cash_and_the_assets_are_those_of_the_file(tmp_path):
    (tmp_path / "c.toml").write_text(GOOD)
    found = read_constraints(tmp_path / "c.toml", ASSETS)
    assert (found.cash_return, found.exposure, found.assets) == (0.0001, 1.0, tuple(ASSETS))
    np.testing.assert_array_equal([[limit.low, limit.high] for limit in found.limits], [[-np.inf, 0.5], [0.1, np.inf]])
    np.testing.assert_array_equal(found.limits[0].coefficients, [1, 1, 0, 0])


LISTED = "a list of distinct assets"
UNKNOWN = "assets of the table of returns, found 'ZZZ'"
REFUSED = [  # section, label, content, what is said after the place
    ("weights", "", {"uper": 1}, "]: expected keys among exposure, lower, upper, found uper"),
    ("weights", "", {"upper": "all"}, "] upper: expected a number, found 'all'"),
    ("weights", "", {"lower": True}, "] lower: expected a number, found True"),
    ("weights", "", {"exposure": np.nan}, "] exposure: expected a number, found nan"),
    ("weights", "", {"upper": np.inf}, "] upper: expected a finite number, found inf"),
    ("cash", "", {"rate": 1}, "]: expected keys among least, most, return, found rate"),
    ("cash", "", {"least": -0.1, "most": 0.2}, "]: expected 0 ≤ least ≤ most, found -0.1 and 0.2"),
    ("cash", "", {"least": 0.3, "most": 0.2}, "]: expected 0 ≤ least ≤ most, found 0.3 and 0.2"),
    ("cash", "", {"return": "x"}, "] return: expected a number, found 'x'"),
    ("assets", ".AAA", {"most": 1}, "]: expected keys among lower, upper, found most"),
    ("assets", ".AAA", {"upper": "x"}, "] upper: expected a number, found 'x'"),
    ("assets", ".ZZZ", {"upper": 1}, f"]: expected {UNKNOWN}"),
    ("groups", ".x", 3, "]: expected a section, found 3"),
    ("groups", ".x", {"asset": []}, "]: expected keys among assets, lower, upper, found asset"),
    ("groups", ".x", {"assets": ["ZZZ"], "upper": 0.1}, f"]: expected {UNKNOWN}"),
    ("groups", ".x", {"assets": [], "upper": 0.1}, f"]: expected {LISTED}, found list []"),
    ("groups", ".x", {"assets": ["AAA"] * 2, "upper": 0.1}, f"]: expected {LISTED}, found list ['AAA', 'AAA']"),
    ("groups", ".x", {"upper": 0.1}, f"]: expected {LISTED}, found list []"),
    ("groups", ".x", {"assets": ["AAA"]}, "]: expected a lower or an upper limit, found neither"),
    ("groups", ".x", {"assets": ["AAA"], "lower": 0.3, "upper": 0.2}, "]: expected lower ≤ upper, found 0.3 and 0.2"),
    ("groups", ".x", {"assets": ["AAA"], "lower": "a"}, "] lower: expected a number, found 'a'"),
    ("exposures", ".b", {"upper": 1}, "]: expected coefficients by asset, found None"),
    ("exposures", ".b", {"coefficients": {}, "upper": 1}, "]: expected coefficients by asset, found dict {}"),
    ("exposures", ".b", {"coefficients": [1], "upper": 1}, "]: expected coefficients by asset, found list [1]"),
    ("exposures", ".b", {"coefficients": {"ZZZ": 1}, "upper": 1}, f"]: expected {UNKNOWN}"),
    ("exposures", ".b", {"coefficients": {"AAA": "x"}, "upper": 1}, "] AAA: expected a number, found 'x'"),
    ("exposures", ".b", {"coefficients": {"AAA": 1}}, "]: expected a lower or an upper limit, found neither"),
]


@pytest.mark.parametrize(("section", "label", "content", "said"), REFUSED)
def test_what_is_wrong_is_said_in_full(section, label, content, said):
    with pytest.raises(InputError) as caught:
        parse_constraints({section: {label[1:]: content} if label else content}, ASSETS)
    assert str(caught.value) == f"constraints: [{section}{label}{said}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("table = 5\n", "c.toml: table: expected the name of a CSV file, found 5"),
        ("weights = 3\n", "c.toml: weights: expected a section, found 3"),
        ("[other]\n", "c.toml: expected sections among assets, cash, exposures, groups, table, weights, found [other]"),
        (
            "[assets.AAA]\nlower = 0.5\nupper = 0.4\n",
            "c.toml: bounds of 'AAA': expected lower ≤ upper, found lower 0.5 above upper 0.4",
        ),
        (
            '[groups.x]\nassets = ["AAA", "BBB"]\nlower = 0.7\nupper = 0.8\n'
            '[groups.y]\nassets = ["CCC"]\nlower = 0.5\n',
            "constraints: expected some portfolio that meets them all, found none for the sum of weights (1) and "
            "group x (0.7 to 0.8) and group y (at least 0.5) and the lower bound of DDD (0)",
        ),
        (
            '[groups.x]\nassets = ["AAA", "BBB", "CCC"]\nlower = 0.8\nupper = 0.8\n[assets.DDD]\nupper = 0.1\n',
            "constraints: expected some portfolio that meets them all, found none for the sum of weights (1) and "
            "group x (0.8) and the upper bound of DDD (0.1)",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_said_in_full(text, said, tmp_path):
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(InputError) as caught:
        read_constraints(tmp_path / "c.toml", ASSETS)
    assert str(caught.value) == said
    (tmp_path / "c.txt").write_text(text)
    with pytest.raises(InputError, match=r"^c\.txt: expected a \.toml or \.csv file, found \.txt$"):
        read_constraints(tmp_path / "c.txt", ASSETS)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("AAA,0\n", "row 1: expected 3 cells, found 2"),
        ("AAA,0,1\nZZZ,0,1\n", "row 2: expected an asset of the table of returns, found 'ZZZ'"),
        ("AAA,0,1\nBBB,0,1\nAAA,0,1\n", "row 3: expected distinct assets, found 'AAA' again"),
        ("AAA,much,1\n", "row 1: expected a number or an empty cell, found 'much'"),
        ("AAA,0,1_0\n", "row 1: expected a number or an empty cell, found '1_0'"),
        ("AAA,nan,1\n", "row 1: expected a number or an empty cell, found 'nan'"),
    ],
)
def test_what_is_wrong_in_a_table_of_bounds_is_said_in_full(rows, said, tmp_path):
    (tmp_path / "b.csv").write_text(f"asset,lower,upper\n{rows}")
    with pytest.raises(InputError) as caught:
        read_constraints(tmp_path / "b.csv", ASSETS)
    assert str(caught.value) == f"b.csv: {said}"
    (tmp_path / "b.csv").write_text("asset,low,high\nAAA,0,1\n")
    with pytest.raises(InputError) as caught:
        read_constraints(tmp_path / "b.csv", ASSETS)
    assert str(caught.value) == (
        "b.csv: expected the columns asset,lower,upper and perhaps group, found asset,low,high"
    )
