"""``groupsource compile-pyspark``: the archive of an installation, with sources and compiled modules."""

import os
import zipfile
import zipimport
from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_groupsource.cli.compile_pyspark import compile_archive, is_compiled
from spark_groupsource.cli.main import main
from spark_groupsource.errors import ConfigurationError

SOURCES = {"pyspark/__init__.py": "version = 1", "pyspark/worker.py": "name = __name__", "pyspark/bad.py": "1 +"}
TEST = "pyspark/tests/test_rdd.py"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    library = tmp_path / "python" / "lib"
    library.mkdir(parents=True)
    with zipfile.ZipFile(library / "pyspark.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in {**SOURCES, TEST: ""}.items():
            archive.writestr(name, text)
    return tmp_path


def loaded_from(archive: Path, name: str) -> str:
    importer = zipimport.zipimporter(f"{archive}/pyspark")
    # without the directory that another importer has read
    importer.invalidate_caches()
    return importer.get_filename(name)


def test_modules_are_loaded_compiled_afterwards(home: Path) -> None:
    archive = home / "python" / "lib" / "pyspark.zip"
    assert not is_compiled(archive) and loaded_from(archive, "worker").endswith("worker.py")
    run = CliRunner().invoke(main, ["compile-pyspark", "--spark-home", str(home)])
    assert run.exit_code == 0 and ": 2 modules." in run.output, run.output
    assert is_compiled(archive) and loaded_from(archive, "worker").endswith("worker.pyc")
    assert os.listdir(archive.parent) == ["pyspark.zip"]
    with zipfile.ZipFile(archive) as written:
        assert written.testzip() is None
        assert set(written.namelist()) == {*SOURCES, "pyspark/__init__.pyc", "pyspark/worker.pyc"}


def test_running_processes_find_their_sources(home: Path) -> None:
    archive = home / "python" / "lib" / "pyspark.zip"
    running = zipimport.zipimporter(f"{archive}/pyspark")
    compile_archive(archive, archive)
    # with the directory of the former archive
    assert running.get_source("worker") == SOURCES["pyspark/worker.py"]


def test_modules_of_another_python_version_are_replaced(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = home / "python" / "lib" / "pyspark.zip"
    with monkeypatch.context() as patched:
        patched.setattr("importlib._bootstrap_external.MAGIC_NUMBER", b"old\n")
        compile_archive(archive, archive)
    assert not is_compiled(archive)
    # with modules of another version, Python uses the sources
    assert loaded_from(archive, "worker").endswith("worker.py")
    compile_archive(archive, archive)
    assert is_compiled(archive) and loaded_from(archive, "worker").endswith("worker.pyc")


def test_a_directory_without_the_archive_is_rejected(tmp_path: Path) -> None:
    run = CliRunner().invoke(main, ["compile-pyspark", "--spark-home", str(tmp_path)])
    assert run.exit_code == 1 and "--spark-home" in run.stderr


def test_an_archive_that_cannot_be_written_stays(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = home / "python" / "lib" / "pyspark.zip"
    before = archive.read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    with pytest.raises(ConfigurationError, match="Permission denied"):
        compile_archive(archive, archive)
    assert archive.read_bytes() == before
