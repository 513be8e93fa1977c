"""Tables of ``kafka-consumer-groups``, character for character.

Existing scripts parse these columns, so widths, the empty line before the header and trailing blanks are those of
Kafka's tool.

A table that is wider than the terminal is narrower than that of Kafka's tool, unless the command line is in its form.

Names that clients chose are escaped: Kafka's tool would print a line break or a terminal sequence in one as it is.

Source: Kafka 4.3 `org.apache.kafka.tools.consumer.group.ConsumerGroupCommand` (`printOffsets`,
`printMembers`, `printStates`, `deleteOffsets`), `org.apache.kafka.tools.OffsetsUtils` (`printOffsetsToReset`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

from spark_groupsource.cli import text_layout
from spark_groupsource.client.admin import GroupDescription, GroupListing
from spark_groupsource.log_text import escaped
from spark_groupsource.model import TopicPartition
from spark_groupsource.monitor.offsets.lag import LagRow, assignment_text

MISSING = "-"
REBALANCING = frozenset({"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"})


def state_note(group: GroupDescription) -> str | None:
    """Returns the line that Kafka's tool prints to standard error; None for a stable group."""
    if group.state == "Empty":
        return f"\nConsumer group '{escaped(group.group_id)}' has no active members."
    if group.state in REBALANCING:
        return f"\nWarning: Consumer group '{escaped(group.group_id)}' is rebalancing."
    return None


