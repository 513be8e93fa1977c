"""docs/tutorial.md runs from the first command to the last."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from real_kafka import free_address
from support.startup import python_path

ROOT = Path(__file__).resolve().parents[2]
_LIMIT_S = 900


# five minutes of waits and 40 s of processor time; what its commands do has tests of their own
@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(_LIMIT_S + 60)
def test_the_tutorial_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"^```bash\n(.*?)^```$", (ROOT / "docs" / "tutorial.md").read_text(), re.M | re.S)
    assert blocks[0].startswith("pip install") and len(blocks) > 10
    # two free ports for those of the page
    script = "\n".join(blocks[1:]).replace("localhost:9092", str(free_address())).replace("--port 8080", "--port 0")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": python_path(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    environment.pop("PYSPARK_PYTHON", None)
    process = subprocess.Popen(
        ["bash", "-e"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        cwd=tmp_path, env=environment, start_new_session=True,
    )  # fmt: skip
    try:
        out, _ = process.communicate(script, timeout=_LIMIT_S)
    finally:
        # what the script has left in the background after a failure
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    folder = tmp_path / "tutorial"
    logs = "\n".join(f"{path.name}: {path.read_text()[-1_500:]}" for path in sorted(folder.glob("*.log")))
    assert process.returncode == 0, f"{out}\n{logs}"
    counts = re.search(r"(\d+) sent, (\d+) landed, (\d+) different", out)
    assert counts is not None and int(counts[1]) > 100 and len(set(counts.groups())) == 1, out
    assert "killed" in out and re.search(r"open http://127\.0\.0\.1:\d+", out)
    causes = re.findall(r"Generation \d+: (\w)-\d \(.*?\) (joined|left|sent no heartbeat)", out)
    assert ("a", "joined") in causes and ("a", "left") in causes and ("b", "joined") in causes, out
    assert "left (the query was drained)" in out and "left (the query was stopped)" in out, out
    # the lag is known when it is shown first
    assert re.search(r"^landing +flights +0 +\d+ +\d+ +\d+ ", out, re.M), out
    picture = (folder / "landing.svg").read_text()
    assert picture.startswith("<svg") and "Group landing" in picture and ">lag<" in picture
