import time
from pathlib import Path

import pytest

from rn50.logging.clock import Clock, present
from rn50.logging.line_file import last_stamp_unix_s
from rn50.logging.metrics import Metrics
from rn50.logging.mlperf import MLPerfLog, close_interrupted
from rn50.logging.parse import read_events
from rn50.logging.timeline import Timeline

HOUR_S = 3600.0


def set_wall_clock(monkeypatch: pytest.MonkeyPatch, by_s: float) -> None:
    """The wall clock of this process jumps."""
    real_time = time.time
    monkeypatch.setattr(time, "time", lambda: real_time() + by_s)


@pytest.mark.parametrize("by_s", [HOUR_S, -HOUR_S, 0.5])
def test_a_jump_of_the_wall_clock_is_seen_once_and_moves_no_stamp(
    by_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    assert clock.look() is None
    before_s = clock.unix_s
    set_wall_clock(monkeypatch, by_s)
    assert 0 <= clock.unix_s - before_s < 60
    assert clock.look() == pytest.approx(by_s, abs=0.05)
    assert clock.look() is None
    comparison = clock.comparison()
    (jump,) = comparison.jumps
    assert jump.by_s == pytest.approx(by_s, abs=0.05)
    assert comparison.wall_minus_monotonic_s == pytest.approx(by_s, abs=0.05)


def test_a_moment_has_one_stamp_whenever_it_is_asked() -> None:
    clock = Clock()
    moment = present()
    stamps_s = {clock.unix_s_at(moment) for _ in range(100)}
    assert len(stamps_s) == 1


def test_a_run_that_goes_on_does_not_run_back() -> None:
    last_s = time.time() + HOUR_S  # written before the wall clock was set back
    clock = Clock(not_before_unix_s=last_s)
    assert clock.unix_s >= last_s
    assert clock.behind_s == pytest.approx(HOUR_S, abs=5)
    assert clock.look() is None, "that is no jump of this attempt"
    assert Clock(not_before_unix_s=last_s - 2 * HOUR_S).behind_s == 0


def test_log_metrics_and_timeline_share_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    log = MLPerfLog(tmp_path / "log.txt", clock, resumed=True)
    metrics = Metrics(tmp_path / "metrics.jsonl", clock)
    timeline = Timeline(0, clock)
    metrics.start_clock(clock.unix_s)
    with timeline.span("epoch 1"):
        log.event("block_start", first_epoch_num=1, epoch_count=1)
        set_wall_clock(monkeypatch, -HOUR_S)
        log.clock_jump(-HOUR_S)
        log.abort()
    assert 0 <= metrics.elapsed_s < 60
    assert 0 <= timeline.spans[0]["dur"] < 60e6
    events = read_events(tmp_path / "log.txt")
    assert [(event.key, event.value) for event in events][1:] == [
        ("wall_clock_jump", -HOUR_S),
        ("run_stop", None),
    ]
    stamps = [event.time_ms for event in events]
    assert stamps == sorted(stamps)
    assert stamps[-1] - stamps[0] < 60_000
    assert last_stamp_unix_s(tmp_path / "log.txt") == stamps[-1] / 1000


def test_the_end_of_an_interrupted_log_is_not_before_its_last_stamp(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.txt"
    late_ms = int((time.time() + HOUR_S) * 1000)
    path.write_text(
        f':::MLLOG {{"time_ms": {late_ms}, "key": "run_start", "value": null}}\n'
    )
    close_interrupted(path)
    assert '"run_stop"' in path.read_text()
    assert last_stamp_unix_s(path) * 1000 >= late_ms
    assert last_stamp_unix_s(tmp_path / "none") == 0
    closed = path.read_bytes()
    close_interrupted(path)
    assert path.read_bytes() == closed
