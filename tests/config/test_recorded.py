"""A stranger's recorded config runs no code of theirs and reaches no folder of the user's."""

from pathlib import Path

import pytest

from rn50.config.load import load
from rn50.config.recorded import (
    JOB,
    RESUME,
    RESUME_JOB,
    RUN,
    load_named,
    load_recorded,
    words_to_repeat,
)
from rn50.host.errors import UserError
from tests.conftest import refused, write_file, write_json


def recorded(folder: Path, system: str = "", data: str = "datasets/smoke") -> Path:
    """The config of a run in `folder`, as anybody may write it there."""
    write_json(folder / "origins.json", {})
    return write_file(
        folder / "config.yaml",
        f"name: smoke\ndata: {{path: {data}, synthetic: {{}}}}\n"
        f"system: {{name: local, {system}}}\n",
    )


@pytest.mark.parametrize(
    "job",
    [
        "environment: [OMP_NUM_THREADS=4]",
        "account: a",
        "walltime: '02:00:00'",
        "python: ./x",
        "container: x.sif",
        "options: [-E, x]",
        "drop_caches: true",
        'mounts: ["/x"]',
        "engine: singularity",
    ],
)
def test_nothing_of_a_job_is_of_a_recorded_config(tmp_path: Path, job: str) -> None:
    config = recorded(tmp_path / "run", f"job: {{{job}}}")
    key = job.partition(":")[0]
    error = rf"^\S+:3: system.job.{key}: of the machine, .* add .*{key}="
    for keys in (RESUME_JOB, JOB):
        with refused(error):
            load_recorded(config, (), keys)
    added = words_to_repeat(config.parent, RESUME_JOB)
    repeated = load_recorded(config, added, RESUME_JOB).run
    assert repeated == load(config).run
    if key == "environment":
        with refused(error):
            load_recorded(config, (), RESUME)
    else:  # which makes no job script
        assert load_recorded(config, (), RESUME).run == repeated


def test_a_machine_by_name_is_the_users_word(tmp_path: Path) -> None:
    config = recorded(tmp_path / "run", "job: {environment: [PYTHONPATH=x], queue: q}")
    job = load_recorded(config, ["system=superpod"], JOB).run.system.job
    assert job.queue == "batch"
    assert "PYTHONPATH=x" not in job.environment


def test_places_outside_need_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "here/run"
    run.parent.mkdir()
    monkeypatch.chdir(run.parent)
    (tmp_path / "here/run").mkdir()
    (run / "link").symlink_to(tmp_path)
    Path("datasets").symlink_to(tmp_path / "mounted")  # as in a container's image
    for path in ("datasets/x", "run/images", f"{run}/images"):
        config = recorded(run, data=path)
        assert load_named(str(config), (), RUN)
    for path in (f"{tmp_path}/set", "../set", "~/set", "run/link/set"):
        config = recorded(run, f"results: {path}", path)
        with pytest.raises(UserError) as error:
            load_named("run/config.yaml", (), RUN)
        lines = str(error.value).splitlines()
        added = [line.rpartition("; if it is yours, add ")[2] for line in lines]
        keys = [override.partition("=")[0] for override in added]
        assert keys == ["data.path", "system.results"]
        assert load_recorded(config, words_to_repeat(run, RUN), RUN)
        assert load(config)  # to look at
    outside = f"{tmp_path}/set"
    config = recorded(run, data=outside)
    location = "run/config.yaml:2: data.path"
    with refused(f"^{location}: {outside} lies .*, add data.path={outside}$"):
        load_recorded(config, (), RESUME)


@pytest.mark.parametrize("run", ["mine/TIME", "mine/TIME/run_3"])
def test_results_that_hold_the_run_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str
) -> None:
    """The results lie on a scratch disk, beside which the user works."""
    scratch = tmp_path / "scratch"
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    config = recorded(scratch / run, f"results: {scratch}")
    assert load_recorded(config, (), RUN).run.system.results == str(scratch)
    for outside in (tmp_path, scratch / "mine", "/"):
        config = recorded(scratch / run, f"results: {outside}")
        with refused("system.results: .* lies outside"):
            load_recorded(config, (), RUN)


@pytest.mark.parametrize(
    "base", ["base: quick", "system: dgxa100", "system: {base: dgxa100}"]
)
def test_a_recorded_config_has_no_base(tmp_path: Path, base: str) -> None:
    config = recorded(tmp_path / "run")
    config.write_text(base)
    for loader in (load, load_recorded):
        with refused(r"yaml:1: (system\.)?\w+: none in a recorded config"):
            loader(config)


def test_a_repeated_trial_goes_beside_its_sweep(tmp_path: Path) -> None:
    run = tmp_path / "results/study/trials/trial_0003/2026"
    results = f"system.results={run.parent.parent}"
    config = recorded(run, f"results: {run.parent.parent}")
    loaded = load_named(str(config), ["name=trial_0003", results], RUN)
    assert loaded.run.system.results == str(run.parent.parent)  # as asked for
    renamed = config.read_text().replace("name: smoke", "name: trial_0003")
    config.write_text(renamed)
    loaded = load_named(str(config), [], ("data.path",))
    assert loaded.run.system.results == str(tmp_path / "results")
    assert loaded.run.name == "study_trial_0003"
