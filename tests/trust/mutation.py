"""Mutation testing: small faults are put into the exact solvers, the simulation and the covariances; tests must notice.

``python -m tests.trust.mutation --seed 1 --count 350`` draws mutants (one to a line, files by their length) and runs
for each the tests of `TESTS` that reach its lines, the short ones first, until one fails.

A cold start for every mutant would take most of the time. So pytest collects once, and every mutant gets a forked copy
of that process, in which the code of the mutated function is exchanged. Compiled kernels run as plain Python there.
Outcomes are appended to build/mutation/, from where an interrupted run goes on; ``--retry`` runs survivors again.
Survivors that change nothing which is promised are in survivors.toml, with the reason.
"""

from __future__ import annotations

import argparse
import ast
import copy
import gc
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import groupby
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest
from _pytest.runner import runtestprotocol

ROOT = Path(__file__).parents[2]
WORK = ROOT / "build" / "mutation"
EXPLAINED = Path(__file__).with_name("survivors.toml")
FILES = [
    *(f"qp/{name}" for name in ("problem", "solution", "certificate", "exact", "engines", "projections", "gradients")),
    *(f"qp/{name}" for name in ("adjoint", "bulk", "l1_path")),
    *(f"markets/{name}" for name in ("portfolio", "portfolio_general", "constraints", "frontier", "covariance")),
    *(f"markets/{name}" for name in ("turnover_path", "turnover_decision", "turnover_kernels", "estimators")),
    *(f"simulation/{name}" for name in ("engine", "metrics")),
]
_MARKETS = ("portfolio", "portfolio_general", "constraints", "frontier", "covariance", "estimators", "turnover_path")
TESTS = [
    *("tests/qp", "tests/test_solve_qp.py", "tests/simulation", "tests/backtesting/test_constrained_backtest.py"),
    *(f"tests/markets/test_{name}.py" for name in (*_MARKETS, "turnover_decision", "constraint_files", "universe")),
]
TIMED = "not within_a_second or [50-"  # what measures time says nothing of kernels that are not compiled, unless small
LONGEST = 2.0  # seconds; longer tests are left out
BUDGET = 4.0  # seconds of tests for a mutant, as measured without a fault
MEMORY = 6 << 30  # bytes that a mutant may take

# -- Faults -----------------------------------------------------------------------------------------------------------

_COMPARE: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult, ast.Mod: ast.Div, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_SYMMETRIC = {"max", "min", "maximum", "minimum", "isinstance"}  # swapped arguments change nothing, or end at once
_SYMMETRIC |= {"swapaxes", "array_equal"}


class Mutant(NamedTuple):
    """A node of the syntax tree of a file, what takes its place, and where that is."""

    file: str
    tree: ast.Module
    parent: ast.AST
    field: str
    index: int | None
    node: Any
    now: Any
    lines: range  # of its statement, or of the head of it
    owner: str  # a function by its qualified name, "defaults of" one, or "NAME =" of the module

    @property
    def key(self) -> str:
        """What names it in survivors.toml and holds when other parts of the file change: the line before and after."""
        node, line = self.node, source(self.file).split("\n")[self.node.lineno - 1].encode()
        end = node.end_col_offset if node.end_lineno == node.lineno else len(line)  # offsets count bytes
        now = line[: node.col_offset] + ast.unparse(self.now).split("\n")[0].encode() + line[end:]
        return f"{self.file} {self.owner}: {line.decode().strip()} → {now.decode().strip()}"

    @property
    def place(self) -> str:
        return f"time2decide/{self.file}.py:{self.node.lineno}:{self.node.col_offset}"


