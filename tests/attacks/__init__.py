"""Attacks on a broker: invalid frames, held connections, filled bounds.

`client_attacks`, `state_attacks` and `tls_attacks` are attacks of one client, of the frames in `attack_frames`;
`full_bounds` fills each memory bound, and `hostile_frames` fuzzes every served API. `hostile` runs them beside
well-behaved clients (`neighbors`), and fails if one of these waits too long or gets a wrong response, or if the broker
uses too much memory. `docs/security.md` has the results.

The order of the attacks and the frames of the fuzzer follow from a seed, which is printed first:

    PYTHONPATH=jobs:tests python tests/attacks/hostile.py --seed 7 --only many_groups
    PYTHONPATH=jobs:tests python tests/attacks/fuzz_wire.py --seed 7 --examples 20000

A new attack is a function in the table `ATTACKS`, `STATE_ATTACKS` or `TLS_ATTACKS` of its module; what limits it has a
test of its own in `tests/broker`.
"""
