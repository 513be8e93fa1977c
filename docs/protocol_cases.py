"""Cases of docs/protocol.md and docs/group-protocol.ipynb: a docstring and the steps.

The first line of a docstring is the title. The body of a function is a cell of the notebook; `group` is a new scenario.
tests/matrix/test_played_cases.py plays the cases on a real Kafka; one in which a timer fires has a timing there.
"""

from __future__ import annotations

from spark_groupsource.notebook.group_scenario import GroupScenario


def first_member(group: GroupScenario) -> None:
    """The first member, and the initial delay

    A member without an id gets one first (KIP-394), so that a client that never returns with it is no member; until it
    returns, its id is pending. The first rebalance of an Empty group does not end when all known members have joined:
    it lasts `group.initial.rebalance.delay.ms` (3,000 ms), and as long again after each window in which another member
    has joined, up to the rebalance timeout. So the members of an application that starts join one generation instead
    of causing a rebalance each. The first member is the leader: its response alone has the subscriptions of all
    members, it runs the assignor, and every SyncGroup returns the assignment of its sender.

    A PySpark user sees it as the first seconds of a query: the first micro-batch waits for the assignment. The
    embedded broker sets the delay to 0.
    """
    a, b, c = group.member("a"), group.member("b"), group.member("c")
    a.join()
    group.advance(1_000)
    b.join()
    group.advance(3_000)
    c.join()
    group.advance(5_000)
    c.sync()
    a.sync()
    b.sync()


def offsets(group: GroupScenario) -> None:
    """Offsets, and a commit of an old generation

    The member reads the committed offsets, fetches records, and commits the next offset to read. A commit names the
    generation and the member. During PreparingRebalance the coordinator accepts it, because members commit before
    they join again; in CompletingRebalance it returns REBALANCE_IN_PROGRESS, because the partitions have new owners
    that have not been notified yet; a commit of an old generation gets ILLEGAL_GENERATION.

    Between two micro-batches, a query logs the last error as a warning and continues with its new assignment. During a
    micro-batch, a read task gets it as the response to its Heartbeat, and the query fails with
    [`GenerationMismatchError`](concepts.md#members-generations-and-fencing). REBALANCE_IN_PROGRESS does not end a
    task: the rebalance waits for its micro-batch. The rule needs no setting; it is the reason why two owners of a
    partition do not commit over each other.
    """
    a, b = group.member("a"), group.member("b")
    a.join()
    group.advance(3_000)
    a.sync()
    a.fetch_offsets()
    group.advance(100)
    a.commit(2_500)
    b.join()
    group.advance(50)
    a.commit(2_600)
    a.join()
    a.commit(2_700)
    a.sync()
    b.sync()
    a.commit(2_700, generation_id=1)


def second_member(group: GroupScenario) -> None:
    """A second member joins a Stable group

    The response to the JoinGroup of `b` is delayed until every member has joined again. The coordinator cannot call a
    member: `a` is notified by its next heartbeat, at most `heartbeat.interval.ms` (3,000 ms) later, and joins when it
    has finished what it is processing. The join timer is the largest rebalance timeout of the members, and limits that
    time. The initial delay does not apply, because the group was not Empty.

    A PySpark user sees a pause: with an eager assignor (range) no member owns a partition from the JoinGroup of `a` to
    the responses to SyncGroup, with `cooperative-sticky` only the partitions that move have no owner. groupsource
    commits and sends the JoinGroup of `a` when the running micro-batch is checkpointed.
    """
    (a,) = group.stable("a")
    b = group.member("b")
    group.advance(1_000)
    b.join()
    group.advance(2_000)
    a.heartbeat()
    group.advance(500)
    group.note("The micro-batch of a is checkpointed.")
    a.commit(2_600)
    a.join()
    b.sync()
    group.advance(20)
    a.sync()


