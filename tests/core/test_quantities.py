from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan_cli.core.quantities import (
    LARGEST,
    format_change,
    format_share,
    format_size,
    parse_increase,
    parse_size,
)
from memplan_cli.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("1_000", 1000),
        ("0", 0),
        ("512MiB", 512 * 2**20),
        ("512 mib", 512 * 2**20),
        ("1.5 GB", 1_500_000_000),
        ("1.5GiB", 3 * 2**29),
        ("64kB", 64_000),
        (" 7 B ", 7),
        ("12 bytes", 12),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_a_fraction_of_a_byte_is_rounded_down_so_that_no_budget_grows() -> None:
    assert parse_size("1.3KiB") == 1331
    assert parse_size("0.1 B") == 0


@pytest.mark.parametrize(
    "text",
    ["", "MiB", "-1", "1e9", "12 apples", "1.MiB", "nan", "\u0661KiB", f"1.{'0' * 40} GB"],
)
def test_a_text_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        parse_size(text)


def test_a_unit_that_can_mean_two_things_is_refused_with_both_units() -> None:
    with pytest.raises(SettingsError) as caught:
        parse_size("64k")
    assert caught.value.hint == "64KiB uses powers of 1024, 64KB powers of 1000"


@pytest.mark.parametrize("unit", ["Kb", "Mb", "Gb", "Mib"])
def test_a_lower_case_b_after_a_prefix_means_bits_and_is_refused(unit: str) -> None:
    with pytest.raises(SettingsError, match=f"400{unit}' is a size in bits") as caught:
        parse_size(f"400{unit}")
    prefix = unit[0]
    assert caught.value.hint == (
        f"400{prefix}iB uses powers of 1024, 400{prefix}B powers of 1000"
    )


def test_a_size_beyond_64_bits_is_refused() -> None:
    assert parse_size(str(LARGEST)) == LARGEST
    with pytest.raises(SettingsError, match="is too large"):
        parse_size("9999999 PiB")


@given(st.integers(0, LARGEST))
def test_a_number_of_bytes_reads_back_as_itself(size: int) -> None:
    assert parse_size(str(size)) == size


@given(st.text(max_size=60))
def test_no_text_ends_in_anything_but_a_size_or_a_settings_error(text: str) -> None:
    try:
        assert parse_size(text) >= 0
    except SettingsError:
        return


def test_an_increase_is_a_share_or_a_number_of_bytes() -> None:
    assert parse_increase("2%").limit(1000) == 1020
    assert parse_increase("0.5 %").limit(1000) == 1005
    assert parse_increase("4KiB").limit(1000) == 5096
    assert parse_increase("0").limit(1000) == 1000
    assert str(parse_increase("2.5%")) == "2.5%"
    assert str(parse_increase("4KiB")) == "4.00 KiB"


def test_a_share_is_exact_where_floats_are_not() -> None:
    assert parse_increase("10%").limit(10**18) == 11 * 10**17


@pytest.mark.parametrize("text", ["%", "-2%", "two percent", "2%%"])
def test_what_is_no_increase_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_increase(text)
    assert "2%" in caught.value.hint


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (2**20 - 1, "1.00 MiB"),
        (512 * 2**20, "512.00 MiB"),
        (-2048, "-2.00 KiB"),
        (2**63, "8.00 EiB"),
    ],
)
def test_sizes_are_printed_in_the_largest_fitting_unit(size: int, text: str) -> None:
    assert format_size(size) == text


def test_a_change_shows_its_sign() -> None:
    assert [format_change(size) for size in (1024, 0, -1)] == ["+1.00 KiB", "0 B", "-1 B"]


def test_a_share_of_nothing_is_a_dash() -> None:
    assert format_share(1, 4) == "25.0%"
    assert format_share(1, 0) == "-"
