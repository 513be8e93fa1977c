"""Generates docs/states.md from the state tables of groups, transactions and members."""

from __future__ import annotations

from enum import Enum
from typing import Callable, Iterable, Mapping

from spark_groupsource.broker.group.group_states import (
    GROUP_RULES,
    GROUP_TRANSITIONS,
    GroupAction,
    GroupOperation,
    GroupState,
)
from spark_groupsource.broker.transactions.transaction_states import (
    COMPLETED_STATES,
    TRANSACTION_RULES,
    TRANSACTION_STATE_NAMES,
    TRANSACTION_TRANSITIONS,
    TransactionAction,
    TransactionOperation,
)
from spark_groupsource.client.membership.response_rules import HEARTBEAT_RULES, JOIN_RULES, SYNC_RULES, ResponseRule
from spark_groupsource.client.membership.state_machine import MemberConfig, Membership, MemberState
from spark_groupsource.errors import FENCING_ERRORS, ErrorCode, error_name
from spark_groupsource.model import Assignment
from spark_groupsource.wire.consumer_protocol import PROTOCOL_TYPE, encode_assignment
from spark_groupsource.wire.messages import JoinGroupResponse, SyncGroupResponse
from spark_groupsource.wire.transaction_records import TransactionStatus

Edges = Mapping[tuple[str, str], str]

_OTHER_ERROR = ErrorCode.UNKNOWN_SERVER_ERROR

_INTRODUCTION = """\
# State machines
"""


def states_page() -> str:
    """The text of docs/states.md."""
    return "\n".join([_INTRODUCTION, *_group_section(), *_transaction_section(), *_member_section()])


# --- groups on the coordinator ---

_REBALANCE = "member joins, leaves, fails or changes its metadata"
_UNLOADED = "the coordinator moves, and unloads the group"
_GROUP_CAUSES: Mapping[tuple[GroupState, GroupState], str] = {
    (GroupState.EMPTY, GroupState.PREPARING_REBALANCE): "first member joins",
    (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE): "all members have joined, or timeout",
    (GroupState.PREPARING_REBALANCE, GroupState.EMPTY): "no member is left",
    (GroupState.COMPLETING_REBALANCE, GroupState.STABLE): "assignment of the leader is stored",
    (GroupState.COMPLETING_REBALANCE, GroupState.PREPARING_REBALANCE): _REBALANCE,
    (GroupState.STABLE, GroupState.PREPARING_REBALANCE): _REBALANCE,
    **{(state, GroupState.DEAD): _UNLOADED for state in GroupState},
    (GroupState.EMPTY, GroupState.DEAD): "group is deleted, expires or is unloaded",
}


def _group_section() -> list[str]:
    table = {(before, after) for after, origins in GROUP_TRANSITIONS.items() for before in origins}
    if table != set(_GROUP_CAUSES):
        raise SystemExit(f"docs/state_diagrams.py: update _GROUP_CAUSES: {table ^ set(_GROUP_CAUSES)}")
    edges = {(before.value, after.value): cause for (before, after), cause in _GROUP_CAUSES.items()}
    rows = [
        [operation.value, *(_rule_text(GROUP_RULES[state][operation]) for state in GroupState)]
        for operation in GroupOperation
    ]
    return [
        "## Groups on the coordinator",
        "",
        "From `spark_groupsource/broker/group/group_states.py`. A join phase is the time in PreparingRebalance.",
        "",
        *_diagram(edges, GroupState.EMPTY.value),
        "The coordinator handles each request by this table. A cell is an error code, which is the response, or an",
        "action; *renews* means that the request restarts the session timer of the member.",
        "",
        *_table(["Request", *(state.value for state in GroupState)], rows),
        *_legend(action for action in GroupAction if action is not GroupAction.REJECT),
        "### Older versions of Kafka",
        "",
        "Older articles describe a coordinator that differs in these points; names are in the [glossary](glossary.md).",
        "",
        *_table(["Subject", "Here and in the present Kafka", "Before"], _OLDER_VERSIONS),
    ]


