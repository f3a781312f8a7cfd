"""Trackers: what reaches them, what never reaches training."""

import importlib.util
import json
import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.retrieval.tiny_encoder import make_encoder
from tests.training.retriever_run import train as train_retriever
from tests.training.tiny_labels import write_labels

from coseek.cli.main import main
from coseek.core.errors import MissingExtra, SettingError, UnknownName
from coseek.core.settings import Settings, dump_settings, fixed_settings
from coseek.pipelines.agent_recipe import AgentRecipe, load_recipe
from coseek.training import tracker as tracker_module
from coseek.training.encoder.recipe import RetrieverRecipe, load_retriever_recipe
from coseek.training.tracker import ADAPTERS, MetricsLog, find_tracker, tracked

OWN = '''
"""Appends every row to a file of the store; fails if a file `down` is in the same folder."""
import json, os, random
import numpy, torch

class Lines:
    def __init__(self, run):
        run.store.mkdir(parents=True, exist_ok=True)
        self.path, self.down = run.store / "rows.jsonl", run.store / "down"
        self.part = str(run.part)
        self.put({"open": run.name, "last": run.last_step, "id": run.id, "threads": "threads" in run.config})

    def put(self, row):
        random.seed(0), numpy.random.seed(0), torch.manual_seed(0), torch.rand(3)
        if self.down.exists() and int(self.down.read_text()) <= row.get("step", -1):
            raise ConnectionError("nobody answers\\nat all")
        with self.path.open("a") as file:
            file.write(json.dumps({**row, "part": self.part}) + "\\n")

    def send(self, step, values):
        self.put({"step": step, **values})

    def close(self):
        self.put({"closed": True})

def open_run(run):
    return Lines(run)
'''


@pytest.fixture
def own(tmp_path: Path) -> str:
    """A tracker of the user's own."""
    (tmp_path / "lines.py").write_text(OWN, encoding="utf-8")
    return str(tmp_path / "lines.py")


def store(folder: Path) -> Path:
    """Where that tracker writes in a training folder."""
    path = folder / "trackers" / "lines"
    path.mkdir(parents=True, exist_ok=True)
    return path


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def received(folder: Path) -> list[dict[str, object]]:
    """The rows that arrived, in the order of their arrival."""
    return [row for row in rows(store(folder) / "rows.jsonl") if "step" in row]


@contextmanager
def tracking(own: str, folder: Path, messages: list[str] | None = None) -> Iterator[None]:
    """A training in a folder whose only part is `rl`."""
    with tracked([own], folder, {"threads": 1}, (messages if messages is not None else []).append):
        yield


def write(log: MetricsLog, *steps: int) -> None:
    for step in steps:
        log.write({"step": step, "loss": 1.0 / step})


def test_a_tracker_gets_the_rows_as_they_are_written_and_none_of_their_nans(own: str, tmp_path: Path) -> None:
    path = tmp_path / "out" / "rl" / "metrics.jsonl"
    with tracking(own, tmp_path / "out"):
        log = MetricsLog(path)
        log.write({"step": 1, "loss": 1 / 3, "ratio": float("nan")})
        log.write({"step": 1, "held/mrr": 0.5})  # a second row of a step, as retrievers have them
        assert received(tmp_path / "out") == [{**row, "part": "rl"} for row in rows(path)]
    first, *_, last = rows(store(tmp_path / "out") / "rows.jsonl")
    assert first["open"] == "out/rl" and first["threads"] and last["closed"]
    assert received(tmp_path / "out")[0]["loss"] == 0.333333


