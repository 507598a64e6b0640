"""Tables at any width: every cell is there, and no word of it is cut or broken."""

import re
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from rn50.cli.tables import table_lines
from tests.rooms import imports, sources

FIGURES = ("", "3,389,010.5", "6.248644874764753e-05", "0.8825", "(19.6)", "[0.9, 1.1]")
NAMES = ("run", "smoke/20261128T095150Z/run_0", "/scratch/" + "x" * 70, "写真/猫", "é")
SENTENCES = (
    "",
    "target 0.9 reached after 4 epochs of 50 steps, at 0:49",
    "FAIL: " * 20,
)
CELLS = st.sampled_from(FIGURES + NAMES + SENTENCES)
TITLES = ("", "run in results", "images/s", "time to train, s", "top-1")


def words_of(*texts: str) -> Counter[str]:
    return Counter(" ".join(texts).split())


@given(
    st.lists(st.sampled_from(TITLES), min_size=2, max_size=9).flatmap(
        lambda header: st.tuples(
            st.just(header),
            st.lists(st.tuples(*(CELLS for _ in header)), max_size=3),
            st.sets(st.integers(1, len(header) - 1)),
            st.sets(st.integers(0, len(header) - 1)),
        )
    ),
    st.sampled_from([20, 40, 80, 120]),
)
def test_every_cell_is_whole_at_any_width(
    table: tuple[list[str], list[tuple[str, ...]], set[int], set[int]],
    cells: int,
) -> None:
    header, rows, free, right = table
    piped = table_lines(header, rows, None, free, right)
    assert len(piped) == len(rows) + any(header)
    for line, row in zip(piped[any(header) :], rows, strict=True):
        assert all(cell.strip() in line for cell in row)
    lines = table_lines(header, rows, cells, free, right)
    written = words_of(*lines)
    for row in rows:
        assert not words_of(*row) - written
    for line in lines:
        longest = max(map(cell_len, line.split()), default=0)
        assert cell_len(line) <= cells or longest > cells / 2 - 4, line
    is_narrow = max(map(cell_len, piped), default=0) > cells
    is_told = "side by side" in re.sub(r"\s+", " ", " ".join(lines))
    assert is_narrow or not is_told
    # else it is folded alone, with the rows' names on the lines of their cells
    assert is_told or len(lines) >= len(piped)


def test_nothing_else_draws_a_table() -> None:
    """All tables of all commands have one printer; a second one would have laws of its own."""
    drawn = {"rich.table", "rich.columns", "rich.panel", "tabulate", "prettytable"}
    for path in sources():
        names = {name for _, name in imports(path)}
        assert not [name for name in names if name.startswith(tuple(drawn))], path
