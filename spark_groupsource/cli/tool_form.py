"""Command lines, errors and exit status of ``kafka-consumer-groups``.

``groupsource groups --describe --group g`` is ``groupsource groups describe --group g``, with the exit status and the
error output of Kafka's tool: 1 for an invalid command line, otherwise 0, errors in the standard output. The commands
themselves write errors to standard error and exit with status 1, or 2 for an invalid command line.

Source: Kafka 4.3 `ConsumerGroupCommand`, `ConsumerGroupCommandOptions`, `CommandLineUtils`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Any, NamedTuple, NoReturn

import click
from click.shell_completion import CompletionItem

from spark_groupsource.cli.commands import InvalidValueError, LazyGroup
from spark_groupsource.cli.common import SettingsError, one_line
from spark_groupsource.cli.text_layout import output_width
from spark_groupsource.common.config_def import INT64_MAX
from spark_groupsource.errors import BrokerError, ConfigurationError, ErrorCode, GroupSourceError

ACTIONS = ("list", "describe", "delete", "reset-offsets", "delete-offsets", "validate-regex")
_TOOL_FORM = "groupsource.tool_form"
_HAS_FAILED = "groupsource.has_failed"


class _JavaError(NamedTuple):
    """Name of Kafka's exception of an error code, without package and suffix, and its default message."""

    name: str
    message: str


_JAVA_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: _JavaError(
        "UnknownTopicOrPartition", "This server does not host this topic-partition."
    ),
    ErrorCode.INVALID_TOPIC_EXCEPTION: _JavaError(
        "InvalidTopic", "The request attempted to perform an operation on an invalid topic."
    ),
    ErrorCode.INVALID_GROUP_ID: _JavaError("InvalidGroupId", "The configured groupId is invalid."),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: _JavaError("TopicAuthorization", "Topic authorization failed."),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: _JavaError("GroupAuthorization", "Group authorization failed."),
    ErrorCode.NON_EMPTY_GROUP: _JavaError("GroupNotEmpty", "The group is not empty."),
    ErrorCode.GROUP_ID_NOT_FOUND: _JavaError("GroupIdNotFound", "The group id does not exist."),
    ErrorCode.UNSUPPORTED_VERSION: _JavaError("UnsupportedVersion", "The version of API is not supported."),
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: _JavaError(
        "GroupSubscribedToTopic",
        "Deleting offsets of a topic is forbidden while the consumer group is actively subscribed to it.",
    ),
}


class ReportedError(GroupSourceError):
    """An error for which Kafka's tool has a text of its own, `tool_text`."""

    def __init__(self, text: str, tool_text: str) -> None:
        super().__init__(text)
        self.tool_text = tool_text


class JavaLong(click.IntRange):
    """An integer of 64 bits; Kafka's tool reports another value as an error of the command."""

    def __init__(self, minimum: int = -INT64_MAX) -> None:
        super().__init__(minimum, INT64_MAX)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            option = param.opts[0] if param is not None else "the option"
            reject_value(
                f"Option {option} must be an integer of at least {self.min}, got {value!r}.",
                f"Cannot parse argument '{value}' of option {option.removeprefix('--')}",
            )


class _InvalidCommandLine(click.ClickException):
    """Prints the message of Kafka's tool alone and exits with status 1."""

    exit_code = 1

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(self.message, err=True)
        click.echo("Run groupsource groups -h for help.", err=True)


class ToolGroup(LazyGroup):
    """A click group that accepts both forms of its commands."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and "--version" in args:
            args = ["--version"]
        elif args and args[0].startswith("-") and not {"-h", "--help"} & set(args):
            ctx.meta[_TOOL_FORM] = True
            args = _with_verb(args)
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        actions = [f"--{action}" for action in ACTIONS] if incomplete.startswith("--") else []
        found = [CompletionItem(action) for action in actions if action.startswith(incomplete)]
        return found + super().shell_complete(ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        if not is_tool_form(ctx):
            result = super().invoke(ctx)
            if _HAS_FAILED in ctx.meta:
                ctx.exit(1)
            return result
        try:
            # not CommandGroup.invoke, which reports errors
            return click.Group.invoke(self, ctx)
        except click.UsageError as error:
            raise _InvalidCommandLine(error.format_message()) from error
        except SettingsError as error:
            print_error(f"Executing consumer group command failed due to {one_line(error)}")
            return None
        except ConfigurationError as error:
            raise _InvalidCommandLine(one_line(error)) from error
        except GroupSourceError as error:
            print_error(f"Executing consumer group command failed due to {_tool_text(error)}")
            return None


def is_tool_form(ctx: click.Context | None = None) -> bool:
    """Returns whether the command line is that of Kafka's tool."""
    return (ctx or click.get_current_context()).meta.get(_TOOL_FORM, False) is True


def table_width() -> int | None:
    """Returns the columns that a table may have; None for no limit, as in the form of Kafka's tool."""
    return None if is_tool_form() else output_width()


def print_error(text: str) -> None:
    """Reports an error after which the command continues; its exit status is as the module describes."""
    if is_tool_form():
        click.echo(f"\nError: {text}")
    else:
        click.echo(f"Error: {text}", err=True)
        click.get_current_context().meta[_HAS_FAILED] = True


def reject_command_line(text: str, tool_text: str = "") -> NoReturn:
    """Rejects the combination of options, in Kafka's words in its form."""
    raise click.UsageError(tool_text if tool_text and is_tool_form() else text)


def reject_value(text: str, tool_text: str) -> NoReturn:
    """Rejects the value of an option; Kafka's tool reports it as an error of the command."""
    raise ReportedError(text, tool_text) if is_tool_form() else InvalidValueError(text)


def java_error(code: int) -> str:
    """Returns Kafka's exception of an error code with its message, as its tools print it."""
    known = _JAVA_ERRORS.get(ErrorCode(code)) if code in list(ErrorCode) else None
    if known is None:
        return str(BrokerError(code, "The request"))
    return f"org.apache.kafka.common.errors.{known.name}Exception: {known.message}"


def java_message(code: int) -> str:
    """Returns the default message of an error code."""
    return java_error(code).partition("Exception: ")[2] or java_error(code)


def _tool_text(error: GroupSourceError) -> str:
    if isinstance(error, ReportedError):
        return error.tool_text
    if isinstance(error, BrokerError) and error.code in _JAVA_ERRORS:
        return java_message(error.code)
    return one_line(error)


def _with_verb(args: Sequence[str]) -> list[str]:
    """Returns the arguments with the action in front.

    Raises: _InvalidCommandLine without exactly one action.
    """
    actions = [arg for arg in args if arg.partition("=")[0].removeprefix("--") in ACTIONS and arg.startswith("--")]
    if len(actions) != 1:
        named = ", ".join(f"--{action}" for action in ACTIONS)
        raise _InvalidCommandLine(f"Command must include exactly one action: {named}")
    at = args.index(actions[0])
    name, equals, value = actions[0].removeprefix("--").partition("=")
    before, after = args[:at], args[at + 1 :]
    if name != "validate-regex":
        return [name, *before, *after]
    if not equals:
        value, after = (after[0], after[1:]) if after else ("", after)
    # "--" protects an expression that begins with a dash
    return [name, *before, *after, "--", value]
