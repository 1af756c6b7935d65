"""The service: POST returns and current weights, get a decision file.

One process, one copy of each model. Decisions are made in threads, at most as many as `Limits.workers` at once. What is
too large is refused before it is read, bad input is a 422 that names the field, and a request that waits too long is
answered by a 503. What it asked for is computed to its end all the same, on one of the `Limits.workers` threads.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from threadpoolctl import threadpool_limits

from time2decide import __version__
from time2decide.core.validation import InputError, distinct_keys, expect, is_text, validate_fields, validate_positive
from time2decide.data.check import CheckedTable, load_checked
from time2decide.markets.constraint_files import parse_constraints
from time2decide.markets.decision_file import seal_decision
from time2decide.markets.orders import quoted_orders, quotes_of_prices
from time2decide.markets.portfolio import compiled_before
from time2decide.markets.tables import GAPS
from time2decide.markets.validation import MOST_ASSETS
from time2decide.policy.decision_record import decision_document
from time2decide.policy.model import Time2Decide


def _text(name: str) -> str:
    if not is_text(name):
        raise ValueError("expected text, found half of a character that takes two")
    return name


Finite = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, AfterValidator(_text)]
Weights = dict[Name, Finite]
_LOG = logging.getLogger("time2decide.service")
_WARM = 64  # rows of the decisions that are made before the first request, so that nobody waits for compilation
_QUOTED = "the prices of the request"  # what orders are `at`


@dataclass(frozen=True)
class Limits:
    """Limits of a request."""

    megabytes: float = 64.0  # of the body
    assets: int = MOST_ASSETS
    rows: int = 20_000
    cells: int = 2_000_000  # assets × rows
    seconds: float = 60.0  # from the request to the answer
    workers: int = 2  # decisions that are made at once

    def __post_init__(self) -> None:
        validate_fields(self, count="assets rows cells workers", positive="megabytes seconds")


class DecisionRequest(BaseModel):
    """Returns, current weights and options; only the first two fields are needed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    assets: list[Name] = Field(description="Names of the assets.", min_length=2)
    returns: list[list[Finite | None]] = Field(
        description="Past simple returns, oldest row first, one number per asset; null where there is none (see gaps).",
        min_length=1,
    )
    dates: list[str] | None = Field(None, description="ISO date of each row; rows are numbered if not given.")
    previous: Weights | None = Field(None, description="Current weights by asset; equal weights if not given.")
    turnover_l1: Finite = Field(1.0, description="Turnover budget γ in (0, 2] on ‖new − current‖₁.")
    risk_aversion: Finite | None = Field(None, description="λ ≥ 0 of the utility; the model's default if not given.")
    cost_bps: Finite | None = Field(
        None, description="Cost of a trade in basis points; the model's default if not given."
    )
    benchmark: Weights | None = Field(None, description="Weights by asset that risk is measured from.")
    constraints: dict[str, Any] | None = Field(
        None, description="Sections weights, cash, assets, groups and exposures, as in a constraint file."
    )
    min_trade: Finite = Field(0.0, description="Smallest trade, in weights; 0 for any.")
    value: Finite | None = Field(
        None, description="Value of the portfolio; adds orders in whole shares, at the prices given with it."
    )
    prices: Weights | None = Field(
        None, description="Price by asset of every asset that can be traded, for the orders; others are ignored."
    )
    delay: int = Field(
        1, description="Rows between the decision and its trade: 1 at the next close, 0 at the last row's."
    )
    periods_per_year: Finite | None = Field(None, description="Rows in a year; as the dates say if not given.")
    gaps: str = Field("refuse", description="refuse missing returns, or keep: young, halted and delisted assets.")
    accept: list[str] = Field([], description="Names of findings in the data that are not to refuse the request.")
    model: str = Field("market", description="One of GET /models.")


class OrdersOfFile(BaseModel):
    """Orders in whole shares: trades rounded towards zero, buys reduced until cash pays them and the cost."""

    shares: dict[str, float] = Field(description="Shares to trade by asset, bought positive.")
    money: dict[str, float] = Field(description="What they cost or bring, at the prices.")
    price: dict[str, float | None]
    unpriced: list[str] = Field(description="Assets to be traded that get no order, for want of a price.")
    value: float = Field(description="Of the portfolio before.")
    cost: float = Field(description="Of trading.")
    cash: float = Field(description="After trading and its cost.")
    largest_difference: float = Field(description="Between a weight that is held then and its target.")
    at: str = Field(description="Where the prices come from.")
    broken: list[str] = Field(description="Bounds and limits that the weights after the orders do not meet.")


