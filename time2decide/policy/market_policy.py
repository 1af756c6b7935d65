"""The policy: what is known after a row in, the portfolio problem of the next trade out. Nothing in it is trained.

    μ = Σ_eh l_h b_eh f_eh + (1 − followed) · prior,   l_h = (1 − z)^a − (1 − z)^b
    maximise  μᵀs − λ (s−b)ᵀΣ(s−b) − z · cost ‖s − p‖₁   under the constraints

f_eh is what expert e forecasts for the rows a + 1 … b after the trade, b_eh how far its record says to follow it, and
z the rate at which the policy trades: a trade made now is undone at that rate, so that row k of a forecast weighs z(1
− z)^(k−1) and a row bears z of its cost. z is the policy's own: the mean over its last rows of what it traded,
relative to how far it was from where it would be without costs and budget. Small costs make it large by themselves,
and so do forecasts that fade.

Where forecasts are followed they replace the prior on means; on a market that cannot be forecast the prior is what is
left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from time2decide.core.validation import expect
from time2decide.forecasting.backbones import BackboneForecaster, load_backbone
from time2decide.forecasting.market_state import EXPERTS, FORECAST_WINDOW, HORIZONS, LENGTHS, MarketState
from time2decide.forecasting.records import SlopePosterior, posterior_slopes
from time2decide.forecasting.timepfn import TimePFN, TimePFNForecaster
from time2decide.forecasting.window import KernelExpert, LagExpert, PathExpert, WindowExpert, WindowForecasts
from time2decide.markets.covariance import empirical_covariance
from time2decide.markets.policy_config import COVARIANCES, MARKET, PolicyConfig, policy_fingerprint

_FROM, _TO = np.array(HORIZONS).T
LEAST_RATE = 1e-3  # a trade lasts a thousand rows at most
_RETURNS_SCALE = 100.0  # of what TimePFN is given: its normalisation cannot resolve returns as they are
WINDOW_READS = "last 96 rows"


@dataclass(frozen=True)
class Seen:
    """What is known of a market after a row, with m assets.

    forecast, record : (E, H, m) mean return of each asset over the rows of each horizon, relative to the others, and
        (5, E, H) its record, by each of `reads`
    covariance : (m, m)
    periods_per_year : how often there are rows
    errors : (J, m) last errors of the forecast from a window, in its first horizon
    """

    forecast: np.ndarray
    record: np.ndarray
    reads: tuple[str, ...]
    covariance: np.ndarray
    periods_per_year: float
    errors: np.ndarray

    def of_assets(self, chosen: np.ndarray, mature: np.ndarray) -> Seen:
        """The same of some assets, (m,) bool; records stay those of all.

        Of those that are not `mature` the returns say too little: they count as a mean asset of the mature, which
        moves as the equally weighted portfolio of these, with noise of its own up to their mean variance, and has no
        forecast.
        """
        inner = self.covariance[np.ix_(mature, mature)]
        own = mature[chosen]
        to = np.where(own[:, None], np.eye(len(mature))[chosen][:, mature], 1.0 / max(mature.sum(), 1))
        covariance = inner if own.all() else to @ inner @ to.T
        if not own.all():
            covariance[np.diag_indices(len(own))] = np.where(own, covariance.diagonal(), inner.diagonal().mean())
        forecast = np.where(mature, self.forecast, 0.0)[..., chosen]
        return replace(self, forecast=forecast, covariance=covariance, errors=self.errors[:, chosen])


@dataclass(frozen=True)
class PosedProblem:
    """The problem after a row, for one or several rates z (..., ).

    prior, signal : (..., m) parts of the expected returns per row
    covariance : (m, m)
    rate : (...,) z
    slopes : posterior of the slopes, (E, H)
    """

    prior: np.ndarray
    signal: np.ndarray
    covariance: np.ndarray
    rate: np.ndarray
    slopes: SlopePosterior

    @property
    def mean(self) -> np.ndarray:
        """Expected returns per row, (..., m)."""
        return self.prior + self.signal

    def alone(self) -> PosedProblem:
        """That of the first rate, without the axis of rates."""
        return replace(self, prior=self.prior[0], signal=self.signal[0], rate=self.rate[0])


class MarketReader:
    """Reads the rows of one table and says what is known after each."""

    def __init__(self, config: PolicyConfig, assets: int, periods_per_year: float, delay: int) -> None:
        self.config, self.state = config, MarketState(assets, periods_per_year, delay)
        experts: list[WindowExpert] = [KernelExpert(), LagExpert()] if config.kernels else []
        if config.backbone:
            experts.append(_backbone_expert(config.backbone))
        self._window = WindowForecasts(experts, assets, delay, config.record) if experts else None

    def skip(self, rows: np.ndarray) -> None:
        """Read rows (time, m) of which no forecast from a window is wanted."""
        self.state.extend(rows)

    def read(self, row: np.ndarray) -> None:
        """Read one row, (m,)."""
        self.state.update(row)
        if self._window is not None:
            self._window.update(self.state)

    def seen(self) -> Seen:
        """What is known after the last row."""
        state = self.state
        forecast, record = np.zeros((0, len(HORIZONS), state.assets)), np.zeros((5, 0, len(HORIZONS)))
        reads: tuple[str, ...] = ()
        if self.config.pooled:
            forecast, record = state.forecasts()
            reads = EXPERTS
        if self._window is not None:
            forecast = np.concatenate([forecast, self._window.forecast[None]])
            record = np.concatenate([record, self._window.record[:, None]], axis=1)
            reads = (*reads, WINDOW_READS)
        errors = np.zeros((0, state.assets)) if self._window is None else self._window.errors
        return Seen(forecast, record, reads, self._covariance(), state.periods_per_year, errors)

    def _covariance(self) -> np.ndarray:
        if self.config.covariance == "market":
            return self.state.covariance()
        rows = min(self.state.rows, FORECAST_WINDOW)
        whole = bool(self.state.complete(rows).all())
        expect(whole, "gaps", "a policy that takes them (market) where returns are missing", "another")
        sigma = empirical_covariance(self.state.window()[None, -rows:])[0]
        return sigma if self.config.covariance == "window" else np.eye(len(sigma)) * sigma.diagonal().mean()


def _backbone_expert(name: str) -> WindowExpert:
    if name == "timepfn":
        return PathExpert(TimePFNForecaster(TimePFN.from_pretrained(), _RETURNS_SCALE))
    return PathExpert(BackboneForecaster(load_backbone(name)))


class MarketPolicy:
    """Poses the problem; the same for one decision, a walk-forward and the paper's tables."""

    def __init__(self, config: PolicyConfig = MARKET) -> None:
        expect(config.covariance in COVARIANCES, "covariance", f"one of {', '.join(COVARIANCES)}", config.covariance)
        self.config = config

    @property
    def fingerprint(self) -> str:
        """What tells policies apart: SHA-256 of the configuration."""
        return policy_fingerprint(self.config)

    def reader(self, assets: int, periods_per_year: float, delay: int) -> MarketReader:
        """A reader of one table."""
        return MarketReader(self.config, assets, periods_per_year, delay)

    def pose(self, seen: Seen, rate: np.ndarray | float, follow: bool = True) -> PosedProblem:
        """The problem after a row for rates z (...), without forecasts unless they are to be followed."""
        made = (seen.forecast != 0).any(-1)
        slopes = posterior_slopes(seen.record, LENGTHS, self.config.record, made)
        z = np.clip(np.asarray(rate, dtype=float), LEAST_RATE, 1.0)[..., None]
        life = (1 - z) ** _FROM - (1 - z) ** _TO  # (..., H)
        factor = slopes.slope * follow * made  # (E, H)
        signal = life @ np.einsum("eh,ehm->hm", factor, seen.forecast)
        followed = np.clip(life @ factor.sum(0), 0.0, 1.0)[..., None]
        prior = self._prior_mean(seen) * (1 - followed)
        return PosedProblem(prior, signal, seen.covariance, z[..., 0], slopes)

    def _prior_mean(self, seen: Seen) -> np.ndarray:
        """Means per row under which 1/N is efficient, plus the same Sharpe ratio for every asset, (m,).

        Each part gives the equally weighted portfolio its Sharpe ratio; diversification does not multiply it.
        """
        beside = seen.covariance.mean(-1)  # covariance with the equally weighted portfolio
        risk, sigma = max(beside.mean(), 1e-12) ** 0.5, np.sqrt(seen.covariance.diagonal())
        equal = sigma * risk / max(sigma.mean(), 1e-12)
        prior = self.config.equilibrium * beside / risk + self.config.equal_sharpe * equal
        return np.asarray(prior / seen.periods_per_year**0.5)
