"""The reference of keys: whole, current, and found by any way one may ask for a key."""

from pathlib import Path

import pytest

from rn50.config.reference import all_keys, find_keys, replace_in_page
from tests.conftest import invoke, refused


def test_no_key_lacks_a_description() -> None:
    """A sentence for each key and each section, and what may be written for each key."""
    for key in all_keys():
        assert key.meaning.endswith("."), key.path
        assert len(key.meaning) > 12, key.path
        assert key.default or not key.values, key.path


def test_the_page_is_up_to_date(root: Path) -> None:
    page = (root / "docs/config.md").read_text()
    assert page == replace_in_page(page), "rn50 config explain --write docs/config.md"
    with refused("keys: begin"):
        replace_in_page("# Config\n")


@pytest.mark.parametrize(
    ("query", "first", "count"),
    [
        ("base_lr", "optimizer.base_lr", 1),
        ("optimizer", "optimizer", 8),
        ("batch.changes.per_rank", "batch.changes[].per_rank", 1),
        ("batch.changes", "batch.changes", 5),
        ("every", "checkpoint.every", 2),
    ],
)
def test_a_key_is_found_by_path_name_or_section(
    query: str, first: str, count: int
) -> None:
    keys = find_keys(query)
    assert keys[0].path == first
    assert len(keys) == count


def test_a_key_that_does_not_exist() -> None:
    with refused("'zzz': a key of a config expected; `rn50 config explain`"):
        find_keys("zzz")
    with refused(r"; did you mean optimizer\.base_lr\?$"):
        find_keys("optimizer.lr")


def test_the_command(tmp_path: Path) -> None:
    explained = invoke("config", "explain", "eval.target")
    assert explained.exit_code == 0
    assert "0.759" in explained.stdout
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- keys: begin -->\nwas here\n<!-- keys: end -->\nb\n")
    written = invoke("config", "explain", "--write", page)
    assert written.exit_code == 0
    head, *table, after = page.read_text().splitlines()
    assert (head, after) == ("a", "b")
    assert "was here" not in table
    assert any("| `base_lr` |" in row for row in table)
