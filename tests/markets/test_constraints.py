import numpy as np
import pandas as pd
import pytest

from time2decide.core.validation import InputError
from time2decide.markets import Constraints, Limit, solve_portfolio

GROUP = np.array([1.0, 1, 0, 0])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cash": (0.0, np.nan)}, "cash: expected a finite number, found nan"),
        ({"cash": (0.0, -np.inf)}, "cash: expected a finite number, found -inf"),
        ({"cash": (0.3, 0.1)}, "cash: expected least ≤ most"),
        ({"cash": 0.1}, "cash: expected a pair"),
        ({"cash_return": np.inf}, "cash_return: expected a finite number"),
        ({"exposure": np.nan}, "exposure: expected a finite number"),
        ({"limits": Limit("a", GROUP, 0, 1)}, "limits: expected a tuple of Limit"),
        ({"limits": (("a", GROUP, 0, 1),)}, "limits: expected a tuple of Limit"),
        ({"limits": (Limit("a", GROUP * np.nan, 0, 1),)}, "limit 'a': expected finite coefficients"),
        ({"limits": (Limit("a", GROUP, "x", 1),)}, "limit 'a': expected numbers"),
        ({"lower": np.ma.array(GROUP, mask=GROUP > 0)}, "lower: expected an array of numbers, found masked"),
        ({"upper": [0.5, 0.5, 0.5j, 1]}, "upper: expected numbers"),
        ({"upper": ["0.5", "0.5", "0.5", "1"]}, "upper: expected numbers"),
        ({"upper": True}, "upper: expected numbers, found True"),
        ({"exposure": "1"}, "exposure: expected numbers, found '1'"),
        ({"cash": (False, True)}, "cash: expected numbers"),
        ({"limits": (Limit("a", GROUP > 0, 0, 1),)}, "limit 'a': expected numbers"),
        ({"limits": (Limit("a", np.ma.array(GROUP, mask=GROUP > 0), 0, 1),)}, "limit 'a': .* masked"),
        ({"limits": (Limit("a", GROUP, "0", 1),)}, "limit 'a': expected numbers"),
        ({"limits": (Limit(3, GROUP, 0, 1),)}, "limits: expected names that are text, found 3"),
        ({"limits": (Limit("\ud800", GROUP, 0, 1),)}, "limits: expected names that are text"),
        ({"limits": (Limit("a", GROUP, 0.5, 0.3),)}, "limit 'a': expected low ≤ high"),
        ({"limits": (Limit("a", GROUP, 0, 1), Limit("a", 1 - GROUP, 0, 1))}, "limits: expected distinct names"),
    ],
)
def test_bad_fields_are_refused_when_made(given, message):
    with pytest.raises(InputError, match=message):
        Constraints(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lower": "a"}, "lower: expected numbers, found 'a'"),
        ({"lower": np.inf}, "lower: expected bounds that some weight meets"),
        ({"upper": -np.inf}, "upper: expected bounds that some weight meets"),
        ({"upper": [0.5, 0.5, np.nan, 0.5]}, "upper: expected a number or 4 numbers, found NaN"),
        ({"upper": [0.5, 0.5, 0.5]}, r"upper: expected a number or 4 numbers, found shape \(3,\)"),
        ({"lower": [0, 0.4, 0, 0], "upper": 0.3}, r"upper bound 0.3, found 0.4 \(asset 1\)"),
        ({"lower": 0.1 + 0.2, "upper": 0.3}, "upper bound 0.3, found 0.30000000000000004"),
    ],
)
def test_bad_bounds_are_refused(given, message):
    with pytest.raises(InputError, match=message):
        Constraints(**given).bounds(4)


@pytest.mark.parametrize("size", [1e-12, 1e-3, 1e3, 1e12])
def test_the_unit_of_a_limit_does_not_matter(size):
    rng = np.random.default_rng(0)
    mean, covariance, previous = rng.normal(0, 1e-2, 4), np.diag(rng.uniform(1, 2, 4)) * 1e-4, np.full(4, 0.25)
    low, high = 0.2, 0.6
    weights = []
    for unit in (1.0, size):
        constraints = Constraints(limits=(Limit("group", GROUP * unit, low * unit, high * unit),))
        weights.append(solve_portfolio(mean, covariance, previous, risk_aversion=5.0, constraints=constraints).weights)
        assert constraints.excess(weights[-1], previous, 2.0) <= 1e-12
    np.testing.assert_allclose(*weights, atol=1e-12)