def replacements(node: ast.AST) -> Iterator[ast.AST]:
    """What a node is exchanged for, one at a time."""
    match node:
        case ast.Compare(ops=[op]):
            yield ast.Compare(node.left, [_COMPARE[type(op)]()], node.comparators)
        case ast.BinOp(op=op) if type(op) in _ARITHMETIC:
            yield ast.BinOp(node.left, _ARITHMETIC[type(op)](), node.right)
        case ast.AugAssign(op=op):
            yield ast.Pass()
            if type(op) in _ARITHMETIC:
                yield ast.AugAssign(node.target, _ARITHMETIC[type(op)](), node.value)
        case ast.BoolOp(op=op):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), node.values)
        case ast.UnaryOp():
            yield node.operand
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int() | float()):
            yield ast.Constant(node.value + 1 if node.value + 1 != node.value else 2 * node.value)
        case ast.If() | ast.While() | ast.IfExp():
            negated = copy.copy(node)
            negated.test = ast.UnaryOp(ast.Not(), node.test)
            yield negated
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.Break() | ast.Continue():
            yield ast.Pass()
        case ast.Assign(targets=[target]) if not isinstance(target, (ast.Name, ast.Tuple)) or _again(target, node):
            yield ast.Pass()
        case ast.Return(value=ast.AST() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield ast.Return(ast.Constant(None))
        case ast.Call(args=[_, _, _]) if _called(node) == "clip":  # the middle of three numbers, in whatever order
            pass
        case ast.Call(args=[first, second, *rest]) if _called(node) not in _SYMMETRIC:
            if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
                yield ast.Call(node.func, [second, first, *rest], node.keywords)


def _again(target: ast.AST, node: ast.Assign) -> bool:
    """Whether a name is made from itself, so that it exists without the statement too."""
    return isinstance(target, ast.Name) and any(getattr(part, "id", "") == target.id for part in ast.walk(node.value))


def _called(node: ast.Call) -> str:
    return getattr(node.func, "attr", None) or getattr(node.func, "id", "")


def mutants(file: str) -> Iterator[Mutant]:
    """Every mutant of the functions of a file, of their defaults and of the constants of the module."""
    tree = ast.parse(source(file))

    def below(node: ast.AST, lines: range, owner: str, fields: tuple[str, ...] = ()) -> Iterator[Mutant]:
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list") or (fields and field not in fields):
                continue
            for index, child in enumerate(value) if isinstance(value, list) else ((None, value),):
                if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr):  # no faults in messages
                    continue
                inner = _lines(child) if isinstance(child, ast.stmt) else lines
                for now in replacements(child):
                    yield Mutant(file, tree, node, field, index, child, now, inner, owner)
                yield from below(child, inner, owner)

    def of_function(function: ast.FunctionDef, name: str) -> Iterator[Mutant]:
        yield from below(function, range(0), name, ("body",))
        body = range(function.body[0].lineno, (function.end_lineno or 0) + 1)
        yield from below(function.args, body, f"defaults of {name}", ("defaults", "kw_defaults"))

    for statement in tree.body:
        match statement:
            case ast.FunctionDef():
                yield from of_function(statement, statement.name)
            case ast.ClassDef():
                for part in statement.body:
                    if isinstance(part, ast.FunctionDef):
                        yield from of_function(part, f"{statement.name}.{part.name}")
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name), value=ast.AST()):
                yield from below(statement, _lines(statement), f"{name} =", ("value",))


def _lines(statement: ast.stmt) -> range:
    body = getattr(statement, "body", None)
    end = body[0].lineno if body else (statement.end_lineno or 0) + 1
    return range(statement.lineno, max(end, statement.lineno + 1))


def drawn(seed: int, count: int) -> list[Mutant]:
    """A sample: files by the number of lines that can be mutated, at most one mutant to a line."""
    lines: dict[str, dict[int, list[Mutant]]] = {file: defaultdict(list) for file in FILES}
    for file in FILES:
        for one in mutants(file):
            lines[file][one.node.lineno].append(one)
    total, sample = sum(map(len, lines.values())), []
    for file, by_line in lines.items():
        draw = random.Random(f"{seed} {file}")
        share = max(4, round(count * len(by_line) / total))
        sample += [draw.choice(by_line[line]) for line in draw.sample(sorted(by_line), min(share, len(by_line)))]
    random.Random(seed).shuffle(sample)  # what an interrupted run has done is a sample too
    return sample


@cache
def source(file: str) -> str:
    return (ROOT / "time2decide" / f"{file}.py").read_text(encoding="utf-8")


# -- A fault in the modules of this process ---------------------------------------------------------------------------

Functions = dict[tuple[str, str, int], list[FunctionType]]


