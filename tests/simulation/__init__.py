"""Simulation of consumer groups on a simulated clock, from a seed.

`coordinator_simulation` runs the group coordinator with random clients, lost and late messages and restarts, and checks
its invariants (`checks`, `invariants`) after every event. `query_simulation` interleaves queries of one group at every
request, with kills and failures, and its tests check exactly-once delivery.

A schedule follows from a seed and a number. A failure prints both, and the shortest schedule found:

    python tests/simulation/coordinator_simulation.py --seed 7 --only 1234 --trace
    python tests/simulation/coordinator_simulation.py --replay failure.txt --trace

A failure of `test_query_simulation` names its seed; `query_simulation.Simulation` of that seed does the same again.

A new request or event of a client is drawn in `schedule` and sent in `clients`; a new invariant is a check in `checks`.
A new failure of a query is an event of `query_simulation`. A test plants a defect that each check must find.
"""
