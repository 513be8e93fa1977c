"""A Spark directory whose archive of PySpark has compiled modules."""

from __future__ import annotations

from pathlib import Path

from spark_groupsource.cli.compile_pyspark import archives, compile_archive, spark_directory


def compiled_home(directory: Path) -> Path:
    """Creates a directory with links to the files of the installed Spark, and compiled archives; returns it.

    It is as after ``groupsource compile-pyspark``, without a change of the installation.
    """
    installed = spark_directory()
    library = directory / "python" / "lib"
    library.mkdir(parents=True)
    for path in installed.iterdir():
        if path.name != "python":
            (directory / path.name).symlink_to(path)
    for archive in archives(installed):
        compile_archive(archive, library / archive.name)
    return directory
