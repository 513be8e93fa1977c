"""JSON decoded by block equals JSON decoded value by value."""

from __future__ import annotations

import json
from datetime import date, datetime, timezone
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.examples import scaled

from spark_groupsource.values.json import json_blocks, json_scans
from spark_groupsource.values.json.json_blocks import JsonDecoder
from spark_groupsource.values.json.json_records import MalformedValueError, record_decoder
from spark_groupsource.values.python_values import python_values

UTC = timezone.utc
KIND = pa.struct(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("price", pa.float64()),
        ("tags", pa.list_(pa.field("element", pa.string()))),
        ("at", pa.struct([("day", pa.date32()), ("time", pa.timestamp("us", "UTC"))])),
        ("data", pa.binary()),
    ]
)


def decode(values: list[bytes | None], kind: pa.DataType = KIND):
    return JsonDecoder(kind).decode(pa.array(values, pa.binary()))


def one_by_one(values: list[bytes | None], kind: pa.DataType) -> tuple[list[object], dict[int, str]]:
    decode_one, found, malformed = record_decoder(kind), [], {}
    for row, value in enumerate(values):
        try:
            found.append(None if value is None else decode_one(value))
        except MalformedValueError as error:
            malformed[row] = str(error)
            found.append(None)
    return python_values(pa.array(found, kind)), malformed


def test_nested_values_of_every_kind() -> None:
    text = (
        '{"id": 1, "name": "a\\u00e9\\n", "price": 1.5, "tags": ["x", null], "extra": {"y": [1]},'
        '"at": {"day": "2024-02-29", "time": "2024-02-29T10:00:00.5+01:00"}, "data": "AAE="}'
    )
    found = decode([text.encode(), None, b"{}", b"", b" \n"])
    assert found.values.to_pylist() == [
        {
            "id": 1, "name": "a\u00e9\n", "price": 1.5, "tags": ["x", None],
            "at": {"day": date(2024, 2, 29), "time": datetime(2024, 2, 29, 9, 0, 0, 500_000, UTC)}, "data": b"\0\1",
        },
        None,
        dict.fromkeys(KIND.names),
        None,
        None,
    ]  # fmt: skip
    assert found.malformed == {}


@pytest.mark.parametrize(
    "value, reason",
    [
        (b"not json", "Expecting value at character 0"),
        (b'{"id": 1', "Expecting ',' delimiter at character 8"),
        (b'{"id": 1} {"id": 2}', "Extra data at character 10"),
        (b'{"id": 1}x', "Extra data at character 9"),
        (b'{"id": "1"}', "id: 1 is not of type int64"),
        (b'{"id": 1.0}', "id: 1.0 is not of type int64"),
        (b'{"id": 9223372036854775808}', "id: 9223372036854775808 is not of type int64"),
        (b'{"name": "a\nb"}', "Invalid control character at at character 11"),
        (b'{"name": "\xff"}', "invalid UTF-8 at byte 10"),
        (b'{"price": true}', "price: true is not of type double"),
        (b'{"tags": {"0": "x"}}', 'tags: {"0":"x"} is not of type list'),
        (b'{"at": {"day": "2024-02-30"}}', None),
        (b'{"at": {"day": "yesterday"}}', "at: day: 'yesterday' is not of type date: it is no date"),
        (b'{"data": "?"}', None),
        (b"[]", "[] is not of type struct"),
        (b"null", "the value is null"),
        (b'{"id": 1}\0{"id": 2}', "Extra data at character 9"),
        (b'{"a":' * 100_000, "it is nested too deep"),
        (b"[" * 100_000, "it is nested too deep"),
    ],
)
def test_malformed_values_are_null_with_a_reason_and_the_others_are_read(value: bytes, reason: str | None) -> None:
    good = b'{"id": 7}'
    found = decode([good, value, good])
    assert [row and row["id"] for row in found.values.to_pylist()] == [7, None, 7]
    assert list(found.malformed) == [1]
    assert reason is None or found.malformed[1] == reason
    assert len(found.malformed[1]) <= 200


