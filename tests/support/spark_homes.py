"""Installation of Spark whose workers may write below it."""

from __future__ import annotations

from pathlib import Path

import pyspark

SPARK_HOME = Path(pyspark.__file__).parent


def linked_home(directory: Path) -> Path:
    """Returns a SPARK_HOME of links to the installation in a new directory, for a ``local-cluster``."""
    directory.mkdir(parents=True)
    for entry in SPARK_HOME.iterdir():
        (directory / entry.name).symlink_to(entry)
    return directory
