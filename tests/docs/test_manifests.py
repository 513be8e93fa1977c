"""The manifests of docs/kubernetes.md: commands, volumes and grace periods."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from spark_groupsource import run_until_signal
from spark_groupsource.cli.main import main

# tests/source/test_pods.py runs them
PAGE = Path(__file__).resolve().parents[2] / "docs" / "kubernetes.md"
BLOCKS = re.findall(r"^```(yaml|sh)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
MANIFESTS = [manifest for language, text in BLOCKS if language == "yaml" for manifest in yaml.safe_load_all(text)]
JVM_EXIT_S = 15


def pod_specs() -> Iterator[tuple[dict[str, Any], set[str]]]:
    """The pods, and the volumes that their StatefulSet adds."""
    for manifest in MANIFESTS:
        spec = manifest.get("spec", {})
        if manifest["kind"] == "Pod":
            yield spec, set()
        elif manifest["kind"] == "StatefulSet":
            yield spec["template"]["spec"], {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}


def commands() -> Iterator[list[str]]:
    for spec, _ in pod_specs():
        for container in spec["containers"]:
            yield container.get("args", [])
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                yield container.get(probe, {}).get("exec", {}).get("command", [])
    for language, text in BLOCKS:
        if language == "sh":
            for line in text.replace("\\\n", " ").splitlines():
                yield shlex.split(line, comments=True)


def test_every_object_has_a_kind_and_a_name() -> None:
    kinds = [manifest["kind"] for manifest in MANIFESTS]
    assert {"Secret", "ConfigMap", "StatefulSet", "Pod"} <= set(kinds)
    assert all(manifest["apiVersion"] and manifest["metadata"]["name"] for manifest in MANIFESTS)


def test_command_lines_exist() -> None:
    parsed = []
    for words in commands():
        assert all(isinstance(word, str) for word in words)
        job = next((n for n, word in enumerate(words) if word.endswith(".py")), None)
        if job is not None:
            name = Path(words[job]).stem
            import_module(name).main.make_context(name, words[job + 1 :])
            parsed.append(name)
        elif words[:1] == ["groupsource"]:
            # Click parses the options of the subcommand when it makes its context
            command = main.get_command(main.make_context("groupsource", words[1:]), words[1])
            assert command is not None
            command.make_context(words[1], words[2:])
            parsed.append(" ".join(words[1:4]))
    assert parsed.count("land_parquet") == 2
    assert {"doctor --queries alive", "doctor --queries joined"} <= set(parsed)


def test_mounts_have_volumes_and_paths_of_secrets_and_config_maps_exist() -> None:
    names = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in MANIFESTS}
    for spec, claims in pod_specs():
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for mount in spec["containers"][0]["volumeMounts"]:
            assert mount["name"] in {*volumes, *claims}
        for volume in volumes.values():
            assert "secret" not in volume or ("Secret", volume["secret"]["secretName"]) in names
            assert "configMap" not in volume or ("ConfigMap", volume["configMap"]["name"]) in names


@pytest.mark.parametrize("spec", [spec for spec, _ in pod_specs()])
def test_grace_period_is_longer_than_a_drain(spec: dict[str, Any]) -> None:
    timeout_s = inspect.signature(run_until_signal).parameters["timeout_s"].default
    assert spec["terminationGracePeriodSeconds"] >= timeout_s + JVM_EXIT_S


@pytest.mark.parametrize("spec", [spec for spec, _ in pod_specs()])
def test_read_only_root_has_a_writable_working_directory_and_a_passwd_entry(spec: dict[str, Any]) -> None:
    container = spec["containers"][0]
    assert container["securityContext"]["readOnlyRootFilesystem"] and container["workingDir"] == "/tmp"
    assert {"/tmp", "/etc/passwd"} <= {mount["mountPath"] for mount in container["volumeMounts"]}
    (passwd,) = [manifest["data"]["passwd"] for manifest in MANIFESTS if manifest["kind"] == "ConfigMap"]
    users = [line.split(":") for line in passwd.splitlines()]
    context = spec["securityContext"]
    assert [str(context["runAsUser"]), str(context["runAsGroup"])] in [entry[2:4] for entry in users]
