"""Chaos runs: processes of applications, members and brokers are killed.

Each script is one run: `stream` (Spark applications of a group), `coordinator_moves`, `broker_kills`, `power_loss`,
`exactly_once` (transactions), `database_kills`, `rebalance_causes`, `endurance` (memory of a long run),
`compare_brokers` (random requests to the embedded broker and to Kafka) and `fuzz_*_values` (random and damaged values).
The test of a run is a short variant; `make soak` runs the long ones.

The events of a run follow from its seed, which it prints first; what processes do between them does not:

    PYTHONPATH=jobs:tests python tests/chaos/stream.py --seed 7 --events 60

A new event is a method of the script that draws it. What two scripts use is a module of its own beside them
(`deliveries`, `proxy`, `foreign_member`), and what other tests use too is in `tests/support`.
"""