def offsets_table(
    group: GroupDescription,
    rows: Sequence[LagRow],
    verbose: bool = False,
    more_columns: Sequence[str] = (),
    more_values: Sequence[Sequence[float | None]] = (),
    width: int | None = None,
) -> str:
    """Returns the table of ``--describe --offsets``, with further columns at the end; empty without rows."""
    if not rows:
        return ""
    header = ["GROUP", "TOPIC", "PARTITION", "LEADER-EPOCH", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
    header += ["CONSUMER-ID", "HOST", "CLIENT-ID"]
    lines = [header]
    for row in rows:
        epoch = row.committed.leader_epoch if row.committed and row.committed.leader_epoch >= 0 else None
        lines.append(
            [group.group_id, row.topic_partition.topic, str(row.topic_partition.partition), _text(epoch)]
            + [_text(row.committed.offset if row.committed else None), _text(row.log_end_offset), _text(row.lag)]
            + ([row.member.member_id, row.member.client_host, row.member.client_id] if row.member else [MISSING] * 3)
        )
    body = lines[1:] = _escaped(lines[1:])
    widths = [_width(body, 0), _width(body, 1), 10, 15, 15, 15, 15, _width(body, 7), _width(body, 8), 0]
    if more_columns:
        widths[-1:] = [_width(body, 9), *(15 if len(name) < 16 else 20 for name in more_columns[:-1]), 0]
        header += [name.upper().replace("_", "-") for name in more_columns]
        for line, values in zip(body, more_values):
            line += [_text(None if value is None else round(value)) for value in values]
    if not verbose:
        widths.pop(3)
        for line in lines:
            line.pop(3)
    return _fitted("\n" + "\n".join(_pad(line, widths) for line in lines) + "\n", lines, width)


def members_table(group: GroupDescription, verbose: bool = False, width: int | None = None) -> str:
    """Returns the table of ``--describe --members``; only the header for a group without members."""
    header = ["GROUP", "CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS"]
    header += ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT", "UPGRADED"]
    body = _escaped(
        [group.group_id, member.member_id, member.group_instance_id or "", member.client_host, member.client_id]
        + [str(len(member.assignment)), _text(member.member_epoch), assignment_text(member.assignment) or MISSING]
        + [_text(group.target_assignment_epoch), assignment_text(member.target_assignment) or MISSING]
        + [_text(member.is_upgraded).lower()]
        for member in group.members
    )
    widths = [_width(body, 0), _width(body, 1), _width(body, 2, 17), _width(body, 3), _width(body, 4), 15]
    widths += [15, _width(body, 7, 20), 15, _width(body, 9, 20), 0]
    # the last column is shown while members of the classic protocol are upgraded to the consumer protocol
    if not {True, False} <= {member.is_upgraded for member in group.members}:
        widths.pop()
    if not verbose:
        widths = widths[:6]
    if not any(member.group_instance_id for member in group.members):
        widths[2] = -1
    lines = [[cell for cell, size in zip(line, widths) if size >= 0] for line in [header, *body]]
    sizes, end = [size for size in widths if size >= 0], "" if verbose else " "
    return _fitted("\n" + "\n".join(_pad(line, sizes) + end for line in lines) + "\n", lines, width)


def state_table(group: GroupDescription, verbose: bool = False, width: int | None = None) -> str:
    """Returns the table of ``--describe --state``."""
    coordinator = f"{group.coordinator.host}:{group.coordinator.port}  ({group.coordinator.node_id})"
    header = ["GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE"]
    (line,) = _escaped([[group.group_id, coordinator, group.protocol or MISSING, group.state]])
    widths = [max(15, len(line[0])), max(25, len(coordinator)), 20, 20]
    if verbose:
        header += ["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH"]
        line += [_text(group.group_epoch), _text(group.target_assignment_epoch)]
        widths += [15, 25]
    lines = [[*header, "#MEMBERS"], [*line, str(len(group.members))]]
    return _fitted("".join(f"\n{_pad(each, [*widths, 0])}" for each in lines) + "\n", lines, width)


def list_table(
    groups: Iterable[GroupListing], with_type: bool, with_state: bool, width: int | None = None
) -> str:
    """Returns the table of ``--list``; only group ids, without a header, if no column is selected."""
    lines = [["GROUP", "TYPE", "STATE"]]
    lines += _escaped([[g.group_id, g.group_type.capitalize() or MISSING, g.state or MISSING] for g in groups])
    if not with_type and not with_state:
        return "".join(f"{line[0]}\n" for line in lines[1:])
    widths = [10 + _width(lines[1:], 0), 20 if with_type else -1, 20 if with_state else -1]
    lines = [[cell for cell, size in zip(line, widths) if size >= 0] for line in lines]
    sizes = [size for size in widths if size >= 0]
    return _fitted("".join(f"{_pad(line, sizes)}\n" for line in lines), lines, width)


def reset_table(
    offsets: Mapping[str, Mapping[TopicPartition, int]],
    current: Mapping[str, Mapping[TopicPartition, int | None]] | None = None,
    width: int | None = None,
) -> str:
    """Returns the table of ``--reset-offsets``; an empty line without groups.

    Args:
        current: the committed offsets before, which Kafka's tool does not show; None to leave out the column.
    """
    header = ["GROUP", "TOPIC", "PARTITION", *([] if current is None else ["CURRENT-OFFSET"]), "NEW-OFFSET"]
    body = _escaped(
        [group, tp.topic, str(tp.partition)]
        + ([] if current is None else [_text(current[group].get(tp))])
        + [str(offset)]
        for group, partitions in offsets.items()
        for tp, offset in partitions.items()
    )
    lines = [header, *body] if offsets else []
    widths = [_width(body, 0), _width(body, 1), 10, *([] if current is None else [15]), 0]
    return _fitted("".join("\n" + _pad(line, widths) for line in lines) + "\n", lines, width)


def reset_csv(offsets: Mapping[str, Mapping[TopicPartition, int]], with_group: bool) -> str:
    """Returns the output of ``--reset-offsets --export``, the input of ``--from-file``."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for group, partitions in offsets.items():
        for tp, offset in partitions.items():
            writer.writerow([group, *tp, offset] if with_group else [*tp, offset])
    return text.getvalue() + "\n"


def deletions_table(statuses: Mapping[TopicPartition, str], width: int | None = None) -> str:
    """Returns the table of ``--delete-offsets``; the partition is -1 for a topic that cannot be described."""
    rows = sorted(statuses.items(), key=lambda item: f"{item[0].topic}{item[0].partition}")
    body = _escaped([tp.topic, str(tp.partition) if tp.partition >= 0 else MISSING, text] for tp, text in rows)
    lines = [["TOPIC", "PARTITION", "STATUS"], *body]
    widths = [_width(body, 0), 10, 15]
    return _fitted("".join("\n" + _pad(line, widths) for line in lines) + "\n", lines, width)


def _fitted(text: str, lines: Sequence[Sequence[str]], width: int | None) -> str:
    """Returns the text of Kafka's tool, or a narrower table of the same lines if it is wider than `width`."""
    if width is None:
        return text
    stripped = [line.rstrip() for line in text.splitlines()]
    if max(map(len, stripped)) <= width:
        # blanks beyond the width would be an empty line
        return "".join(f"{line}\n" for line in stripped)
    return "\n" + text_layout.table(lines[0], lines[1:], width)


def _escaped(lines: Iterable[Iterable[str]]) -> list[list[str]]:
    return [[escaped(cell) for cell in line] for line in lines]


def _text(value: int | None) -> str:
    return MISSING if value is None else str(value)


def _width(lines: Sequence[Sequence[str]], column: int, minimum: int = 15) -> int:
    return max([minimum, *(len(line[column]) for line in lines)])


def _pad(cells: Sequence[str], widths: Sequence[int]) -> str:
    return " ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths))