def test_a_resumed_run_has_the_same_id_and_names_the_step_of_its_checkpoint(own: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = out / "rl" / "metrics.jsonl"
    with tracking(own, out):
        log = MetricsLog(path)
        write(log, 1, 2)
        checkpoint = log.position
        write(log, 3)
    with tracking(own, out):
        write(MetricsLog(path, checkpoint), 3, 4)
    assert [row["step"] for row in received(out)] == [1, 2, 3, 3, 4]
    opened = [row for row in rows(store(out) / "rows.jsonl") if "open" in row]
    assert [row["last"] for row in opened] == [None, 2] and len({row["id"] for row in opened}) == 1
    write(MetricsLog(out / "other" / "metrics.jsonl"), 1)  # outside of the block, nothing is sent
    assert len(received(out)) == 5


def test_a_fault_is_reported_once_and_the_tracker_is_retried_after_a_pause(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, messages = tmp_path / "out", list[str]()
    (store(out) / "down").write_text("2")
    with tracking(own, out, messages):
        log = MetricsLog(out / "rl" / "metrics.jsonl")
        write(log, 1, 2)
        (store(out) / "down").unlink()
        write(log, 3)  # within the pause
        monkeypatch.setattr(tracker_module, "RETRY_S", 0.0)
    assert [row["step"] for row in received(out)] == [1]
    assert len(messages) == 2 and "failed (ConnectionError: nobody answers); training continues" in messages[0]
    assert messages[1].endswith("lines.py: 2 rows were not sent; metrics.jsonl has them")
    (store(out) / "down").write_text("5")
    with tracking(own, out, messages):
        write(log := MetricsLog(out / "rl" / "metrics.jsonl", log.position), 4, 5)
        (store(out) / "down").unlink()
        write(log, 6)
    assert [row["step"] for row in received(out)] == [1, 4, 6] and "1 rows were not sent" in messages[-1]


def test_ctrl_c_closes_the_run(own: str, tmp_path: Path) -> None:
    with suppress(KeyboardInterrupt), tracking(own, tmp_path / "out"):
        write(MetricsLog(tmp_path / "out" / "rl" / "metrics.jsonl"), 1)
        raise KeyboardInterrupt
    assert [row.get("closed") for row in rows(store(tmp_path / "out") / "rows.jsonl")] == [None, None, True]


@pytest.mark.parametrize("source", ["import sys\ndef open_run(run): sys.exit(3)\n", "def open_run(run): return None\n"])
def test_no_tracker_ends_a_training(source: str, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(source, encoding="utf-8")
    messages: list[str] = []
    with tracking(str(tmp_path / "odd.py"), tmp_path / "out", messages):
        write(MetricsLog(tmp_path / "out" / "rl" / "metrics.jsonl"), 1, 2)
    assert len(rows(tmp_path / "out" / "rl" / "metrics.jsonl")) == 2 and "2 rows were not sent" in messages[-1]


Curves = dict[str, list[tuple[int, float]]]
"""Name → (step, value), as a service gives them back."""


def from_tensorboard(out: Path) -> Curves:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(out / "trackers" / "tensorboard" / "rl"))
    events.Reload()
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}


def from_mlflow(out: Path) -> Curves:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(out / "trackers" / "mlflow").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("coseek").experiment_id])
    assert run.info.run_name == "out/rl" and run.data.params == {"threads": "1"}
    return {
        name: [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }


def from_trackio(out: Path) -> Curves:
    from trackio.sqlite_storage import SQLiteStorage

    (name,) = SQLiteStorage.get_runs("coseek")
    curves: Curves = {}
    for row in SQLiteStorage.get_logs("coseek", name):
        for key in row.keys() - {"step", "timestamp"}:
            curves.setdefault(key, []).append((row["step"], row[key]))
    return curves


SERVICES = {"tensorboard": from_tensorboard, "mlflow": from_mlflow, "trackio": from_trackio}


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_holds_every_row_of_a_run_that_is_resumed(
    service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # Trackio reads it when it is imported
    if service != "tensorboard":  # the development extra has that one
        pytest.importorskip(service)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    out, messages = tmp_path / "out", list[str]()
    path = out / "rl" / "metrics.jsonl"
    with suppress(KeyboardInterrupt), tracking(service, out, messages):
        log = MetricsLog(path)
        write(log, 1, 2)
        log.write({"step": 2, "held/recall@5": 0.25})
        checkpoint = log.position
        write(log, 3)
        raise KeyboardInterrupt
    with tracking(service, out, messages):
        write(MetricsLog(path, checkpoint), 3, 4)
    assert messages == [] and capsys.readouterr().out == ""
    curves = {name.replace("@", "-"): sorted(set(values)) for name, values in SERVICES[service](out).items()}
    assert curves == {
        "loss": [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3, rel=1e-5)), (4, 0.25)],
        "held/recall-5": [(2, 0.25)],
    }
    if service == "tensorboard":  # it removes rows that were sent after the checkpoint
        assert len(SERVICES[service](out)["loss"]) == 4


def test_a_tracker_that_seeds_every_generator_changes_no_draw_of_a_training(own: str, tmp_path: Path) -> None:
    with tracking(own, tmp_path / "out"):
        before = random_states()
        write(MetricsLog(tmp_path / "out" / "rl" / "metrics.jsonl"), 1)
    assert len(received(tmp_path / "out")) == 1 and random_states() == before


def random_states() -> list[bytes]:
    return [pickle.dumps(state) for state in (random.getstate(), np.random.get_state())] + [  # noqa: NPY002
        torch.get_rng_state().numpy().tobytes()
    ]


@pytest.mark.medium
def test_the_rows_of_a_retriever_reach_its_trackers(own: str, tmp_path: Path) -> None:
    write_labels(tmp_path / "labels")
    make_encoder(tmp_path / "encoder")
    steps = ("training.steps=4", "training.log_every=2", "held_out.share=0")
    train_retriever(tmp_path, tmp_path / "out", *steps, f"track=[{own}]")
    assert [row["step"] for row in received(tmp_path / "out")] == [2, 4]
    assert rows(store(tmp_path / "out") / "rows.jsonl")[0]["open"] == "out"


@pytest.mark.parametrize(
    ("load", "name", "kind"),
    [(load_recipe, "from-nothing", AgentRecipe), (load_retriever_recipe, "laptop", RetrieverRecipe)],
)
def test_trackers_may_change_when_a_training_goes_on(
    load: Callable[..., Settings], name: str, kind: type[Settings], own: str
) -> None:
    tracked, plain = (dump_settings(load(name, overrides)) for overrides in ([f"track=[{own}]"], []))
    assert fixed_settings(kind, tracked) == fixed_settings(kind, plain) and tracked != plain


@pytest.mark.parametrize("words", [["agent", "quickstart"], ["retriever", "laptop"]])
def test_an_unknown_tracker_is_refused_with_the_nearest_name(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *words, "--out", str(tmp_path / "out"), "track=[tensorbord]"]) == 2
    assert "no tracker named 'tensorbord'; did you mean 'tensorboard'?" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_no_tracker_and_a_missing_library_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text("open_run = 3\n")
    with pytest.raises(SettingError, match="must be a function"):
        find_tracker(str(tmp_path / "odd.py"))
    with pytest.raises(UnknownName):
        find_tracker("nobody")
    absent = [name for name in ADAPTERS if importlib.util.find_spec(name) is None]
    for name in absent:
        with pytest.raises(MissingExtra, match=rf"pip install 'coseek\[{name}\]'$"):
            find_tracker(name)


def test_a_folder_of_a_librarys_name_is_not_taken_for_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb").mkdir()  # as W&B leaves them behind
    monkeypatch.syspath_prepend(str(tmp_path))
    if getattr(importlib.util.find_spec("wandb"), "origin", None) is None:
        with pytest.raises(MissingExtra):
            find_tracker("wandb")
    else:
        find_tracker("wandb")