def functions_in_memory() -> Functions:
    """By file, qualified name and line; a copy of a function is listed with it."""
    found: Functions = defaultdict(list)
    for one in gc.get_objects():
        if type(one) is FunctionType:  # isinstance runs code of lazy objects
            code = one.__code__
            found[code.co_filename, code.co_qualname, code.co_firstlineno].append(one)
    return found


def plant(mutant: Mutant, functions: Functions) -> None:
    """Compile the file with the fault, and exchange what differs in the modules of this process."""
    if ast.dump(mutant.now) == ast.dump(mutant.node):
        raise LookupError(f"{mutant.place}: no fault, the same arguments in another order")
    module = sys.modules[f"time2decide.{mutant.file.replace('/', '.')}"]
    path = str(module.__file__)
    before = {_place(code): code for code in _codes(compile(mutant.tree, path, "exec"))}
    now = ast.fix_missing_locations(ast.copy_location(mutant.now, mutant.node))
    if mutant.index is None:
        setattr(mutant.parent, mutant.field, now)
    else:
        getattr(mutant.parent, mutant.field)[mutant.index] = now
    changed = [code for code in _codes(compile(mutant.tree, path, "exec")) if before.get(_place(code)) != code]
    exchanged = 0
    for code in changed:
        for function in functions.get((path, *_place(code)), ()):
            if len(function.__code__.co_freevars) == len(code.co_freevars):
                function.__code__, exchanged = code, exchanged + 1
    if mutant.owner.endswith(" ="):
        _rebind(mutant.owner.removesuffix(" ="), mutant.tree, vars(module))
    elif mutant.owner.startswith("defaults of "):
        _exchange_defaults(mutant, functions, path)
    elif not exchanged:
        raise LookupError(f"{mutant.place}: no such function in memory")


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _place(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _rebind(name: str, tree: ast.Module, names: dict[str, Any]) -> None:
    """Give a constant of a module its new value, also where other modules have imported it."""
    for statement in tree.body:
        target = getattr(statement, "target", None) or (getattr(statement, "targets", None) or [None])[0]
        if isinstance(target, ast.Name) and target.id == name:
            old, new = names[name], eval(compile(ast.Expression(statement.value), "fault", "eval"), names)
            for module in [module for key, module in sys.modules.items() if key.startswith("time2decide")]:
                if vars(module).get(name) is old:
                    setattr(module, name, new)


def _exchange_defaults(mutant: Mutant, functions: Functions, path: str) -> None:
    name = mutant.owner.removeprefix("defaults of ")
    definitions = (node for node in ast.walk(mutant.tree) if isinstance(node, ast.FunctionDef))
    args = next(node.args for node in definitions if any(part is mutant.parent for part in ast.walk(node.args)))
    for function in [
        one for (file, key, _), found in functions.items() if (file, key) == (path, name) for one in found
    ]:

        def value(node: ast.expr, names: dict[str, Any] = function.__globals__) -> Any:
            return eval(compile(ast.Expression(node), "fault", "eval"), names)

        function.__defaults__ = tuple(map(value, args.defaults)) or None
        pairs = zip(args.kwonlyargs, args.kw_defaults, strict=True)
        function.__kwdefaults__ = {key.arg: value(node) for key, node in pairs if node is not None} or None


# -- Running the tests ------------------------------------------------------------------------------------------------


class Baseline(NamedTuple):
    """What the tests do without a fault: seconds of those that pass, which lines they reach, modules they import."""

    seconds: dict[str, float]
    reached: dict[str, dict[int, list[str]]]  # file -> line -> tests
    modules: list[str]


class Runner:
    """A plugin of pytest that runs the collected tests once for every mutant, each time in a forked process."""

    def __init__(self, sample: list[Mutant], outcomes: Path) -> None:
        self.sample, self.outcomes = sample, outcomes

    def pytest_configure(self) -> None:
        """The same examples of Hypothesis for every mutant, and none made smaller."""
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutation", settings.get_profile("project"), derandomize=True, phases=phases)
        settings.load_profile("mutation")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for file in FILES:
            importlib.import_module(f"time2decide.{file.replace('/', '.')}")
        baseline = self._baseline(session)
        for name in baseline.modules:  # what tests import when they run is imported once
            if not name.startswith(("tests", "test_")):
                with suppress(Exception):
                    importlib.import_module(name)
        functions = functions_in_memory()
        done = {(row["key"], row["place"], row["source"]) for row in rows(self.outcomes)}
        for number, mutant in enumerate(self.sample):
            row: dict[str, Any] = {"key": mutant.key, "place": mutant.place, "source": digest(mutant.file)}
            if tuple(row.values()) not in done:
                start = time.perf_counter()
                row |= self._try(session, mutant, baseline, functions)
                row["wall"] = round(time.perf_counter() - start, 2)
                with self.outcomes.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
                print(f"{number + 1}/{len(self.sample)} {row['outcome']:9} {row['place']} {row['key']}", flush=True)
        return True

    def _baseline(self, session: pytest.Session) -> Baseline:
        """Measured once for every file of tests, and again when that or what is mutated changes."""
        whole = Baseline({}, {file: defaultdict(list) for file in FILES}, [])
        sources = "".join(map(source, FILES))
        for path, group in groupby(session.items, key=lambda item: item.path):
            items = list(group)
            part = WORK / f"baseline-{zlib.crc32((path.read_text(encoding='utf-8') + sources).encode()):08x}.json"
            if not part.exists():
                folder = tempfile.mkdtemp(dir=WORK)
                child = os.fork()
                if child == 0:
                    os.setsid()
                    try:
                        _quiet(session, folder, 10**6)
                        _measure(items, part)
                    finally:
                        os._exit(0)
                os.waitpid(child, 0)
                _end(child)
                shutil.rmtree(folder, ignore_errors=True)
            seconds, reached, modules = json.loads(part.read_text(encoding="utf-8"))
            whole.seconds.update(seconds)
            whole.modules.extend(modules)
            for file, lines in reached.items():
                for line, names in lines.items():
                    whole.reached[file][int(line)].extend(names)
        return whole

    def _try(self, session: pytest.Session, mutant: Mutant, baseline: Baseline, functions: Functions) -> dict[str, Any]:
        """Killed by a test, by the limits of time or memory, or survived."""
        chosen = selection(mutant, baseline)
        items = {item.nodeid: item for item in session.items}
        seconds = sum(baseline.seconds[name] for name in chosen)
        folder = tempfile.mkdtemp(dir=WORK)
        child = os.fork()
        if child == 0:
            os.setsid()
            _quiet(session, folder, int(10 + 4 * seconds))
            code = 3
            try:
                plant(mutant, functions)
                code = _first_failure([items[name] for name in chosen])
            except LookupError:
                code = 4
            finally:
                os._exit(code)
        _, status, usage = os.wait4(child, 0)
        _end(child)
        shutil.rmtree(folder, ignore_errors=True)
        code = os.waitstatus_to_exitcode(status)
        outcome = {0: "survived", 4: "invalid"}.get(code, "killed") if code >= 0 else "killed"
        return {"outcome": outcome, "exit": code, "tests": len(chosen), "seconds": round(usage.ru_utime, 2)}


def _end(child: int) -> None:
    """End the processes that a forked one has started."""
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)