_OLDER_VERSIONS = [
    ["name of CompletingRebalance", "CompletingRebalance, since 1.1", "AwaitingSync"],
    ["group without members", "Empty, since 0.10.1", "Stable when new, Dead after its last member has left"],
    [
        "requests to a Dead group",
        "`COORDINATOR_NOT_AVAILABLE`: the group may be on another broker; since 2.3 (KAFKA-8386)",
        "`UNKNOWN_MEMBER_ID`, with which members discarded their ids",
    ],
    [
        "Heartbeat in CompletingRebalance",
        "ACCEPT, *renews*, since 2.6.1 and 2.7 (KAFKA-10134)",
        "`REBALANCE_IN_PROGRESS`; members sent no heartbeat between JoinGroup and the response to SyncGroup",
    ],
    [
        "SyncGroup in Stable",
        "the session timer is left as it is, since 4.0 (coordinator in Java)",
        "*renews*",
    ],
    [
        "members that never send SyncGroup",
        "removed after the rebalance timeout, since 2.8.1 and 3.0 (KAFKA-12890)",
        "the group stayed in CompletingRebalance while they sent heartbeats",
    ],
    [
        "JoinGroup of a new dynamic member",
        "`MEMBER_ID_REQUIRED` first, since 2.2 (KIP-394); clients that send version 3 or lower are added at once",
        "added at once: a client that lost the response left a member behind, until its session ended",
    ],
    [
        "time of a new member in the join phase",
        "300,000 ms, since 2.1.1",
        "its session timeout, although it could not send heartbeats",
    ],
    [
        "static member that rejoins in Stable",
        "stored with its new id, without a rebalance (KIP-345, 2.3); stored since 2.6.1 and 2.7 (KAFKA-10284)",
        "a new member, and two rebalances",
    ],
    ["DeleteGroups, OffsetDelete", "since 1.1 (KIP-229) and 2.4 (KIP-496)", "offsets were left to expire"],
]


# --- transactions on the coordinator ---

_COMPLETION = "all markers are written"


def _transaction_target(operation: TransactionOperation, action: TransactionAction) -> TransactionStatus | None:
    """The state after a request, None where the state is kept."""
    return {
        TransactionAction.RAISE_EPOCH: TransactionStatus.EMPTY,
        TransactionAction.BEGIN: TransactionStatus.ONGOING,
        TransactionAction.EXTEND: TransactionStatus.ONGOING,
        TransactionAction.FENCE: TransactionStatus.PREPARE_ABORT,
        TransactionAction.END: (
            TransactionStatus.PREPARE_COMMIT
            if operation is TransactionOperation.COMMIT
            else TransactionStatus.PREPARE_ABORT
        ),
    }.get(action)


def _transaction_section() -> list[str]:
    causes: dict[tuple[TransactionStatus, TransactionStatus], list[str]] = {}
    for before, rules in TRANSACTION_RULES.items():
        for operation, rule in rules.items():
            after = _transaction_target(operation, rule.action)
            if after is not None:
                causes.setdefault((before, after), []).append(operation.value)
    for before, after in COMPLETED_STATES.items():
        causes.setdefault((before, after), []).append(_COMPLETION)
    table = {(before, after) for after, origins in TRANSACTION_TRANSITIONS.items() for before in origins}
    if table != set(causes):
        raise SystemExit(f"docs/state_diagrams.py: update _transaction_target: {table ^ set(causes)}")
    names = TRANSACTION_STATE_NAMES
    edges = {(names[before], names[after]): ", ".join(texts) for (before, after), texts in causes.items()}
    rows = [
        [operation.value, *(_rule_text(TRANSACTION_RULES[status][operation]) for status in names)]
        for operation in TransactionOperation
    ]
    return [
        "## Transactions on the coordinator",
        "",
        "From `spark_groupsource/broker/transactions/transaction_states.py`.",
        "",
        *_diagram(edges, names[TransactionStatus.EMPTY]),
        *_table(["Request", *names.values()], rows),
        *_legend(action for action in TransactionAction if action is not TransactionAction.REJECT),
    ]


# --- members on the client ---


def _member_name(state: MemberState) -> str:
    return "".join(word.capitalize() for word in state.name.split("_"))


def _member(state: MemberState) -> Membership:
    """A member that has reached `state` without an error."""
    member = Membership(MemberConfig("group", ("range",)), 0)
    if state is not MemberState.UNJOINED:
        _join(member)
    if state in (MemberState.COMPLETING_REBALANCE, MemberState.STABLE):
        _joined(ErrorCode.NONE)(member)
    if state is MemberState.STABLE:
        _synced(ErrorCode.NONE)(member)
        member.complete(lambda topic: True)
    assert member.state is state
    return member


def _join(member: Membership) -> None:
    member.prepare(())
    member.join_request([("range", b"")])


def _joined(code: int) -> Callable[[Membership], None]:
    response = JoinGroupResponse(
        error_code=code,
        generation_id=1,
        protocol_type=PROTOCOL_TYPE,
        protocol_name="range",
        leader="m",
        member_id="m",
        members=[],
        skip_assignment=False,
    )
    return lambda member: _ignore(member.on_join_response(response, member.generation, 0))


def _synced(code: int) -> Callable[[Membership], None]:
    response = SyncGroupResponse(
        error_code=code,
        protocol_type=PROTOCOL_TYPE,
        protocol_name="range",
        assignment=encode_assignment(Assignment(())),
    )
    return lambda member: _ignore(member.on_sync_response(response, member.generation, 0))


def _heartbeat(code: int) -> Callable[[Membership], None]:
    return lambda member: _ignore(member.on_heartbeat_response(code, member.generation, 0))


