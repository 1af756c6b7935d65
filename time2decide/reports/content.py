"""What a report says, before it has a form: one section per experiment from the store, and the claims."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from time2decide.experiments.registry import Experiment, experiment_ids, get_experiment
from time2decide.experiments.store import Store, results_root, task_key
from time2decide.reports.block import Block
from time2decide.reports.claims import Claim, claims
from time2decide.reports.interactive import PANELS, Panel
from time2decide.reports.tables import TABLES

Row = dict[str, Any]
_ORDER = ("paper", "cpu", "smoke")  # which preset is shown when several are complete to the same degree


@dataclass(frozen=True)
class Section:
    """One table or figure: the rows of the preset that is most complete, in every form."""

    id: str
    title: str
    paper: str
    preset: str | None
    provenance: str
    tables: list[Block]
    text: str | None  # where there is no structured table
    panels: list[Panel]
    picture: Path | None
    claims: list[Claim]


def sections(root: str | Path | None = None) -> list[Section]:
    """Every registered experiment, in the order of the paper."""
    return [_section(get_experiment(name), root) for name in experiment_ids()]


def _section(experiment: Experiment, root: str | Path | None) -> Section:
    preset, lines, total = _most_complete(experiment, root)
    rows = Store(experiment.id, preset, root).rows(set(lines)) if preset else []
    good = [row for row in rows if not row["error"]]
    tables = TABLES[experiment.id](good) if good and experiment.id in TABLES else []
    picture = results_root(root) / "figures" / f"{experiment.id}{'' if preset == 'cpu' else f'-{preset}'}.png"
    return Section(
        id=experiment.id,
        title=experiment.title[0].upper() + experiment.title[1:],
        paper=experiment.paper,
        preset=preset,
        provenance=_provenance(list(lines.values()), preset, total),
        tables=tables,
        text=experiment.show(rows) if rows and not tables else None,
        panels=PANELS[experiment.id](good) if good and experiment.id in PANELS else [],
        picture=picture if picture.exists() else None,
        claims=claims(experiment, rows),
    )


def _most_complete(experiment: Experiment, root: str | Path | None) -> tuple[str | None, dict[str, Row], int]:
    """The preset with the largest share of its tasks stored, their last lines, and the number of tasks."""
    best: tuple[str | None, dict[str, Row], int] = (None, {}, 0)
    share = 0.0
    for preset in (name for name in _ORDER if name in experiment.presets):
        keys = {task_key(config) for config in experiment.tasks(preset)}
        lines = {key: line for key, line in Store(experiment.id, preset, root).lines().items() if key in keys}
        if len(lines) / len(keys) > share:
            best, share = (preset, lines, len(keys)), len(lines) / len(keys)
    return best


def _provenance(lines: list[Row], preset: str | None, total: int) -> str:
    if preset is None:
        return "no rows yet"
    failed = sum(line["error"] is not None for line in lines)
    commits = ", ".join(dict.fromkeys(str(line.get("commit")) for line in lines))
    seconds = sum(each for line in lines if isinstance(each := line.get("seconds"), int | float))
    days = sorted(str(line.get("time"))[:10] for line in lines)
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    text = f"preset {preset}: {len(lines)} of {total} tasks, {_duration(seconds)}, {when}, commit {commits}"
    return text + (f"; {failed} failed" if failed else "")


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
