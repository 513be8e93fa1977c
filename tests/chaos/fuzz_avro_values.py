"""Fuzzer of Avro values: schemas, readers, damaged bytes.

    PYTHONPATH=jobs:tests python tests/chaos/fuzz_avro_values.py --seed 7 --minutes 10

Each schema has a seed of its own, which a failure prints: --seed N --schemas 1 repeats it. Values are compared with a
second reader, with fastavro, and between the ways in which the decoder reads them. A schema's values must be values or
malformed; any other exception is a failure.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import seed as with_seed
from support.avro_fuzz import check_random_schema, check_random_text
from support.avro_resolved import check_resolved
from support.avro_strategies import avro_cases


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare random Avro values with other readers.")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--schemas", type=int, help="number of schemas, in place of the minutes")
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    found: Counter[str] = Counter()
    print(f"seed {options.seed}", flush=True)
    number = options.seed
    while number < options.seed + options.schemas if options.schemas else time.monotonic() < until:
        try:
            found[check_random_schema(random.Random(number))] += 1
            check_random_text(random.Random(number))
        except AssertionError:
            print(f"the schema with seed {number} failed", flush=True)
            raise
        if number % 50 == 0:
            _check_readers(number)
        number += 1
    print(f"{number - options.seed} schemas with 24 values each: every way read the same, and as fastavro")
    print(", ".join(f"{count} {kind}" for kind, count in found.most_common()))


def _check_readers(number: int) -> None:
    """Compares 100 pairs of schemas with fastavro."""

    @with_seed(number)
    @settings(max_examples=100, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(avro_cases())
    def check(case: tuple[object, object, list[object]]) -> None:
        check_resolved(*case)

    check()


if __name__ == "__main__":
    main()
