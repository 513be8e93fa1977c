"""Fuzzer: sends invalid frames to an embedded broker beside another client.

    PYTHONPATH=jobs:tests python tests/attacks/fuzz_wire.py --examples 20000 --seed 7

A failure prints the shortest example that hypothesis finds, and its seed.
"""

from __future__ import annotations

import argparse
import time

from attacks.hostile_frames import fuzz


def main() -> None:
    parser = argparse.ArgumentParser(description="Send hostile bytes to an embedded broker.")
    parser.add_argument("--examples", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--sasl", action="store_true", help="clients must authenticate, and every second one does")
    options = parser.parse_args()
    began = time.monotonic()
    print(f"seed {options.seed}", flush=True)
    fuzz(options.examples, options.seed, options.sasl)
    print(f"{options.examples} hostile clients in {time.monotonic() - began:.0f} s: every other client was served")


if __name__ == "__main__":
    main()
