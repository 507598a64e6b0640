"""A real run of two ranks: its records for other tools, its evaluation once more."""

import csv
import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image
from scipy.special import softmax

from rn50.config.layout import with_ranks
from rn50.config.load import load
from rn50.config.recorded import RUN, words_to_repeat
from rn50.config.schema import Data
from rn50.data.dataset import photo_names
from rn50.launch.evaluation import _config_of
from rn50.logging.records import Confusions, read
from rn50.logging.run_folder import RunFolder
from rn50.report.export import MOST_COLUMNS, read_runs, to_csv, to_tensorboard
from rn50.train.checkpoint.file import read_checkpoint
from rn50.train.checkpoint.folder import checkpoints_in, chosen_checkpoint
from tests.conftest import (
    Rn50,
    flip_bit,
    metrics,
    packed,
    read_json,
    refused,
    write_metrics,
)
from tests.report.conftest import write_config
from tests.waiting import finished

TAGS = {
    "train/loss",
    "train/lr",
    "train/images_per_s",
    "eval/accuracy",
    "eval/correct_top5",
}
PLAIN_MXNET = """
import sys
import numpy as np
plain = hasattr(np, "product")
if not plain:
    import rn50  # MXNet itself does not load over NumPy 2
import mxnet as mx
images, labels = (np.load(path) for path in sys.argv[2:])
symbol, arguments, states = mx.model.load_checkpoint(sys.argv[1], 0)
net = symbol.bind(mx.cpu(), {"data": mx.nd.array(images), **arguments}, aux_states=states)
logits = net.forward(is_train=False)[0].asnumpy()
assert not plain or "rn50" not in sys.modules
np.save(sys.argv[1] + "-logits.npy", logits)
print((logits.argmax(axis=1) == labels).sum())
"""


SHORT = (
    "seed=1",
    "schedule.length=3 epochs",
    "eval.period=1",
    "eval.offset=0",
    "eval.target=0.15",
    "log.every=5 steps",
    "division=open",
)
DRAWN = "{train_samples: 400, eval_samples: 200, classes: 10}"


def places(run: Path) -> list[str]:
    return words_to_repeat(run, RUN)


def train(folder: Path, *more: str) -> Path:
    """A run of two ranks on ten classes, so that top-5 is not all."""
    rn50 = Rn50(folder / "results")
    paths = (f"data.synthetic={DRAWN}", f"system.results={rn50.results}")
    done = rn50("launch", "smoke", "--ranks=2", *SHORT, *paths, *more)
    assert done.returncode in (0, 1), done.stderr
    return rn50.run_folder()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that reaches its target."""
    folder = tmp_path_factory.mktemp("export")
    path = packed(folder / "set", DRAWN)
    return train(folder, f"data.path={path}")


# --- the evaluation -------------------------------------------------------------------------------


class Rescored(NamedTuple):
    """The run's evaluation once more, with what it got wrong."""

    scores: dict[str, Any]
    table: list[dict[str, str]]


