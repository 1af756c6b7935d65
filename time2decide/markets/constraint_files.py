"""Files of constraints, TOML and CSV.

A TOML file may have these sections; every one is optional, and a CSV with the columns asset,lower,upper (and group, if
wanted) is the same as a TOML file with `table = "that.csv"`.

    table = "bounds.csv"                              # bounds and group per asset

    [weights]
    lower = 0.0
    upper = 0.1
    exposure = 1.0

    [cash]
    least = 0.0
    most = 0.2
    return = 0.0001                                   # per period

    [assets.AAPL]
    upper = 0.05

    [groups.technology]
    assets = ["AAPL", "MSFT"]                         # or the rows of the table with this group
    upper = 0.3

    [exposures.beta]
    coefficients = { AAPL = 1.2, MSFT = 0.9 }         # 0 for assets that are not named
    lower = 0.8
    upper = 1.1
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from time2decide.core.files import read_toml, validate_input_file, validate_path
from time2decide.core.validation import describe_value, expect
from time2decide.markets.constraints import Constraints, Limit, refuse_contradictions

_WHOLE = 1 + 1e-6  # the largest share, with its rounding
_SECTIONS = {"table", "weights", "cash", "assets", "groups", "exposures"}
_KEYS = {
    "weights": {"lower", "upper", "exposure"},
    "cash": {"least", "most", "return"},
    "assets": {"lower", "upper"},
    "groups": {"assets", "lower", "upper"},
    "exposures": {"coefficients", "lower", "upper"},
}


def read_constraints(path: str | Path, assets: Sequence[str]) -> Constraints:
    """The constraints of a .toml or .csv file for assets in this order; contradictions are refused by name."""
    path = validate_path("constraints", path)
    if path.suffix.lower() == ".csv":
        content: dict[str, Any] = {"table": path.name}
    else:
        expect(path.suffix.lower() == ".toml", path.name, "a .toml or .csv file", path.suffix or "no suffix")
        content = read_toml(path)
    return _constraints(content, path, assets)


def constraints_for(
    constraints: Constraints | str | Path | None, names: Sequence[Any] | None, assets: int
) -> Constraints | None:
    """The constraints as given, or of the file that is named, for columns of these names ("asset 0", … without)."""
    if constraints is None:
        return None
    if isinstance(constraints, (str, Path)):
        columns = [f"asset {i}" for i in range(assets)] if names is None else list(map(str, names))
        return read_constraints(constraints, columns)
    expected = "a Constraints object or the path of a file"
    expect(isinstance(constraints, Constraints), "constraints", expected, type(constraints).__name__)
    return constraints.aligned(names)


def files_of_constraints(path: str | Path) -> list[Path]:
    """The files that `read_constraints` reads: that of the path, and the table that it names."""
    path = Path(path)
    if path.suffix.lower() != ".toml":
        return [path]
    table = read_toml(path).get("table")
    return [path, path.parent / table] if isinstance(table, str) else [path]


def parse_constraints(content: dict[str, Any], assets: Sequence[str]) -> Constraints:
    """The constraints of a mapping with the sections of a file, `table` apart, for assets in this order."""
    expect(isinstance(content, dict), "constraints", "a mapping of sections", type(content).__name__)
    expect("table" not in content, "constraints", "sections other than table", "table")
    return _constraints(content, Path("constraints"), assets)


def _constraints(content: dict[str, Any], path: Path, assets: Sequence[str]) -> Constraints:
    names = _asset_names(assets)
    _validate_sections(content, path.name)
    constraints = _Reader(content, path, names).constraints()
    refuse_contradictions(constraints, names)
    return constraints


def _asset_names(assets: Any) -> list[str]:
    """The names of the assets as a list, or an `InputError`."""
    several = isinstance(assets, Iterable) and not isinstance(assets, (str, bytes, Mapping))
    names = list(assets) if several and getattr(assets, "ndim", 1) == 1 else []
    good = names and all(isinstance(name, Hashable) for name in names) and len(set(names)) == len(names)
    expect(good, "assets", "the distinct names of all assets in their order", describe_value(assets))
    return names


def _validate_sections(content: dict[str, Any], name: str) -> None:
    for section, value in content.items():
        expect(section in _SECTIONS, name, f"sections among {', '.join(sorted(_SECTIONS))}", f"[{section}]")
        if section == "table":
            expect(isinstance(value, str), f"{name}: table", "the name of a CSV file", describe_value(value))
            continue
        expect(isinstance(value, dict), f"{name}: {section}", "a section", describe_value(value))
        inner = value if section in ("assets", "groups", "exposures") else {"": value}
        for label, part in inner.items():
            where = f"{name}: [{section}{'.' if label else ''}{label}]"
            expect(isinstance(part, dict), where, "a section", describe_value(part))
            known = ", ".join(sorted(_KEYS[section]))
            for key in part:
                expect(key in _KEYS[section], where, f"keys among {known}", key)


class _Reader:
    """One file and the assets it is read for."""

    def __init__(self, content: dict[str, Any], path: Path, assets: list[str]) -> None:
        self.content, self.path, self.assets = content, path, assets
        self.place = {asset: i for i, asset in enumerate(assets)}
        self.unlevered = True  # long-only and at most fully invested
        self.table = self._table(path.parent / content["table"]) if "table" in content else {}

    def constraints(self) -> Constraints:
        weights, cash = self.content.get("weights", {}), self.content.get("cash", {})
        lower = np.full(len(self.assets), self._number(weights, "lower", "[weights]", 0.0))
        upper = np.full(len(self.assets), self._number(weights, "upper", "[weights]", np.inf))
        for asset, (low, high, _) in self.table.items():
            i = self.place[asset]  # an empty cell leaves what [weights] says
            lower[i], upper[i] = (lower[i] if low is None else low), (upper[i] if high is None else high)
        for asset, part in self.content.get("assets", {}).items():
            where = f"[assets.{asset}]"
            i = self._index(asset, where)
            for bound, name in ((lower, "lower"), (upper, "upper")):
                bound[i] = self._number(part, name, where, bound[i])
        for i, asset in enumerate(self.assets):
            found = f"lower {float(lower[i])!r} above upper {float(upper[i])!r}"
            self._expect(lower[i] <= upper[i], f"bounds of {asset!r}", "lower ≤ upper", found)
        exposure = self._number(weights, "exposure", "[weights]", 1.0)
        self.unlevered = bool((lower >= 0).all()) and exposure <= 1
        self._expect_share("[weights]", *(float(weights[key]) for key in ("lower", "upper") if key in weights))
        for asset, low, high in zip(self.assets, lower, upper, strict=True):
            self._expect_share(f"bounds of {asset!r}", low, high)
        least, most = self._number(cash, "least", "[cash]", 0.0), self._number(cash, "most", "[cash]", 0.0)
        most = max(most, least) if "most" not in cash else most
        self._expect(0 <= least <= most, "[cash]", "0 ≤ least ≤ most", f"{least:g} and {most:g}")
        self._expect_share("[cash]", least, most)
        rate = self._number(cash, "return", "[cash]", 0.0)
        return Constraints(
            lower, upper, exposure, (least, most), rate, tuple(self._limits()), tuple(map(str, self.assets))
        )

    def _limits(self) -> list[Limit]:
        found = []
        for label, part in self.content.get("groups", {}).items():
            where = f"[groups.{label}]"
            marked = [asset for asset, row in self.table.items() if row[2] == label]
            self._expect(not (marked and "assets" in part), where, "its assets here or in the table", "both")
            chosen = part.get("assets", marked)
            named = isinstance(chosen, list) and chosen and all(isinstance(one, str) for one in chosen)
            good = named and len(set(chosen)) == len(chosen)
            self._expect(good, where, "a list of distinct assets", describe_value(chosen))
            coefficients = np.zeros(len(self.assets))
            coefficients[[self._index(asset, where) for asset in chosen]] = 1.0
            found.append(self._limit(f"group {label}", coefficients, part, where))
            self._expect_share(where, found[-1].low, found[-1].high)
        for label, part in self.content.get("exposures", {}).items():
            where, stated = f"[exposures.{label}]", part.get("coefficients")
            by_name = isinstance(stated, dict) and stated
            self._expect(by_name, where, "coefficients by asset", describe_value(stated))
            coefficients = np.zeros(len(self.assets))
            for asset in stated:
                coefficients[self._index(asset, where)] = self._number(stated, asset, where, 0.0)
            found.append(self._limit(f"exposure {label}", coefficients, part, where))
        return found

    def _limit(self, name: str, coefficients: np.ndarray, part: dict[str, Any], where: str) -> Limit:
        low, high = self._number(part, "lower", where, -np.inf), self._number(part, "upper", where, np.inf)
        self._expect(np.isfinite([low, high]).any(), where, "a lower or an upper limit", "neither")
        self._expect(low <= high, where, "lower ≤ upper", f"{low:g} and {high:g}")
        return Limit(name, coefficients, low, high)

    def _expect(self, fits: object, where: str, expected: str, found: object) -> None:
        expect(fits, f"{self.path.name}: {where}", expected, found)

    def _expect_share(self, where: str, *ends: float) -> None:
        """Raise where per cent are written for a share: long-only and without leverage no weight is above 1."""
        for end in map(float, ends):
            fits = not self.unlevered or end <= _WHOLE or np.isinf(end)
            found = f"{end:g}, which is {100 * end:g} % (write {end / 100:g} for {end:g} %)"
            self._expect(fits, where, "shares of at most 1 in a long-only portfolio", found)

    def _index(self, asset: object, where: str) -> int:
        known = isinstance(asset, str) and asset in self.place
        self._expect(known, where, "assets of the table of returns", describe_value(asset))
        return self.place[str(asset)]

    def _number(self, part: dict[str, Any], key: str, where: str, default: float) -> float:
        value = part.get(key, default)
        real = isinstance(value, (int, float)) and not isinstance(value, bool) and value == value
        self._expect(real, f"{where} {key}", "a number", describe_value(value))
        finite = abs(value) <= sys.float_info.max or key not in part
        self._expect(finite, f"{where} {key}", "a finite number", describe_value(value))
        return float(value)

    def _table(self, path: Path) -> dict[str, tuple[float | None, float | None, str]]:
        """Bounds and group by asset; None for an empty cell."""
        from time2decide.markets.table_files import read_table_cells

        validate_input_file(path)
        header, *rows = [[cell.strip() for cell in row] for row in read_table_cells(path)]
        known = header in (["asset", "lower", "upper"], ["asset", "lower", "upper", "group"])
        expect(known, path.name, "the columns asset,lower,upper and perhaps group", ",".join(header)[:60])
        table: dict[str, tuple[float | None, float | None, str]] = {}
        for number, row in enumerate(rows, start=1):
            where = f"{path.name}: row {number}"
            expect(len(row) == len(header), where, f"{len(header)} cells", len(row))
            expect(row[0] in self.place, where, "an asset of the table of returns", describe_value(row[0]))
            expect(row[0] not in table, where, "distinct assets", f"{row[0]!r} again")
            low, high = (self._cell(cell, where) for cell in row[1:3])
            table[row[0]] = (low, high, row[3] if len(row) == 4 else "")
        limited = self.content.get("groups", {})
        for asset, (*_, group) in table.items():  # a group without limits would silently mean nothing
            where, name = f"{path.name}: group of {asset!r}", self.path.name
            expected = f"one with limits in [groups.{group}] of a .toml file whose table is this file"
            expect(not group or group in limited, where, expected, f"{group!r} without any in {name}")
        return table

    @staticmethod
    def _cell(cell: str, where: str) -> float | None:
        if not cell:
            return None
        try:
            value = np.nan if "_" in cell else float(cell)  # Python itself reads 1_000
        except ValueError:
            value = np.nan
        expect(not np.isnan(value), where, "a number or an empty cell", describe_value(cell))
        return value