@pytest.mark.parametrize(
    "value, expected",
    [
        (b'{"id": 1, "id": 2}', {"id": 2}),
        (b' {"id": 3}\r\n', {"id": 3}),
        (b'{\n"id":\n4}', {"id": 4}),
        (b'{"price": 1e400}', {"price": float("inf")}),
        (b'{"price": "-Infinity"}', {"price": float("-inf")}),
        (b'{"name": 1.50}', {"name": "1.50"}),
        (b'{"name": {"a": [1, "x", null]}}', {"name": '{"a":[1,"x",null]}'}),
        (b'{"name": "\\ud800"}', {"name": "?"}),
        (b'{"at": {"day": "2024-2-3T10:00"}}', {"at": {"day": date(2024, 2, 3), "time": None}}),
        (b'{"at": {"time": 86400}}', {"at": {"day": None, "time": datetime(1970, 1, 2, tzinfo=UTC)}}),
        (b'{"at": {"time": "2024-1-2 3:4"}}', {"at": {"day": None, "time": datetime(2024, 1, 2, 3, 4, tzinfo=UTC)}}),
    ],
)
def test_values_that_only_spark_accepts(value: bytes, expected: dict[str, object]) -> None:
    found = decode([b"{}", value])
    assert found.malformed == {}
    assert found.values[1].as_py() == {**dict.fromkeys(KIND.names), **expected}


def test_decimals_and_maps() -> None:
    kind = pa.struct([("d", pa.decimal128(5, 2)), ("m", pa.map_(pa.string(), pa.int32()))])
    found = decode([b'{"d": 1.005, "m": {"a": 1, "b": null}}', b'{"d": "2"}', b'{"d": 1000}'], kind)
    assert found.values.to_pylist() == [
        {"d": Decimal("1.01"), "m": [("a", 1), ("b", None)]},
        {"d": Decimal("2.00"), "m": None},
        None,
    ]
    assert found.malformed == {2: "d: 1000 exceeds decimal(5,2)"}


def test_only_selected_fields_are_converted() -> None:
    assert decode([b'{"id": "no number", "name": "x"}'], pa.struct([("name", pa.string())])).malformed == {}


def test_a_large_block_is_divided_around_its_malformed_values() -> None:
    values = [b'{"id": %d}' % n for n in range(3_000)]
    for row in (5, 1_500, 2_999):
        values[row] = b'{"id": "x"}'
    found = decode(values)
    assert list(found.malformed) == [5, 1_500, 2_999]
    assert [row and row["id"] for row in found.values.to_pylist()] == [
        None if n in (5, 1_500, 2_999) else n for n in range(3_000)
    ]
    assert len(decode([]).values) == 0


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text("ab\"\\\n\u00e9", max_size=5),
    st.sampled_from(["2024-01-02", "2024-01-02T03:04:05Z", "NaN", "AAE="]),
)  # fmt: skip
OBJECTS = st.dictionaries(
    st.sampled_from(KIND.names + ["other"]),
    st.one_of(SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(st.sampled_from(["day", "time"]), SCALARS)),
)


@settings(max_examples=60)
@example([b'{"at": {"day": null, "time": -62135596801}}'])  # a time that Python does not have
@given(st.lists(OBJECTS.map(lambda each: json.dumps(each).encode()) | st.binary(max_size=12) | st.none(), max_size=12))
def test_blocks_equal_single_values(values: list[bytes | None]) -> None:
    found = decode(values)
    expected, malformed = one_by_one(values, KIND)
    assert repr(python_values(found.values)) == repr(expected)
    assert list(sorted(found.malformed)) == list(malformed)


def test_a_rejected_part_is_the_smallest_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_blocks, "_PART_ROWS", 2)
    found = decode([b'{"id": %d}' % n if n % 3 else b'{"id": []}' for n in range(10)])
    assert list(found.malformed) == [0, 3, 6, 9]