def test_constraints_with_arrays_can_be_compared_and_hashed():
    one, other = Constraints(lower=np.zeros(3)), Constraints(lower=np.zeros(3))
    assert one == one
    assert one != other
    assert len({one, other}) == 2


def test_rounding_of_current_weights_is_removed_and_nothing_else():
    """Against the bounds and the net exposure; what is further outside stays: constraints change from day to day."""
    capped = Constraints(upper=0.5)
    lower, upper = capped.bounds(3)
    held = np.array([[0.5 + 1e-9, 0.3, 0.2], [0.7, 0.2, 0.1], [0.4, 0.4, 0.2 + 3e-9]])
    near = capped.inside(held, lower, upper)
    assert near[0, 0] <= 0.5
    np.testing.assert_allclose(near[1], held[1], atol=1e-15)
    np.testing.assert_allclose(near.sum(-1), 1, atol=1e-15)
    np.testing.assert_allclose(near, held, atol=1e-8)
    far = np.array([[0.4, 0.4, 0.3]])
    np.testing.assert_array_equal(capped.inside(far, lower, upper), far)
    some_cash = Constraints(cash=(0.0, 0.5))
    np.testing.assert_array_equal(some_cash.inside(held[2:], lower, np.ones(3)), held[2:])  # its sum is free


def test_excess_is_that_of_the_constraint_broken_most():
    one = Constraints(0.0, 0.6, cash=(0.0, 0.1), limits=(Limit("pair", 2 * GROUP, 0.4, 1.0),))  # 0.2 to 0.5 in units
    held, previous = np.array([0.25, 0.15, 0.35, 0.2]), np.array([0.2, 0.2, 0.3, 0.3])
    assert one.excess(held, previous, 0.5) == pytest.approx(0.0 - 0.05, abs=1e-12)  # cash has room for 0.05
    for change, turnover, expected in (
        ([0.4, 0, -0.2, -0.2], 9, 0.3),  # pair: 0.8 of 0.5
        ([-0.3, 0, 0.3, 0], 9, 0.1),  # pair: 0.1 of 0.2; the first is -0.05, the third 0.65
        ([0, 0, 0.3, -0.3], 9, 0.1),  # the last is -0.1
        ([0, 0, 0.3, 0], 9, 0.25),  # cash is -0.25
        ([0, 0, -0.1, -0.1], 9, 0.15),  # cash is 0.25
        ([0, 0, 0, 0], 0.1, 0.15),  # trades 0.25
    ):
        assert one.excess(held + change, previous, turnover) == pytest.approx(expected, abs=1e-12), change


def test_what_is_left_of_constraints_for_some_assets():
    one = Constraints(0.0, [0.5, 0.6, 0.7, 0.8], limits=(Limit("pair", GROUP, 0.2, 0.9),), assets=tuple("ABCD"))
    held, chosen = np.array([0.1, 0.2, 0.3, 0.4]), np.array([True, False, True, False])
    rest = one.among(held, chosen)
    assert rest.exposure == pytest.approx(0.4)
    assert rest.assets == ("A", "C")
    np.testing.assert_array_equal(rest.upper, [0.5, 0.7])
    np.testing.assert_array_equal(rest.limits[0].coefficients, [1.0, 0.0])
    assert (rest.limits[0].low, rest.limits[0].high) == pytest.approx((0.0, 0.7))
    fixed = one.fix(held, chosen)
    np.testing.assert_array_equal(fixed.lower, [0.1, 0, 0.3, 0])
    np.testing.assert_array_equal(fixed.upper, [0.1, 0.6, 0.3, 0.8])
    with pytest.raises(InputError, match="limit 'pair': expected 3 coefficients"):
        one.limits_for(3)


def test_constraints_of_other_columns_are_refused():
    one = Constraints(assets=("A", "B", "C"))
    one.validate_assets(["A", "B", "C"])
    one.validate_assets(None)
    Constraints().validate_assets(["A"])
    with pytest.raises(InputError, match="constraints: expected constraints for B, A, C, … in this order, found those"):
        one.validate_assets(["B", "A", "C"])


