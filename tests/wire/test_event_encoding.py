"""Encoding of the events of groups."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from spark_groupsource.wire.group_events import EventKind, GroupEvent, decode_event, encode_event, event_form

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
MAYBE = st.none() | TEXTS
DETAILS = st.dictionaries(TEXTS, st.none() | st.integers() | TEXTS | st.lists(TEXTS, max_size=3), max_size=3)
EVENTS = st.builds(
    GroupEvent, st.integers(), TEXTS, st.sampled_from(EventKind), st.none() | st.integers(), MAYBE, MAYBE, MAYBE,
    MAYBE, MAYBE, MAYBE, DETAILS,
)  # fmt: skip


def encoded_form(event: GroupEvent) -> str:
    return json.dumps(event_form(event), ensure_ascii=False, separators=(",", ":"))


@given(EVENTS)
def test_an_event_is_encoded_as_its_form(event: GroupEvent) -> None:
    assert encode_event(event).decode() == encoded_form(event)
    assert decode_event(encode_event(event)) == event


def test_text_that_utf8_cannot_encode_is_replaced() -> None:
    detail: dict[str, Any] = {"reason": "\ud800"}
    event = GroupEvent(1, "g\ud800", EventKind.MEMBER_LEFT, detail=detail)
    assert decode_event(encode_event(event)) == event._replace(group="g?", detail={"reason": "?"})
