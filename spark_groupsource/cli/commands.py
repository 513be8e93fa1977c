"""Command classes: errors in one line, suggestions, checks of arguments."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

from spark_groupsource.cli.common import HELP, one_line
from spark_groupsource.common.config_def import closest
from spark_groupsource.errors import ConfigurationError, GroupSourceError

# what users of other tools write -> a command of the same group
OTHER_NAMES: Mapping[str, str] = {
    "add": "create",
    "akhq": "ui",
    "console-consumer": "consume",
    "console-producer": "produce",
    "consumer": "consume",
    "consumer-groups": "groups",
    "dashboard": "ui",
    "desc": "describe",
    "get": "describe",
    "group": "groups",
    "kafka-console-consumer": "consume",
    "kafka-console-producer": "produce",
    "kafka-consumer-groups": "groups",
    "kafka-topics": "topics",
    "kafka-ui": "ui",
    "ls": "list",
    "metrics": "exporter",
    "producer": "produce",
    "remove": "delete",
    "reset": "reset-offsets",
    "rm": "delete",
    "show": "describe",
    "start": "broker",
    "topic": "topics",
    "tail": "consume",
    "web": "ui",
}
# option of Kafka's tools, or of kcat -> the one here, where a command has it
OTHER_OPTIONS: Mapping[str, str] = {
    "--broker-list": "--bootstrap-server",
    "--config-file": "--command-config",
    "--consumer-config": "--command-config",
    "--consumer-property": "--command-config",
    "--consumer.config": "--command-config",
    "--from-beginning": "--from earliest",
    "--group-id": "--group",
    "--include": "--topic",
    "--key-deserializer": "--key-format",
    "--key-serializer": "--key-format",
    "--max-records": "--max-messages",
    "--offset": "--from",
    "--print-offset": "--show",
    "--producer-property": "--command-config",
    "--producer.config": "--command-config",
    "--property-file": "--formatter-config",
    "--tail": "--last",
    "--value-deserializer": "--value-format",
    "--value-serializer": "--value-format",
    "--whitelist": "--topic",
    "-D": "--delimiter",
    "-F": "--command-config",
    "-G": "--group",
    "-H": "--header",
    "-J": "--json",
    "-K": "--key-separator",
    "-X": "--command-config",
    "-b": "--bootstrap-server",
    "-c": "--max-messages",
    "-f": "--format",
    "-g": "--group",
    "-k": "--key",
    "-n": "--max-messages",
    "-o": "--from",
    "-p": "--partition",
    "-s": "--value-format",
    "-t": "--topic",
    "-z": "--compression",
}


class Command(click.Command):
    """A click command that names options of other tools, and rejects arguments that are not text."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            other = OTHER_OPTIONS.get(error.option_name, "")
            if any(other.partition(" ")[0] in param.opts for param in self.params):
                ctx.fail(f"No such option: {error.option_name}. Did you mean {other}?")
            raise
        for param in self.params:
            if param.name in ctx.params and not isinstance(param.type, click.Path):
                value = ctx.params[param.name]
                is_tuple = isinstance(value, tuple)
                ctx.params[param.name] = (
                    tuple(_text(ctx, param, each) for each in value) if is_tuple else _text(ctx, param, value)
                )
        return rest


def _text(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Returns a value of a command line whose bytes are UTF-8, in any locale; rejects others."""
    try:
        return os.fsencode(value).decode() if isinstance(value, str) and not _is_utf8(value) else value
    except UnicodeDecodeError:
        shown = os.fsencode(value).decode("utf-8", "backslashreplace")
        name = param.opts[0] if isinstance(param, click.Option) else (param.metavar or param.name)
        ctx.fail(f"The value of {name} is not UTF-8: '{shown}'.")


def _is_utf8(text: str) -> bool:
    """Returns False for the surrogates by which Python keeps bytes that it cannot decode."""
    return not any("\udc80" <= char <= "\udcff" for char in text)


def command(name: str | None = None) -> Callable[[Callable[..., Any]], Command]:
    """Returns the decorator of a command; its name is that of the function unless it is given."""
    return click.command(name, cls=Command, context_settings=HELP)


class InvalidValueError(click.ClickException):
    """An option has an invalid value: one line, with the exit status of an invalid command line."""

    exit_code = 2


@contextmanager
def invalid_values() -> Iterator[None]:
    """Reports the `ConfigurationError` of a parsed option as an invalid command line. Raises: InvalidValueError."""
    try:
        yield
    except ConfigurationError as error:
        raise InvalidValueError(one_line(error)) from error


class CommandGroup(click.Group):
    """A click group that suggests commands, and reports a `GroupSourceError` as one line, with exit status 1."""

    command_class = Command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except GroupSourceError as error:
            raise click.ClickException(one_line(error)) from error

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first, names = (args[0] if args else ""), self.list_commands(ctx)
        if first.startswith("-") and not {"-h", "--help", "--version"} & set(args):
            found = next((arg[2:] for arg in args if arg.startswith("--") and arg[2:] in names), None)
            if found is not None:
                ctx.fail(f"Option --{found} is one of Kafka's tools. Run: {ctx.command_path} {found} ...")
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, names = args[0], self.list_commands(ctx)
        if not ctx.resilient_parsing and name not in names and not name.startswith("-"):
            suggested = _near_command(name, names)
            if suggested is not None:
                ctx.fail(f"No such command {name!r}. Did you mean {suggested!r}?")
        return super().resolve_command(ctx, args)


def _near_command(name: str, names: list[str]) -> str | None:
    """Returns the command that a misspelled name, a part of a name or one of another tool means; None if unknown."""
    plain = name.lower().replace("_", "-").removesuffix(".sh")
    other = OTHER_NAMES.get(plain)
    if other in names:
        return other
    if plain in names:
        return plain
    parts = [each for each in names if plain in each.split("-") or each.startswith(plain)]
    return parts[0] if len(parts) == 1 else closest(plain, names)


class LazyGroup(CommandGroup):
    """Imports the module of a command on demand; the function has the name of the command with underscores.

    Attributes:
        modules: command -> module of this package, possibly with ``:function`` where the name differs.
    """

    modules: Mapping[str, str] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.modules:
            return None
        module, _, function = self.modules[cmd_name].partition(":")
        found = getattr(import_module(f"spark_groupsource.cli.{module}"), function or cmd_name.replace("-", "_"))
        assert isinstance(found, click.Command)
        return found
