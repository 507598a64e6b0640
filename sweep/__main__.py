"""`python -m rn50.sweep DRIVER ARGUMENT...`: Python with these arguments, until the process DRIVER
ends, which has started this one. So a trial ends in order also where its driver is killed."""

import signal
import sys

from ..data.workers import end_with
from ..host.programs import become

if __name__ == "__main__":
    _, driver, *arguments = sys.argv
    end_with(int(driver), signal.SIGTERM)
    become([sys.executable, *arguments])
