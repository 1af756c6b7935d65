"""What reads input from outside: each target makes sound input once, then reads a damaged copy of it per case.

A target is a function of a folder that returns a function of a `random.Random`. Reading must end in an answer or in an
`InputError`; anything else is a defect. Where a checksum would refuse every damaged copy at once, the damage is
sealed with the right one, as another program might.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from tests.fuzz.mutation import WORDS, damaged_bytes, damaged_cells, damaged_value, odd_value
from time2decide import Time2Decide, solve
from time2decide.backtesting.journal_replay import replay_journal
from time2decide.core.cache import cached_array
from time2decide.core.checkpoints import load_tensors, save_tensors
from time2decide.core.provenance import json_digest
from time2decide.core.validation import InputError
from time2decide.experiments.registry import experiment_ids, get_experiment, reproduce
from time2decide.forecasting.timepfn import TimePFN
from time2decide.markets.constraint_files import parse_constraints, read_constraints
from time2decide.markets.decision_file import seal_decision, verify_decision
from time2decide.markets.tables import GAPS, last_prices, load_market, load_returns, read_by_asset, read_weights
from time2decide.markets.validation import validate_weights
from time2decide.neural.equivariant import EquivariantSolver
from time2decide.policy.paper_model import PaperModel
from time2decide.policy.portfolio_config import read_portfolio
from time2decide.policy.portfolio_run import run_portfolio
from time2decide.qp.files import read_problem
from time2decide.reports import draw, page

Case = Callable[[random.Random], object]
RESULTS = Path(__file__).parents[2] / "results"
NAMES = ["AAPL", "MSFT", "XOM", "JPM"]
LIMITS = """table = "bounds.csv"
[weights]
lower = 0.0
upper = 0.9
[cash]
least = 0.0
most = 0.2
return = 0.0001
[assets.AAPL]
upper = 0.5
[groups.technology]
assets = ["AAPL", "MSFT"]
upper = 0.6
[groups.old]
lower = 0.1
[exposures.beta]
coefficients = { AAPL = 1.2, XOM = 0.9 }
lower = 0.1
upper = 1.1
"""
BOUNDS = "asset,lower,upper,group\nXOM,0.0,0.5,old\nJPM,,0.4,old\n"
PORTFOLIO = """table = "returns.csv"
values = "returns"
turnover = 0.3
risk_aversion = 2.0
cost = 10
gaps = "refuse"
constraints = "limits.toml"
decisions = "decisions"
tolerance = 0.0
"""


def _table(rows: int = 80) -> pd.DataFrame:
    array = 0.01 * np.random.default_rng(0).standard_normal((rows, len(NAMES)))
    days = pd.bdate_range("2024-01-01", periods=rows, name="date")
    return pd.DataFrame(array.round(6), days, NAMES)


def _cells(rows: int = 80) -> list[list[str]]:
    return [line.split(",") for line in _table(rows).to_csv().splitlines()]


def _decide_on(rng: random.Random, model: Time2Decide, table: pd.DataFrame, gaps: str) -> None:
    """A table that was accepted leads to weights or to a refusal."""
    if rng.random() < 0.3:
        weights = model.decide(table, turnover_l1=rng.choice([0.2, 2.0]), gaps=gaps)
        assert np.isfinite(weights).all()
        assert abs(weights.sum() - 1) < 1e-6


def table_csv(folder: Path) -> Case:
    rows, model = _cells(), Time2Decide.from_pretrained()
    sound = "\n".join(",".join(row) for row in rows).encode()

    def case(rng: random.Random) -> None:
        content = damaged_cells(rng, rows).encode() if rng.random() < 0.7 else damaged_bytes(rng, sound)
        path = folder / "table.csv"
        if rng.random() < 0.1:
            path = folder / "table.csv.gz"
            content = damaged_bytes(rng, gzip.compress(content, mtime=0))
        path.write_bytes(content)
        gaps = rng.choice(GAPS)
        if rng.random() < 0.1:
            last_prices(path)
        table, _ = load_market(path, rng.choice([None, "returns", "prices"]), gaps=gaps)
        _decide_on(rng, model, table, gaps)

    return case


def table_parquet(folder: Path) -> Case:
    table, model, path = _table(), Time2Decide.from_pretrained(), folder / "table.parquet"
    table.to_parquet(path)
    sound = path.read_bytes()

    def odd_frame(rng: random.Random) -> pd.DataFrame:
        frame = table.reset_index() if rng.random() < 0.5 else table.copy()
        n = len(frame)
        columns: list[Any] = [
            [str(x) for x in range(n)], [rng.choice(WORDS) for _ in range(n)], [True] * n, [None] * n, [b"x"] * n,
            [[1.0, 2.0]] * n, [{"a": 1}] * n, pd.date_range("2024-01-01", periods=n), [pd.Timedelta(1)] * n,
            np.arange(n), np.full(n, np.inf), np.full(n, 1e308), pd.Categorical(["a"] * n),
            np.arange(n, dtype="float32"), pd.array([1, None] * (n // 2), dtype="Int64"),
        ]  # fmt: skip
        frame[rng.choice(["new", "AAPL", "date", ""])] = rng.choice(columns)
        if rng.random() < 0.3:
            frame.index = pd.Index(rng.choice(columns[:2] + columns[7:10]))
        return frame.iloc[: rng.choice([n, n, 1, 0])]

    def case(rng: random.Random) -> None:
        if rng.random() < 0.4:
            odd_frame(rng).to_parquet(path)
            content = path.read_bytes()
            path.write_bytes(damaged_bytes(rng, content) if rng.random() < 0.2 else content)
        else:
            path.write_bytes(damaged_bytes(rng, sound))
        gaps = rng.choice(GAPS)
        _decide_on(rng, model, load_market(path, rng.choice([None, "returns"]), gaps=gaps)[0], gaps)

    return case


def weights(folder: Path) -> Case:
    rows = [["asset", "weight"], ["AAPL", "0.25"], ["MSFT", "0.25"], ["XOM", "0.25"], ["JPM", "0.25"]]
    path = folder / "weights.csv"

    def case(rng: random.Random) -> None:
        text = damaged_cells(rng, rows).encode()
        path.write_bytes(text if rng.random() < 0.7 else damaged_bytes(rng, text))
        if rng.random() < 0.2:
            read_by_asset(path, "weight", "shares")
        validate_weights(read_weights(path), len(NAMES), NAMES)

    return case


def constraints(folder: Path) -> Case:
    bounds = [line.split(",") for line in BOUNDS.splitlines()]
    content = {
        "weights": {"lower": 0.0, "upper": 0.9, "exposure": 1.0},
        "cash": {"least": 0.0, "most": 0.2, "return": 1e-4},
        "assets": {"AAPL": {"upper": 0.5}},
        "groups": {"technology": {"assets": ["AAPL", "MSFT"], "upper": 0.6}},
        "exposures": {"beta": {"coefficients": {"AAPL": 1.2, "XOM": 0.9}, "lower": 0.1, "upper": 1.1}},
    }
    model, table = Time2Decide.from_pretrained(), _table(40)

    def case(rng: random.Random) -> None:
        if rng.random() < 0.5:
            found = parse_constraints(damaged_value(rng, content), NAMES)
        else:
            (folder / "limits.toml").write_bytes(damaged_bytes(rng, LIMITS.encode()))
            (folder / "bounds.csv").write_text(BOUNDS if rng.random() < 0.5 else damaged_cells(rng, bounds))
            found = read_constraints(folder / rng.choice(["limits.toml", "bounds.csv"]), NAMES)
        if rng.random() < 0.3:
            model.decide(table, constraints=found)

    return case


def _forget(folder: Path) -> None:
    """Remove what earlier runs of the portfolio left."""
    for name in ("journal.jsonl", "state.safetensors"):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "decisions", ignore_errors=True)


def portfolio(folder: Path) -> Case:
    _table().to_csv(folder / "returns.csv")
    (folder / "limits.toml").write_text(LIMITS)
    (folder / "bounds.csv").write_text(BOUNDS)

    def case(rng: random.Random) -> None:
        (folder / "portfolio.toml").write_bytes(damaged_bytes(rng, PORTFOLIO.encode()))
        config = read_portfolio(folder / "portfolio.toml")
        if rng.random() < 0.3 and {config.journal, config.state} == {"journal.jsonl", "state.safetensors"}:
            _forget(folder)
            run_portfolio(config)

    return case


def checkpoints(folder: Path) -> Case:
    kinds = (PaperModel, TimePFN, EquivariantSolver)
    bundled = [place for kind in kinds for place in kind.BUNDLED.values()]
    files = [(place / "model.safetensors").read_bytes() for place in bundled]
    path = folder / "model.safetensors"

    def case(rng: random.Random) -> None:
        number = rng.randrange(len(files))
        path.write_bytes(files[number])
        (folder / "config.json").unlink(missing_ok=True)
        kind = rng.randrange(4)
        if kind == 0:  # the header and the numbers
            path.write_bytes(damaged_bytes(rng, files[number]))
        elif kind == 1:
            sound = (bundled[number] / "config.json").read_bytes()
            (folder / "config.json").write_bytes(damaged_bytes(rng, sound))
        else:
            tensors, facts = load_tensors(path)
            if kind == 2:
                facts = damaged_value(rng, facts)
            else:
                name = rng.choice(sorted(tensors))
                odd = [torch.zeros(0), torch.zeros(3), tensors[name].int(), tensors[name] * float("nan"),
                       tensors[name].half(), tensors[name][..., None]]  # fmt: skip
                tensors[rng.choice([name, name, "other"])] = rng.choice(odd)
            save_tensors(path, tensors, facts if isinstance(facts, dict) else {"facts": facts})
        rng.choice([Time2Decide, *kinds]).from_pretrained(folder)

    return case


def problems(folder: Path) -> Case:
    content: dict[str, Any] = {
        "A": [[2.0, 0.5], [0.5, 1.0]], "b": [-1.0, -1.0], "C": [[1.0, 1.0]], "d": [0.8], "E": [[1.0, -1.0]], "f": [0.1],
        "lb": [0.0, 0.0], "ub": [1.0, 1.0],
    }  # fmt: skip

    def case(rng: random.Random) -> None:
        part = {name: content[name] for name in content if rng.random() < 0.8}
        if rng.random() < 0.5:
            path = folder / "problem.json"
            text = json.dumps(damaged_value(rng, part)).encode()
            path.write_bytes(damaged_bytes(rng, text) if rng.random() < 0.3 else text)
        else:
            path, file = folder / "problem.npz", io.BytesIO()
            arrays: dict[str, Any] = {name: np.array(value) for name, value in part.items()}
            if arrays and rng.random() < 0.6:
                name = rng.choice(sorted(arrays))
                odd = [arrays[name].astype(kind) for kind in ("int8", "float16", "complex64", "U5", "bool", "object")]
                odd += [arrays[name][None], arrays[name].ravel(), np.zeros((2, 0)), arrays[name] * 1e200]
                odd += [np.array(7.0), arrays[name] * np.nan, np.zeros(3, "M8[D]"), np.zeros(2, [("x", "f8")])]
                arrays[rng.choice([name, name, name, "Z"])] = rng.choice(odd)
            rng.choice([np.savez, np.savez_compressed])(file, **arrays)
            path.write_bytes(damaged_bytes(rng, file.getvalue()) if rng.random() < 0.5 else file.getvalue())
        solve(read_problem(path))

    return case


def cache(folder: Path) -> Case:
    key, sound = {"kind": "fuzz"}, np.arange(60.0).reshape(3, 20)

    def made() -> np.ndarray:
        return cached_array(key, lambda: sound)

    def case(rng: random.Random) -> None:
        made()
        (path,) = folder.glob("fuzz-*.safetensors")
        content = path.read_bytes()
        path.write_bytes(damaged_bytes(rng, content))
        np.testing.assert_array_equal(made(), sound)
        path.write_bytes(content)

    return case


def store(folder: Path) -> Case:
    """`report` and `reproduce` on stored rows; no task is run."""
    names = [name for name in experiment_ids() if (RESULTS / name / "cpu.jsonl").exists()]
    benches = sorted(path.parent.name for path in RESULTS.glob("bench-*/cpu.jsonl"))

    def case(rng: random.Random) -> None:
        name = rng.choice(names + benches)
        lines = (RESULTS / name / "cpu.jsonl").read_bytes().splitlines()
        at = rng.randrange(len(lines))
        line = json.loads(lines[at])
        if rng.random() < 0.2:
            lines[at] = damaged_bytes(rng, lines[at])
        else:
            part = rng.choice(["rows", "rows", "rows", "config"])
            changed = {**line, part: damaged_value(rng, line[part])} if rng.random() < 0.8 else damaged_value(rng, line)
            lines[at] = json.dumps(changed).encode()
        root = folder / name
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / "cpu.jsonl").write_bytes(b"\n".join(lines))
        if name in benches:
            page._benchmarks(root)
            return
        experiment = replace(get_experiment(name), run=lambda config: [])
        if rng.random() < 0.5:
            page._section(experiment, root)
        else:
            rows = reproduce(experiment, "cpu", root=root)
            page.results_of(experiment, rows)
            draw(name, rows, "cpu", root)

    return case


def decision(folder: Path) -> Case:
    table, path = _table(), folder / "decision.json"
    table.to_csv(folder / "returns.csv")
    (folder / "limits.toml").write_text(LIMITS)
    (folder / "bounds.csv").write_text(BOUNDS)
    model = Time2Decide.from_pretrained()
    limits = read_constraints(folder / "limits.toml", NAMES)
    model.decision(table, turnover_l1=0.4, constraints=limits).save(path)
    document = json.loads(path.read_text())

    def case(rng: random.Random) -> None:
        if rng.random() < 0.8:
            changed = damaged_value(rng, document)
            path.write_text(json.dumps(seal_decision(changed) if isinstance(changed, dict) else changed))
        else:
            path.write_bytes(damaged_bytes(rng, json.dumps(document).encode()))
        str(verify_decision(path, table if rng.random() < 0.9 else folder / "returns.csv"))

    return case


def chained(entries: list[Any]) -> str:
    """The lines of a journal of any entries, with right checksums."""
    after, lines = "", []
    for entry in entries:
        if isinstance(entry, dict):
            content = {key: value for key, value in entry.items() if key != "checksum"} | {"after": after}
            after = json_digest(content, 64)
            entry = content | {"checksum": after}
        lines.append(json.dumps(entry) + "\n")
    return "".join(lines)


def journal(folder: Path) -> Case:
    """The journal and the state of a portfolio, as `run` and `backtest --journal` read them."""
    for name, text in (("portfolio.toml", PORTFOLIO), ("limits.toml", LIMITS), ("bounds.csv", BOUNDS)):
        (folder / name).write_text(text)
    _forget(folder)
    for rows in (78, 79, 80):
        _table(80)[:rows].to_csv(folder / "returns.csv")
        run_portfolio(read_portfolio(folder / "portfolio.toml"))
    path, kept = folder / "journal.jsonl", folder / "state.safetensors"
    sound, state = path.read_bytes(), kept.read_bytes()
    entries = [json.loads(line) for line in sound.splitlines()]
    table = load_returns(folder / "returns.csv")

    def damage_state(rng: random.Random) -> None:
        if rng.random() < 0.3:
            kept.write_bytes(damaged_bytes(rng, state))
            return
        tensors, facts = load_tensors(kept)
        if rng.random() < 0.5:
            facts = damaged_value(rng, facts)
        else:
            name = rng.choice(sorted(tensors))
            one = tensors[name]
            odd = [torch.zeros(0), torch.zeros(3, 3), one[:-1] if one.dim() else one, one[..., None]]
            tensors[name] = rng.choice([*odd, one.double() * float("nan"), one.int()]).contiguous()
        save_tensors(kept, tensors, facts if isinstance(facts, dict) else {"facts": facts})

    written = set((folder / "decisions").iterdir())

    def case(rng: random.Random) -> None:
        path.write_bytes(sound)
        kept.write_bytes(state)
        for later in set((folder / "decisions").iterdir()) - written:  # a decision that this journal does not have
            later.unlink()
        trusted = rng.random() < 0.3
        if trusted:
            damage_state(rng)
        elif rng.random() < 0.8:
            changed = damaged_value(rng, entries)
            path.write_text(chained(changed if isinstance(changed, list) else [odd_value(rng)]))
        else:
            path.write_bytes(damaged_bytes(rng, sound))
        with np.errstate(**({"all": "ignore"} if trusted else {})):  # numbers under a right checksum may be of any size
            if rng.random() < 0.5:
                "\n".join(replay_journal(path, table).text)
            else:
                _table(rng.choice([80, 81])).to_csv(folder / "returns.csv")
                run_portfolio(read_portfolio(folder / "portfolio.toml"))

    return case


def service(folder: Path) -> Case:
    from fastapi.testclient import TestClient

    from time2decide.service.app import Limits, make_app

    client = TestClient(make_app(limits=Limits(megabytes=0.5)), raise_server_exceptions=False)
    table = _table(40)
    request = {
        "assets": NAMES, "returns": table.to_numpy().tolist(), "dates": [str(day.date()) for day in table.index],
        "previous": dict.fromkeys(NAMES, 0.25), "turnover_l1": 0.4, "risk_aversion": 2.0, "cost_bps": 10.0,
        "benchmark": dict.fromkeys(NAMES, 0.25), "gaps": "keep", "model": "market",
        "constraints": {"weights": {"upper": 0.9}, "groups": {"x": {"assets": ["AAPL"], "upper": 0.5}}},
    }  # fmt: skip

    def case(rng: random.Random) -> None:
        part = {name: value for name, value in request.items() if rng.random() < 0.9}
        text = json.dumps(damaged_value(rng, part)).encode()
        body = damaged_bytes(rng, text) if rng.random() < 0.2 else text
        answer = client.post("/decide", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 200 or 400 <= answer.status_code < 500, answer.text
        if answer.status_code != 200:
            assert set(answer.json()) == {"detail"}
            raise InputError(answer.json()["detail"])

    return case


TARGETS: dict[str, Callable[[Path], Case]] = {
    "tables as CSV": table_csv,
    "tables as Parquet": table_parquet,
    "weights files": weights,
    "constraint files": constraints,
    "portfolio files": portfolio,
    "checkpoints": checkpoints,
    "problem files": problems,
    "cache files": cache,
    "stored rows": store,
    "decision files": decision,
    "journals and states": journal,
    "requests": service,
}
