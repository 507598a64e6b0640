"""What `rn50 log show` says of a log: time to train, epochs, accuracy, init time, images/s."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..compliance.log_rules import checked_keys
from ..compliance.submission import find_results
from ..logging.parse import read_log
from ..logging.places import log_folders
from .published import standing_of
from .run_folder import recorded_config
from .run_summary import summarise


def find_logs(path: Path) -> list[Path]:
    """All logs that PATH means: a file, or those of a run, a job or a submission. Raises UserError:
    there is none."""
    folders = log_folders(path)
    return [path] if path.is_file() else [log for one in folders for log in find_results(one)]


def shown(path: Path) -> dict[str, Any]:
    """What `rn50 log show --json` says of a log; None where the log does not say it."""
    log, config = read_log(path, checked_keys()), recorded_config(path.parent)
    target = config.eval.target if config else None  # a log does not say it
    run = summarise(log.events, target)
    batch = log.value("global_batch_size")
    last = run.evaluations[-1] if run.evaluations else None
    place = standing_of(path, config, [run])
    return {
        "status": run.status,
        "time_to_train_s": run.run_s,
        "init_s": run.start_s,
        "epochs": last.epoch if last else None,
        "eval_accuracy": last.accuracy if last else None,
        "global_batch_size": batch if isinstance(batch, int) else None,
        "images_per_s": run.images_per_s,
        "evaluations": [
            (one.epoch, one.accuracy, one.time_s)
            for one in run.evaluations
            if one.epoch is not None and one.time_s is not None
        ],
        "target": target,
        "published": place.text if place else None,
    }
