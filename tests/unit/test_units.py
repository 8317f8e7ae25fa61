from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel import units
from windtunnel.errors import SpecError

PARSERS = (
    units.parse_bytes,
    units.parse_bandwidth,
    units.parse_time,
    units.parse_flops,
    units.parse_number,
    units.parse_count,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("80 GiB", 80 * 2**30),
        ("80GiB", 80 * 2**30),
        ("  80 GiB ", 80 * 2**30),
        ("1.5 GB", 1_500_000_000),
        ("1e3 kB", 1_000_000),
        ("4096", 4096),
        (4096, 4096),
        (4096.0, 4096),
        ("0", 0),
        (".5 KiB", 512),
        ("2.25 TiB", 2304 * 2**30),
    ],
)
def test_bytes(text: object, value: int) -> None:
    assert units.parse_bytes(text) == value
    assert isinstance(units.parse_bytes(text), int)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("400 Gb/s", 50e9),
        ("400 Gbps", 50e9),
        ("400 Gbit/s", 50e9),
        ("450 GB/s", 450e9),
        ("1 GiB/s", 2.0**30),
        ("1 Gib/s", 2.0**30 / 8),
        ("3.35 TB/s", 3.35e12),
        (50e9, 50e9),
        ("5e10", 5e10),
    ],
)
def test_bandwidth_knows_bits_from_bytes(text: object, value: float) -> None:
    assert units.parse_bandwidth(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3 us", 3e-6),
        ("3 µs", 3e-6),
        ("3 μs", 3e-6),
        ("1.5ms", 1.5e-3),
        ("2 h", 7200.0),
        ("90 min", 5400.0),
        (0.25, 0.25),
    ],
)
def test_time(text: object, value: float) -> None:
    assert units.parse_time(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("989 TFLOP/s", 989e12),
        ("66.9 TFLOPS", 66.9e12),
        ("2.25 PFLOP/s", 2.25e15),
        (1e12, 1e12),
        ("1979 TOPS", 1979e12),
    ],
)
def test_flops(text: object, value: float) -> None:
    assert units.parse_flops(text) == value


@pytest.mark.parametrize(("text", "value"), [("8192", 8192), ("8,192", 8192), ("8_192", 8192), (8.0, 8), (1, 1)])
def test_count(text: object, value: int) -> None:
    assert units.parse_count(text) == value


@pytest.mark.parametrize("text", ["0", "-8", "8k", "8,19", "1.5", "", 0, -1, 1.5, True, None, 2**63, "٣", float("nan")])
def test_count_refuses(text: object) -> None:
    with pytest.raises(SpecError):
        units.parse_count(text, "gpus")


