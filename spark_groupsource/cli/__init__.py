"""Command line: the ``groupsource`` command, one module per subcommand.

A command parses arguments, calls a function of `monitor`, `client` or `broker`, and prints. It decides nothing about
groups. A table and a method of the notebook show the same values, in rows of their own where the command has those of
Kafka's tool. It needs click and rich (extra `cli`).

A command
=========

1. `__main__.py` reports a missing extra in one line; `main.py` imports the module of the subcommand alone, because the
   embedded broker must not load what `consume` needs.
2. `commands.py` checks names and suggests others; `effects.py` rejects options that the others make ineffective.
3. `common.py` has the options of every command that needs a cluster. It parses address and properties file with the
   parser of the data source (`client/settings.py`), so that a setting means the same everywhere.
4. The module of the command calls the function, for example `monitor/offsets/offset_reset.py` for
   ``groups reset-offsets``, and prints its result: a table within the width of the terminal (`text_layout.py`), or JSON
   (`common.py`).
5. An error is one line in standard error, and exit status 1; an invalid command line has status 2.

``groups`` also accepts the command lines of ``kafka-consumer-groups``: then output, errors and exit status are those of
Kafka's tool (`tool_form.py`, `group_tables.py`).

Records
=======

`consume.py` and `produce_command.py` move records in blocks between standard streams and a topic: `input_blocks.py` and
`record_lines.py` are their formats, `console_serdes.py` those of single values, `decoded_rows.py` the decoders of
`values`. `streams.py` has what a closed pipe and a signal mean.
"""
