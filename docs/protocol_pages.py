"""Generates docs/protocol.md and docs/group-protocol.ipynb from the cases of the protocol."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from typing import Any, Callable

from protocol_cases import CASES

from spark_groupsource.notebook.group_scenario import GroupScenario

Case = Callable[[GroupScenario], None]

_INTRODUCTION = """\
# The group protocol, case by case

Each case is run on the group coordinator of the embedded broker (`broker/group/`) with a manual clock. The notebook
[group-protocol.ipynb](group-protocol.ipynb) has the same cases as cells to change and run; it needs neither Spark nor
Kafka.

Kafka does the same: a test plays the cases on a real one, where time passes and the timeouts that end are shorter. It
compares each step: the responses, the requests that wait, the group as DescribeGroups returns it, and the records. Ids,
times and addresses differ, and so does the record of an offset: Kafka 4.1 and later write version 4, which may have the
id of the topic; the embedded broker writes version 3, which every Kafka since 2.1 reads, and removes the offsets of a
topic with the topic. Expired offsets are removed in no particular order by Kafka, and sorted here.

The coordinator of a group is the leader of its partition of `__consumer_offsets`, and any broker names it
(FindCoordinator). Members `a`, `b` and `c` of group `delays` read the four partitions of topic `flights`; they send
what Kafka's Java consumer sends with the assignor `range`, a session timeout of 45,000 ms and a rebalance timeout of
300,000 ms.

A rebalance gives the members of a group a new assignment of partitions. The coordinator waits until every member has
sent JoinGroup (PreparingRebalance). It increases the generation and answers: the leader gets the list of the members,
the others their ids (CompletingRebalance). The leader runs the assignor and sends the assignment with its SyncGroup.
The coordinator stores it and answers each SyncGroup with the partitions of its sender (Stable).

## What starts a rebalance

- A member joins; it leaves, or an operator removes it; its session ends without a heartbeat; or it has joined and does
  not send SyncGroup.
- A member joins again with another subscription or other assignors.
- The leader joins again: it has found new partitions or topics, or the second round of a cooperative rebalance is due.

The move of a coordinator starts none, nor does a static member that returns with the same subscription before its
session ends, nor a long micro-batch: a rebalance that was started otherwise waits for it.

## How to read a listing

- `a ->` is a request of `a`, `a <-` its response, `a x-` a response that is lost. Errors are numbers in the protocol,
  names here. Fields with their default value are omitted, and so are the id of the group and the protocol type. A
  response that does not follow its request was delayed by the coordinator.
- `state` is the state of the group in the memory of the coordinator; [States](states.md) has all of them.
- `timer` is set to a time in milliseconds since the start of the case, moved by setting it again, cancelled, or
  fires. `session` is the session timeout of a member; `new member` limits how long a new member waits for its first
  response, and `pending member id` how long an id is kept whose member has not joined; `join` ends the join phase or
  one window of the initial delay; `sync` removes the members that have not sent SyncGroup.
- `record` is appended to `__consumer_offsets`; [Record formats](record-formats.md) has the bytes. A request whose
  response follows its record was answered after the record was durable.
- Heartbeats with the same response are one line, at the time of the last one.
- The timeouts are those of a Java consumer. The rebalance timeout of a query is an hour by default
  ([Concepts](concepts.md#how-long-a-rebalance-waits)); its other timeouts are the same.

The diagrams show requests, responses, records, states and the timers that fired. [Glossary](glossary.md) explains the
names, including those of older versions of Kafka.
"""
_NOTEBOOK_INTRODUCTION = """\
# The group protocol

Each cell runs one case on the group coordinator of groupsource's embedded broker, with a manual clock: no Spark, no
Kafka, no waiting. Change a cell and run it again. JupyterLab and Notebook 7 draw the diagrams; `print(group)` shows the
listing alone. The page `docs/protocol.md` has the same cases and explains how to read them.

- `group.stable("a", "b")` returns the members of a Stable group; `group.member("c")` one that has sent nothing yet.
- `join`, `sync`, `heartbeat`, `commit`, `fetch_offsets`, `leave` send one request of a member; `forget` restarts it.
- `group.advance(3_000, heartbeats=[a])` moves the clock by 3,000 ms while `a` sends heartbeats.
- `GroupScenario(topics={"flights": 6}, config=GroupConfig(group_initial_rebalance_delay_ms=0))` has other topics and
  settings of the coordinator; `GroupConfig` is in `spark_groupsource.broker.group`.
"""
_IMPORTS = "from spark_groupsource.notebook.group_scenario import GroupScenario"


def protocol_page() -> str:
    """The text of docs/protocol.md."""
    parts = [_INTRODUCTION]
    for case in CASES:
        group = GroupScenario()
        case(group)
        parts.append(f"## {_title(case)}\n\n{_prose(case)}\n\n{group.markdown()}")
    return "\n".join(parts)


def protocol_notebook() -> str:
    """The text of docs/group-protocol.ipynb."""
    cells = [_markdown(_NOTEBOOK_INTRODUCTION), _code(_IMPORTS)]
    for case in CASES:
        # `groupsource examples` writes the notebook without the pages
        prose = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", _prose(case))
        cells += [_markdown(f"## {_title(case)}\n\n{prose}"), _code(_cell(case))]
    notebook = {
        "cells": [{**cell, "id": f"cell-{number}"} for number, cell in enumerate(cells)],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(notebook, indent=1) + "\n"


def _title(case: Case) -> str:
    return inspect.getdoc(case).partition("\n")[0]


def _prose(case: Case) -> str:
    return inspect.getdoc(case).partition("\n")[2].strip()


def _cell(case: Case) -> str:
    """The statements of a case without its docstring, on a new scenario that the cell shows."""
    source = inspect.getsource(case)
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    body = "\n".join(source.splitlines()[function.body[1].lineno - 1 :])
    return f"group = GroupScenario()\n{textwrap.dedent(body)}\ngroup"


def _markdown(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": text.strip()}


def _code(text: str) -> dict[str, Any]:
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": text}
