"""Pages in a headless Chromium, within a frame of an outer page that measures them: the pages
themselves may run no script."""

from __future__ import annotations

import html
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--allow-file-access-from-files",
    "--dump-dom",
)
OUTER = """<!doctype html>
<iframe id="page" src="{page}" style="width: {width}px; height: 900px; border: 0"></iframe>
<script>
onload = () => {{
  const find = (document, getComputedStyle) => ({expression});
  const found = find(page.contentDocument, page.contentWindow.getComputedStyle);
  document.body.textContent = JSON.stringify(found);
}};
</script>"""
Measure = Callable[..., Any]


@pytest.fixture
def measure(tmp_path: Path) -> Measure:
    """The value of a JavaScript expression in a page, at a width and in a colour scheme."""
    command = shutil.which("chromium") or shutil.which("chromium-browser")
    if command is None:
        pytest.skip(
            "no chromium here: apt-get install -y --no-install-recommends chromium"
        )

    def in_browser(
        page: Path,
        expression: str,
        *,
        width: int,
        dark: bool = False,
    ) -> Any:
        outer = tmp_path / "outer.html"
        outer.write_text(
            OUTER.format(page=page.resolve(), width=width, expression=expression)
        )
        profile = f"--user-data-dir={tmp_path / 'profile'}"
        scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
        words = [command, *FLAGS, profile, scheme, outer.as_uri()]
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=120, check=True
        )
        body = done.stdout.partition("<body>")[2].partition("</body>")[0]
        return json.loads(html.unescape(body))

    return in_browser