def test_a_series_goes_by_asset():
    names = list("ABCD")
    upper, group = pd.Series([0.1, 0.5, 0.6, 0.7], names), pd.Series(GROUP, names)
    one = Constraints(upper=upper[::-1], limits=(Limit("pair", group[::-1], 0.0, 0.3),))
    for found in (one.aligned(names), Constraints(upper=upper[::-1], limits=one.limits, assets=tuple(names))):
        np.testing.assert_array_equal(found.bounds(4)[1], upper)
        np.testing.assert_array_equal(found.limits_for(4)[0].coefficients, GROUP)
    with pytest.raises(InputError, match=r"upper: expected one number for each asset, found unknown \['A'\]"):
        one.aligned(list("BCDE"))
    with pytest.raises(InputError, match="limit 'pair': expected one number for each asset"):
        Constraints(limits=one.limits).aligned(list("BCDE"))
    mean, S = pd.Series([0.4, 0.3, 0.2, 0.1], names), np.eye(4)
    solved = solve_portfolio(mean, S, np.full(4, 0.25), risk_aversion=0.1, constraints=one)
    assert solved.weights[0] <= 0.1 + 1e-12
    assert solved.weights[:2].sum() <= 0.3 + 1e-12


def test_numbers_with_names_are_put_into_the_order_of_the_columns():
    upper = pd.Series([0.1, 0.2, 0.3], ["a", "b", "c"])
    limit = Limit("group", pd.Series([1.0, 2.0, 3.0], ["b", "c", "a"]), 0.0, 1.0)
    found = Constraints(lower=np.array([0.01, 0.02, 0.03]), upper=upper, limits=(limit,)).aligned(["c", "a", "b"])
    np.testing.assert_array_equal(found.upper, [0.3, 0.1, 0.2])
    np.testing.assert_array_equal(found.limits[0].coefficients, [2.0, 3.0, 1.0])
    np.testing.assert_array_equal(found.lower, [0.01, 0.02, 0.03])  # without names: as they stand
    with pytest.raises(InputError, match="upper"):
        Constraints(upper=upper).aligned(["a", "b", "d"])


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_limit_on_fixed_assets_waits_only_if_they_break_it(scale):
    """By more than rounding beside its own size, at either end; a limit on a free asset stays in any case."""
    held, fixed = np.array([0.3, 0.3, 0.4]), np.array([True, True, False])
    pair, single = scale * np.array([1.0, 1.0, 0.0]), scale * np.array([1.0, 0.0, 1.0])
    for end, kept in ((0.6, True), (0.6 + 1e-14, True), (0.6 - 1e-14, True), (0.6 - 1e-4, False)):
        above = Constraints(limits=(Limit("pair", pair, -np.inf, scale * end), Limit("other", single, -np.inf, 0.0)))
        below = Constraints(limits=(Limit("pair", -pair, -scale * end, np.inf), Limit("other", single, 9.0, np.inf)))
        for one in (above, below):
            assert [limit.name for limit in one.fix(held, fixed).limits] == (["pair"] if kept else []) + ["other"]


@pytest.mark.parametrize("given", [[0.1, 0.2], (0.1, 0.2), np.array([0.1, 0.2])], ids=type)
def test_bounds_are_kept_as_numbers(given):
    """Of one's own, whatever they were given as; a single number stays one."""
    for name in ("lower", "upper"):
        bound = getattr(Constraints(**{name: given}), name)
        assert type(bound) is np.ndarray
        assert bound.dtype == np.float64
        np.testing.assert_array_equal(bound, [0.1, 0.2])
    one = Constraints(lower=np.float32(0.5), upper=np.array(1))
    assert (type(one.lower), type(one.upper)) == (float, float)
    assert (one.lower, one.upper) == (0.5, 1.0)


@pytest.mark.parametrize("name", ["cash_return", "exposure"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_number_is_taken_and_the_next_one_refused(name, sign):
    assert getattr(Constraints(**{name: sign * 1e6}), name) == sign * 1e6
    with pytest.raises(InputError, match=rf"^{name}: expected a number of at most 1e\+06"):
        Constraints(**{name: sign * np.nextafter(1e6, np.inf)})
