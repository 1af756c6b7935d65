import json
import multiprocessing

import pytest

from time2decide.core.validation import InputError
from time2decide.experiments import Experiment, Store, experiment_ids, get_experiment, published, reproduce
from time2decide.experiments.store import last_error_line, task_key


def tasks(preset):
    return [{"value": value, "seed": 0} for value in range(4)]


def run(config):
    if config["value"] == 2:
        raise RuntimeError("diverged")
    return [{"square": config["value"] ** 2}, {"square": -1}]


TOY = Experiment("toy", "a toy", "nowhere", {"smoke": "1 s"}, tasks, run, tables=list)


def test_rows_carry_provenance_and_failures_are_rows(tmp_path):
    rows = reproduce(TOY, "smoke", root=tmp_path)
    assert [row.get("square") for row in rows] == [0, -1, 1, -1, None, 9, -1]
    (error,) = [row["error"] for row in rows if row["error"]]
    assert error.startswith("Traceback")
    assert "in run" in error  # where it was raised, not only what
    assert last_error_line(error) == "RuntimeError: diverged"
    line = json.loads((tmp_path / "toy/smoke.jsonl").read_text().splitlines()[0])
    assert {"key", "config", "commit", "versions", "machine", "seconds", "time", "preset"} <= set(line)
    assert line["versions"]["torch"].startswith("2.13")


def test_some_tasks_can_be_run_first(tmp_path):
    ran = []
    note = {"root": tmp_path, "progress": lambda number, total, config: ran.append(config["value"])}
    assert [row["square"] for row in reproduce(TOY, "smoke", only="value=3, seed=0", **note)] == [9, -1]
    reproduce(TOY, "smoke", **note)
    assert ran == [3, 0, 1, 2]
    for wrong in ("value", "colour=red"):
        with pytest.raises(InputError, match="only: expected field=value with a field of seed, value"):
            reproduce(TOY, "smoke", root=tmp_path, only=wrong)


def test_only_missing_and_failed_tasks_run_again(tmp_path):
    reproduce(TOY, "smoke", root=tmp_path)
    ran = []
    reproduce(TOY, "smoke", root=tmp_path, progress=lambda number, total, config: ran.append(config["value"]))
    assert ran == [2]
    assert len(Store("toy", "smoke", tmp_path).lines()) == 4


def test_torn_line_of_a_killed_writer_is_not_a_result(tmp_path):
    store = Store("toy", "smoke", tmp_path)
    store.append({"value": 0, "seed": 0}, [{"square": 0}], 0.1)
    with store.path.open("a") as file:
        file.write('{"key": "half a li')
    assert len(store.done()) == 1
    store.append({"value": 1, "seed": 0}, [{"square": 1}], 0.1)
    assert store.done() == {task_key({"value": value, "seed": 0}) for value in (0, 1)}


def test_a_damaged_line_is_not_a_result(tmp_path):
    store = Store("e", "smoke", tmp_path)
    store.append({"seed": 0}, [{"value": 1.0}], 0.1)
    with store.path.open("ab") as file:
        file.write(b'{"key": "\xff\xfe", "error": null}\n12\n[]\n')
    store.append({"seed": 1}, [{"value": 2.0}], 0.1)
    assert [row["value"] for row in store.rows()] == [1.0, 2.0]


WHOLE = {"key": task_key({"seed": 1}), "config": {"seed": 1}, "rows": [{"value": 2.0}], "error": None}


@pytest.mark.parametrize(
    "line",
    [
        {"key": "abc"},
        {"key": [1]},
        WHOLE | {"key": [1]},
        WHOLE | {"rows": None},
        WHOLE | {"rows": ""},
        WHOLE | {"rows": [1]},
        WHOLE | {"rows": {"value": 2.0}},
        WHOLE | {"config": None},
        WHOLE | {"error": 1},
        {name: value for name, value in WHOLE.items() if name != "error"},
    ],
)
def test_json_that_is_no_line_is_not_a_result(tmp_path, line):
    store = Store("e", "smoke", tmp_path)
    store.append({"seed": 0}, [{"value": 1.0}], 0.1)
    with store.path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    assert store.done() == {task_key({"seed": 0})}
    assert [row["value"] for row in store.rows()] == [1.0]
    with store.path.open("a") as file:
        file.write(json.dumps(WHOLE) + "\n")
    assert [row["value"] for row in store.rows()] == [1.0, 2.0]


def test_a_missing_field_is_named_with_its_file_and_line(tmp_path):
    store = Store("e", "smoke", tmp_path)
    store.append({"seed": 0}, [{"value": {"mean": 1.0}}], 0.1)
    store.append({"seed": 1}, [{"other": {}}], 0.1)
    first, second = store.rows()
    assert first["value"]["mean"] == 1.0
    assert second.get("value") is None
    place = rf"e/smoke.jsonl, line 2, task {task_key({'seed': 1})}"
    with pytest.raises(InputError, match=rf"{place}: expected the field 'value' in the stored rows, found none"):
        second["value"]
    with pytest.raises(InputError, match=rf"{place}: expected the field 'mean'"):
        second["other"]["mean"]


def write_many(root, start):
    for value in range(start, start + 50):
        Store("toy", "smoke", root).append({"value": value}, [{"text": "x" * 5000}], 0.0)


def test_two_processes_write_at_once(tmp_path):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_many, args=(tmp_path, start)) for start in (0, 1000)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(Store("toy", "smoke", tmp_path).done()) == 100


def test_key_ignores_the_order_of_a_configuration():
    assert task_key({"a": 1, "b": 2}) == task_key({"b": 2, "a": 1}) != task_key({"a": 2, "b": 1})


def test_registry_and_published_figures():
    for name in experiment_ids():
        experiment = get_experiment(name)
        assert experiment.id == name
        for preset in experiment.presets:
            configs = experiment.tasks(preset)
            assert len({task_key(config) for config in configs}) == len(configs) > 0
            assert all("seed" in config for config in configs)
    assert published("qp_r2")["n=5;m=3;layers=8;heads=2", "LinearTransformer"] == 0.974
    with pytest.raises(InputError, match="preset: expected one of smoke"):
        reproduce(TOY, "cpu")