def _commit(code: int) -> Callable[[Membership], None]:
    return lambda member: _ignore(member.on_commit_response(code, member.generation))


def _ignore(_: object) -> None:
    """The edges depend on the state alone."""


_Response = tuple[str, Callable[[int], Callable[[Membership], None]], tuple[int, ...]]
_MEMBER_RESPONSES: Mapping[MemberState, tuple[_Response, ...]] = {
    MemberState.UNJOINED: (),
    MemberState.PREPARING_REBALANCE: (
        ("JoinGroup", _joined, (*JOIN_RULES, _OTHER_ERROR)),
        ("OffsetCommit", _commit, tuple(FENCING_ERRORS)),
    ),
    MemberState.COMPLETING_REBALANCE: (
        ("SyncGroup", _synced, (*SYNC_RULES, _OTHER_ERROR)),
        ("Heartbeat", _heartbeat, (*HEARTBEAT_RULES, _OTHER_ERROR)),
        ("OffsetCommit", _commit, tuple(FENCING_ERRORS)),
    ),
    MemberState.STABLE: (
        ("Heartbeat", _heartbeat, (*HEARTBEAT_RULES, _OTHER_ERROR)),
        ("OffsetCommit", _commit, tuple(FENCING_ERRORS)),
    ),
}


def _member_edges() -> Edges:
    """The transitions, found by giving every response to the state machine in every state that can receive it."""
    causes: dict[tuple[MemberState, MemberState], list[str]] = {}
    for before in (MemberState.UNJOINED, MemberState.STABLE):
        causes[before, _after(before, _join)] = ["JoinGroup is sent"]
    for before, responses in _MEMBER_RESPONSES.items():
        for request, response, codes in responses:
            by_state: dict[MemberState, list[int]] = {}
            for code in codes:
                by_state.setdefault(_after(before, response(code)), []).append(code)
            for after, found in by_state.items():
                if after is not before:
                    causes.setdefault((before, after), []).append(_codes_text(request, found, codes))
    for before in MemberState:
        if before is not MemberState.UNJOINED:
            after = _after(before, lambda member: member.on_leave("left"))
            causes.setdefault((before, after), []).append("member leaves")
    return {(_member_name(before), _member_name(after)): "<br/>".join(c) for (before, after), c in causes.items()}


def _after(before: MemberState, event: Callable[[Membership], None]) -> MemberState:
    member = _member(before)
    event(member)
    return member.state


def _codes_text(request: str, found: list[int], codes: tuple[int, ...]) -> str:
    errors = [code for code in codes if code != ErrorCode.NONE]
    if found == [ErrorCode.NONE]:
        return f"{request} succeeds"
    if found == errors:
        return f"{request} fails" if _OTHER_ERROR in codes else f"{request} fails with a fencing error"
    return f"{request} fails with {', '.join(error_name(code) for code in found)}"


def _member_section() -> list[str]:
    rules = (("JoinGroup", JOIN_RULES), ("SyncGroup", SYNC_RULES), ("Heartbeat", HEARTBEAT_RULES))
    rows = [
        [request, error_name(code), *_member_rule(rule)] for request, table in rules for code, rule in table.items()
    ]
    return [
        "## Members on the client",
        "",
        "From `spark_groupsource/client/membership/state_machine.py` and the tables in `response_rules.py`. The",
        "generator gives every response to the state machine in every state that can receive it. \"Fails\" means any",
        "error code; responses that keep the state are omitted. A member in Unjoined joins again, unless it has left.",
        "",
        *_diagram(_member_edges(), _member_name(MemberState.UNJOINED)),
        "Reaction to each error code. *Reset* is what the member discards if its generation is that of the request.",
        "",
        *_table(["Response", "Error code", "Reaction", "Reset", "Find coordinator"], rows),
    ]


def _member_rule(rule: ResponseRule) -> list[str]:
    return [rule.reaction.value, rule.reset.value, "yes" if rule.mark_coordinator_unknown else ""]


# --- Markdown ---


def _rule_text(rule: object) -> str:
    action, error = getattr(rule, "action"), getattr(rule, "error")
    parts = [] if action.name == "REJECT" else [action.name]
    parts += [f"`{error.name}`"] if error else []
    return ", ".join(parts) + (", *renews*" if getattr(rule, "renews_session", False) else "")


def _legend(actions: Iterable[Enum]) -> list[str]:
    return ["Actions:", "", *(f"- {action.name}: {action.value}" for action in actions), ""]


def _diagram(edges: Edges, start: str) -> list[str]:
    lines = [f"    {before} --> {after}: {cause}" for (before, after), cause in edges.items()]
    return ["```mermaid", "stateDiagram-v2", f"    [*] --> {start}", *lines, "```", ""]


def _table(header: list[str], rows: Iterable[list[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [*("| " + " | ".join(line) + " |" for line in lines), ""]
