"""Build of the package: the description without relative links.

Everything else is in setup.cfg. The pages of README.md are not in the package index, where its links would be dead.
"""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

from setuptools import setup

_ROOT = Path(__file__).resolve().parent
# an image, or a link, to a file of the repository
_RELATIVE = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?!https?://|#|mailto:)(?P<path>[^)\s]+)\)")


def description(text: str, source: str = "") -> str:
    """Returns a page with links to the files of `source`, the address of the repository; without one, as plain text."""

    def replace(link: re.Match[str]) -> str:
        if not source:
            return "" if link["image"] else link["text"]
        return f"{link['image']}[{link['text']}]({source.rstrip('/')}/{link['path'].removeprefix('./')})"

    return re.sub(r"\n{3,}", "\n\n", _RELATIVE.sub(replace, text))


def source_address() -> str:
    """Returns the address of the repository in `project_urls` of setup.cfg, empty without one."""
    config = ConfigParser()
    config.read(_ROOT / "setup.cfg", encoding="utf-8")
    lines = config.get("metadata", "project_urls", fallback="").splitlines()
    addresses = dict(re.split(r"\s*=\s*", line.strip(), maxsplit=1) for line in lines if "=" in line)
    return addresses.get("Source", "")


if __name__ == "__main__":
    readme = (_ROOT / "README.md").read_text(encoding="utf-8")
    setup(
        long_description=description(readme, source_address()), long_description_content_type="text/markdown"
    )
