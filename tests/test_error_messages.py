"""Form of error messages: one line, final period, option name."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import spark_groupsource
from spark_groupsource import errors
from spark_groupsource.errors import ErrorCode, GenerationMismatchError, GroupSourceError

PACKAGE = Path(spark_groupsource.__file__).parent
MAX_LITERAL_CHARACTERS = 300
# the broker sends these texts to clients; many are copied from Kafka
EXEMPT_CLASSES = {"ApiError"}
# copied from Kafka (PlainSaslServer, OffsetsUtils), which clients and scripts may compare
EXEMPT_TEXTS = {
    "Authentication failed: Invalid username or password",
    "Invalid partition '{}' specified in topic arg '{}'",
    "Invalid topic arg '{}', expected topic name and partitions",
    'The partitions "{}" do not exist',
    'The partitions "{}" have no leader',
    "Cannot shift offset for partition {} since there is no current committed offset",
}
# words of vocabulary.md that a message must not have
BANNED = re.compile(
    r"\b(told|tells|seats?|story|whoever|nobody|somebody|stands|mend(s|ed)?|anew|dice|homeless|goes on|go on|beats|"
    r"lets go|takes over|gives way)\b",
    re.IGNORECASE,
)
# first argument of these classes is a noun phrase; the class adds the error code and the period
NOUN_PHRASES = {"BrokerError"}
PLACEHOLDER = "{}"


class Message(NamedTuple):
    """The literal text of one error, with `PLACEHOLDER` for each formatted value."""

    error_class: str
    text: str
    place: str


def classes() -> dict[str, type[GroupSourceError]]:
    members = inspect.getmembers(errors, inspect.isclass)
    return {name: item for name, item in members if issubclass(item, GroupSourceError)}


def literal(node: ast.expr) -> str | None:
    """The text of a string literal or f-string, None for other expressions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else PLACEHOLDER for v in node.values)
    return None


@cache
def messages() -> tuple[Message, ...]:
    """Every message whose text is written where the error is created."""
    return tuple(_messages())


def _messages() -> Iterator[Message]:
    names = set(classes()) - EXEMPT_CLASSES - {"GenerationMismatchError"}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names):
                continue
            position = 1 if node.func.id in NOUN_PHRASES | {"DataLossError"} else 0
            text = literal(node.args[position]) if len(node.args) > position else None
            if text is not None and text not in EXEMPT_TEXTS:
                place = f"{path.relative_to(PACKAGE.parent)}:{node.lineno}"
                yield Message(node.func.id, text, place)


def faults(message: Message) -> list[str]:
    text = message.text
    found = []
    if "\n" in text:
        found.append("has more than one line")
    if len(text) > MAX_LITERAL_CHARACTERS:
        found.append(f"has {len(text)} characters")
    if message.error_class in NOUN_PHRASES:
        found += ["is not a noun phrase"] if text.endswith(".") else []
    elif not text.endswith((".", PLACEHOLDER)):
        found.append("does not end with a period")
    # an identifier such as stop_gracefully keeps its case
    if re.match(r"[a-z]+\b(?!\.\w)", text):
        found.append("begins with a lower-case letter")
    if BANNED.search(text):
        found.append("has a word that is not of the vocabulary")
    if message.error_class == "ConfigurationError" and not is_about_an_option(text):
        found.append("names no option")
    return found


def is_about_an_option(text: str) -> bool:
    """True for a message with an option, a function such as stop_gracefully, or a formatted value."""
    return bool(re.search(r"[Oo]ption|--[a-z]|[a-z]+\.[a-z]+|[a-z]+[A-Z]|[a-z]_[a-z]", text)) or PLACEHOLDER in text


def test_messages_are_found() -> None:
    assert len(messages()) > 150


def test_every_message_has_the_agreed_form() -> None:
    wrong = [f"{m.place} {m.error_class} {', '.join(found)}: {m.text}" for m in messages() if (found := faults(m))]
    assert wrong == []


@pytest.mark.parametrize("error_class", classes().values(), ids=lambda item: item.__name__)
def test_every_class_has_a_docstring_in_plain_terms(error_class: type[GroupSourceError]) -> None:
    assert error_class.__name__.endswith("Error")
    doc = inspect.getdoc(error_class) or ""
    assert doc.splitlines()[0].endswith("."), doc
    assert not BANNED.search(doc)


def test_broker_error() -> None:
    error = errors.BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "JoinGroup of group 'g'", "Grant the user READ.")
    assert str(error) == "JoinGroup of group 'g' failed: GROUP_AUTHORIZATION_FAILED (30). Grant the user READ."
    assert str(errors.BrokerError(9_999, "Fetch of t-0")) == "Fetch of t-0 failed: ERROR_9999 (9999)."


@pytest.mark.parametrize(
    "error",
    [
        errors.NetworkError("Sending failed."),
        errors.BrokerError(ErrorCode.NOT_COORDINATOR, "Commit of group 'g'", "Try again."),
        GenerationMismatchError(group_id="g", member_id="m", generation_id=4, current_generation=5, cause="removed"),
        errors.DataLossError("START_OFFSET_RESET", "t-0 begins at offset 5.", "Read again."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_of_read_tasks_are_picklable(error: GroupSourceError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize("error_class", [errors.NetworkError, errors.RequestTimeoutError])
def test_network_errors_are_connection_errors(error_class: type[GroupSourceError]) -> None:
    assert issubclass(error_class, ConnectionError) and issubclass(error_class, errors.NetworkError)


def test_generation_mismatch_error() -> None:
    error = GenerationMismatchError(group_id="g", member_id="m", generation_id=4, current_generation=5, cause="removed")
    assert str(error) == (
        "Group 'g' fenced member 'm' of generation 4 (the group's generation is now 5): removed. "
        "The batch is not committed; restart the query to continue from its checkpoint."
    )
    assert all(not BANNED.search(cause) for cause in errors.FENCING_ERRORS.values())


def test_data_loss_error() -> None:
    assert str(errors.DataLossError("START_OFFSET_RESET", "t-0 begins at offset 5.", "Read again.")) == (
        "[KAFKA_DATA_LOSS.START_OFFSET_RESET] t-0 begins at offset 5. Read again."
    )
