"""Tables at any width: every cell is there, and no word of it is cut or broken."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from rn50.cli.tables import table_lines
from tests.rooms import imports, sources

CELLS = st.sampled_from(
    [
        "",
        "3,389,010.5",
        "6.248644874764753e-05",
        "[0.9, 1.1]",
        "smoke/20261128T095150Z/run_0",
        "/scratch/" + "x" * 70,
        "写真/猫",
        "target 0.9 reached after 4 epochs of 50 steps, at 0:49",
        "FAIL: " * 20,
    ]
)
TITLES = st.sampled_from(["", "run in results", "images/s", "time to train, s"])
COLUMNS = st.tuples(TITLES, st.tuples(CELLS, CELLS), st.booleans(), st.booleans())


def words_of(lines: Sequence[str]) -> Counter[str]:
    return Counter(" ".join(lines).split())


@given(st.lists(COLUMNS, min_size=2, max_size=9), st.sampled_from([20, 40, 80, 120]))
def test_every_cell_is_whole_at_any_width(columns: list[Any], cells: int) -> None:
    header, contents, folds, ends_right = zip(*columns, strict=True)
    rows = list(zip(*contents, strict=True))
    free = {number for number, is_so in enumerate(folds) if is_so}
    right = {number for number, is_so in enumerate(ends_right) if is_so}
    piped = table_lines(header, rows, None, free, right)
    assert len(piped) == 2 + any(header)
    for line, row in zip(piped[-2:], rows, strict=True):
        assert all(cell.strip() in line for cell in row)
    lines = table_lines(header, rows, cells, free, right)
    written = words_of(lines)
    for row in rows:
        assert not words_of(row) - written
    for line in lines:
        longest = max(map(cell_len, line.split()), default=0)
        assert cell_len(line) <= cells or longest > cells / 2 - 4, line
    is_told = "side by side" in " ".join(lines[-4:])
    assert is_told or len(lines) >= len(piped)
    assert not is_told or max(map(cell_len, piped)) > cells


def test_nothing_else_draws_a_table() -> None:
    """All tables of all commands have one printer; a second one would have laws of its own."""
    table_makers = ("rich.table", "rich.columns", "rich.panel", "tabulate")
    for path in sources():
        for _, name in imports(path):
            assert not name.startswith(table_makers), path
