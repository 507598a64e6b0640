"""report.html: its content, its harmlessness, and how a browser takes it."""

import os
import re
from html.parser import HTMLParser
from operator import itemgetter
from pathlib import Path

import pytest

from rn50.config.load import load
from rn50.launch.run import try_report
from rn50.logging.run_folder import RunFolder
from rn50.report.html import render_report, write_report
from rn50.report.norms import norm_ratios
from rn50.report.plots import Plots, _planned, page_charts
from rn50.report.run_records import read_subjects
from tests.checkout import SHARED
from tests.cli.test_check import log
from tests.compliance.log_text import Run, drop, find, good_run, last, write
from tests.compliance.test_rules import nth
from tests.conftest import Rn50, refused, write_json, write_metrics
from tests.report.conftest import Measure, images_of, write_config
from tests.report.test_breakdown import records as step_records
from tests.report.test_breakdown import table as rank_table

LOGS = SHARED / "data/mlperf_logs/logs"
HOSTILE = (
    '"><script>document.title="owned"</script><img src=x onerror="document.title=1">'
    "'{{ 7*7 }}{% raw %}</style></svg></title>\x1b[31m\u202e&lt;"
)


def train_records(steps: int = 10) -> list[dict[str, object]]:
    return [
        {
            "kind": "train",
            "time_s": 2.0 * i,
            "step": 20 * i,
            "epoch": 0.5 * i,
            "loss": 3.0 / i,
            "lr": 0.1 / i,
            "momentum": 0.9,
            "global_batch_size": 64,
            "images_per_s": 640.0 + i,
        }
        for i in range(1, steps + 1)
    ]


def norm_records(points: int = 4) -> list[dict[str, object]]:
    """The norms of two layers and a bias; the ratios rise and fall, as a straight line is drawn by
    its ends."""
    records = []
    for i in range(1, points + 1):
        jagged = i / (1 + i % 2)
        values = {
            "weight_norm": 7.125,
            "gradient_norm": 0.25,
            "norm_ratio": 10 * jagged,
            "trust_ratio": jagged / 100,
        }
        for kind, value in values.items():
            record: dict[str, object] = {
                "kind": kind,
                "step": 20 * i,
                "conv1_weight": value,
                "conv2_weight": 2 * value,
            }
            if kind != "trust_ratio":
                record["fc_bias"] = 3.5
            records.append(record)
    return records


def span(
    name: str, start_s: float, duration_s: float, **more: object
) -> dict[str, object]:
    return {
        "name": name,
        "ph": "X",
        "ts": round(start_s * 1e6),
        "dur": round(duration_s * 1e6),
        "pid": 0,
        "tid": "main",
        **more,
    }


