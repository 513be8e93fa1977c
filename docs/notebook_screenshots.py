"""Renders docs/tour.ipynb in headless Chromium: PNG files of page and charts.

It executes the notebook first. It needs the extra `notebook`, nbconvert, playwright and Chromium
(`apt install chromium`). The browser has no network.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from playwright.sync_api import sync_playwright

TOUR = Path(__file__).with_name("tour.ipynb")
_TIMEOUT_S = 400


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="Directory of the PNG files.")
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    parser.add_argument("--executed", type=Path, help="An executed notebook, instead of executing the tour.")
    arguments = parser.parse_args()
    if arguments.chromium is None:
        sys.exit("No Chromium found. Install it (apt install chromium), or name it with --chromium.")
    arguments.directory.mkdir(parents=True, exist_ok=True)
    notebook = nbformat.read(arguments.executed or TOUR, as_version=4)
    if arguments.executed is None:
        folder = {"metadata": {"path": str(arguments.directory)}}
        NotebookClient(notebook, timeout=_TIMEOUT_S, startup_timeout=_TIMEOUT_S, resources=folder).execute()
        nbformat.write(notebook, arguments.directory / "tour-executed.ipynb")
    exporter = HTMLExporter(embed_images=True)
    for theme in ("light", "dark"):
        exporter.theme = theme
        page, _ = exporter.from_notebook_node(notebook)
        path = arguments.directory / f"tour-{theme}.html"
        path.write_text(page)
        problems = render(path, arguments.directory, theme, arguments.chromium)
        if problems:
            sys.exit(f"Rendering {path} failed: {problems[0]}")


def render(path: Path, directory: Path, theme: str, chromium: str) -> list[str]:
    """Writes screenshots; returns the errors of scripts and the charts that are not drawn."""
    problems: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page: Any = browser.new_page(viewport={"width": 1200, "height": 900}, offline=True, color_scheme=theme)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(path.resolve().as_uri(), wait_until="load")
        frames = [frame for frame in page.frames if frame != page.main_frame]
        for number, frame in enumerate(frames):
            frame.wait_for_selector("svg", timeout=30_000)
            if not frame.query_selector_all("svg path"):
                problems.append(f"chart {number} is empty")
        page.wait_for_timeout(500)
        page.screenshot(path=directory / f"tour-{theme}.png", full_page=True)
        for number, element in enumerate(page.query_selector_all("iframe")):
            element.screenshot(path=directory / f"chart-{number}-{theme}.png")
        browser.close()
    # scripts of the page that are loaded from the network (MathJax, require.js) do not concern the charts
    return [problem for problem in problems if "MathJax" not in problem and "require" not in problem]


if __name__ == "__main__":
    main()
