"""Rates that a machine had when it was well, in its YAML file: measured, kept, compared."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from ..config.atomic import write_file
from ..config.errors import UserError, failing_as
from ..config.load import load_system


def save_reference(machine: Path, config: str, images_per_s: float) -> None:
    """Write a rate into the machine's file, whose comments and other keys stay. Raises UserError:
    it is no file of a machine, or cannot be written."""
    load_system(str(machine))
    yaml = YAML()
    with failing_as(f"{machine}: cannot write"):
        try:
            tree: Any = yaml.load(machine.read_text()) or {}
        except YAMLError as error:
            raise UserError(f"{machine}: {error}") from None
        references = tree.setdefault("references", {})
        references.setdefault(config, {})["images_per_s"] = float(f"{images_per_s:.4g}")
        text = io.StringIO()
        yaml.dump(tree, text)
        write_file(machine, text.getvalue())
