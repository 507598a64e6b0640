import re
from pathlib import Path

import pytest

from rn50.config.load import Loaded, load
from rn50.config.names import list_presets
from rn50.config.plan import build_plan
from rn50.host.errors import UserError
from tests.conftest import refused, write_file

FALLING = "[{after_epoch: 3, factor: 1}, {after_epoch: 1, factor: 1}]"


def write(name: str, content: str | bytes) -> Path:
    return write_file(Path(name), content)


def load_text(content: str | bytes, *overrides: str) -> Loaded:
    return load(write("x.yaml", content), overrides)


def values(loaded: Loaded) -> dict[str, object]:
    return {path: value for path, value, _ in loaded.leaves()}


def errors_of(content: str | bytes, *overrides: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        load_text(content, *overrides)
    return str(caught.value).splitlines()


# --- bases, overrides, origins ---------------------------------------------------------------


@pytest.mark.parametrize("preset", list_presets())
def test_the_device_chooses_how_gradients_travel_unless_a_config_does(
    preset: str, folder: Path
) -> None:
    by_device = {
        name: load(preset, [f"system.device={name}"]) for name in ("cpu", "gpu")
    }
    for key, expected in {
        "comm.groups": {"cpu": "equal_bytes(8)", "gpu": "single"},
        "comm.cycle_ms": {"cpu": 1.0, "gpu": 0.1},
    }.items():
        chosen = {device: values(loaded)[key] for device, loaded in by_device.items()}
        origin = by_device["gpu"].origin(key)
        if origin.line is None:
            assert chosen == expected
            assert origin.source == "system.device"
        else:
            assert chosen["cpu"] == chosen["gpu"]
    reloaded = load_text(by_device["cpu"].to_yaml(), "system.device=gpu")
    # a recorded config has all its values
    assert reloaded.run.comm == by_device["cpu"].run.comm


def test_a_section_that_is_a_value_is_refused_on_gpus_too(folder: Path) -> None:
    on_gpus = "system: {device: gpu}\n"
    assert "comm: expected a section" in " ".join(errors_of(f"{on_gpus}comm: 3\n"))
    comm = load_text(f"{on_gpus}comm: {{cycle_ms: 2.0}}\n").run.comm
    assert (comm.groups, comm.cycle_ms) == ("single", 2.0)


def test_a_plan_has_its_layout_whatever_is_given() -> None:
    gpu = ["system.device=gpu", "model.layout=NCHW"]
    planned = load("quick", gpu)
    assert planned.run.model.layout == "NHWC"
    assert planned.origin("model.layout").source == "model.step"
    operators = load("quick", [*gpu, "model.step=operators"])
    assert operators.run.model.layout == "NCHW"
    assert operators.origin("model.layout").source == "command line"


def test_an_override_of_a_section_changes_the_keys_it_names(folder: Path) -> None:
    """Over those of the file; the last of two counts."""
    section = "optimizer={variant: sgd, momentum: 0.5}"
    yaml_text = "optimizer: {base_lr: 2.0, momentum: 0.1}\n"
    loaded = load_text(yaml_text, "optimizer.momentum=0.4", section)
    assert loaded.run.optimizer.variant == "sgd"
    assert loaded.run.optimizer.momentum == 0.5
    assert loaded.run.optimizer.base_lr == 2.0
    assert str(loaded.origins["optimizer.variant"]) == "command line"


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("schedule.warmup=36 epochs", "schedule.warmup", "36 epochs"),
        ("data.area=[0.1, 0.9]", "data.area", [0.1, 0.9]),
        ("log.org=a=b", "log.org", "a=b"),
        (" batch.per_rank = 7", "batch.per_rank", 7),
        ("seed=", "seed", None),
    ],
)
def test_override_values_are_yaml(
    folder: Path, override: str, key: str, value: object
) -> None:
    assert values(load_text("{}", override))[key] == value


