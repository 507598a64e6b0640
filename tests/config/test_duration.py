import pytest
from hypothesis import given
from hypothesis import strategies as st

from rn50.config.values import Duration


@pytest.mark.parametrize(
    ("written", "value", "unit"),
    [
        ("540.0 steps", 540, "steps"),
        ("2%", 2, "%"),
        ("  2.5   Epochs ", 2.5, "epochs"),
        (".5 epochs", 0.5, "epochs"),
    ],
)
def test_reads_value_and_unit(written: str, value: float, unit: str) -> None:
    assert Duration.parse(written) == Duration(value, unit)


@pytest.mark.parametrize(
    "written",
    [
        "",
        "-1 epochs",
        "1e3 steps",
        "1,000 steps",
        "1.5 steps",
        "3 minutes",
        "9" * 400 + " epochs",
    ],
)
def test_refuses_what_is_no_duration(written: str) -> None:
    assert Duration.parse(written) is None


@given(
    st.floats(0, 1e11) | st.integers(0, 10**12 - 1), st.sampled_from(["epochs", "%"])
)
def test_every_digit_survives_being_written_and_read(value: float, unit: str) -> None:
    duration = Duration(float(value), unit)
    assert Duration.parse(str(duration)) == duration
