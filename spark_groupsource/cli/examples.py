"""The ``groupsource examples`` command: writes the examples of the installed version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from spark_groupsource import __version__
from spark_groupsource.cli.commands import command
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import bounded_names

# the layout of the repository, as the documentation names the files
_EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Overwrites files of these names that have other content.")
def examples(directory: Path, force: bool) -> None:
    """Writes the jobs, notebooks and the Grafana dashboard of this version to DIRECTORY.

    The documentation describes them, with these paths: jobs/, docs/tour.ipynb, conf/grafana/groupsource.json. A file
    that exists with other content is an error, and nothing is written; --force overwrites it. Other files of the
    directory are left as they are.
    """
    found = {path.relative_to(_EXAMPLES): path.read_bytes() for path in _files(_EXAMPLES)}
    changed = [path for path, content in found.items() if _content(directory / path) not in (None, content)]
    if changed and not force:
        raise ConfigurationError(
            f"Directory {directory} has files with other content: {bounded_names(sorted(changed))}. Choose another "
            "directory, or overwrite them with --force."
        )
    try:
        for path, content in found.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_bytes(content)
    except OSError as error:
        raise ConfigurationError(
            f"Writing the examples to {directory} failed: {error.strerror or error}. Choose another directory."
        ) from error
    click.echo(f"[directory={directory}] Wrote the examples of groupsource {__version__}: {len(found):,} files.")


def _files(folder: Path) -> Iterator[Path]:
    # in a repository the folders are links, which Path.rglob leaves out
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            yield from _files(path) if path.name != "__pycache__" else ()
        else:
            yield path


def _content(path: Path) -> bytes | None:
    """Returns the content of a file, None without one."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(
            f"Reading {path} failed: {error.strerror or error}. Choose another directory."
        ) from error