@pytest.fixture(scope="module")
def rescored(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Rescored:
    folder = tmp_path_factory.mktemp("rescored")
    table = folder / "wrong.csv"
    scores = evaluated(Rn50(folder), run, *places(run), "--wrong", "--csv", table)
    return Rescored(scores, list(csv.DictReader(table.open())))


@pytest.mark.slow
def test_an_evaluation_again_finds_the_recorded_counts(
    rn50: Rn50, run: Path, rescored: Rescored, tmp_path: Path
) -> None:
    scores = rescored.scores
    recorded = metrics(run, "eval")[-1]
    assert scores["as_recorded"]
    assert scores["ranks"] == 2
    for key in ("correct", "correct_top5", "total", "accuracy", "step"):
        assert scores[key] == recorded[key]
    assert scores["correct"] < scores["correct_top5"] < scores["total"]
    other_seed = DRAWN.replace("{", "{seed: 1, ")
    other_set = packed(tmp_path / "other", other_seed)
    overrides = (f"data.path={other_set}", f"data.synthetic={other_seed}")
    moved = shutil.copytree(run, tmp_path / "moved")
    scores = evaluated(rn50, moved, *overrides, "--ranks=1")
    assert scores["as_recorded"] is None
    assert not list(run.parent.parent.glob(".evaluate.*"))


def test_an_evaluation_sums_no_gradients(tmp_path: Path) -> None:
    """A grid of four ranks is scored on one."""
    write_config(tmp_path, "system.ranks_per_node=4", "comm.algorithm=torus_2d")
    checkpoint = Mock(path=tmp_path / "checkpoint/best.ckpt")
    run = _config_of(checkpoint, with_ranks([], 1)).run
    assert (run.system.world_size, run.comm.algorithm) == (1, "auto")


@pytest.mark.slow
def test_wrong_photos_are_named_and_new_ones_get_the_same_classes(
    rn50: Rn50, run: Path, rescored: Rescored, tmp_path: Path
) -> None:
    scores, rows = rescored
    wrong = scores["wrong"]
    assert len(wrong) == scores["total"] - scores["correct"]
    confusions = read(RunFolder(run).confusions, Confusions)
    assert confusions is not None
    assert sum(map(sum, confusions.counts)) == scores["total"]
    assert np.trace(confusions.counts) == scores["correct"]
    assert [row["photo"] for row in rows] == [row["photo"] for row in wrong]
    guesses = {row["photo"]: row for row in wrong}
    for name, row in guesses.items():
        assert name.startswith(f"{row['class']}/")
        assert row["guess"] != row["class"]
    folder = Path(load(run / "config.yaml").run.data.path)
    stored = enumerate(photo_names(folder / "val.rec"))
    numbers = [number for number, name in stored if name in guesses][:5]
    photos: list[Path] = []
    for number, image in zip(numbers, images_of(folder, numbers), strict=True):
        photos.append(tmp_path / f"{9 - number % 10} {number}.jpg")
        photos[-1].write_bytes(image)
    answers: Any = evaluated(rn50, run, *places(run), "--image", *photos)
    names = photo_names(folder / "val.rec")
    for answer, photo, number in zip(answers, photos, numbers, strict=True):
        expected = guesses[names[number]]
        guess, probability = next(iter(answer["classes"].items()))
        assert answer["image"] == str(photo)
        assert guess == expected["guess"]
        assert probability == pytest.approx(expected["probability"], abs=1e-4)
    assert not list(run.parent.parent.glob(".images*"))
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"no photo")
    command = ("evaluate", str(run), *places(run), "--image", str(bad))
    assert str(bad) in rn50.error(*command)
    assert "evaluate RUN --image" in rn50.error("predict", str(bad))


def images_of(folder: Path, numbers: Sequence[int]) -> list[bytes]:
    """Photos of the evaluation set, as they are packed."""
    from rn50.data.pipeline import RecordFile

    return list(map(bytes, RecordFile(folder, "val").images(np.array(numbers))))


def evaluated(rn50: Rn50, *arguments: str | Path) -> Any:
    out = rn50.output("evaluate", "--json", *map(str, arguments))
    return json.loads(out)


def counts_of(scores: Any, labels: Any) -> tuple[int, int]:
    """(top-1, top-5) hits."""
    falling = np.argsort(-scores, axis=1)
    hits = falling[:, :5] == labels[:, None]
    return int(hits[:, 0].sum()), int(hits.any(axis=1).sum())


def whole_evaluation_set(data: Data) -> Any:
    """All images of a set as one batch."""
    from rn50.data.pipeline import build_eval_source

    source = build_eval_source(data, batch_per_rank=data.eval_samples, rank=0, ranks=1)
    return source.next()


@pytest.mark.nightly
@pytest.mark.slow
def test_an_ensemble_averages_the_softmax_of_different_networks(
    rn50: Rn50, run: Path, tmp_path: Path
) -> None:
    from rn50.train.checkpoint.model_export import build_evaluation_network
    from rn50.train.checkpoint.resume import recorded_run

    data = load(run / "config.yaml").run.data
    second_run = train(tmp_path, "seed=2", "model.width=24", f"data.path={data.path}")
    scores = evaluated(rn50, run, second_run, *places(run))
    batch = whole_evaluation_set(data)
    labels = batch.labels.asnumpy()
    shares = []
    for member in (run, second_run):
        chosen = chosen_checkpoint(member)
        net = build_evaluation_network(chosen, recorded_run(chosen))
        logits = net(batch.images).asnumpy()
        shares.append(softmax(logits.astype(np.float64), axis=1))
    mean = np.mean(shares, axis=0)
    scored = [*scores["runs"], scores["ensemble"]]
    for score, expected in zip(scored, (*shares, mean), strict=True):
        counts = (score["correct"], score["correct_top5"])
        assert counts == counts_of(expected, labels)
    of_logits = np.mean(np.log(shares), axis=0)
    # so their mean would be noticed
    assert counts_of(of_logits, labels) != counts_of(mean, labels)
    config = second_run / "config.yaml"
    config.write_text(config.read_text().replace("crop_px: 24", "crop_px: 20"))
    members = (str(run), str(second_run))
    error = rn50.error("evaluate", *members, *places(run))
    assert f"{second_run}: data.crop_px 24 expected" in error
    assert "found 20" in error