def test_variables_of_a_path_have_their_values(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    run = load_text("data: {path: $SCRATCH/set}", "system.results=${SCRATCH}/(a)$").run
    assert (run.data.path, run.system.results) == (
        "/scratch/me/set",
        "/scratch/me/(a)$",
    )


@pytest.mark.parametrize("written", ["off", "null"])
def test_the_check_for_learning_can_be_off(folder: Path, written: str) -> None:
    loaded = load_text("{}", f"limits.min_accuracy_by={written}")
    assert loaded.to_dict()["limits"]["min_accuracy_by"] is None
    plan = build_plan(loaded.run)
    assert plan.min_accuracy_by_steps > plan.total_steps


def test_every_leaf_tells_where_it_was_written(folder: Path) -> None:
    write(
        "deep/parent.yaml",
        "# a comment\n\nname: p\noptimizer:\n  base_lr: 1.0\n  eta: 0.5\n",
    )
    yaml_text = (
        "base: deep/parent.yaml\noptimizer: {base_lr: 2.0}\n"
        "data:\n  area:\n    - 0.1\n    - 1\n"
    )
    loaded = load_text(yaml_text, "seed=7")
    origins = {path: str(origin) for path, _, origin in loaded.leaves()}
    assert origins["name"] == "deep/parent.yaml:3"
    assert origins["optimizer.eta"] == "deep/parent.yaml:6"
    assert origins["optimizer.base_lr"] == "x.yaml:2"
    assert origins["data.area"] == "x.yaml:4"
    assert origins["seed"] == "command line"
    assert origins["batch.per_rank"] == "default"
    assert list(origins)[:4] == ["name", "division", "ruleset", "seed"]


# --- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("quikc", "'quikc'; did you mean \"quick\"?"),
        ("", "a YAML file or a preset's name (`rn50 config list`) expected, found ''"),
        ("y" * 300, "found 'yyy"),
        ("a\0b", r"found 'a\x00b'"),
    ],
)
def test_a_config_that_does_not_exist(folder: Path, name: str, problem: str) -> None:
    with refused(re.escape(problem)):
        load(name)


@pytest.mark.parametrize(
    ("yaml_text", "problem"),
    [
        ("base: none.yaml\n", "x.yaml:1: base: .* expected, found 'none.yaml'"),
        ("base: 3\n", "x.yaml:1: base: a YAML file or a name expected, found 3"),
        (
            "name: a\nbase: x.yaml\n",
            "x.yaml:2: base: .*without a circle.* x.yaml -> x.yaml",
        ),
        (
            "base: a.yaml\n",
            "b.yaml:1: base: .*circle.* x.yaml -> a.yaml -> b.yaml -> a.yaml",
        ),
    ],
)
def test_a_bad_base_is_one_error_with_its_place(
    folder: Path, yaml_text: str, problem: str
) -> None:
    write("a.yaml", "system: {base: b.yaml}\n")
    write("b.yaml", "base: a.yaml\n")
    with refused(problem):
        load_text(yaml_text)


@pytest.mark.parametrize(
    ("yaml_text", "location", "reason"),
    [
        ("batch: {per_rank: 2.0}", "1: batch.per_rank", "2.0"),
        ("optimizer: {base_lr: 1e999}", "1: optimizer.base_lr", "inf"),
        ("data: {area: [0.5, 1, 1]}", "1: data.area", "[0.5, 1, 1]"),
        ("data: {area: [0.9, 0.1]}", "1: data.area", "[0.9, 0.1]"),
        ("model: {depth: '18'}", "1: model.depth", "'18'"),
        (
            "data: {synthetic: {min_px: 50, max_px: 40}}",
            "1: data.synthetic.min_px",
            "max_px (40)",
        ),
        ("data: {crop_px: 300}", "1: data.eval_resize_px", "256"),
        (
            f"schedule: {{shape: step, milestones: {FALLING}}}",
            "1: schedule.milestones",
            "[3, 1]",
        ),
        (
            "system: {performance: {fp16: {points: []}}}",
            "1: system",
            "one value or more, found []",
        ),
        ("schedule: {length: 90 %}", "1: schedule.length", "90 %"),
        ("comm: {groups: cubic(0)}", "1: comm.groups", "'cubic(0)'"),
        ("seed: 9223372036854775808", "1: seed", "found 9223372036854775808"),
        (f"seed: 0x{'f' * 5000}", "1: not valid YAML", "at most 1000 characters"),
        ('log: {org: "a\\nb"}', "1: log.org", "'a\\nb'"),
        ("name: ../x", "1: name", "'../x'"),
        (
            "checkpoint: {enabled: yes}",
            "1: checkpoint.enabled: expected true or false",
            "'yes'",
        ),
        ("data:", "1: data", "found null"),
        ("data: {path: $NO_SUCH/a}", "1: data.path", "'$NO_SUCH/a'"),
        ("batch: {changes: [{after_epoch: 1}]}", "1: batch.changes.per_rank", ""),
        ("batch: {changes: [{zzz: 0}]}", "1: batch.changes.zzz", "unknown key"),
    ],
)
def test_a_bad_value_is_named_with_its_place(
    folder: Path, yaml_text: str, location: str, reason: str
) -> None:
    lines = errors_of(yaml_text)
    (line,) = (line for line in lines if line.startswith(f"x.yaml:{location}"))
    assert reason in line


