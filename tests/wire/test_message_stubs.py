"""Stub of the message classes: up to date, mistakes are rejected."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from mypy import api

from spark_groupsource.wire import messages
from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.apis import APIS

GENERATOR = Path(__file__).parent / "generate_message_stubs.py"
# with the options of `make lint`, whose cache mypy then reads
CONFIG = Path(__file__).parents[2] / "setup.cfg"
IMPORT = "from spark_groupsource.wire.messages import *\n"


def check(directory: Path, snippet: str) -> str:
    """Returns what mypy reports about the file ``<string>``."""
    source = directory / "snippet.py"
    source.write_text(IMPORT + snippet)
    report, errors, _ = api.run([f"--config-file={CONFIG}", "--no-error-summary", str(source)])
    assert not errors
    return re.sub(r"^\S*snippet\.py:", "<string>:", report, flags=re.MULTILINE)


def test_the_stub_is_up_to_date():
    assert runpy.run_path(str(GENERATOR))["generate"]() == Path(messages.__file__).with_suffix(".pyi").read_text()


def test_api_keys_have_the_names_of_the_schemas():
    names = {key.api_name: int(key) for key in ApiKey}
    assert names == {api.name: key for key, api in APIS.items()}


def test_messages_carry_api_keys():
    assert all(isinstance(side.API_KEY, ApiKey) for api in APIS.values() for side in (api.request, api.response))


@pytest.mark.slow
def test_correct_code_is_accepted(tmp_path):
    assert not check(
        tmp_path,
        """
def first_topic(request: FetchRequest) -> str:
    return request.topics[0].topic

partition = FetchRequest.FetchTopic.FetchPartition(partition=0, fetch_offset=7)
print(first_topic(FetchRequest(topics=[FetchRequest.FetchTopic(topic="trips", partitions=[partition])])))
""",
    )


@pytest.mark.slow
def test_mistakes_are_rejected(tmp_path):
    mistakes = {
        "HeartbeatRequest().group": '"HeartbeatRequest" has no attribute "group"',
        "HeartbeatRequest(group='billing')": 'Unexpected keyword argument "group" for "HeartbeatRequest"',
        "HeartbeatRequest(generation_id='4')": 'incompatible type "str"; expected "int"',
        "FetchResponse().responses[0].partitions[0].offset": '"PartitionData" has no attribute "offset"',
        "HeartbeatRequest().group_id = 'billing'": 'Property "group_id" defined in "HeartbeatRequest" is read-only',
    }
    report = check(tmp_path, "\n".join(mistakes)).splitlines()
    for line, (mistake, expected) in enumerate(mistakes.items(), start=2):
        assert any(text.startswith(f"<string>:{line}: ") and expected in text for text in report), mistake


@pytest.mark.slow
def test_the_response_class_follows_from_the_request(tmp_path):
    snippet = """
R = TypeVar("R", bound=Response)
def send(request: Request[R]) -> R: ...
reveal_type(send(HeartbeatRequest()))
"""
    assert "HeartbeatResponse" in check(tmp_path, "from typing import TypeVar\n" + snippet)