SPANS = [
    span("load MXNet", 100.0, 2.0),
    span("connect ranks", 102.0, 1.0, tid="startup_0"),
    span("build network", 102.0, 1.5, tid="startup_1"),
    span("epoch 1", 103.5, 10.0),
    span("epoch 2", 113.5, 14.0),
    span("evaluate 2", 127.5, 1.0),
]


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A finished run with all its files, such as `rn50 launch` leaves."""
    folder = log(tmp_path / "runs/quick-run").parent
    loaded = write_config(folder, "seed=7", "eval.target=0.7")
    origins = {path: str(origin) for path, _, origin in loaded.leaves()}
    write_json(folder / "origins.json", origins)
    write_metrics(folder, [*train_records(), *step_records()])
    write_json(folder / "ranks.json", rank_table(["node-17", "node-18"]))
    write_json(folder / "timeline.json", {"traceEvents": SPANS})
    environment = {"host": "node-17", "packages": {"mxnet": "1.9.1"}}
    write_json(folder / "environment.json", environment)
    result = {"ranks": 2, "status": "success", "mfu": 0.3825}
    result |= {"flops": 2_826_000_000_000_000, "allreduce_bytes": 51_100_000}
    write_json(folder / "result.json", result)
    return folder


def hostile_run() -> Run:
    run = good_run()
    for key in ("submission_org", "submission_platform", "seed", "opt_name"):
        find(run, key).value = HOSTILE
    last(run, "run_stop").metadata["status"] = HOSTILE
    return run


@pytest.fixture
def hostile_folder(run_folder: Path) -> Path:
    """Hostile text wherever a file of a run can hold text."""
    write(run_folder / "result_0.txt", hostile_run())
    record = dict.fromkeys(("kind", "step", "loss"), HOSTILE)
    write_metrics(run_folder, [*train_records(), record])
    spans = [*SPANS, span(HOSTILE, 100, 1, tid=HOSTILE, pid=HOSTILE)]
    write_json(run_folder / "timeline.json", {"traceEvents": spans})
    hostile = {HOSTILE: HOSTILE}
    environment = hostile | {"host": HOSTILE, "packages": hostile}
    write_json(run_folder / "environment.json", environment)
    onward = {"verb": HOSTILE, "folder": HOSTILE}
    result = {"status": "failed", "reason": HOSTILE, "next": onward}
    write_json(run_folder / "result.json", result)
    write_json(run_folder / "origins.json", {"seed": HOSTILE})
    confusions = {"step": 1, "classes": [HOSTILE], "counts": [[-9, 7]]}
    write_json(run_folder / "confusions.json", confusions)
    return run_folder


def page_of(path: Path) -> str:
    (subject,) = read_subjects(path)
    return render_report(subject)


ACTIVE = {"iframe", "object", "link", "base", "form"}


class Shape(HTMLParser):
    """Tags that are balanced, attributes as they are, the text."""

    VOID = ("meta", "br", "wbr", "img")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.extend(attrs)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def text_of(path: Path) -> str:
    return Shape(page_of(path)).text


# --- content --------------------------------------------------------------------------------------


def test_all_of_a_run_is_on_its_page(run_folder: Path) -> None:
    shape = Shape(page_of(run_folder))
    for said in (
        "target 0.7, epoch 35",
        "MLCommons compliance checker 4.1.68",
        "PASS",
        "Top-1 accuracy by time",
        "4.500 s of stages in 3.500 s",  # of the start-up
        "connect ranks",
        "Rank 0, as its device did it: medians of the log points",
        "rank 0 on node-17",
        f"rn50 launch {run_folder}/config.yaml",
        "packages.mxnet",
        "base_learning_rate",
        "FLOPs2.826e+15",
        "MFU38.25 %",
        "Allreduced51.10 MB",
        "config/smoke.yaml",  # where a value of the config comes from
        "command line",
        load("smoke", ["seed=7", "eval.target=0.7"]).sha256,
    ):
        assert said in shape.text, said
    assert shape.tags.count("img") == 6
    ids = [f"#{value}" for name, value in shape.attributes if name == "id"]
    links = {value for name, value in shape.attributes if name == "href"}
    assert len(ids) == len(set(ids))
    assert links <= set(ids)


def test_norms_are_drawn_and_the_last_ones_tabled(run_folder: Path) -> None:
    assert "Norms by layer" not in text_of(run_folder)
    write_metrics(run_folder, [*train_records(), *norm_records()])
    page = page_of(run_folder)
    page_text = " ".join(Shape(page).text.split())
    for said in (
        "All tensors at step 80",
        "conv2_weight14.250.5800.08",
        "fc_bias3.53.53.5-",
        "Norm ratio by layer",
        "Norm ratio by step",
    ):
        assert said in page_text, said
    images = "".join(images_of(page))
    for step in (20, 60, 80):  # the first, the middle, the last
        assert f"step {step}" in images


def test_a_layer_without_a_gradient_leaves_a_gap() -> None:
    record = {"step": 20, "a_weight": 2.0, "b_weight": None, "c_weight": 8.0}
    (row,) = norm_ratios([record, {"step": 40}])
    assert len(row.by_layer) == 3
    assert row.numbers == [2.0, 8.0]


def test_a_bare_log_has_a_page(tmp_path: Path) -> None:
    shape = Shape(page_of(log(tmp_path)))
    assert "us one machine" in shape.text  # the submitter and its system
    assert "Config" not in shape.text
    assert "target 0.759, epoch 35" in shape.text


def test_the_top_has_the_end_of_the_run(run_folder: Path) -> None:
    onward = {"verb": "launch --resume", "folder": "x"}
    result = {"status": "failed", "reason": "rank 1 on n7 failed", "next": onward}
    write_json(run_folder / "result.json", result)
    page_text = text_of(run_folder)
    assert "The run failed: rank 1 on n7 failed." in page_text
    assert "Next rn50 launch --resume x" in page_text
    write_json(run_folder / "result.json", {"status": "success", "reason": "reached"})
    page_text = text_of(run_folder)
    assert "Reached 0.7592 top-1" in page_text
    assert "Next" not in page_text


def test_a_run_without_its_target_has_no_time_to_train(tmp_path: Path) -> None:
    page_text = text_of(log(tmp_path, nth("eval_accuracy", -1, value=0.758)))
    assert "target not reached" in page_text
    assert "Time to train" not in page_text
    assert "Did not reach 0.759: best top-1 0.758." in page_text
    assert "did not converge: best 0.758" in page_text


def test_a_run_without_an_evaluation_has_a_page(tmp_path: Path) -> None:
    log(tmp_path, drop("eval_accuracy"))
    write_config(tmp_path, "eval.target=0.01")
    assert "No evaluation in the log." in page_of(tmp_path)


def test_an_empty_log_is_a_verdict_and_a_note(tmp_path: Path) -> None:
    write_config(tmp_path)
    (tmp_path / "result_0.txt").write_text("")
    page_text = text_of(tmp_path)
    assert "CANNOT READ" in page_text
    assert "empty file" in page_text


# --- harmlessness ---------------------------------------------------------------------------------


def assert_inert(page: str) -> None:
    shape = Shape(page)
    assert not {"script", *ACTIVE} & set(shape.tags)
    for name, value in shape.attributes:
        assert not name.startswith("on")
        if name in ("href", "src", "action"):
            assert str(value).startswith(("#", "data:image/svg+xml;base64,"))
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org)", page)
    assert page.replace("\n", "").isprintable()
    assert "default-src 'none'" in page


def test_hostile_text_is_text(hostile_folder: Path) -> None:
    page = page_of(hostile_folder)
    assert page == page_of(hostile_folder)
    assert_inert(page)
    page_text = Shape(page).text
    assert '<script>document.title="owned"</script>' in page_text
    assert "{{ 7*7 }}" in page_text


def test_numbers_that_no_axis_takes_are_not_drawn(run_folder: Path) -> None:
    # an evaluation before epoch 0 is not drawn either
    def charts(epoch: float, *hostile: dict[str, object]) -> Plots:
        log(run_folder, nth("eval_accuracy", -1, epoch_num=epoch))
        usual = [*train_records(), *step_records(), *norm_records()]
        write_metrics(run_folder, [*usual, *hostile])
        (subject,) = read_subjects(run_folder)
        return page_charts([("_", subject)])

    records = [*train_records(), *step_records(), *norm_records()]
    for record in records:
        for key in record.keys() - {"kind", "step"}:
            record[key] = 1e308
    assert charts(1e308, *records) == charts(-1)


def test_a_page_does_not_grow_with_the_log_points(run_folder: Path) -> None:
    """5,000 made a page of 3 MB: no more are drawn than a chart has across."""
    write_config(run_folder, "seed=7", "optimizer.base_lr=0.5")
    records = [*train_records(5000), *step_records(5000), *norm_records(5000)]
    write_metrics(run_folder, records)
    assert len(page_of(run_folder)) < 1_000_000


# --- the command and the launcher -----------------------------------------------------------------


def test_a_page_is_about_one_subject_and_does_not_replace_its_log(
    run_folder: Path,
) -> None:
    path = run_folder / "result_0.txt"
    content = path.read_text()
    with refused("another file than the log"):
        write_report(run_folder, path)
    assert path.read_text() == content
    log(run_folder.parent / "other")
    with refused("one run or submission expected, found 2"):
        write_report(run_folder.parent)


def test_a_launch_survives_its_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try_report(RunFolder(tmp_path))
    assert capsys.readouterr().err.startswith("rn50: warning: no report.html: ")


# --- phases and charts ----------------------------------------------------------------------------


def test_the_learning_rate_is_the_planned_one(run_folder: Path) -> None:
    """Joined log points have neither the start of the warm-up nor its end."""
    write_config(run_folder, "seed=7", "optimizer.base_lr=0.5")
    (subject,) = read_subjects(run_folder)
    first, *planned, (end, _) = _planned(subject)
    assert max(planned, key=itemgetter(1)) == pytest.approx((1, 0.5))
    assert first == pytest.approx((1 / 50, 0.5 / 50))
    assert end == pytest.approx(8)
    (lr, image), *_ = page_charts([("_", subject)])["schedule"]
    assert lr.title == "Learning rate"
    (chart,) = images_of(image)
    assert ">planned<" in chart
    assert ">as run<" in chart


def test_what_it_takes_for_what_is_a_heat_map(run_folder: Path) -> None:
    assert 'id="confusions"' not in page_of(run_folder)
    confusions = {"step": 8, "classes": ["cats", "dogs"], "counts": [[3, 1], [0, 6]]}
    write_json(run_folder / "confusions.json", confusions)
    section = (
        page_of(run_folder).partition('id="confusions"')[2].partition("</section>")[0]
    )
    shades = re.findall(r"var\((--\w+)\) (\d+)%.*?>(\S+)</td>", section)
    assert shades == [
        ("--accent", "39", "3"),
        ("--bad", "22", "1"),
        ("--bad", "0", "·"),
        ("--accent", "45", "6"),
    ]


# --- in a browser ---------------------------------------------------------------------------------

FIGURES = """{
  title: document.title,
  text: document.body.innerText,
  active: document.scripts.length,
  width: document.documentElement.scrollWidth,
  charts: [...document.querySelectorAll(".chart")].map(one => one.getBoundingClientRect())
    .filter(box => box.width > 0).map(box => [box.width, box.height]),
  colours: [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color],
}"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "width", "dark"),
    [
        ("run_folder", 1280, False),
        ("run_folder", 400, True),
        ("hostile_folder", 400, False),
    ],
)
def test_the_page_in_a_browser(
    measure: Measure,
    request: pytest.FixtureRequest,
    folder: str,
    width: int,
    dark: bool,
) -> None:
    page = write_report(request.getfixturevalue(folder))
    figures = measure(page, FIGURES, width=width, dark=dark)
    hostile = folder == "hostile_folder"
    for figure in ("39.57", "0.7592", "target 0.7, epoch 35", "1,281,167", "PASS"):
        assert figure in figures["text"] or hostile, figure
    assert ('document.title="owned"' in figures["text"]) == hostile
    assert figures["title"] == "smoke · rn50 report"
    assert figures["active"] == 0
    assert figures["width"] == width
    widths, heights = zip(*figures["charts"], strict=True)
    assert set(widths) == {428 if width == 1280 else 368}
    assert min(heights) > 150
    paper, ink = map(brightness, figures["colours"])
    assert (paper < ink) == dark


