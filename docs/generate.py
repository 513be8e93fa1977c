"""Writes the generated pages of this directory, or checks them.

    python docs/generate.py [--check] [PAGE ...]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from api_tables import apis_page
from monitor_tables import tables_page
from option_tables import options_page
from protocol_pages import protocol_notebook, protocol_page
from rebalance_picture import rebalance_picture
from record_formats import record_formats_page
from state_diagrams import states_page

DIRECTORY = Path(__file__).resolve().parent
PAGES = {
    "apis.md": apis_page,
    "group-protocol.ipynb": protocol_notebook,
    "images/rebalance.svg": rebalance_picture,
    "options.md": options_page,
    "protocol.md": protocol_page,
    "record-formats.md": record_formats_page,
    "states.md": states_page,
    "tables.md": tables_page,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the generated pages of the documentation.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a page is out of date")
    parser.add_argument("pages", nargs="*", choices=[[], *PAGES], metavar="PAGE", help=f"default: {', '.join(PAGES)}")
    options = parser.parse_args()
    outdated = []
    for name in options.pages or PAGES:
        path, text = DIRECTORY / name, PAGES[name]()
        if path.exists() and path.read_text() == text:
            continue
        outdated.append(name)
        if not options.check:
            path.write_text(text)
            print(f"wrote docs/{name}")
    if options.check and outdated:
        print(f"Out of date: docs/{', docs/'.join(outdated)}. Run: make docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
