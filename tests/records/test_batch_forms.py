"""Batches that repeat an earlier one: equality with decoded records."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import scaled

from spark_groupsource.records.batch_forms import BatchForms
from spark_groupsource.records.decode import decode_records, records_payload
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.records.header import iter_batches

_KEYS = st.one_of(
    st.lists(st.sampled_from([b"a", b"b", b"key-3", b"k" * 70]), min_size=8, max_size=12),
    st.integers(10, 90).map(lambda count: [b"key-%02d" % number for number in range(count)]),
)


def batch(keys, value, **fields):
    data = encode_batch([Record(key, value + b"%02d" % number, 5) for number, key in enumerate(keys)], **fields)
    (header,) = iter_batches(data)
    return data, header


def found_by(forms, data, header):
    payload = bytes(records_payload(data, header))
    form = forms.find(payload, header)
    return None if form is None else form.pairs(payload)


def test_the_second_and_later_batches_of_a_form_are_found():
    forms = BatchForms()
    keys = [b"key-%d" % number for number in range(100)]
    found = [found_by(forms, *batch(keys, value)) for value in (b"1", b"2", b"3")]
    assert found[0] is None
    assert found[1:] == [[(key, value + b"%02d" % n) for n, key in enumerate(keys)] for value in (b"2", b"3")]


def test_a_batch_with_another_key_number_or_size_has_no_form():
    forms = BatchForms()
    keys = [b"key-%d" % number for number in range(10, 50)]
    for _ in range(2):
        found_by(forms, *batch(keys, b"1"))
    assert found_by(forms, *batch([*keys[:-1], b"key-99"], b"1")) is None
    assert found_by(forms, *batch(keys[:-1], b"1")) is None
    assert found_by(forms, *batch(keys, b"11")) is None
    assert found_by(forms, *batch(keys, b"2")) is not None


def test_forms_take_bounded_memory():
    forms = BatchForms()
    for number in range(400):
        for _ in range(2):
            found_by(forms, *batch([b"%05d" % number] * 20, b"v" * 1_000))
    # private: the bound of memory
    assert forms._bytes <= 4_194_304 + 6 * 65_536


def test_forms_that_are_not_used_are_not_replaced():
    forms = BatchForms()
    batches = [batch([b"%05d" % number] * 20, b"v" * 1_000) for number in range(100)]
    for _ in range(4):
        for each in batches:
            found_by(forms, *each)
    # private: which forms are kept
    known = dict(forms._forms)
    assert 0 < len(known) < len(batches)
    for each in batches:
        found_by(forms, *each)
    assert forms._forms == known
    assert sum(found_by(forms, *each) is not None for each in batches) == len(known)


def test_forms_make_room_after_they_were_used():
    forms = BatchForms()
    for number in range(200):
        found = [found_by(forms, *batch([b"%05d" % number] * 20, b"v" * 1_000)) for _ in range(20)]
        assert found[0] is None and None not in found[1:]
    assert forms._bytes <= 4_194_304 + 6 * 65_536


@settings(max_examples=scaled(200), deadline=None)
@given(st.lists(st.tuples(_KEYS, st.sampled_from([b"", b"x", b"y"])), max_size=8), st.data())
def test_a_found_form_has_the_records_of_the_batch(batches, data):
    forms = BatchForms()
    for keys, value in batches * 3:
        encoded, header = batch(keys, value)
        changed = bytearray(encoded)
        if data.draw(st.booleans()):
            changed[data.draw(st.integers(61, len(encoded) - 1))] = data.draw(st.integers(0, 255))
        found = found_by(forms, bytes(changed), header)
        if found is not None:
            assert found == [(record.key, record.value) for record in decode_records(bytes(changed), header)]
