"""ResNet-50 against the clock, MLPerf style, from Python: what the command `rn50` does.

    load_config(name, *overrides)    a preset or a YAML file, as every command reads it
    launch(config, *overrides)       a run to its end; returns what result.json holds
    read_run(folder)                 a run's logs, figures, metrics and config
    read_log(path)                   the figures of any MLPerf ResNet log
    check_log(path)                  the verdict on it, as `rn50 log check` gives it
    predict(config, *overrides)      the time that it takes on a described machine

What is wrong with an input is a `UserError`, whose text is the command's. The names in `__all__`,
their parameters and the fields of what they return stay; everything below may change with any
version. docs/python.md has an example of each. Nothing heavy is loaded before it is called.

Every room (`rn50.train`, `rn50.data`, ...) is a symlink to the top-level folder of that name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .host.errors import UserError
from .train.mxnet_import import MXNetFinder

if TYPE_CHECKING:
    from .compliance.check_log import Check
    from .config.load import Loaded
    from .logging.records import Result
    from .predict.predictor import Prediction
    from .report.run_records import Subject
    from .report.run_summary import RunSummary

__all__ = [
    "UserError",
    "check_log",
    "launch",
    "load_config",
    "predict",
    "read_log",
    "read_run",
]
__version__ = "1.0.0"

# In front of Python's own finders: `import mxnet` anywhere comes to ours first.
sys.meta_path.insert(0, MXNetFinder())


def load_config(name: str | Path, *overrides: str) -> Loaded:
    """Read a preset or a YAML file, with `key.path=value` over it.

    `.run` has the values (`.run.optimizer.base_lr`), `.origins` the file and line of each,
    `.to_dict()` and `.to_yaml()` all of them. Raises UserError: every wrong value, a line each.
    """
    from .config.recorded import load_named

    return load_named(str(name), overrides)


def launch(
    config: str | Path | Loaded,
    *overrides: str,
    ranks: int | None = None,
    launcher: str | None = None,
    out: str | Path | None = None,
) -> Result:
    """Run a config on this machine or allocation, to its end, as `rn50 launch` does.

    Args:
        config: a preset's name, a YAML file, or what `load_config` returned.
        *overrides: `key.path=value` over a name or a file.
        ranks: on this machine; None: the config's own.
        launcher: a name as `--launcher` takes it; None: found here.
        out: a new folder for the run; None: `results/NAME/TIME`.

    Raises:
        UserError: it cannot run, or a rank failed.
    """
    from .config.layout import with_ranks
    from .config.recorded import load_named
    from .host.errors import failing_as
    from .host.progress import untracked
    from .launch.launch_plan import Options
    from .launch.run import launch as run_to_its_end
    from .report.reproduction import find_recorded

    recorded = None
    if isinstance(config, str | Path):
        recorded = find_recorded(str(config))
        config = load_named(str(config), with_ranks(list(overrides), ranks))
    elif overrides or ranks is not None:
        raise UserError("overrides and ranks are for a name or a file: load with them")
    if out is not None:
        out = Path(out)
        with failing_as(f"{out}: a new folder expected"):
            out.mkdir(parents=True)
    options = Options(launcher=launcher, out=out, recorded=recorded)
    result, signals = run_to_its_end(config, untracked, options)
    signals.release()
    return result


def read_run(folder: str | Path) -> Subject:
    """Read all that lies in the folder of a run, or of a submission's five.

    `.runs` has the figures of each log, `.folder.metrics` the records of metrics.jsonl,
    `.folder.result` what result.json holds, `.config` the values of its config. Raises UserError:
    there is neither a log nor a run.
    """
    from .report.run_records import read_folder

    if not Path(folder).is_dir():
        raise UserError(f"{folder}: a folder expected, found none")
    return read_folder(Path(folder))


def read_log(path: str | Path) -> RunSummary:
    """Read an MLPerf log of ResNet, of any program and round: its curve, clocks and parameters.

    Raises UserError: it is no such log.
    """
    from .report.run_records import read_folder

    file = Path(path)
    return read_folder(file.parent, file).runs[0]


def check_log(path: str | Path, *, official: bool | None = None) -> Check:
    """Judge one MLPerf log: `.verdict`, its one `.cause`, and all `.findings`.

    `official`: run MLCommons' checker too; None: unless the log is huge.
    """
    from .compliance.check_log import check_log as judge

    return judge(Path(path), official=official)


def predict(
    config: str | None = None,
    *overrides: str,
    system: str | None = None,
    gpus: int | None = None,
    batch_per_gpu: int | None = None,
    **choices: Any,
) -> Prediction:
    """Predict step time, rate and time to train, each with its interval, as `rn50 predict` does.

    Args:
        config: a preset's name or a YAML file; None: `system`, `gpus` and `batch_per_gpu` say it.
        *overrides: `key.path=value` over it.
        system: a machine's name or YAML file.
        gpus: accelerators; None: the config's.
        batch_per_gpu: images per accelerator and step.
        **choices: `epochs`, `algorithm`, `groups` and `precision`, as the command's options.

    Raises:
        UserError: neither a config nor a machine, or what makes no run.
    """
    from .cli.predict import Request
    from .predict.predictor import predict as answer

    arguments = [] if config is None else [config, *overrides]
    return answer(Request(arguments, system, gpus, batch_per_gpu, choices).job())


def _make_callable(function: Callable[..., Any]) -> ModuleType:
    """Let the room that has a function's name be called like it: `rn50.launch("smoke")` beside
    `import rn50.launch.run`, `rn50.launch.run` and patches by that name."""
    room = import_module(f".{function.__name__}", __name__)
    # Python looks for `__call__` at the class, and lets a module have another one
    members = {"__call__": staticmethod(function)}
    room.__class__ = type("CallableRoom", (ModuleType,), members)
    room.__doc__ = function.__doc__
    # of which help() and editors show the signature
    vars(room)["__wrapped__"] = function
    return room


if not TYPE_CHECKING:
    launch = _make_callable(launch)
    predict = _make_callable(predict)
