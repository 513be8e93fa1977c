"""Command line: the ``groupsource`` command, one module per subcommand."""
