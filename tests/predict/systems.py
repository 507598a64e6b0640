"""The machines that `rn50 predict` knows, and copies of them with other figures."""

from rn50.config.load import load_system
from rn50.config.machine import Performance, System
from rn50.config.names import PRESETS

SYSTEMS = {
    path.stem: system
    for path in sorted((PRESETS / "system").glob("*.yaml"))
    if (system := load_system(path.stem)).performance is not None
}


def about(name: str) -> Performance:
    performance = SYSTEMS[name].performance
    assert performance is not None
    return performance


def with_performance(name: str, **figures: object) -> System:
    performance = about(name).model_copy(update=figures)
    return SYSTEMS[name].model_copy(update={"performance": performance})
