"""Every path of the JSON decoder gives the same value."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import scaled
from support.json_fuzz import JsonFuzz
from support.json_grid import CONTEXTS, RECORD_KIND, RECORDS, SCALARS, VALUES, arrow_scalar
from support.json_paths import MALFORMED, disagreements, single_values

from spark_groupsource.values.json.json_blocks import JsonDecoder
from spark_groupsource.values.json.json_decimals import most_digits, unsafe_decimals

# types of each kind of conversion
_NESTED = (
    "int", "float", "string", "binary", "date", "timestamp", "timestamp_ntz", "decimal(5,2)", "decimal(38,18)",
)  # fmt: skip
# those of `make check`
_QUICK = ("int", "string", "timestamp", "decimal(5,2)")


def _marked(scalars: Iterable[str]) -> list[Any]:
    return [pytest.param(each, marks=[] if each in _QUICK else [pytest.mark.slow]) for each in scalars]


@pytest.mark.parametrize("scalar", _marked(SCALARS))
def test_a_field_has_the_same_value_by_every_path(scalar: str) -> None:
    field = CONTEXTS["field"]
    assert disagreements(field.kind(scalar), [field.record(value) for value in VALUES]) == []


@pytest.mark.parametrize("scalar", _marked(_NESTED))
@pytest.mark.parametrize("name", [name for name in CONTEXTS if name != "field"])
def test_a_nested_value_has_the_same_value_by_every_path(name: str, scalar: str) -> None:
    context = CONTEXTS[name]
    kind, values = context.kind(scalar), [context.record(value) for value in VALUES]
    good = [value for value, found in zip(values, single_values(kind, values)) if found != MALFORMED]
    assert disagreements(kind, values, ["one block"]) == []
    # where PyArrow rejects none of the others, it reads each
    assert disagreements(kind, good, ["beside good values", "one block"]) == []


def test_a_record_has_the_same_value_by_every_path() -> None:
    assert disagreements(RECORD_KIND, [*RECORDS, None]) == []


def test_a_value_is_malformed_in_the_column_where_it_is() -> None:
    kind = pa.struct([(f"f{at}", arrow_scalar(scalar)) for at, scalar in enumerate(SCALARS)])
    row = b", ".join(b'"f%d": null' % at for at in range(len(SCALARS)))
    for at, scalar in enumerate(SCALARS):
        value = b'{"unknown": 1}' if scalar != "string" else b"tru"
        found = JsonDecoder(kind).decode(
            pa.array([b"{}", b"{%s}" % row.replace(b'"f%d": null' % at, b'"f%d": %s' % (at, value))])
        )
        assert list(found.malformed) == [1]
        assert scalar == "string" or found.malformed[1].startswith(f"f{at}: ")


def test_only_true_and_false_are_booleans() -> None:
    kind = pa.struct([("v", pa.bool_())])
    values = [b'{"v": %s}' % text for text in (b"true", b"false", b'"true"', b'"false"', b"1", b"0")]
    found = single_values(kind, values)
    assert found[:2] == ["{'v': True}", "{'v': False}"] and found[2:] == [MALFORMED] * 4


def test_random_records_have_the_same_value_by_every_path() -> None:
    for seed in range(scaled(1000, 20)):
        fuzz = JsonFuzz(seed)
        kind = fuzz.kind()
        assert disagreements(kind, [fuzz.record(kind) for _ in range(20)]) == [], f"seed {seed}"


def test_no_decimal_overflows_unseen() -> None:
    # the reader multiplies it by 10^18 in 128 bits
    kind = pa.struct([("d", pa.decimal128(38, 18))])
    found = JsonDecoder(kind).decode(pa.array([b'{"d":1.5}', b'{"d":123456789012345678901234567890}']))
    assert found.values.to_pylist() == [{"d": Decimal("1.500000000000000000")}, None]
    assert found.malformed == {1: "d: 123456789012345678901234567890 exceeds decimal(38,18)"}


_DIGITS = st.text("0123456789", max_size=45)
_DECIMALS = st.builds(
    lambda sign, whole, point, fraction, exponent, form: form.format(f"{sign}{whole}{point}{fraction}{exponent}"),
    st.sampled_from(["", "-", "+"]), _DIGITS, st.sampled_from(["", "."]), _DIGITS,
    st.sampled_from(["", "", "e0", "E5", "e-1", "e+38", "e-77", "e-100", "e99999", "e-2147483648", "e99999999999"]),
    st.sampled_from(["{}", '"{}"', '"\\u0030{}"', '" {}"', '"{}\\u0065-99"', '"x\\"{}"']),
)  # fmt: skip


@settings(max_examples=scaled(1000, 40))
@given(st.integers(1, 38), st.integers(0, 38), st.lists(_DECIMALS, min_size=1, max_size=20))
def test_decimals_have_the_same_value_by_every_path(precision: int, scale: int, texts: list[str]) -> None:
    decimal = pa.decimal128(precision, min(scale, precision))
    for kind in (decimal, pa.list_(pa.field("element", decimal))):
        form = '{{"v":{}}}' if kind is decimal else '{{"v":[{0},{0}]}}'
        values = [form.format(text).encode() for text in texts]
        assert disagreements(pa.struct([("v", kind)]), values) == []


@settings(max_examples=scaled(1000, 40))
@given(
    st.lists(
        st.sampled_from(["1", "7", "12", "5" * 9, "e", "E", "e5", "e-", ".", "-", '"', ",", ":", " ", "x", "é"]),
        max_size=24,
    ),
    st.integers(0, 20),
)
def test_an_unsafe_decimal_is_found_wherever_it_is(parts: list[str], digits: int) -> None:
    text = f'{{"{"".join(parts)}"}}'
    lines = pa.array([b'{"x":9}', text.encode(), b"{}"], pa.binary())
    runs = [len(run) for run in "".join(each if each.isdigit() else " " for each in text).split()]
    found = unsafe_decimals(lines, digits).tolist()
    assert found[::2] == [digits == 0, False]
    assert found[1] or max(runs, default=0) <= digits
    assert not found[1] or max(runs, default=0) > digits or "e" in text.lower()
    # an array that begins within its buffers
    assert unsafe_decimals(lines.slice(1), digits).tolist() == found[1:]
    assert unsafe_decimals(lines.slice(1, 0), digits).tolist() == []


def test_the_digits_of_nested_decimals_are_those_of_the_largest_scale() -> None:
    kind = pa.struct([("a", pa.list_(pa.decimal128(20, 4))), ("b", pa.struct([("c", pa.decimal128(38, 10))]))])
    assert most_digits(kind) == 28
    assert most_digits(pa.struct([("a", pa.string())])) is None
