"""mkdocs hooks: links into the repository, diagrams without other hosts.

A link to a file beside ``docs/`` leads somewhere in the repository only; the site has its text. The theme loads Mermaid
from a CDN unless the page has it: `make docs` puts ``mermaid.min.js`` into ``build/`` where npm is installed, and these
hooks add it to the site.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

_SCRIPT = Path(__file__).resolve().parents[1] / "build" / "mermaid" / "mermaid.min.js"
_TARGET = "assets/javascripts/mermaid.min.js"
_REPOSITORY_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(\.\./[^)]*\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces links into the repository by their text."""
    return _REPOSITORY_LINK.sub(r"\1", markdown)


def on_config(config: Any) -> Any:
    """Adds the script to every page."""
    if _SCRIPT.exists():
        config.extra_javascript.append(_TARGET)
    return config


def on_post_build(config: Any) -> None:
    """Copies the script into the site."""
    if _SCRIPT.exists():
        target = Path(config.site_dir) / _TARGET
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_SCRIPT, target)