def third_application(group: GroupScenario) -> None:
    """A third application joins two running ones

    `a` and `b` are applications with one member each. The response to the JoinGroup of `c` waits for both, so for the
    longer of their micro-batches. Every member joins, also one whose partitions do not move: here `c` gets one of the
    partitions of `b`. Members and requests grow with the group; the number of rebalances does not.

    A PySpark user of application `a` sees a pause from the end of its own micro-batch to the end of that of `b`. With
    `cooperative-sticky`, `a` reads on meanwhile, and a second rebalance assigns the partition that `b` has revoked.
    """
    a, b = group.stable("a", "b")
    c = group.member("c")
    group.advance(1_000)
    c.join()
    group.advance(2_000)
    a.heartbeat()
    b.heartbeat()
    group.advance(500)
    group.note("The micro-batch of a is checkpointed.")
    a.commit(2_600)
    a.join()
    group.advance(9_500, heartbeats=[b])
    group.note("The micro-batch of b is checkpointed.")
    b.commit(2_700)
    b.join()
    a.sync()
    b.sync()
    c.sync()
    c.fetch_offsets()


def third_member(group: GroupScenario) -> None:
    """A third member joins during CompletingRebalance

    Generation 2 has its members but no assignment yet: `b` waits for the response to its SyncGroup. A new member makes
    this generation obsolete, so the coordinator returns REBALANCE_IN_PROGRESS to `b` at once, and to the SyncGroup of
    the leader, and all three join again. No record of generation 2 is written: a generation is stored with its
    assignment.

    Members that start one after the other are the usual cause; only an Empty group waits for them
    (`group.initial.rebalance.delay.ms`). A PySpark user who starts several queries one after the other sees the
    generation grow by more than the number of assignments.
    """
    (a,) = group.stable("a")
    b, c = group.member("b"), group.member("c")
    b.join()
    a.join()
    b.sync()
    group.advance(100)
    c.join()
    a.sync()
    b.join()
    a.join()
    a.sync()
    b.sync()
    c.sync()


def lost_join_of_follower(group: GroupScenario) -> None:
    """The response to the JoinGroup of a follower is lost

    `b` does not know its generation; it sends the same JoinGroup again, as late as in the
    [next case](#the-response-to-the-joingroup-of-the-leader-is-lost). The subscription is unchanged, so the coordinator
    returns the present generation instead of starting a rebalance. Here the leader has synced meanwhile, and the
    SyncGroup of `b` returns the stored assignment. The sync timer waits for `b` as long as the rebalance timeout.

    A PySpark user sees that the partitions of `b` are read later, and no rebalance.
    """
    (a,) = group.stable("a")
    b = group.member("b")
    b.join(is_response_lost=True)
    a.join()
    a.sync()
    group.advance(30_000, heartbeats=[a])
    b.join()
    b.sync()


def lost_join_of_leader(group: GroupScenario) -> None:
    """The response to the JoinGroup of the leader is lost

    Only the leader can compute the assignment, so the group stays in CompletingRebalance, and the SyncGroup of `b` is
    delayed. The repeated JoinGroup has the same subscription: in this state it returns the generation and the list of
    members again, without a rebalance. In Stable the same request of the leader would start one, because there it is
    how a leader asks for a rebalance.

    A response is lost with its connection. A member that notices the end of the connection sends its request again
    after `retry.backoff.ms` (100 ms). If nothing closes the connection, a member of groupsource requests the state of
    the group (DescribeGroups) every third of `kafka.session.timeout.ms`. When the state has shown twice that the
    coordinator has responded, after 30,000 ms as here, it sends its request again, before its session ends. A Java
    consumer waits for its rebalance timeout and 5,000 ms: its session ends first, and the others rebalance without it.
    A PySpark user sees one long rebalance.
    """
    a, b = group.stable("a", "b")
    a.join(is_response_lost=True)
    b.join()
    b.sync()
    group.advance(30_000)
    a.join()
    a.sync()


