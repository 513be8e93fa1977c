"""Charts and live views of groups, for notebooks and terminals.

Altair, vl-convert and anywidget (extra `notebook`) are imported where they are used; without them the charts are plain
SVG and the live view is plain HTML.
"""