def brightness(colour: str) -> int:
    """How bright an `rgb(...)` is."""
    red, green, blue, *_ = map(int, re.findall(r"\d+", colour))
    return red + green + blue


@pytest.mark.parametrize(
    ("cpu_s", "device", "said"),
    [
        ([2.0, 3.0], "cpu", "25 % of a core"),
        ([7.0, 7.0], "cpu", ""),
        ([2.0, 2.0], "gpu", ""),
        (4.0, "cpu", ""),
    ],
)
def test_ranks_without_their_cores_are_a_finding(
    run_folder: Path, cpu_s: object, device: str, said: str
) -> None:
    write_config(run_folder, f"system.device={device}")
    table = {"host": ["a", "b"], "cpu_s": cpu_s}
    write_json(run_folder / "ranks.json", {"elapsed_s": 10.0, "ranks": table})
    top = page_of(run_folder).partition("</header>")[0]
    assert ("not comparable" in top) == bool(said)
    assert said in top


def test_no_setting_of_the_user_for_matplotlib_reaches_a_report(
    rn50: Rn50, tmp_path: Path
) -> None:
    plain = page_of(log(tmp_path))
    style = b"backend: nonsense\nfont.size: 40\nlines.width: x\n\xff\n"
    (tmp_path / "matplotlibrc").write_bytes(style)
    hostile = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    hostile |= dict.fromkeys(("MATPLOTLIBRC", "MPLCONFIGDIR"), str(tmp_path))
    command = ("log", "report", str(tmp_path / "result_0.txt"))
    done = rn50.start(*command, cwd=tmp_path, env=os.environ | hostile)
    assert done.communicate()[1] == ""
    assert (tmp_path / "report.html").read_text() == plain
    assert images_of(plain)