def _quiet(session: pytest.Session, folder: str, seconds: int) -> None:
    """Limits, output and temporary files of a forked process."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(20 * seconds)  # a process that waits for ever takes no processor time
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    session.config._tmp_path_factory._basetemp = Path(folder)  # type: ignore[attr-defined]


def _measure(items: list[pytest.Item], path: Path) -> None:
    """Run every test with its lines traced, and write down what `Baseline` has."""
    import coverage

    loaded, seconds = set(sys.modules), {}
    files = [str(ROOT / "time2decide" / f"{file}.py") for file in FILES]
    tracer = coverage.Coverage(data_file=None, config_file=False, include=files)
    tracer.set_option("run:disable_warnings", ["no-data-collected"])
    tracer.start()
    for item, following in zip(items, [*items[1:], None], strict=True):
        tracer.switch_context(item.nodeid)
        start = time.process_time()
        reports = runtestprotocol(item, log=False, nextitem=following)
        took = time.process_time() - start
        if all(report.passed for report in reports) and took < LONGEST:
            seconds[item.nodeid] = took
    tracer.stop()
    data = tracer.get_data()
    reached: dict[str, Any] = {}
    for file, path_of_file in zip(FILES, files, strict=True):
        lines = data.contexts_by_lineno(path_of_file)
        reached[file] = {line: [name for name in names if name in seconds] for line, names in lines.items()}
    text = json.dumps([seconds, reached, sorted(set(sys.modules) - loaded)])
    path.with_suffix(".part").write_text(text, encoding="utf-8")
    path.with_suffix(".part").replace(path)


def selection(mutant: Mutant, baseline: Baseline) -> list[str]:
    """The tests that reach the mutant, the short ones first, up to a budget of time."""
    constant = mutant.owner.removesuffix(" =") if mutant.owner.endswith(" =") else None
    names: set[str] = set()
    for file in FILES if constant else [mutant.file]:
        text = source(file).split("\n")
        for line, tests in baseline.reached[file].items():
            if re.search(rf"\b{constant}\b", text[line - 1]) if constant else line in mutant.lines:
                names.update(tests)
    chosen, spent = [], 0.0
    for name in sorted(names, key=lambda one: baseline.seconds[one]):
        spent += baseline.seconds[name]
        if spent > BUDGET:
            break
        chosen.append(name)
    return chosen


def _first_failure(items: list[pytest.Item]) -> int:
    """Run tests until one fails: 1 then, 0 if none does."""
    for item, following in zip(items, [*items[1:], None], strict=False):
        if any(report.failed for report in runtestprotocol(item, log=False, nextitem=following)):
            return 1
    return 0


# -- What came of it --------------------------------------------------------------------------------------------------


def digest(file: str) -> str:
    return f"{zlib.crc32(source(file).encode()):08x}"


def rows(path: Path) -> list[dict[str, Any]]:
    """Outcomes so far; a line that was cut off is left out."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def run(seed: int, count: int, retry: bool = False) -> None:
    """Try a sample of mutants, or what is left of it."""
    WORK.mkdir(parents=True, exist_ok=True)
    outcomes = WORK / f"seed-{seed}.jsonl"
    if retry:
        kept = [json.dumps(row, ensure_ascii=False) for row in rows(outcomes) if row["outcome"] == "killed"]
        outcomes.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    options = ["-s", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no", "-k", TIMED]
    pytest.main([*options, *(str(ROOT / name) for name in TESTS)], plugins=[Runner(drawn(seed, count), outcomes)])


def finished(seed: int, count: int) -> list[dict[str, Any]]:
    """The outcomes of a sample, with the reason why a survivor changes nothing, where one is written down."""
    wanted = {(mutant.key, mutant.place, digest(mutant.file)) for mutant in drawn(seed, count)}
    reasons = tomllib.loads(EXPLAINED.read_text(encoding="utf-8")) if EXPLAINED.exists() else {}
    found = [row for row in rows(WORK / f"seed-{seed}.jsonl") if (row["key"], row["place"], row["source"]) in wanted]
    return [row | {"why": reasons.get(row["key"])} for row in found if row["outcome"] != "invalid"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=350)
    parser.add_argument("--retry", action="store_true", help="run survivors again")
    given = parser.parse_args()
    run(given.seed, given.count, given.retry)
    found = finished(given.seed, given.count)
    alive = [row for row in found if row["outcome"] == "survived"]
    for row in alive:
        print(f"{row['place']} {row['key']} ({row['tests']} tests): {row['why'] or 'not explained'}")
    print(f"{len(found) - len(alive)} of {len(found)} killed, {sum(row['why'] is not None for row in alive)} explained")


if __name__ == "__main__":
    if os.environ.get("NUMBA_DISABLE_JIT") != "1":  # numba reads it when it is imported
        os.environ |= {"NUMBA_DISABLE_JIT": "1", "OMP_NUM_THREADS": "1"}
        os.execv(sys.executable, [sys.executable, "-m", "tests.trust.mutation", *sys.argv[1:]])
    main()