FLAT = {
    "id": 1, "name": "a{\u00e9", "price": 1.5, "small": 3, "flag": True, "day": "2024-01-02",
    "tags": ["x"], "cost": 1.25,
}  # fmt: skip
FLAT_KIND = pa.struct(
    [
        ("id", pa.int64()), ("name", pa.string()), ("price", pa.float64()), ("small", pa.int32()), ("flag", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")), ("day", pa.date32()), ("cost", pa.decimal128(4, 2)),
        ("tags", pa.list_(pa.field("element", pa.string()))),
    ]
)  # fmt: skip
GOOD = json.dumps(FLAT | {"at": "2024-01-02T03:04:05Z"}).encode()


def changed(**fields: object) -> bytes:
    return json.dumps(FLAT | fields).encode()


@pytest.mark.parametrize("spaced", [True, False])
@pytest.mark.parametrize(
    "bad",
    [
        [GOOD[:-3]], [GOOD[:20]], [b"no JSON"], [changed(id="x")], [changed(flag="yes")], [changed(flag=1)],
        [changed(name={"a": 1})], [changed(name=12)], [changed(tags="x")], [changed(tags=[1])], [changed(id=1.5)],
        [changed(small=2**31)], [changed(id=2**63)], [changed(at="tomorrow")], [changed(at=5)],
        [changed(day="no day")],
        [changed(cost=100)], [changed(cost=1.125)],
        [GOOD.replace(b"1.5", b"1e400")], [GOOD[:-1] + b', "id": 5}'], [GOOD.replace(b'"flag":', b'"flag"')],
        [GOOD.replace(b"a", b"\xff", 1)], [GOOD.replace(b"a", b"\0", 1)], [b'{"x":' + b"[" * 500 + b"]" * 500 + b"}"],
        [changed(id="x"), GOOD[:-3], changed(small=1.5), changed(tags=[1]), GOOD.replace(b'"flag":', b'"flag"')],
    ],
)  # fmt: skip
def test_few_malformed_values_of_a_block_are_decoded_by_themselves(monkeypatch, bad: list[bytes], spaced: bool) -> None:
    values = [GOOD] * 300
    values[::50] = (bad * 6)[:6]
    if not spaced:
        values = [value.replace(b": ", b":") for value in values]
    decoder, single = JsonDecoder(FLAT_KIND), []
    # private: which values are decoded alone
    decode_record = decoder._decode_record
    monkeypatch.setattr(decoder, "_decode_record", lambda value: single.append(value) or decode_record(value))
    expected, malformed = one_by_one(values, FLAT_KIND)
    for _ in range(2):
        single.clear()
        found = decoder.decode(pa.array(values, pa.binary()))
        assert found.values.to_pylist() == expected
        assert found.malformed == malformed
        found.values.validate(full=True)
        assert len(single) <= 6


FLAT = pa.struct(
    [
        ("id", pa.int64()),
        ("n", pa.int8()),
        ("x", pa.float64()),
        ("is_a", pa.bool_()),
        ("s", pa.string()),
        ("d", pa.string()),
    ]
)
_NUMBERS = [
    "0", "-0", "-0.0", "1", "127", "128", "-128", "-129", "9223372036854775807", "9223372036854775808", "1.5", "1e3",
    "1E-2", "1e400", "01", "1.", ".5", "-", "+1", "1.7976931348623157e308", "0.1", "0.30000000000000004",
    "9007199254740993", "123456789012345678", "1234567890123456789", "1" + "0" * 60, "0." + "0" * 30 + "1", "NaN",
    "Infinity", "1 2", "0x1",
]  # fmt: skip
_SCALARS = [
    *_NUMBERS, "null", "true", "false", "tru", "nul", '"a"', '""', '"\\n"', '"\\u00e9"', '"\u00e9"', '"\t"', '"', "[]",
    "[1]", "{}", '{"id": 1}', '"null"', '"1"', "",
]  # fmt: skip
_PAIRS = st.tuples(st.sampled_from([*FLAT.names, "other", "i", "idd", "", "s\\u0000"]), st.sampled_from(_SCALARS))
_FORMS = st.sampled_from([(", ", ": "), (",", ":"), (" ,\n", " :\t"), (",,", ":"), (",", "::")])


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads the compiled scanner at once."""
    monkeypatch.setattr(json_scans._Rows, "load_after", -1)


def json_texts() -> st.SearchStrategy[bytes]:
    def text(pairs: list[tuple[str, str]], form: tuple[str, str], ends: tuple[str, str]) -> bytes:
        return (ends[0] + form[0].join(f'"{key}"{form[1]}{value}' for key, value in pairs) + ends[1]).encode()

    ends = st.sampled_from([("{", "}"), (" { ", " } "), ("{", "}}"), ("{", ""), ("[{", "}]"), ("{,", "}"), ("{", ",}")])
    return st.builds(text, st.lists(_PAIRS, max_size=6), _FORMS, ends)


@settings(max_examples=scaled(1000, 60))
@given(st.lists(st.one_of(json_texts(), st.just(None), st.binary(max_size=12)), min_size=1, max_size=6), st.data())
def test_the_compiled_scanner_equals_single_values(values: list[bytes | None], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(values) - 1))
    value = values[at]
    if value:
        # one byte is another
        place = data.draw(st.integers(0, len(value) - 1))
        changed = value[:place] + data.draw(st.binary(max_size=1)) + value[place + 1 :]
        # the same texts before the values follow each other
        values = [*values, changed, *values, changed]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_scans._Rows, "load_after", -1)
        found = decode(values, FLAT)
    rows, malformed = one_by_one(values, FLAT)
    assert repr(found.values.to_pylist()) == repr(rows)
    assert found.malformed.keys() == malformed.keys()


def test_the_scanner_reads_what_it_can(scanned, monkeypatch: pytest.MonkeyPatch) -> None:
    good = b'{"s": "\xc3\xa9", "id": -5, "other": 1.5e3, "x": 0.25, "is_a": true, "n": null}'
    row = {"id": -5, "n": None, "x": 0.25, "is_a": True, "s": "\u00e9", "d": None}
    decoder = JsonDecoder(FLAT)
    lines: list[int] = []
    monkeypatch.setattr(
        # private: how many values the other path decodes
        decoder, "_decode_lines", lambda data: lines.append(len(data)) or JsonDecoder(FLAT)._decode_lines(data)
    )
    data = [good] * 300 + [b'{"s": "\\u00e9"}', b"{", None, good[:5] + b"\xff" + good[6:], b'{"id": 1, "id": 2}']
    found = decoder.decode(pa.array(data, pa.binary()).slice(1))
    assert found.values.to_pylist()[:299] == [row] * 299 and lines == [5]
    assert found.values[299]["s"].as_py() == "\u00e9" and found.malformed.keys() == {300, 302}
    # values that it cannot read end its use
    nested = [b'{"id": 1, "other": [1]}'] * 300
    assert decoder.decode(pa.array(nested)).values.to_pylist() == [{**dict.fromkeys(FLAT.names), "id": 1}] * 300
    decoder.decode(pa.array(nested))
    # private: whether the scanner is still in use
    assert lines == [5, 300, 300] and decoder._scanner is None
    # the same keys with other blanks
    forms = [b'{"id":1,"n":2}', b'{"id": 1, "n": 2}', b'{ "id": 1 ,"n": 2}', b'{"id":1,"n":  2}']
    decoder = JsonDecoder(FLAT)
    monkeypatch.setattr(decoder, "_decode_lines", lambda data: lines.append(len(data)))
    found = decoder.decode(pa.array(forms * 2))
    assert found.values.to_pylist() == [{**dict.fromkeys(FLAT.names), "id": 1, "n": 2}] * 8 and len(lines) == 3
    assert not json_scans.JsonScanner.reads(KIND)
    # as written the value has no such field, and its field "a" is malformed
    for name in ('a"b', "a\\b", "a\nb"):
        assert not json_scans.JsonScanner.reads(pa.struct([(name, pa.int64())]))


BAD = [
    b'{"id": "x", "n": 1, "s": "a"}', b'{"id": 1, "n": 1, "s": "', b"no JSON", b'{"id": 1, "n": 200, "s": "a"}',
    b'{"id": 1, "n": 1, "s": "\xff"}',
]  # fmt: skip


@pytest.mark.parametrize("bad", [[each] for each in BAD] + [BAD])
def test_malformed_values_of_the_scanner_are_not_read_together_again(scanned, monkeypatch, bad: list[bytes]) -> None:
    values: list[bytes | None] = [b'{"id": %d, "n": 1, "s": "a"}' % n for n in range(300)]
    values[::50] = (bad * 6)[:6]
    decoder, lines = JsonDecoder(FLAT), []
    # private: how many values the other path decodes
    decode_lines = decoder._decode_lines
    monkeypatch.setattr(decoder, "_decode_lines", lambda data: lines.append(len(data)) or decode_lines(data))
    for block in (values, values, [None, *values, b'{"s": "\\n"}']):
        found = decoder.decode(pa.array(block, pa.binary()))
        expected, malformed = one_by_one(block, FLAT)
        found.values.validate(full=True)
        assert found.values.to_pylist() == expected
        assert found.malformed == malformed
    assert lines == [6]
    # values that are not malformed are read together again
    others = [None, b'{"s": "\\n"}', *[values[1]] * 30]
    for _ in range(2):
        assert decoder.decode(pa.array(others)).values.to_pylist() == one_by_one(others, FLAT)[0]
    assert lines == [6, 2]


def test_the_scanner_accepts_no_key_after_the_end_of_a_value(scanned) -> None:
    # the bytes after a value are those of an earlier row
    first, second = b'{"id": 1, "n": 2, "s": "a"}', b'{"id": 1'
    data = pa.array([first, second, b', "n": 2, "s": "a"}', first])
    found = JsonDecoder(FLAT).decode(data)
    assert found.malformed.keys() == {1, 2}
    fields = {"id": 1, "n": 2, "x": None, "is_a": None, "s": "a", "d": None}
    assert found.values.to_pylist() == [fields, None, None, fields]


def test_without_numba_no_scanner_is_loaded(scanned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_scans, "_scanner", lambda: None)
    assert decode([b'{"id": 3}'], FLAT).values[0]["id"].as_py() == 3
