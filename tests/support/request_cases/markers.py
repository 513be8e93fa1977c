"""Cases of WriteTxnMarkers and ListTransactions."""

from __future__ import annotations

from typing import Any

from support.compared_brokers import Case, ComparedBroker

from spark_groupsource.wire import messages

Topics = tuple[tuple[str, list[int]], ...]


def markers(
    *rows: tuple[int, int, int, Topics], committed: bool = False, transaction_version: int = 0
) -> Any:
    """`rows` are (producer id, producer epoch, coordinator epoch, topics)."""

    def build(broker: ComparedBroker) -> Any:
        marker = messages.WriteTxnMarkersRequest.WritableTxnMarker
        written = [
            marker(
                producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=coordinator_epoch,
                transaction_result=committed, transaction_version=transaction_version,
                topics=[
                    marker.WritableTxnMarkerTopic(name=broker.name(name), partition_indexes=numbers)
                    for name, numbers in topics
                ],
            )
            for producer_id, epoch, coordinator_epoch, topics in rows
        ]  # fmt: skip
        return messages.WriteTxnMarkersRequest(markers=written)

    return build


MARKED: Topics = (("marked", [0, 1]),)
WRITE_TXN_MARKERS = [
    Case("no markers", markers()),
    Case("no topics", markers((1, 0, 0, ()))),
    Case("a producer without records", markers((99_000, 0, 0, MARKED))),
    Case("a commit", markers((99_001, 0, 0, MARKED), committed=True)),
    Case("no such topic", markers((99_002, 0, 0, (("gone", [0]),)))),
    Case("no such topic, a negative epoch", markers((99_002, -1, 0, (("gone", [0]),)))),
    Case("no such partition", markers((99_003, 0, 0, (("marked", [0, 9]),)))),
    Case("a producer twice", markers((99_004, 0, 0, MARKED), (99_004, 1, 0, (("marked", [1]),)))),
    Case("two producers", markers((99_005, 0, 0, MARKED), (99_006, 0, 0, MARKED))),
]


def list_transactions(
    states: tuple[str, ...] = (), producers: tuple[int, ...] = (), duration_ms: int = -1, pattern: str | None = None
) -> Any:
    return lambda broker: messages.ListTransactionsRequest(
        state_filters=list(states), producer_id_filters=list(producers), duration_filter=duration_ms,
        transactional_id_pattern=pattern,
    )  # fmt: skip


LIST_TRANSACTIONS = [
    Case("a state without transactions", list_transactions(("PrepareCommit",))),
    Case("an unknown state", list_transactions(("PrepareCommit", "Nonsense", "None"))),
    Case("a producer that has none", list_transactions(producers=(10**12,))),
    Case("a long duration", list_transactions(duration_ms=10**15), 1),
    Case("a pattern that matches none", list_transactions(pattern="no-.*-such"), 2),
    Case("an empty pattern", list_transactions(("PrepareCommit",), pattern=""), 2),
    Case("an invalid pattern", list_transactions(pattern="(ab"), 2),
    Case("a pattern that is valid in a group only", list_transactions(pattern="a)|(b"), 2),
]
