"""Containers of Kubernetes pods, as processes in namespaces of their own.

A container has what decides how an application behaves in a pod: PID and mount namespaces, the entry point of Spark's
images with ``tini`` as PID 1, a root file system that may be read-only, the user id of the pod, its volumes, and, where
cgroups can be created, its limits. It has the network of this machine, and the image is this machine's file system.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from child_processes import start_process
from support.startup import python_path
from support.waiting import wait_until

SPARK_HOME = Path(pyspark.__path__[0])
REPOSITORY = Path(__file__).resolve().parents[2]
_CGROUPS = Path("/sys/fs/cgroup")
_NAMESPACES = ("--pid", "--fork", "--kill-child", "--mount", "--ipc")
# Spark's images have no other directories of their own; volumes are mounted below the empty ones
_EMPTY = ("opt", "tmp", "mnt", "srv", "var", "data")
_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "m": 0.001}
_POD_IP = "127.0.0.1"


def missing_tools() -> str:
    """Returns why containers cannot be started here; empty if they can."""
    absent = [tool for tool in ("tini", "unshare", "chroot", "setpriv") if shutil.which(tool) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (Debian: tini, util-linux, coreutils)"
    command = ["unshare", *_NAMESPACES, "sh", "-c", "mount -t tmpfs tmpfs /mnt && mount -t proc proc /proc"]
    if subprocess.run(command, capture_output=True).returncode:
        return "namespaces and mounts need more permissions"
    return ""


def quantity(text: Any) -> float:
    """Returns the number of a Kubernetes quantity: ``500m``, ``1400Mi``, 2."""
    unit = next((unit for unit in _UNITS if str(text).endswith(unit)), "")
    return float(str(text).removesuffix(unit)) * _UNITS.get(unit, 1)


def _readable(directory: Path) -> list[Path]:
    """Returns what a container has of a directory: if other users cannot read it, installations alone."""
    is_readable = directory.stat().st_mode & 0o005 == 0o005
    return [directory] if is_readable else _installations(directory)


def _installations(directory: Path) -> list[Path]:
    """Returns the installations below a directory, without those that are in another one."""
    found = {Path(sys.base_prefix), Path(sys.prefix), REPOSITORY, SPARK_HOME}
    outer = [path for path in sorted(found) if not found & set(path.parents)]
    return [path for path in outer if path.is_relative_to(directory)]


class Node:
    """The machine of the pods: image, secrets, config maps and claims.

    Args:
        directory: for volumes and logs.
        image: path in the image -> file of this machine.
        objects: ``secret/NAME`` or ``configMap/NAME`` -> its data.
        claims: directory of each persistent volume claim.
        hosts: names of `_POD_IP`, as those of services.
    """

    def __init__(
        self,
        directory: Path,
        image: Mapping[str, Path],
        objects: Mapping[str, Mapping[str, str]] | None = None,
        claims: Mapping[str, Path] | None = None,
    ) -> None:
        self.directory = directory
        self.image = image
        self.objects = dict(objects or {})
        self.claims = dict(claims or {})
        self.hosts: list[str] = []

    def start(self, pod: Mapping[str, Any], entry_point: str = "tini") -> Container:
        """Starts the first container of a pod.

        Args:
            entry_point: what PID 1 is: ``tini``, of the images that Spark's distribution builds; ``shell``, whose child
                is ``tini``, of later ones, which keep the end of standard error for the termination log; ``command``,
                of Spark's published images for a command other than driver and executor.
        """
        return Container(self, pod, entry_point)


class Container:
    """A running container; its standard output and error are in `log`."""

    def __init__(self, node: Node, pod: Mapping[str, Any], entry_point: str) -> None:
        self._node = node
        self._spec: Mapping[str, Any] = pod["spec"]
        self._container: Mapping[str, Any] = self._spec["containers"][0]
        self.name = str(pod["metadata"]["name"])
        self._directory = node.directory / self.name
        self._directory.mkdir()
        self.log = self._directory / "log"
        security = {**self._spec.get("securityContext", {}), **self._container.get("securityContext", {})}
        self._user, self._group = security.get("runAsUser", 0), security.get("runAsGroup", 0)
        self._is_read_only = bool(security.get("readOnlyRootFilesystem"))
        self.cgroups: dict[str, Path] = {}
        self._environment = self._variables(pod)
        script = self._directory / "start.sh"
        script.write_text("\n".join(["set -e", *self._limits(), *self._mounts(), self._exec(entry_point)]))
        with open(self.log, "w") as out:
            command = ["unshare", *_NAMESPACES, "sh", str(script)]
            self._process = start_process(command, out, subprocess.STDOUT)

    def _variables(self, pod: Mapping[str, Any]) -> dict[str, str]:
        """The environment of the image, then that of the container."""
        found = {
            "PATH": f"{Path(sys.executable).parent}:/opt/spark/bin:/usr/local/bin:/usr/bin:/bin",
            "SPARK_HOME": "/opt/spark",
            "SPARK_LOCAL_IP": _POD_IP,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": python_path(REPOSITORY),
            "HOME": "/",
            **{name: os.environ[name] for name in ("JAVA_HOME", "SPARK_SUBMIT_OPTS") if name in os.environ},
        }
        fields = {"status.podIP": _POD_IP, "metadata.name": self.name, "metadata.namespace": "default"}
        for entry in self._container.get("env", ()):
            source = entry.get("valueFrom", {})
            if "fieldRef" in source:
                found[entry["name"]] = fields[source["fieldRef"]["fieldPath"]]
            elif "secretKeyRef" in source:
                reference = source["secretKeyRef"]
                found[entry["name"]] = self._node.objects[f"secret/{reference['name']}"][reference["key"]]
            else:
                found[entry["name"]] = entry.get("value") or ""
        return found

    def _limits(self) -> Iterator[str]:
        """Enters cgroups with the limits of the container; without permissions for them there are no limits."""
        limits = self._container.get("resources", {}).get("limits", {})
        files = {"memory": "memory.limit_in_bytes", "cpu": "cpu.cfs_quota_us"}
        for kind, file in files.items():
            group = _CGROUPS / kind / f"groupsource-{os.getpid()}-{self.name}"
            if kind not in limits or not os.access(group.parent / "cgroup.procs", os.W_OK):
                continue
            group.mkdir()
            value = quantity(limits[kind]) * (100_000 if kind == "cpu" else 1)
            (group / file).write_text(str(int(value)))
            self.cgroups[kind] = group
            yield f"echo 0 > {group}/cgroup.procs"

    def _mounts(self) -> Iterator[str]:
        root = self._directory / "root"
        root.mkdir()
        yield f"mount -t tmpfs -o mode=0755 tmpfs {root}"
        yield f"mkdir {' '.join(f'{root}/{name}' for name in _EMPTY)}"
        yield f"chmod 1777 {root}/tmp"
        for entry in sorted(Path("/").iterdir()):
            target = root / entry.name
            if entry.is_symlink():
                yield f"ln -s {os.readlink(entry)} {target}"
            elif entry.name == "proc":
                yield f"mkdir {target} && mount -t proc proc {target}"
            elif entry.name == "etc":
                yield f"cp -a /etc {target} && echo '{_POD_IP} {' '.join(self._node.hosts)}' >> {target}/hosts"
            elif entry.is_dir() and entry.name not in _EMPTY:
                # what another directory is mounted on stays writable, as /dev
                yield from self._bind(root, _readable(entry))
        # 64 MiB, as container runtimes give it; it hides that of this machine, which may have the directories of tests
        yield f"mount -t tmpfs -o size=64m,mode=1777 tmpfs {root}/dev/shm"
        yield f"mkdir -p {root}/opt/spark/conf {root}/opt/spark/work-dir && ln -s {SPARK_HOME}/* {root}/opt/spark/"
        for path, file in self._node.image.items():
            yield f"mkdir -p {root}{Path(path).parent} && cp {file} {root}{path}"
        yield from self._volumes(root)
        for name in _EMPTY:
            # a clone in /tmp, for example, also if a volume is mounted there
            yield from self._bind(root, _installations(Path("/") / name))
        line = f"{self._user}:x:{self._user}:{self._group}:anonymous uid:/opt/spark:/bin/false"
        # as the entry point of Spark's images does, if it can
        known = f"grep -q '^[^:]*:[^:]*:{self._user}:' {root}/etc/passwd"
        if not self._is_read_only:
            yield f"{known} || echo '{line}' >> {root}/etc/passwd"
        else:
            yield f"mount -o remount,ro {root}"

    @staticmethod
    def _bind(root: Path, directories: Sequence[Path]) -> Iterator[str]:
        for directory in directories:
            mounted = f"{root}{directory}"
            yield f"mkdir -p {mounted} && mount --rbind {directory} {mounted}"
            yield f"mount -o remount,bind,ro {mounted}"

    def _volumes(self, root: Path) -> Iterator[str]:
        volumes = {volume["name"]: volume for volume in self._spec.get("volumes", ())}
        for mount in self._container.get("volumeMounts", ()):
            source = self._volume(volumes[mount["name"]])
            target = f"{root}{mount['mountPath']}"
            if sub := mount.get("subPath"):
                yield f"touch {target} && mount --bind {source / sub} {target}"
            else:
                yield f"mkdir -p {target} && mount --bind {source} {target}"
            if mount.get("readOnly"):
                yield f"mount -o remount,bind,ro {target}"

    def _volume(self, volume: Mapping[str, Any]) -> Path:
        """Returns the directory of a volume, of which the group may write what is writable, as with ``fsGroup``."""
        path = self._directory / str(volume["name"])
        if "persistentVolumeClaim" in volume:
            path = self._node.claims[volume["persistentVolumeClaim"]["claimName"]]
        path.mkdir(exist_ok=True)
        path.chmod(0o777)
        for kind, key in (("secret", "secretName"), ("configMap", "name")):
            if kind in volume:
                data = self._node.objects[f"{kind}/{volume[kind][key]}"]
                names = {item["key"]: item["path"] for item in volume[kind].get("items", ())}
                for name, text in data.items():
                    if not names or name in names:
                        file = path / names.get(name, name)
                        file.write_text(text)
                        file.chmod(0o644)
        return path

    def _exec(self, entry_point: str) -> str:
        """The end of the entry point: it writes a file to the working directory, and runs the command."""
        command = shlex.join(self._command())
        if entry_point != "command":
            command = f"/usr/bin/tini -s -- {command}"
        if entry_point == "shell":
            command = f"{command} & trap 'kill -TERM $!' TERM; wait $!; status=$?; trap - TERM; wait; exit $status"
        else:
            command = f"exec {command}"
        variables = shlex.join(f"{name}={value}" for name, value in self._environment.items())
        directory = self._container.get("workingDir", "/opt/spark/work-dir")
        enter = f"exec chroot --userspec={self._user}:{self._group} --groups='' {self._directory / 'root'}"
        script = shlex.quote(f": > java_opts.txt; {command}")
        return f"{enter} /usr/bin/env -i -C {directory} {variables} bash -c {script}"

    def _command(self) -> Sequence[str]:
        """What the entry point runs: ``args``, of which it replaces ``driver`` and ``executor``."""
        arguments = [str(word) for word in self._container.get("args", ())]
        given = self._environment
        if arguments[0] == "driver":
            address = given["SPARK_DRIVER_BIND_ADDRESS"]
            settings = (f"spark.driver.bindAddress={address}", f"spark.executorEnv.SPARK_DRIVER_POD_IP={address}")
            options = [word for setting in settings for word in ("--conf", setting)]
            return ["/opt/spark/bin/spark-submit", *options, "--deploy-mode", "client", *arguments[1:]]
        if arguments[0] == "executor":
            java = str(Path(given["JAVA_HOME"]) / "bin" / "java") if "JAVA_HOME" in given else "java"
            names = [name for name in given if name.startswith("SPARK_JAVA_OPT_")]
            names.sort(key=lambda name: int(name.rpartition("_")[2]))
            memory = given["SPARK_EXECUTOR_MEMORY"]
            words = [java, *(given[name] for name in names), f"-Xms{memory}", f"-Xmx{memory}"]
            words += ["-cp", "/opt/spark/conf:/opt/spark/jars/*"]
            words += ["org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"]
            words += ["--driver-url", given["SPARK_DRIVER_URL"], "--executor-id", given["SPARK_EXECUTOR_ID"]]
            words += ["--cores", given["SPARK_EXECUTOR_CORES"], "--app-id", given["SPARK_APPLICATION_ID"]]
            words += ["--hostname", given["SPARK_EXECUTOR_POD_IP"]]
            words += ["--resourceProfileId", given["SPARK_RESOURCE_PROFILE_ID"]]
            return [*words, "--podName", given["SPARK_EXECUTOR_POD_NAME"]]
        return arguments

    @property
    def status(self) -> int | None:
        """The exit status of PID 1; None while it runs."""
        return self._process.poll()

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a command in the container, as an ``exec`` probe does: with its user, environment and namespaces."""
        enter = ["nsenter", "--target", str(self._pid_1()), "--mount", "--pid", "--ipc", "--root", "--wdns=/tmp"]
        enter += ["setpriv", f"--reuid={self._user}", f"--regid={self._group}", "--clear-groups", "env", "-i"]
        variables = [f"{name}={value}" for name, value in self._environment.items()]
        return subprocess.run([*enter, *variables, *command], capture_output=True, text=True, timeout=120)

    def _pid_1(self) -> int:
        # start_process replaces itself by unshare, whose only child is PID 1 of the container
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return int(wait_until(children.read_text, "the container's first process"))

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to PID 1: with SIGKILL the kernel ends every process of the container."""
        if self.status is None:
            os.kill(self._pid_1(), number)

    def stop(self) -> int:
        """Ends the container as the kubelet does: SIGTERM, and SIGKILL after ``terminationGracePeriodSeconds``."""
        period_s = self._spec.get("terminationGracePeriodSeconds", 30)
        self.send(signal.SIGTERM)
        try:
            self._process.wait(period_s)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
        return self._process.wait(30)

    def close(self) -> None:
        """Kills the container and removes its cgroups."""
        self.send(signal.SIGKILL)
        self._process.wait(30)
        for group in self.cgroups.values():
            wait_until(lambda group=group: not (group / "cgroup.procs").read_text(), "an empty cgroup")  # type: ignore[misc]
            group.rmdir()


@contextmanager
def running(container: Container) -> Iterator[Container]:
    """Closes a container at the end."""
    try:
        yield container
    finally:
        container.close()