def lost_sync(group: GroupScenario) -> None:
    """The response to a SyncGroup is lost

    The assignment is stored before the responses are sent, and the group is Stable. Leader and follower send the same
    SyncGroup again and get what is stored; the assignment in the repeated request of the leader is ignored, so that
    no member can have another one than the log. This SyncGroup does not restart the session timer, as in Kafka 4; up to
    3.9 the coordinator written in Scala did.

    A PySpark user sees that the first micro-batch of the generation starts later.
    """
    a, b = group.stable("a", "b")
    a.join()
    b.join()
    a.sync(is_response_lost=True)
    b.sync(is_response_lost=True)
    group.advance(30_000)
    a.sync()
    b.sync()


def dies_while_preparing(group: GroupScenario) -> None:
    """A member dies in PreparingRebalance

    `c` joins, `a` joins again, and `b` dies before it does. The join phase waits for `b` until its session ends,
    45,000 ms after its last heartbeat, and then completes at once with the members that have joined. The session
    timer of `a` fires without effect: a member whose JoinGroup is delayed sends no heartbeats, and counts as alive.

    `session.timeout.ms` decides how long no member reads. A PySpark user sees one long rebalance in the table
    `rebalances`. Its cause is `JOINED`, the first change. A driver that ends or is killed alone leaves with
    LeaveGroup instead, because its reader process is another one.
    """
    a, b = group.stable("a", "b")
    c = group.member("c")
    group.advance(3_000, heartbeats=[a, b])
    c.join()
    a.join()
    group.note("b is lost with its machine.")
    group.advance(45_000)
    a.sync()
    c.sync()


def dies_while_completing(group: GroupScenario) -> None:
    """The leader dies in CompletingRebalance

    The assignment never arrives. The coordinator notices the leader's death by its session, 45,000 ms after the join
    phase; the delayed SyncGroup of `b` then gets REBALANCE_IN_PROGRESS, and `b`, the only member that is left, becomes
    the leader of the next generation. Its own session does not end meanwhile, because its SyncGroup is delayed.

    `session.timeout.ms` matters again. groupsource runs the assignor in the reader process of the query; a suspended
    driver does not delay the others.
    """
    a, b = group.stable("a", "b")
    a.join()
    b.join()
    b.sync()
    group.note("a is killed while it computes the assignment.")
    group.advance(45_000)
    b.join()
    b.sync()


def dies_while_stable(group: GroupScenario) -> None:
    """A member dies in Stable

    Nothing happens until the session of `a` ends: its partitions are not read, and their lag grows. Then the group
    rebalances; `b` is notified by its next heartbeat, joins alone, and becomes the leader. Its partitions continue
    at the offsets that `a` has committed.

    So a group notices that the machine of a driver is lost. If the driver alone is killed, its reader process leaves
    within a second. `session.timeout.ms` (45,000 ms) is a compromise: a shorter one finds a dead member sooner, and
    removes a living one that [was frozen](#a-member-freezes-and-returns) for as long. A PySpark user sees the cause
    `SESSION_EXPIRED` and a hatched period in `timeline(...)`; the new owner repeats at most what was not committed.
    """
    a, b = group.stable("a", "b")
    a.commit(2_500)
    group.note("a is lost with its machine.")
    group.advance(45_000, heartbeats=[b])
    b.join()
    b.sync()
    b.fetch_offsets()


def freezes(group: GroupScenario) -> None:
    """A member freezes and returns

    `a` is frozen for a minute. To the coordinator it is dead: after 45,000 ms its session ends, and `b` gets its
    partitions. When `a` returns, it knows nothing of that and sends what is due. The commit is rejected
    (UNKNOWN_MEMBER_ID), so it does not overwrite what `b` has committed. Then `a` joins as a new member, which is a
    second rebalance: a query does so between two micro-batches, and within one it fails and joins when it is started
    again.

    A freeze that is shorter than `session.timeout.ms` changes nothing. In an application, only a freeze of the reader
    process matters, with [its machine](concepts.md#a-process-freezes) for example. A PySpark user sees the causes
    `SESSION_EXPIRED` and `JOINED`; `b` repeats what `a` had read and not committed.
    """
    a, b = group.stable("a", "b")
    a.commit(2_500)
    group.note("a is frozen.")
    group.advance(45_000, heartbeats=[b])
    b.join()
    b.sync()
    b.fetch_offsets()
    group.advance(15_000, heartbeats=[b])
    group.note("a continues.")
    a.commit(2_600)
    a.heartbeat()
    a.join()
    b.heartbeat()
    b.commit(2_700)
    b.join()
    b.sync()
    a.sync()