@pytest.mark.nightly
@pytest.mark.slow
def test_as_many_ranks_score_with_the_statistics_of_all_as_one_rank_does(
    rn50: Rn50, uninterrupted: Path
) -> None:
    """The checkpoint was written between evaluations and has the statistics of each rank."""
    checkpoints = map(read_checkpoint, checkpoints_in(uninterrupted / "checkpoint"))
    path, *_ = (file.path for file in checkpoints if file.meta.statistics_rows == 2)
    evaluation = partial(evaluated, rn50, path, *places(uninterrupted))
    of_one = evaluation("--ranks=1")
    of_two = evaluation("--ranks=2")
    assert of_one["correct"] == of_two["correct"]


@pytest.mark.slow
def test_plain_mxnet_scores_the_exported_model_as_the_run_did(
    rn50: Rn50, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    """The run's own evaluation images go to programs that do not know rn50, prepared by it and by
    the code of docs/export.md. RN50_ONNX: a folder of CI's with onnx and onnxruntime."""
    if folder := os.environ.get("RN50_ONNX"):
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setenv("PYTHONPATH", folder)
    with_onnx = find_spec("onnx")
    out = tmp_path / "model"
    data = load(run / "config.yaml").run.data
    arguments = ["export", "model", str(run), "--out", str(out)]
    files = ["model-0000.params", "model-symbol.json", "model.json"]
    if with_onnx:
        arguments.append("--onnx")
        files.append("model.onnx")
    rn50.output(*arguments)
    assert sorted(path.name for path in out.iterdir()) == files
    description = read_json(out / "model.json")
    last = metrics(run, "eval")[-1]
    assert description["accuracy"] == last["accuracy"]
    assert description["step"] == last["step"]
    preparation = description["input"]
    assert preparation["centre_crop_px"] == data.crop_px
    assert preparation["antialias"] is False
    manifest = read_json(Path(data.path) / "manifest.json")
    assert description["output"] == {"logits": 10, "classes": manifest["classes"]}
    batch = whole_evaluation_set(data)
    images = tmp_path / "images.npy"
    labels = tmp_path / "labels.npy"
    np.save(images, batch.images.asnumpy())
    np.save(labels, batch.labels.asnumpy())
    page = (root / "docs/export.md").read_text()
    (code,) = re.findall(r"```python\n(import json\n.*?)```", page, re.S)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code, names)
    prepared = []
    for image in images_of(Path(data.path), range(data.eval_samples)):
        Path("photo").write_bytes(image)
        prepared.append(names["prepare"]("photo"))
    theirs = np.stack(prepared)
    ours = np.load(images)
    std = np.reshape(data.std, (3, 1, 1))
    levels = np.abs(theirs - ours) * std
    assert levels.max() < 1.5
    assert levels.mean() < 0.1
    Image.new("I;16", (60, 40), 30_000).save("photo", "PNG")
    grey_levels = names["prepare"]("photo") * std + np.reshape(data.mean, (3, 1, 1))
    np.testing.assert_allclose(grey_levels, 117, rtol=1e-4)
    np.save("prepared.npy", prepared)
    program = (sys.executable, "-c", PLAIN_MXNET, out / "model")
    for array, brink in ((tmp_path / "prepared.npy", 1), (images, 0)):
        counted = finished([*program, array, labels], cwd="/")
        assert counted.returncode == 0, counted.stderr
        *_, correct = counted.stdout.split()
        assert abs(int(correct) - last["correct"]) <= brink
    if not (with_onnx and find_spec("onnxruntime")):
        pytest.skip("no onnx, onnxruntime here: the MXNet half has passed")
    import onnxruntime

    session = onnxruntime.InferenceSession(
        out / "model.onnx", providers=["CPUExecutionProvider"]
    )
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["model"]) == description
    (logits,) = session.run(None, {"data": theirs})
    correct, _ = counts_of(logits, np.load(labels))
    assert abs(correct - last["correct"]) <= 1
    (logits,) = session.run(None, {"data": ours})
    np.testing.assert_allclose(
        logits, np.load(f"{out}/model-logits.npy"), rtol=1e-4, atol=1e-4
    )


