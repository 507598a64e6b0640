"""Rank 1 is of another run: `other_body.py OVERRIDE|VARIABLE=VALUE|PYTHONPATH=FOLDER CONFIG ...`.

All other ranks are the usual ones.
"""

from __future__ import annotations

import os
import sys

from rn50.train.process_info import read_process_info

if __name__ == "__main__":
    change, *rest = sys.argv[1:]
    if read_process_info().rank == 1:
        name, _, value = change.partition("=")
        if name.isupper():
            os.environ[name] = value
        else:
            rest.append(change)
    os.environ["PYTHONSAFEPATH"] = "1"  # else the working folder's rn50 comes first
    os.execv(sys.executable, [sys.executable, "-m", "rn50.train", *rest])