def misses_join_timeout(group: GroupScenario) -> None:
    """A member misses the join timeout

    `b` is alive: it sends heartbeats, each answered REBALANCE_IN_PROGRESS, which renews its session. But it does not
    join, because it is processing. After the rebalance timeout (300,000 ms, `max.poll.interval.ms` of a Java consumer)
    the join phase ends without it. Its next heartbeat gets UNKNOWN_MEMBER_ID, and it has to join as a new member.

    A query of groupsource announces a [longer timeout](concepts.md#how-long-a-rebalance-waits), and joins when its
    micro-batch has ended. A query that takes longer still sees `GenerationMismatchError`, the cause is
    `JOIN_TIMED_OUT`, and the new owner repeats its batch. The longest timeout of the members applies. A new member
    is removed after 300,000 ms, whatever the timeouts are, because it cannot send heartbeats before its first
    response: it gets UNKNOWN_MEMBER_ID, and joins again with a new id.
    """
    a, b = group.stable("a", "b")
    group.note("b processes records for longer than its max.poll.interval.ms.")
    a.join()
    group.advance(300_000, heartbeats=[b])
    a.sync()
    b.join()


def misses_sync_timeout(group: GroupScenario) -> None:
    """A member joins and never sends SyncGroup

    `b` has joined generation 2 and sends heartbeats, but no SyncGroup; the group is Stable without it. The sync timer,
    as long as the rebalance timeout, removes it, and the others rebalance. Before Kafka 3.0 (KAFKA-12890) nothing
    limited this time except the session timeout, which heartbeats renew.

    A PySpark user sees it with foreign clients that stop between the two requests.
    """
    a, b = group.stable("a", "b")
    a.join()
    b.join()
    a.sync()
    group.advance(300_000, heartbeats=[a, b])
    a.join()
    a.sync()


def leave(group: GroupScenario) -> None:
    """LeaveGroup

    A member that ends in order is removed at once, and its reason (KIP-800) is in the log of the coordinator. The
    others learn of it by their next heartbeat, so that its partitions are without an owner for up to
    `heartbeat.interval.ms` instead of `session.timeout.ms`. After the last member the group is Empty: one record
    without members, and the offsets remain.

    The members of a query leave when the query or its driver ends. A PySpark user sees the cause `LEFT`.
    """
    a, b = group.stable("a", "b")
    a.commit(2_500)
    a.leave()
    group.advance(3_000, heartbeats=[b])
    b.join()
    b.sync()
    b.leave()


def static_member(group: GroupScenario) -> None:
    """A static member restarts

    Members with a `group.instance.id` are static (KIP-345). `b` restarts without LeaveGroup and joins without a member
    id; the coordinator finds its instance id, gives it a new member id and the assignment that the old one had,
    stores that, and no rebalance begins. The leader `a` restarts, too: it stays the leader and may skip the assignment
    (KIP-814). The old member id is fenced: a second process with the same instance id gets FENCED_INSTANCE_ID.

    A restart must take less than `session.timeout.ms`, else the member is removed as in the case above. With
    `kafka.group.instance.id` each member of a query has the suffix of its number; the restart of a query then moves
    no partition.
    """
    a, b = group.stable("a", "b", static=True)
    old_b_request = b.heartbeat_request()
    group.advance(10_000, heartbeats=[a])
    b.forget()
    b.join()
    b.sync()
    group.note("A process with the old member id of b sends a heartbeat.")
    group.send(b, old_b_request, lambda response: None)
    group.advance(2_000)
    a.forget()
    a.join()
    a.sync()


