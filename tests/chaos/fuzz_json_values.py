"""Fuzzer: decodes random JSON values of random types by every path.

    PYTHONPATH=jobs:tests python tests/chaos/fuzz_json_values.py --seed 7 --minutes 2 --spark

No value may end in another error than that of a malformed value, and all paths must agree about it. With ``--spark``
values are those of from_json, except for the differences in docs/typed-values.md.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from itertools import count
from typing import Any

from support.json_fuzz import JsonFuzz
from support.json_grid import CONTEXTS
from support.json_paths import disagreements

_RECORDS = 40
_SCALARS, _VALUES = 12, 400
# Java computes all digits of such a number, which takes hours
_LARGE_EXPONENT = re.compile(r"[eE][+-]?\d{5}")
# a failure is repeated by the seed of its round
_SEEDS_PER_RUN = 1_000_000


def paths(seed: int) -> list[str]:
    """Returns the values of a random type about which the paths disagree."""
    fuzz = JsonFuzz(seed)
    kind = fuzz.kind()
    return disagreements(kind, [fuzz.record(kind) for _ in range(_RECORDS)])


def compared_with_spark(spark: Any, seed: int) -> list[str]:
    """Returns the values of random scalar types that differ from those of from_json for no known reason."""
    from support.from_json import unexplained

    fuzz = JsonFuzz(seed)
    scalars = list(dict.fromkeys(fuzz.scalar() for _ in range(_SCALARS)))
    context = list(CONTEXTS)[seed % len(CONTEXTS)]
    values = [value for value in (fuzz.value() for _ in range(_VALUES)) if not _LARGE_EXPONENT.search(value)]
    return unexplained(spark, context, scalars, values)


def main() -> None:
    parser = argparse.ArgumentParser(description="Decode random JSON values.")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--spark", action="store_true", help="compare with from_json, too")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    session = _session() if options.spark else None
    deadline = time.monotonic() + 60 * options.minutes
    for at in count():
        if at and time.monotonic() > deadline:
            break
        seed = options.seed * _SEEDS_PER_RUN + at
        lines = paths(seed)
        # a query takes as long as some rounds
        if session is not None and at % 10 == 0:
            lines += compared_with_spark(session, seed)
        if lines:
            sys.exit("\n".join([f"seed {options.seed}, round {at}:", *lines[:20]]))
    print(f"{at:,} rounds of {_RECORDS} values: every path agrees{', and from_json' if options.spark else ''}")


def _session() -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").appName("fuzz of JSON values")
    settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.sql.session.timeZone": "UTC"}
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


if __name__ == "__main__":
    main()
