"""The documentation names only what is in the repository."""

import fnmatch
import re
from pathlib import Path, PurePosixPath

import pytest

from rn50 import __version__
from tests.checkout import tracked
from tests.conftest import ROOT

PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / ".github").rglob("*.md")),
    ROOT / "predict/published/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
every_page = pytest.mark.parametrize(
    "page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix()
)
SOURCES = {".py", ".sh", ".sub", ".c", ".cc", ".j2", ".md"}
MADE = re.compile(r"job\.sh|\.\./(datasets|results)(/.*)?")
# NVIDIA's entries
THEIRS = {"config_*.sh", "config_DGXA100.sh", "run.sub", "run_with_docker.sh"}
# ImageNet's layout, not ours
IMAGES = re.compile(r"^(train|val)/|\.(JPE?G|jpe?g|png|tar)$")
TOKEN = re.compile(r"[\w.*<>/-]+")


KNOWN = {*tracked()}
for name in tracked():
    KNOWN |= {str(folder) for folder in PurePosixPath(name).parents}
KNOWN -= {"."}
TOP = {name.split("/")[0] for name in KNOWN if "/" in name}


def code_of(page: str) -> list[str]:
    """What stands in backticks, fenced or not."""
    fences = re.findall(r"^```.*?\n(.*?)^```", page, re.S | re.M)
    unfenced = re.sub(r"^```.*?^```", "", page, flags=re.S | re.M)
    inline = re.findall(r"`([^`\n]+)`", unfenced)
    return [*inline, *fences]


def is_there(name: str) -> bool:
    pattern = re.sub(r"<\w+>|\b[A-Z][A-Z_0-9]+\b", "*", name)  # config/NAME.yaml
    return any(fnmatch.fnmatch(path, pattern) for path in KNOWN)


def missing(page: str) -> list[str]:
    """Paths that look like the repository's and are not in it."""
    absent = []
    for token in TOKEN.findall("\n".join(code_of(page))):
        name = token.rstrip(".").removeprefix("./").removesuffix("/")
        first, _, rest = name.partition("/")
        if (
            MADE.fullmatch(name)
            or name in THEIRS
            or IMAGES.search(name)
            or "..." in name
        ):
            continue
        if name.startswith("../"):
            absent.append(name)
        elif rest and first in TOP:
            if not is_there(name):
                absent.append(name)
        elif rest or PurePosixPath(name).suffix not in SOURCES:
            continue
        elif not (is_there(name) or is_there(f"*/{name}")):
            absent.append(name)
    return absent


@every_page
def test_paths_are_in_the_repository(page: Path) -> None:
    assert missing(page.read_text()) == []


def dead_links(page: str, folder: Path) -> list[str]:
    """Targets in the repository that are not there."""
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page):
        if not re.match(r"\w+://|mailto:|#", target):
            path = (folder / target.partition("#")[0]).resolve()
            if path.relative_to(ROOT).as_posix() not in KNOWN:
                dead.append(target)
    return dead


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    assert dead_links(page.read_text(), page.parent) == []


def test_what_is_not_there_is_noticed() -> None:
    page = """`launch/absent.py` [here](README.md), [absent](absent.md#top)
```bash
absent.sh
```
"""
    assert missing(page) == ["launch/absent.py", "absent.sh"]
    assert dead_links(page, ROOT) == ["absent.md#top"]


def test_the_licence_is_named_where_tools_look(root: Path) -> None:
    licence = (root / "LICENSE").read_text()
    assert "Apache License" in licence
    assert "END OF TERMS AND CONDITIONS" in licence
    assert 'license = { text = "Apache-2.0" }' in (root / "pyproject.toml").read_text()
    citation = (root / "CITATION.cff").read_text().splitlines()
    assert {"license: Apache-2.0", f"version: {__version__}"} <= {*citation}
