"""The configuration of a policy: what it reads, and what it believes before it has seen a row.

It is all that a policy consists of besides code, so its fingerprint in a decision file says which policy decided.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace

from time2decide.core.provenance import text_digest

COVARIANCES = ("market", "window", "none")


@dataclass(frozen=True)
class RecordConfig:
    """Prior of a record, and how fast it forgets."""

    half_life: float = 500.0  # rows; two years of days, in which strategies are known to fade
    worth: float = 0.1  # prior probability that some expert is worth following: few are on stocks, rows tell elsewhere
    slope: float = 1.0  # of an expert that is: forecasts are regressions, which mean what they say
    deviation: float = 0.5

    same: float = 0.9  # probability that neighbouring horizons have the same expert to follow, or none

    @property
    def keep(self) -> float:
        """Factor per row."""
        return float(0.5 ** (1.0 / self.half_life))


@dataclass(frozen=True)
class PolicyConfig:
    """What a policy reads, and what it believes before it has seen a row."""

    pooled: bool = True  # regressions pooled over assets, and one on all assets
    kernels: bool = True  # kernel bank and lag regression, from the last 96 returns of each asset
    backbone: str = ""  # another expert on these: "timepfn", or a name of `forecasting/backbones.py`
    covariance: str = "market"  # one of COVARIANCES: all that is known, the last 96 rows, or mean variance · I
    equilibrium: float = 0.1  # prior Sharpe ratio a year of the equally weighted portfolio, spread by betas
    equal_sharpe: float = 0.2  # more of it, spread by volatilities: every asset has the same Sharpe ratio
    record: RecordConfig = field(default_factory=RecordConfig)


#: The default: for markets of any kind.
MARKET = PolicyConfig()
#: The paper's setting: one backbone that was pretrained for such series, no prior on means, Σ of the window.
TIME2DECIDE = PolicyConfig(
    pooled=False, kernels=False, backbone="timepfn", covariance="window", equilibrium=0.0, equal_sharpe=0.0,
    record=RecordConfig(worth=0.99, deviation=0.25),
)  # fmt: skip
NAMED = {
    "market": MARKET,
    "time2decide": TIME2DECIDE,
    "time2decide-nocov": replace(TIME2DECIDE, covariance="none"),
}


def policy_fingerprint(config: PolicyConfig) -> str:
    """SHA-256 of a configuration."""
    return text_digest([json.dumps(asdict(config), sort_keys=True)])