class DecisionFile(BaseModel):
    """The decision file that `time2decide verify` checks; fields beyond these are described in the how-to."""

    model_config = ConfigDict(extra="allow")

    schema_: str = Field(alias="schema")
    version: str
    date: str
    assets: list[str]
    weights: dict[str, float]
    previous: dict[str, float]
    trades: dict[str, float]
    turnover: float
    cost: float
    verdict: str
    orders: OrdersOfFile | None = Field(None, description="Only if the request has value and prices.")
    checksum: str


class ServedModel(BaseModel):
    """A model that can be asked."""

    name: str
    architecture: str
    fingerprint: str


class Health(BaseModel):
    """State of the service."""

    status: str
    version: str


class Problem(BaseModel):
    """An error in one line."""

    detail: str


_PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "Not JSON"},
    413: {"model": Problem, "description": "Too large"},
    422: {"model": Problem, "description": "Bad input; the message names the field"},
    500: {"model": Problem, "description": "A defect of the service"},
    503: {"model": Problem, "description": "Too busy"},
}


def make_app(models: Sequence[str] = ("market",), limits: Limits | None = None) -> FastAPI:
    """The application, with its models loaded.

    Parameters
    ----------
    models : names of bundled checkpoints or folders
        Requests name one of them; nothing else is ever read from the disk.
    limits : Limits, optional
    """
    limits = limits or Limits()
    expect(len(models) > 0, "models", "at least one", "none")
    _prepare_threads()
    served = {name: Time2Decide.from_pretrained(name) for name in models}
    _warm(served)
    app = FastAPI(title="time2decide", version=__version__, description="The next rebalancing, as a decision file.")
    app.router.route_class = _StrictRoute
    app.add_middleware(_BodyLimit, megabytes=limits.megabytes)
    _answer_errors(app)
    workers = _Workers(limits)

    @app.get("/health", summary="Whether the service answers")
    async def health() -> Health:
        return Health(status="ok", version=__version__)

    @app.get("/models", summary="The models that can be asked")
    async def known() -> list[ServedModel]:
        return [
            ServedModel(
                name=name,
                architecture=type(one.policy).__name__,
                fingerprint=one.policy.fingerprint,
            )
            for name, one in served.items()
        ]

    @app.post("/decide", summary="The next rebalancing", responses={200: {"model": DecisionFile}, **_PROBLEMS})
    async def decide(request: DecisionRequest) -> JSONResponse:
        return JSONResponse(await workers.run(lambda: _decide_request(request, served, limits)))

    return app


def _prepare_threads() -> None:
    """Threads are for requests, and a request has the same answer to the last bit whatever was asked before it.

    BLAS with threads of its own waits for a core that another request uses. The portfolio solver would load its
    compiled form only after some work, which rounds otherwise than the first one (weights differ by 1e-16).
    """
    torch.set_num_threads(1)
    threadpool_limits(1)
    import_module("time2decide.markets.turnover_kernels")


def _warm(served: dict[str, Time2Decide]) -> None:
    """Make decisions of every kind that compiles or imports something by itself, before anybody waits for one."""
    if not compiled_before():
        print("compiling, once after an installation: about a minute", file=sys.stderr, flush=True)
    returns = np.array([[0.01 * math.sin(3.0 * t + a) for a in range(3)] for t in range(_WARM)])
    bounds = parse_constraints({"weights": {"upper": 0.6}}, list("ABC"))
    groups = parse_constraints({"groups": {"x": {"assets": ["A", "B"], "upper": 0.5}}}, list("ABC"))
    for model in served.values():
        for terms in ({}, {"benchmark": [0.5, 0.3, 0.2]}, {"constraints": bounds}, {"constraints": groups}):
            model.decide(returns, **terms)


def _decide_request(request: DecisionRequest, served: dict[str, Time2Decide], limits: Limits) -> dict[str, Any]:
    """The decision file of a request; an `InputError` names the field."""
    expect(request.model in served, "model", f"one of {', '.join(served)}", repr(request.model)[:60])
    expect(request.gaps in GAPS, "gaps", f"one of {', '.join(GAPS)}", repr(request.gaps)[:60])
    checked = _table(request, limits)
    table = checked.returns
    names = list(table.columns)
    quotes = _quotes(request, table)
    constraints = None if request.constraints is None else parse_constraints(request.constraints, names)
    decision = served[request.model].decision(
        table,
        _series(request.previous),
        request.turnover_l1,
        risk_aversion=request.risk_aversion,
        constraints=constraints,
        cost_bps=request.cost_bps,
        benchmark=_series(request.benchmark),
        gaps=request.gaps,
        min_trade=request.min_trade,
        delay=request.delay,
        periods_per_year=request.periods_per_year,
        accept=request.accept,
        findings=checked.findings,
    )
    orders = None
    if quotes is not None and request.value is not None:
        orders = quoted_orders(decision, quotes, request.value, _QUOTED)
    return seal_decision(decision_document(decision, orders, source="request", values="returns"))


