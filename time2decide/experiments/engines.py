"""Where tasks run: in this process, in processes of this machine, or on Ray.

An engine is a generator: it takes a function and configurations and yields each configuration with its outcome as it
finishes. Outcomes come back to the caller, who alone writes the store, so that no row depends on a worker's disk. A
task that raises is an outcome; a worker that dies is not: its task runs again on another one.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from time2decide.core.validation import InputError, expect, validate_choice, validate_count, validate_positive
from time2decide.experiments.store import Config, Row

_RETRIES = 3  # times that a task may lose its worker
Run = Callable[[Config], list[Row]]


@dataclass(frozen=True)
class TaskOutcome:
    """The outcome of a task: its rows or the error that stopped it, and its seconds."""

    rows: list[Row]
    error: str | None
    seconds: float


Outcomes = Generator[tuple[Config, TaskOutcome], None, None]


@dataclass(frozen=True)
class Engine:
    """Where tasks run.

    Attributes
    ----------
    name : {"local", "ray"}
        Processes of this machine, or Ray.
    workers : int
        Processes; with `local` and one worker tasks run in this process, one after another. Ray uses this many local
        workers, or what the cluster has when there is an `address`.
    address : str, optional
        Address of an existing Ray cluster, or "auto".
    gpus : float
        Share of a GPU that Ray reserves for each task.
    """

    name: str = "local"
    workers: int = 1
    address: str | None = None
    gpus: float = 0

    def __post_init__(self) -> None:
        validate_count("workers", self.workers)
        validate_positive("gpus", self.gpus, allow_zero=True)
        validate_choice("engine", self.name, ("local", "ray"))
        fits = self.name == "ray" or (not self.address and not self.gpus)
        expect(fits, "address, gpus", "engine 'ray' with them", f"{self.name!r}")
        if self.name == "ray":
            _import_ray()

    @property
    def in_this_process(self) -> bool:
        """Whether tasks run one after another in the process of the caller."""
        return self.name == "local" and self.workers == 1


def run_tasks(run: Run, tasks: list[Config], engine: Engine) -> Outcomes:
    """Run all tasks and yield each as it finishes, in any order; `run` is a module-level function."""
    if engine.in_this_process:
        return ((task, _attempt(run, task)) for task in tasks)
    return _on_ray(run, tasks, engine) if engine.name == "ray" else _in_processes(run, tasks, engine.workers)


def _attempt(run: Run, config: Config) -> TaskOutcome:
    """Run one task; an exception becomes its error, with the whole traceback."""
    start = time.perf_counter()
    try:
        rows, error = run(config), None
    except Exception:
        rows, error = [], traceback.format_exc().strip()
    return TaskOutcome(rows, error, time.perf_counter() - start)


def _in_processes(run: Run, tasks: list[Config], workers: int) -> Outcomes:
    """A pool of spawned processes. The death of one breaks the pool; what was not finished goes to a new one."""
    waiting, losses = list(tasks), 0
    while waiting and losses <= _RETRIES:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)[::-1]
        pool = ProcessPoolExecutor(min(workers, len(waiting)), context, _end_with_driver, (theirs,))
        losses += 1
        try:
            with _interrupts_blocked():
                futures = {pool.submit(_attempt_on_one_thread, run, task): task for task in waiting}
            for future in as_completed(futures):
                try:
                    outcome = future.result()
                except BrokenProcessPool:
                    continue
                waiting.remove(futures[future])
                losses = 0
                yield futures[future], outcome
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            ours.close()  # ends tasks that still run after an interrupt; the interpreter would wait for them
            theirs.close()
    for task in waiting:
        yield task, _lost()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Processes started here never see a Ctrl-C, which a terminal sends to all; they end with their driver."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_driver(driver: Connection) -> None:
    """No worker outlives its driver, or the driver's interest in it: the other end of the pipe is closed then."""

    def follow() -> None:
        driver.poll(None)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _on_ray(run: Run, tasks: list[Config], engine: Engine) -> Outcomes:
    """One Ray task per configuration, retried by Ray when its worker or machine is lost."""
    ray = _import_ray()
    started = not ray.is_initialized()
    if started:
        _connect(ray, engine)
    try:
        remote = ray.remote(num_cpus=1, num_gpus=engine.gpus, max_retries=_RETRIES)(_attempt_on_one_thread)
        pending = {remote.remote(run, task): task for task in tasks}
        while pending:
            (ready, *_), _rest = ray.wait(list(pending), num_returns=1)
            task = pending.pop(ready)
            try:
                outcome = ray.get(ready)
            except (ray.exceptions.RayTaskError, ray.exceptions.RaySystemError):
                raise
            except ray.exceptions.RayError:  # its workers died again and again
                outcome = _lost()
            yield task, outcome
    finally:
        if started:
            ray.shutdown()


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise InputError("engine: expected Ray to be installed, found none; pip install 'time2decide[ray]'") from None
    return ray


def _connect(ray: Any, engine: Engine) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if engine.address is None:
        # Ray's workers would yield to every other process of this machine, and starve beside a busy one
        os.environ.setdefault("RAY_worker_niceness", "0")
        ray.init(
            address="local", num_cpus=engine.workers, include_dashboard=False, **options
        )  # never somebody's cluster
        return
    try:
        ray.init(address=engine.address, **options)
    except (ConnectionError, ValueError) as error:
        raise InputError(f"address: expected a running Ray cluster, found {engine.address!r}: {error}") from None


def _attempt_on_one_thread(run: Run, config: Config) -> TaskOutcome:
    """Small kernels gain nothing from threads, and workers share the cores."""
    import torch

    torch.set_num_threads(1)
    return _attempt(run, config)


def _lost() -> TaskOutcome:
    return TaskOutcome([], f"worker lost {_RETRIES + 1} times", 0.0)
