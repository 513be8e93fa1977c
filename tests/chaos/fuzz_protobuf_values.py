"""Fuzzer of Protobuf values: random files, damaged bytes and damaged schemas.

    PYTHONPATH=jobs:tests python tests/chaos/fuzz_protobuf_values.py --seed 7 --minutes 10

Each file has a seed of its own, which a failure prints: --seed N --files 1 repeats it. Values are compared with
google.protobuf, and between the ways in which the decoder reads them. A value of any bytes must be a value or
malformed, and a schema valid or rejected by name; any other exception is a failure.
"""

from __future__ import annotations

import argparse
import time

from support.protobuf_paths import check, check_schema


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare random Protobuf values with google.protobuf.")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--files", type=int, help="number of files, in place of the minutes")
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    print(f"seed {options.seed}", flush=True)
    number, values, schemas = options.seed, 0, 0
    while number < options.seed + options.files if options.files else time.monotonic() < until:
        try:
            values += check(number, 24)
            schemas += sum(check_schema(10 * number + each) for each in range(10))
        except BaseException:
            print(f"the file with seed {number} failed", flush=True)
            raise
        number += 1
    print(
        f"{number - options.seed} files: {values} values were equal in every way and to google.protobuf, and "
        f"{schemas} damaged schemas were usable"
    )


if __name__ == "__main__":
    main()
