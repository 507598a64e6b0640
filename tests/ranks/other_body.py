"""Rank 1 is of another run: `other_body.py CHANGES PROGRAM ...`; all others run PROGRAM unchanged.

CHANGES is a JSON list of VARIABLE=VALUE, set in its environment, and of overrides, added behind.
"""

import json
import os
import sys

from rn50.train.process_info import read_process_info

if __name__ == "__main__":
    changes, *program = sys.argv[1:]
    for change in json.loads(changes) if read_process_info().rank == 1 else ():
        name, _, value = change.partition("=")
        if name.isupper():
            os.environ[name] = value
        else:
            program.append(change)
    os.environ["PYTHONSAFEPATH"] = "1"  # else the working folder's rn50 comes first
    os.execv(sys.executable, [sys.executable, *program])