def _quotes(request: DecisionRequest, table: pd.DataFrame) -> pd.DataFrame | None:
    """What the orders are made from, if any are wanted."""
    if request.value is None:
        expect(request.prices is None, "prices", "the value of the portfolio with them", "none")
        return None
    validate_positive("value", request.value)
    prices = _series(request.prices)
    if prices is None:
        raise InputError("value: expected prices of the assets with it, found none")
    return quotes_of_prices("prices", prices, table)


def _table(request: DecisionRequest, limits: Limits) -> CheckedTable:
    """The returns, checked."""
    rows, m = len(request.returns), len(request.assets)
    expect(m <= limits.assets, "assets", f"at most {limits.assets}", m)
    expect(rows <= limits.rows, "returns", f"at most {limits.rows} rows", rows)
    expect(rows * m <= limits.cells, "returns", f"at most {limits.cells} numbers", rows * m)
    wrong = next((i for i, row in enumerate(request.returns) if len(row) != m), None)
    expect(wrong is None, "returns", f"{m} numbers in each row", f"another number in row {wrong}")
    index: pd.Index = pd.RangeIndex(rows)
    if request.dates is not None:
        expect(len(request.dates) == rows, "dates", f"{rows}, one for each row", len(request.dates))
        expect(all(text[:1].isdigit() for text in request.dates), "dates", "ISO dates", "others")  # "now" is none
        try:
            index = pd.DatetimeIndex(pd.to_datetime(request.dates, format="ISO8601"))
        except (ValueError, OverflowError, TypeError):
            raise InputError("dates: expected ISO dates, found others") from None
    frame = pd.DataFrame(request.returns, index=index, columns=request.assets, dtype=float)
    return load_checked(frame, "returns", gaps=request.gaps, accept=request.accept, live=True)


def _series(weights: Weights | None) -> pd.Series | None:
    return None if weights is None else pd.Series(weights, dtype=float)


class _Workers:
    """Threads for decisions. A request that is not answered in time gets a 503.

    A thread cannot be stopped: a computation that has begun ends by itself, and keeps its thread until then, so that
    there are never more at once than `Limits.workers`. One that has not begun is dropped.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._threads = ThreadPoolExecutor(limits.workers, thread_name_prefix="decision")

    async def run(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        made = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.wait_for(made, self.limits.seconds)
        except TimeoutError:
            raise HTTPException(503, f"busy: no answer within {self.limits.seconds:g} s") from None


class _StrictRequest(Request):
    """A request whose JSON has every name once; the last of two would be taken silently."""

    async def json(self) -> Any:
        body = await self.body()
        try:
            return json.loads(body, object_pairs_hook=distinct_keys)
        except InputError as error:
            raise HTTPException(422, f"body: {error}") from None


class _StrictRoute(APIRoute):
    """A route that reads a `_StrictRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(_StrictRequest(request.scope, request.receive))

        return strict


class _BodyLimit:
    """ASGI middleware: a body above the limit is refused, by its header or while it is read."""

    def __init__(self, app: Callable[..., Awaitable[None]], megabytes: float) -> None:
        self.app, self.most = app, int(megabytes * 2**20)
        self.text = f"body: expected at most {megabytes:g} MB, found more"

    async def __call__(self, scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        stated = dict(scope["headers"]).get(b"content-length", b"0")
        read = 0
        if stated.isdigit() and int(stated) > self.most:
            await JSONResponse({"detail": self.text}, 413)(scope, receive, send)
            return

        async def limited() -> Any:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.most:
                raise HTTPException(413, self.text)
            return message

        await self.app(scope, limited, send)


def _answer_errors(app: FastAPI) -> None:
    """Every error is one line of our own under `detail`."""

    @app.exception_handler(InputError)
    async def bad_input(request: Request, error: InputError) -> JSONResponse:
        return JSONResponse({"detail": " ".join(str(error).split())}, 422)

    @app.exception_handler(RequestValidationError)
    async def bad_request(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != "body") or "body"
        text = InputError(f"{place}: {' '.join(str(first['msg']).split())}"[:500])  # which can be printed
        return JSONResponse({"detail": str(text)}, 422)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"detail": str(error.detail)}, error.status_code, headers=error.headers)

    @app.exception_handler(Exception)
    async def defect(request: Request, error: Exception) -> JSONResponse:
        _LOG.exception("a defect", exc_info=error)
        return JSONResponse({"detail": "internal error; the log of the service has it"}, 500)
