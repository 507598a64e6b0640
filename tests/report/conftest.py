"""Pages in a headless Chromium, within a frame of an outer page that measures them: the pages
themselves may run no script."""

import base64
import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rn50.config.load import Loaded, load

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
  const figures = find(page.contentDocument, page.contentWindow.getComputedStyle);
  document.body.textContent = JSON.stringify(figures);
}};
</script>"""
Measure = Callable[..., Any]


def write_config(folder: Path, *overrides: str, preset: str = "smoke") -> Loaded:
    """The config.yaml of a run in `folder`, which is made."""
    loaded = load(preset, list(overrides))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(loaded.to_yaml())
    return loaded


@pytest.fixture
def measure(tmp_path: Path) -> Measure:
    """The value of a JavaScript expression in a page, at a width and in a colour scheme."""
    command = shutil.which("chromium") or shutil.which("chromium-browser")
    if command is None:
        pytest.skip(
            "no chromium here: apt-get install -y --no-install-recommends chromium"
        )

    def in_browser(
        page: Path, expression: str, *, width: int, dark: bool = False
    ) -> Any:
        outer = tmp_path / "outer.html"
        outer_page = OUTER.format(
            page=page.resolve(), width=width, expression=expression
        )
        outer.write_text(outer_page)
        profile = f"--user-data-dir={tmp_path / 'profile'}"
        scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
        argv = [command, *FLAGS, profile, scheme, outer.as_uri()]
        page_text = subprocess.check_output(
            argv, stderr=subprocess.DEVNULL, text=True, timeout=120
        )
        _, _, rest = page_text.partition("<body>")
        body, _, _ = rest.partition("</body>")
        return json.loads(html.unescape(body))

    return in_browser


def images_of(page: str) -> list[str]:
    """The charts of a page as SVG."""
    urls = re.findall(r'src="data:image/svg\+xml;base64,([^"]*)"', page)
    return [base64.b64decode(url).decode() for url in urls]