def leader_changes_subscription(group: GroupScenario) -> None:
    """The leader changes its subscription

    The subscription is opaque to the coordinator, except that a JoinGroup with other bytes starts a rebalance. The new
    topic is assigned to `a` alone: an assignor gives a topic only to members that subscribe to it.

    In a query, the subscription follows `subscribePattern`: a new topic whose name matches changes the subscription of
    every member of the query, at most `kafka.metadata.max.age.ms` (300,000 ms) after it was created.
    """
    a, b = group.stable("a", "b")
    group.topics["alerts"] = 1
    a.topics.append("alerts")
    a.join()
    group.advance(3_000, heartbeats=[b])
    b.join()
    a.sync()
    b.sync()


def partitions_grow(group: GroupScenario) -> None:
    """The subscribed topic gets partitions

    The coordinator knows no partitions. The leader compares the number of partitions with that of its last assignment
    when its metadata are refreshed, and joins again. Its bytes are those that the coordinator has, except for the
    generation; from the leader, even an unchanged JoinGroup starts a rebalance in Stable. Followers rely on it.

    `metadata.max.age.ms` (300,000 ms) decides how long new partitions are not read. A PySpark user sees the cause
    `PARTITIONS_CHANGED`, which the leader gives as its reason (KIP-800), and new partitions are read from their start.
    """
    a, b = group.stable("a", "b")
    group.note("Topic flights gets two partitions; the metadata of a are refreshed.")
    group.topics["flights"] = 6
    a.join()
    group.advance(3_000, heartbeats=[b])
    b.join()
    a.sync()
    b.sync()


def coordinator_moves(group: GroupScenario) -> None:
    """The coordinator moves

    The group is in its partition of `__consumer_offsets`, and the leader of that partition is its coordinator. The old
    one responds NOT_COORDINATOR to what is delayed; the new one replays the records: the last stored generation is
    Stable again, with a new session for each member, and a heartbeat of that generation is accepted: a move alone
    causes no rebalance. Delayed requests are not stored, so `a` and `c` find the new coordinator (FindCoordinator) and
    send theirs again. `c` was in no record: its member id is unknown, and it joins as a new member.

    Members need to find the new coordinator within `session.timeout.ms`. A PySpark user sees commits that take longer;
    committed offsets are records, and none is lost.
    """
    a, b = group.stable("a", "b")
    a.commit(2_500)
    c = group.member("c")
    c.join()
    a.join()
    group.advance(100)
    group.move_coordinator()
    b.heartbeat()
    a.join()
    c.join()
    c.join()
    group.advance(3_000, heartbeats=[b])
    b.join()
    a.sync()
    b.sync()
    c.sync()


def dead(group: GroupScenario) -> None:
    """The group becomes Dead, and its offsets expire

    The offsets of a group with members never expire because of time (KIP-211). When the last member has left, the
    time of the record without members starts `offsets.retention.minutes` (10,080, a week). After that, the next check
    writes a tombstone for each offset and one for the group, and the group is Dead: gone from memory and, after
    compaction, from the log. A Dead group in the tools means the same as a group that never existed.

    A PySpark user whose query was stopped for longer than the retention starts at its checkpoint; without a
    checkpoint, at `startingOffsets`.
    """
    (a,) = group.stable("a")
    a.commit(2_500)
    a.leave()
    group.advance(10_079 * 60_000)
    group.expire_offsets()
    group.advance(60_000)
    group.expire_offsets()
    a.join()


CASES = (
    first_member,
    offsets,
    second_member,
    third_application,
    third_member,
    lost_join_of_follower,
    lost_join_of_leader,
    lost_sync,
    dies_while_preparing,
    dies_while_completing,
    dies_while_stable,
    freezes,
    misses_join_timeout,
    misses_sync_timeout,
    leave,
    static_member,
    leader_changes_subscription,
    partitions_grow,
    coordinator_moves,
    dead,
)