@pytest.mark.slow
def test_what_has_no_checkpoint_or_a_damaged_one_is_one_line(
    rn50: Rn50, run: Path, tmp_path: Path
) -> None:
    several = ("system.nodes=2", "system.ranks_per_node=1")
    error = rn50.error("evaluate", str(run), *places(run), *several)
    assert "system.nodes: 2 hosts expected" in error
    copy = shutil.copytree(run, tmp_path / "copy")
    best = copy / "checkpoint/best.ckpt"
    flip_bit(best, -1)
    error = rn50.error("evaluate", str(copy), *places(copy))
    assert f"{best}: torn or damaged: its digest does not fit" in error
    copy = copy.rename(tmp_path / "run_0")
    error = rn50.error("evaluate", str(tmp_path))
    assert error.endswith(f"its first: {copy}")
    shutil.rmtree(copy / "checkpoint")
    message = f"{copy}/checkpoint: a whole checkpoint expected in it, found none"
    assert rn50.error("evaluate", str(copy)) == f"rn50: error: {message}"


# --- the records ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_table_has_all_records(rn50: Rn50, run: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    said = f"{empty}/metrics.jsonl: the records of a run expected, found none"
    assert rn50.error("export", "csv", str(empty)) == f"rn50: error: {said}"
    done = rn50("export", "csv", str(empty), str(run))
    assert done.returncode == 0
    assert done.stderr == f"rn50: note: {said}\n"
    rows = list(csv.DictReader(done.stdout.splitlines()))
    lines = (run / "metrics.jsonl").read_text().splitlines()
    numbers = {"loss", "accuracy", "lr", "step", "time_s"}
    for row, line in zip(rows, lines, strict=True):
        record = json.loads(line)
        assert row["kind"] == record["kind"]
        for key in record.keys() & numbers:
            assert float(row[key]) == record[key]
    keys = ("run", "name", "seed", "optimizer.base_lr")
    parameters = {tuple(row[key] for key in keys) for row in rows}
    assert parameters == {(f"smoke/{run.name}", "smoke", "1", "0.05")}
    stamps = [float(row["unix_s"]) for row in rows]
    assert stamps == sorted(stamps)
    assert abs(stamps[0] - (run / "config.yaml").stat().st_mtime) < 60


def test_a_table_has_no_more_columns_than_any_program_writes(tmp_path: Path) -> None:
    """Each name would cost a cell in every row."""
    numbers = {f"m{number}": 1 for number in range(MOST_COLUMNS)}
    write_metrics(tmp_path, [{"kind": "k0"} | numbers])
    file = tmp_path / "metrics.jsonl"
    with refused(f"^{file}: at most {MOST_COLUMNS} columns expected"):
        to_csv(read_runs([tmp_path]).runs)


def test_each_run_has_a_name_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the folder of the run's events and the run of a row in a table."""
    record = {"kind": "train", "step": 3, "a\rb": 1}
    names = ["quick/T/run_0", "smoke/\x1b", "trial_1/quick/T", "trial_2/quick/T"]
    for name in names:
        write_metrics(tmp_path / name, [record])
    runs = read_runs([tmp_path, tmp_path / "smoke/../trial_1"]).runs
    assert [run.name for run in runs] == names
    assert "\nsmoke/\\x1b,train,0.0,,3\n" in to_csv(runs)
    monkeypatch.setattr(os, "scandir", Mock(side_effect=OSError))
    assert read_runs([tmp_path / "quick/T/run_0"]).unread


@pytest.mark.slow
def test_tensorboard_reads_every_point(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="no tensorboardX here")
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="no tensorboard here",
    )
    for _ in range(2):  # the second export replaces the first
        to_tensorboard(read_runs([run]).runs, tmp_path)
    folder = tmp_path / "smoke" / run.name
    board = events.EventAccumulator(str(folder))
    board.Reload()
    assert set(board.Tags()["scalars"]) >= TAGS
    started = board.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    assert b"optimizer.base_lr" in started
    assert b"seed" in started
    evaluations = metrics(run, "eval")
    scalars = board.Scalars("eval/accuracy")
    for evaluation, scalar in zip(evaluations, scalars, strict=True):
        assert scalar.step == evaluation["step"]
        assert scalar.value == pytest.approx(evaluation["accuracy"])
