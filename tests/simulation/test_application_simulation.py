"""Schedules of whole applications, and planted defects that must be found.

APPLICATION_SEED selects other schedules, and APPLICATION_SCHEDULES the number of those of ``--soak``.
"""

from __future__ import annotations

import os

import pytest
from simulation.application_simulation import main, simulate
from simulation.applications.application_run import FEATURES, ApplicationRun
from simulation.applications.planted_defects import PLANTED, PlantedDefect
from support.examples import scaled

SEED = int(os.environ.get("APPLICATION_SEED", "20260"))
SCHEDULES = int(os.environ.get("APPLICATION_SCHEDULES", scaled(700)))
# the first schedules, which contain every kind of fault
FIRST = 30
PARTS = 8
EXERCISED = ("replay", "report", "drain", "kill", "removed", "set back", "late commit", "outage", "isolate", "restore")

EXTENDED = ("recreate", "leaders", "published", "published before", "graceful restart", "drain of a replay")

pytestmark = pytest.mark.slow


@pytest.mark.soak
@pytest.mark.parametrize("part", range(PARTS))
def test_contract_holds(part: int) -> None:
    result = simulate(range(SEED + FIRST + part, SEED + SCHEDULES, PARTS))
    assert not result.violations, result.violations


@pytest.mark.soak
@pytest.mark.parametrize("part", range(PARTS))
def test_contract_of_extended_schedules_holds(part: int) -> None:
    result = simulate(range(SEED + FIRST + part, SEED + SCHEDULES, PARTS), features=FEATURES)
    assert not result.violations, result.violations


def test_contract_holds_with_every_kind_of_fault() -> None:
    result = simulate(range(SEED, SEED + FIRST))
    assert not result.violations, result.violations
    assert not [event for event in EXERCISED if result.events[event] < 2], result.events


def test_contract_of_extended_schedules_holds_with_every_feature() -> None:
    result = simulate(range(SEED, SEED + FIRST), features=FEATURES)
    assert not result.violations, result.violations
    assert not [event for event in EXTENDED if not result.events[event]], result.events


def test_a_schedule_is_repeated_by_its_seed() -> None:
    def lines() -> list[str]:
        run = ApplicationRun(SEED + 1)
        run.run()
        return [line for line in run.lines if "logged" not in line]

    assert lines() == lines()


@pytest.mark.parametrize("defect", [each for each in PLANTED if not each.is_rare], ids=lambda defect: defect.name)
def test_planted_defect_is_found(defect: PlantedDefect) -> None:
    _find(defect)


@pytest.mark.soak
@pytest.mark.parametrize("defect", [each for each in PLANTED if each.is_rare], ids=lambda defect: defect.name)
def test_rare_planted_defect_is_found(defect: PlantedDefect) -> None:
    _find(defect)


def _find(defect: PlantedDefect) -> None:
    found: list[str] = []
    with defect.planted():
        for seed in defect.seeds:
            found += simulate([seed], defect.faults, features=defect.features).violations.values()
            if found:
                break
    # any other error would be one of the plant
    assert found and found[0].startswith("Violation: "), (found, defect.seeds)


def test_command_line_prints_the_failing_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", str(SEED), "--schedules", "1", "--trace"]) == 0
    printed = capsys.readouterr().out
    assert "delivers" in printed and f"1 schedules from seed {SEED}: 0 violations." in printed