@pytest.mark.parametrize(
    "value",
    [
        *("", "GiB", "80 XB", "-1 GB", "-1", -1, "nan", "inf", math.nan, math.inf, -math.inf, True, None, [], {}),
        *(b"80 GB", "1 2 GB", "1e999", "1e999 GB", 10**400, 10**5000, "80 GiB/s", "1.2.3 GB", "٣ GB", "0x10"),
        *("1,000 GB", 1 + 2j, pytest.param("9" * 200, id="long")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_nonsense_is_refused_with_the_field(value: object) -> None:
    with pytest.raises(SpecError) as caught:
        units.parse_bytes(value, "gpu.memory", "my.yaml")
    assert caught.value.field == "gpu.memory"
    text = "is not given: " if value is None else "= "
    assert str(caught.value).startswith(f"my.yaml: gpu.memory {text}")
    assert len(str(caught.value)) > len(f"my.yaml: gpu.memory {text}: ")


def test_the_message_says_what_to_write() -> None:
    with pytest.raises(SpecError, match=r"Gb is bits; write GB"):
        units.parse_bytes("80 Gb")
    with pytest.raises(SpecError, match=r"case-sensitive; write GB/s or Gb/s"):
        units.parse_bandwidth("400 gb/s")
    with pytest.raises(SpecError, match=r"takes no unit"):
        units.parse_number("3 us")
    with pytest.raises(SpecError, match=r"400 Gb/s \(bits\)"):
        units.parse_bandwidth("fast")


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (units.format_bytes(79.1 * 2**30), "79.1 GiB"),
        (units.format_bytes(0), "0 B"),
        (units.format_bytes(512), "512 B"),
        (units.format_bytes(1023.99 * 2**20), "1.00 GiB"),
        (units.format_rate(450e9), "450 GB/s"),
        (units.format_flops(989.4e12), "989 TFLOP/s"),
        (units.format_flops(1e15), "1.00 PFLOP/s"),
        (units.format_time(0.0123), "12.3 ms"),
        (units.format_time(999.9e-6), "1.00 ms"),
        (units.format_time(27.2945), "27.3 s"),
        (units.format_time(3600.0), "60.0 min"),
        (units.format_time(0.0), "0 s"),
        (units.format_time(-0.5), "-500 ms"),
        (units.format_count(8192), "8,192"),
        (units.format_count(14206.7), "14,207"),
        (units.format_count(12.34), "12.3"),
        (units.format_count(405.9e9), "406B"),
        (units.format_count(999_999_999), "1.00B"),
        (units.format_bytes(85018877624), "79.2 GiB"),
        (units.format_many(1, "GPU"), "1 GPU"),
        (units.format_many(8192, "GPU"), "8,192 GPUs"),
        (units.format_percent(0.4137), "41.4 %"),
        (units.format_time(math.inf), "inf"),
    ],
)
def test_format(shown: str, expected: str) -> None:
    assert shown == expected


PAIRS = (
    (units.format_bytes, units.parse_bytes, 2.0**62),
    (units.format_rate, units.parse_bandwidth, 1e18),
    (units.format_flops, units.parse_flops, 1e21),
    (units.format_time, units.parse_time, 1e9),
)


@given(st.sampled_from(PAIRS), st.floats(0.0, 1.0), st.integers(2, 9))
def test_what_is_printed_parses_back(pair: tuple, fraction: float, digits: int) -> None:
    show, parse, largest = pair
    value = largest**fraction
    whole_byte = 0.5 if parse is units.parse_bytes else 0.0
    assert abs(parse(show(value, digits)) - value) <= 0.51 * 10.0 ** (1 - digits) * value + whole_byte


@given(st.sampled_from(PAIRS), st.floats(1e-3, 1e15), st.floats(1e-3, 1e15))
def test_parsing_what_is_printed_keeps_order(pair: tuple, a: float, b: float) -> None:
    show, parse, _ = pair
    low, high = sorted((a, b))
    assert parse(show(low)) <= parse(show(high))


@given(
    st.sampled_from(PARSERS), st.one_of(st.text(), st.floats(), st.integers(), st.none(), st.binary(), st.booleans())
)
def test_a_parser_returns_a_finite_amount_or_raises_spec_error(parse: object, value: object) -> None:
    try:
        amount = parse(value, "field")  # type: ignore[operator]
    except SpecError:
        return
    assert math.isfinite(amount)
    assert amount >= 0


NUMBERS = st.from_regex(r"\A[+-]?[0-9]{0,4}\.?[0-9]{0,4}(e[+-]?[0-9]{1,12})?\Z")
UNITS = st.text(st.sampled_from("kKMGTPEiBbt/spufFLOPmnhd "), max_size=8)


@given(st.sampled_from(PARSERS), NUMBERS, UNITS)
def test_nearly_right_text_is_parsed_or_refused(parse: object, number: str, unit: str) -> None:
    try:
        amount = parse(number + unit, "field")  # type: ignore[operator]
    except SpecError:
        return
    assert math.isfinite(amount)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.05, "50ms"),
        (1.0, "1s"),
        (90.0, "90s"),
        (21600.0, "6h"),
        (2.5e-5, "25us"),
        (0.1 + 0.2, "0.30000000000000004s"),
    ],
)
def test_a_time_is_written_with_its_unit_and_read_back_exactly(seconds: float, text: str) -> None:
    assert units.exact_text(seconds, "time") == text
    assert units.parse_time(text) == seconds


@pytest.mark.parametrize(
    ("tokens", "text"),
    [(2 * 10**12, "2T"), (1_400_000_000, "1.4B"), (500_000, "500000"), (1_234_567_891, "1234567891")],
)
def test_tokens_are_written_short_and_read_back(tokens: int, text: str) -> None:
    assert units.exact_text(tokens, "tokens") == text
    assert units.parse_tokens(text) == tokens
