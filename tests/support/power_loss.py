"""Possible disk contents after a power loss, from recorded file operations.

Only what was flushed is certain. Of a file, any part of the writes since its last flush is stored: none, the first ones
with the last one torn, or any sectors; the new size may be stored without the data, which then reads as zeros. Of a
directory, any of the creations, renames and removals since its last flush are stored, in any combination; a rename is
atomic.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union

SECTOR_BYTES = 512

Operation = tuple[Any, ...]
"""Kind and arguments of a recorded operation, as `file_operations` lists them; paths are relative to the root."""


@dataclass(eq=False)
class _File:
    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # (position, data), or (size, None)

    def flush(self) -> None:
        for change in self.pending:
            _apply(self.durable, *change)
        self.pending.clear()

    def after_power_loss(self, randomness: random.Random) -> bytes:
        if not self.pending:
            return bytes(self.durable)
        found = bytearray(self.durable)
        kind = randomness.choice(("none", "all", "first", "first", "sectors", "sectors"))
        count = randomness.randrange(len(self.pending)) if kind == "first" else len(self.pending)
        if kind != "none":
            for change in self.pending[:count]:
                _apply(found, *change)
        if kind == "first":
            position, data = self.pending[count]
            if data is not None:
                _apply(found, position, data[: randomness.randrange(len(data) + 1)])
        if kind == "sectors":
            found = self._mix(found, randomness)
        return bytes(found)

    def _mix(self, latest: bytearray, randomness: random.Random) -> bytearray:
        """Each sector is the old or the new one; the size is the old one, the new one or any size between."""
        sizes = sorted((len(self.durable), len(latest)))
        size = randomness.choice((*sizes, randomness.randint(*sizes)))
        stored_ratio = randomness.random()
        found = bytearray()
        for start in range(0, size, SECTOR_BYTES):
            source = latest if randomness.random() < stored_ratio else self.durable
            found += bytes(source[start : start + SECTOR_BYTES]).ljust(SECTOR_BYTES, b"\0")
        return found[:size]


def _apply(content: bytearray, position: int, data: bytes | None) -> None:
    if data is None:
        del content[position:]
        content.extend(bytes(position - len(content)))
        return
    content.extend(bytes(max(position - len(content), 0)))
    content[position : position + len(data)] = data


@dataclass(eq=False)
class _Directory:
    durable: dict[str, Node] = field(default_factory=dict)
    current: dict[str, Node] = field(default_factory=dict)
    pending: list[tuple[str, str, Node]] = field(default_factory=list)  # (removed name, added name, node)

    def change(self, removed: str, added: str, node: Node) -> None:
        _change(self.current, removed, added, node)
        self.pending.append((removed, added, node))

    def flush(self) -> None:
        self.durable = dict(self.current)
        self.pending.clear()

    def after_power_loss(self, randomness: random.Random) -> dict[str, Node]:
        found = dict(self.durable)
        kind = randomness.choice(("none", "all", "first", "any"))
        count = randomness.randrange(len(self.pending) + 1)
        for number, change in enumerate(self.pending):
            if kind == "all" or (kind == "first" and number < count) or (kind == "any" and randomness.random() < 0.5):
                _change(found, *change)
        return found


Node = Union[_File, _Directory]


def _change(entries: dict[str, Node], removed: str, added: str, node: Node) -> None:
    if removed and entries.get(removed) is node:
        del entries[removed]
    if added:
        entries[added] = node


class Disk:
    """A disk with the content of a directory, to which recorded operations are applied."""

    def __init__(self, root: Path | None = None) -> None:
        self._root = _Directory()
        self._files: dict[int, _File] = {}
        if root is not None:
            self._load(self._root, root)

    def _load(self, directory: _Directory, path: Path) -> None:
        for entry in path.iterdir():
            if entry.is_dir():
                child = directory.durable[entry.name] = _Directory()
                self._load(child, entry)
            else:
                directory.durable[entry.name] = _File(bytearray(entry.read_bytes()))
        directory.current = dict(directory.durable)

    def apply(self, operation: Operation) -> None:
        """Applies one operation; marks are ignored."""
        kind, *arguments = operation
        if kind != "mark":
            getattr(self, f"_{kind}")(*arguments)

    def after_power_loss(self, randomness: random.Random) -> dict[str, bytes | None]:
        """Path -> content of every file, None for a directory; the disk itself is unchanged."""
        found: dict[str, bytes | None] = {}
        contents: dict[_File, bytes] = {}

        def collect(directory: _Directory, prefix: str) -> None:
            for name, node in directory.after_power_loss(randomness).items():
                if isinstance(node, _Directory):
                    found[prefix + name] = None
                    collect(node, f"{prefix}{name}/")
                else:
                    if node not in contents:
                        contents[node] = node.after_power_loss(randomness)
                    found[prefix + name] = contents[node]

        collect(self._root, "")
        return found

    def _parent(self, path: str) -> tuple[_Directory, str]:
        *parents, name = path.split("/")
        directory = self._root
        for parent in parents:
            child = directory.current[parent]
            assert isinstance(child, _Directory)
            directory = child
        return directory, name

    def _node(self, path: str) -> Node:
        if not path:
            return self._root
        directory, name = self._parent(path)
        return directory.current[name]

    # --- operations ---

    def _open(self, file_id: int, path: str) -> None:
        directory, name = self._parent(path)
        node = directory.current.get(name)
        if node is None:
            node = _File()
            directory.change("", name, node)
        assert isinstance(node, _File)
        self._files[file_id] = node

    def _write(self, file_id: int, position: int, data: bytes) -> None:
        self._files[file_id].pending.append((position, data))

    def _truncate(self, file_id: int, size: int) -> None:
        self._files[file_id].pending.append((size, None))

    def _flush(self, file_id: int) -> None:
        self._files[file_id].flush()

    def _flush_directory(self, path: str) -> None:
        try:
            node = self._node(path)
        except KeyError:
            return  # removed after another thread had opened it: its descriptor is flushed without an effect
        assert isinstance(node, _Directory)
        node.flush()

    def _mkdir(self, path: str) -> None:
        directory, name = self._parent(path)
        directory.change("", name, _Directory())

    def _remove(self, path: str) -> None:
        directory, name = self._parent(path)
        directory.change(name, "", directory.current[name])

    def _rename(self, source: str, target: str) -> None:
        (source_directory, source_name), (target_directory, target_name) = self._parent(source), self._parent(target)
        assert source_directory is target_directory, "a rename to another directory"
        source_directory.change(source_name, target_name, source_directory.current[source_name])


def write_state(state: dict[str, bytes | None], root: Path) -> None:
    """Creates the directory `root` with the content of a disk."""
    root.mkdir(parents=True)
    for name, content in sorted(state.items()):
        if content is None:
            (root / name).mkdir()
        else:
            (root / name).write_bytes(content)
