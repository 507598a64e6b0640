import json
import threading
from pathlib import Path

import pytest

from rn50.logging.clock import Clock
from rn50.logging.metrics import Metrics
from rn50.logging.timeline import Timeline


def lines_of(path: Path) -> list[dict[str, object]]:
    return list(map(json.loads, path.open()))


def test_every_record_is_a_line_of_json_with_kind_and_time(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl", Clock())
    metrics.write("train", step=20, loss=0.1 + 0.2)
    metrics.write("eval", accuracy=0.759)
    first, second = lines_of(tmp_path / "metrics.jsonl")
    assert first == {
        "kind": "train",
        "time_s": first["time_s"],
        "step": 20,
        "loss": 0.1 + 0.2,
    }
    assert (second["kind"], second["accuracy"]) == ("eval", 0.759)
    assert isinstance(first["time_s"], float)
    assert first["time_s"] <= second["time_s"]  # type: ignore[operator]


def test_a_file_that_is_removed_is_put_back_with_all_its_lines(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(path, Clock())
    for step in range(1, 4):
        metrics.write("train", step=step)
        path.unlink()
    assert metrics.size_bytes == path.stat().st_size
    assert [line["step"] for line in lines_of(path)] == [1, 2, 3]
    assert capfd.readouterr().err.count(f"rn50: warning: {path}: removed") == 3


def test_times_count_from_the_start_of_the_clock(tmp_path: Path) -> None:
    clock = Clock()
    metrics = Metrics(tmp_path / "metrics.jsonl", clock)
    metrics.start_clock(clock.unix_s - 100)
    metrics.write("train")
    elapsed_s = metrics.elapsed_s
    assert 100 <= elapsed_s < 160
    (record,) = lines_of(tmp_path / "metrics.jsonl")
    assert 100 <= record["time_s"] <= elapsed_s  # type: ignore[operator]


def test_a_timeline_is_a_chrome_trace() -> None:
    timeline = Timeline(3)
    timeline.add("build network", 100.0, 100.25)
    trace = json.loads(timeline.to_json())
    assert trace["displayTimeUnit"] == "ms"
    (span,) = trace["traceEvents"]
    assert span == {
        "name": "build network",
        "ph": "X",
        "ts": 100_000_000,
        "dur": 250_000,
        "pid": 3,
        "tid": "MainThread",
    }


def test_a_span_that_fails_is_recorded_and_named() -> None:
    timeline = Timeline(0)
    with timeline.span("first"):
        pass
    with pytest.raises(ZeroDivisionError), timeline.span("connect ranks"):
        raise ZeroDivisionError
    assert [span["name"] for span in timeline.spans] == ["first", "connect ranks"]
    assert timeline.phase == "connect ranks"


def test_spans_of_threads_lie_on_lines_of_their_own() -> None:
    timeline = Timeline(0)

    def work() -> None:
        with timeline.span("stage"):
            pass

    names = [f"stage-{number}" for number in range(8)]
    threads = [threading.Thread(target=work, name=name) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(span["tid"] for span in timeline.spans) == names
