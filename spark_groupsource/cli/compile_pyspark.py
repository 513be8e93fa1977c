"""The ``groupsource compile-pyspark`` command: compiled modules for PySpark's archive.

Spark puts ``python/lib/pyspark.zip`` first on the path of each Python process that it starts. The archive has sources
only, and Python writes no compiled module into an archive, so each reader process and each worker compiles PySpark.
"""

from __future__ import annotations

import importlib.util
import os
import py_compile
import shutil
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path

import click

from spark_groupsource.cli.commands import command
from spark_groupsource.errors import ConfigurationError

_FIRST_MODULE = "pyspark/__init__.pyc"


@command()
@click.option(
    "--spark-home",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of Spark; default: SPARK_HOME, or the installed PySpark.",
)
def compile_pyspark(spark_home: Path | None) -> None:
    """Adds compiled modules to PySpark's archive, and removes PySpark's own tests from it.

    Spark's Python processes then start without compiling PySpark: a streaming query starts about a second earlier, and
    so does each new worker. The modules are those of the Python version that runs this command; others compile the
    sources as before. Run it again after an update of PySpark or Python. A running application is not affected.
    """
    home = spark_home or spark_directory()
    version = ".".join(map(str, sys.version_info[:2]))
    for archive in archives(home):
        count = compile_archive(archive, archive)
        click.echo(f"[archive={archive}] Compiled for Python {version}: {count:,} modules.")


def spark_directory() -> Path:
    """Returns SPARK_HOME, or the directory of the installed PySpark. Raises: ConfigurationError."""
    home = os.environ.get("SPARK_HOME")
    if home:
        return Path(home)
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise ConfigurationError("Compiling PySpark failed: it is not installed. Set SPARK_HOME.")
    return Path(found.submodule_search_locations[0])


def archives(home: Path) -> list[Path]:
    """Returns the archives that Spark puts on the path. Raises: ConfigurationError if PySpark's is not among them."""
    found = sorted((home / "python" / "lib").glob("*.zip"))
    if not any(archive.name == "pyspark.zip" for archive in found):
        raise ConfigurationError(
            f"Compiling PySpark failed: {home} has no python/lib/pyspark.zip. Set --spark-home to Spark's directory."
        )
    return found


def is_compiled(archive: Path) -> bool:
    """Returns True if the modules of PySpark's archive are compiled for this Python version."""
    with zipfile.ZipFile(archive) as opened:
        try:
            return opened.read(_FIRST_MODULE).startswith(importlib.util.MAGIC_NUMBER)
        except KeyError:
            return False


def compile_archive(archive: Path, target: Path) -> int:
    """Writes an archive with its compiled modules to `target`, atomically; returns their number.

    The sources stay where they are in the file: a process that has read the directory of the old archive finds them.

    Raises: ConfigurationError if it cannot be written.
    """
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".groupsource-") as directory:
            copy = Path(directory) / "archive"
            shutil.copy(archive, copy)
            count = _add_modules(copy, Path(directory))
            os.replace(copy, target)
    except OSError as error:
        raise ConfigurationError(
            f"Compiling {archive} failed: {error}. Run the command as the owner of PySpark's installation."
        ) from error
    return count


def _is_needed(name: str) -> bool:
    return not (name.endswith((".pyc", "/")) or "/tests/" in name)


def _add_modules(archive: Path, directory: Path) -> int:
    count = 0
    source, compiled = directory / "module.py", directory / "module.pyc"
    # an uncompressed module is read faster; unchecked, because the time of a source depends on the time zone
    with zipfile.ZipFile(archive, "a", zipfile.ZIP_STORED) as opened, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The directory of the archive is read several times by each process, so it names no tests and no modules of
        # another version. Their bytes stay in the file.
        opened.filelist[:] = [entry for entry in opened.filelist if _is_needed(entry.filename)]
        opened.NameToInfo = {entry.filename: entry for entry in opened.filelist}
        names = [name for name in opened.namelist() if name.endswith(".py")]
        for name in names:
            source.write_bytes(opened.read(name))
            try:
                py_compile.compile(
                    str(source),
                    str(compiled),
                    dfile=name,
                    doraise=True,
                    invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
                )
            except py_compile.PyCompileError:
                # a module for another Python version
                continue
            opened.write(compiled, f"{name}c")
            count += 1
    return count
