"""The site builds without warnings, and its pages fit every screen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.browser import Browser

ROOT = Path(__file__).resolve().parents[2]
# of the page, and of each table that is wider than its place
WIDER = """
(() => {
  const found = [], { clientWidth: shown, scrollWidth: needed } = document.documentElement;
  if (needed > shown) found.push(`page ${needed} > ${shown}`);
  for (const table of document.querySelectorAll(".md-typeset table")) {
    const place = table.closest(".md-typeset__scrollwrap") ?? table.parentElement;
    if (place.scrollWidth > place.clientWidth + 1 || table.getBoundingClientRect().right > shown + 1)
      found.push(`table ${table.innerText.slice(0, 60)}: ${place.scrollWidth} > ${place.clientWidth}`);
  }
  // a name of an option or a class is on one line
  for (const name of document.querySelectorAll(".md-typeset table td:first-child code"))
    if (name.getClientRects().length > 1 && name.innerText.length <= 30 && !name.innerText.includes(" "))
      found.push(`divided ${name.innerText}`);
  return found;
})()
"""
# a page that changes its width moves its navigation for a moment
STILL = "document.head.insertAdjacentHTML('beforeend', '<style>* { transition: none !important }</style>')"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. A warning of mkdocs, such as of a link without a target, is an error."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(target)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    run = subprocess.run(
        [*command, "--config-file", "conf/mkdocs.yml"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return target


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_page_is_wider_than_the_screen(site: Path) -> None:
    pages = sorted(site.glob("*.html"))
    assert len(pages) >= len(list((ROOT / "docs").glob("*.md")))
    wider = {}
    with Browser() as browser:
        page = browser.open(pages[0].as_uri())
        for path in pages:
            page.go(path.as_uri())
            page.evaluate(STILL)
            for width in (390, 768, 1_000, 1_240, 1_400):
                page.resize(width)
                wider[path.name, width] = page.evaluate(WIDER)
    assert {name: found for name, found in wider.items() if found} == {}


@pytest.mark.slow
def test_readers_do_not_see_notes_for_editors(site: Path) -> None:
    with Browser() as browser:
        page = browser.open((site / "options.html").as_uri())
        assert "do not edit" not in page.evaluate("document.body.innerText")
        # a description is visible on a phone, below the name of its option
        page.resize(390)
        left = "[...document.querySelectorAll('td')].find(each => each.innerText.startsWith('Topics to read'))"
        assert page.evaluate(f"{left}.getBoundingClientRect().left") < 100
