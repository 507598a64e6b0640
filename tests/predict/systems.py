"""The machines that `rn50 predict` knows."""

from rn50.config.load import load_system
from rn50.config.machine import Performance
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