def test_all_errors_come_at_once_each_with_its_own_place(folder: Path) -> None:
    write("parent.yaml", "\nbatch: {per_rank: 0}\n")
    yaml_text = """\
base: parent.yaml
modle: {}
optimizer:
  lr: 1
  momentum: high
eval:
  target: 1.5
schedule: {warmup: 5}
"""
    assert errors_of(yaml_text, "log.org=3") == [
        "command line: log.org: expected printable text on one line, found 3",
        "parent.yaml:2: batch.per_rank: expected greater than or equal to 1, found 0",
        "x.yaml:2: modle: unknown key; did you mean model?",
        "x.yaml:4: optimizer.lr: unknown key; valid here: variant, base_lr, momentum, "
        "weight_decay, momentum_correction, eta, epsilon",
        "x.yaml:5: optimizer.momentum: expected a valid number, found 'high'",
        "x.yaml:7: eval.target: expected less than 1, found 1.5",
        "x.yaml:8: schedule.warmup: expected a duration of 0 or more with its unit, such as "
        '"36 epochs" or "540 steps", found 5',
    ]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("\0", "x.yaml: not valid YAML: "),
        ("", "x.yaml: settings expected, found none"),  # as a crash may leave it
        (
            b"seed: 1\nname: \xff\xfe\n",
            "x.yaml: not valid YAML: UTF-8 .*byte 0xff in line 2",
        ),
        ("seed: 1\n".encode("utf-16"), "x.yaml: not valid YAML: UTF-8 .*UTF-16.*iconv"),
        ("seed: 1\nname: 'a\neval: {}\n", "x.yaml:4: not valid YAML: .* in line 2, "),
        ("seed: 1\n---\nseed: 2\n", "x.yaml:2: not valid YAML: .*single document"),
        ("seed: 2001-12-99\n", "x.yaml: not valid YAML: "),
        ("- name: a\n", "x.yaml:1: a mapping of sections expected, found a list$"),
        ("root:x:0\nbin:x:1\n", "x.yaml:1: .* expected, found a single value$"),
        (
            "name: a\nseed: 1\nname: b\n",
            "x.yaml:3: not valid YAML: .name. once .* line 1 ",
        ),
        ("{a: " * 15_000, "x.yaml: not valid YAML: too many levels"),
        ('name: "\\UFFFFFFFF"\n', "x.yaml: not valid YAML: "),
        ("a: &a {b: *a}\n", "x.yaml:1: not valid YAML: .*no alias"),
        (
            "#" * 70_000,
            "x.yaml: cannot read: at most 65,536 bytes expected, found 70,000",
        ),
    ],
)
def test_a_file_that_is_no_config_is_one_clear_error(
    folder: Path, content: str | bytes, problem: str
) -> None:
    with refused(problem):
        load_text(content)


@pytest.mark.parametrize(
    "yaml_text",
    [
        "name: !!python/object/apply:os.system ['touch pwned']\n",
        "!!python/object:os.system\nname: a\n",
        "seed: 2020-01-01\n",
    ],
)
def test_tags_are_refused_and_construct_nothing(folder: Path, yaml_text: str) -> None:
    (line,) = errors_of(yaml_text)
    assert re.search("not valid YAML: .* tag|: expected .* found", line)
    assert [path.name for path in folder.iterdir()] == ["x.yaml"]


# --- YAML 1.2 ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("yaml_text", "key", "value"),
    [
        ("optimizer: {weight_decay: 1e-4}", "optimizer.weight_decay", 1e-4),
        ("optimizer: {base_lr: 1}", "optimizer.base_lr", 1.0),
        ("name: on", "name", "on"),
        ("seed: 012", "seed", 12),
        ("log: {org: 10:30:00}", "log.org", "10:30:00"),
        ("\ufeffname: bom", "name", "bom"),
    ],
)
def test_scalars_are_read_as_yaml_1_2(
    folder: Path, yaml_text: str, key: str, value: object
) -> None:
    scalar = values(load_text(yaml_text))[key]
    assert scalar == value
    assert type(scalar) is type(value)
