"""A folder for ranks that are no run: a benchmark's, an evaluation's."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..config.atomic import write_file
from ..config.errors import UserError, failing_as
from ..config.load import Loaded


@contextmanager
def scratch_folder(loaded: Loaded, name: str) -> Iterator[Path]:
    """A folder below the results, where all nodes can read, with `config.yaml` in it.

    It is removed, unless a rank failed: then it stays, as `<name>_failed_...`, with stderr.log.
    """
    results = Path(loaded.run.system.results)
    with failing_as(f"{results}: cannot create a folder in it"):
        results.mkdir(parents=True, exist_ok=True)
        out = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=results))
    try:
        write_file(out / "config.yaml", loaded.to_yaml())
        yield out
    except UserError as error:
        if str(out) not in str(error):
            raise
        kept = results / f"{name}_failed_{out.name.removeprefix(f'.{name}-')}"
        out.rename(kept)
        raise UserError(*str(error).replace(str(out), str(kept)).split("\n")) from None
    finally:
        shutil.rmtree(out, ignore_errors=True)
