import numpy as np
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
