"""From a typed function to its command line: options from the signature, help from the docstring."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable
from inspect import getdoc
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import jsonargparse

from flexformer.cli.main import UsageError, closest


class _HelpFormatter(argparse.RawDescriptionHelpFormatter, jsonargparse.DefaultHelpFormatter):
    """Types and defaults beside every option; descriptions and examples as they were written."""


Command = TypeVar("Command", bound=Callable[..., Any])
PresetFinder = Callable[[dict[str, Any]], Path]


def with_presets(find: PresetFinder) -> Callable[[Command], Command]:
    """Let a command take the options that are not given from a preset file, a YAML file as for `--config`.

    Args:
        find: Given the options as they stand without a preset, the file to read; raises `UsageError` if there is none.
    """

    def mark(function: Command) -> Command:
        function.find_preset = find  # type: ignore[attr-defined]
        return function

    return mark


def parse(function: Callable[..., Any], program: str, arguments: list[str]) -> dict[str, Any]:
    """Read a command line for `function`.

    Parameters without a default are positional, the others are options. `--config FILE` reads options from
    YAML, later options override it, nested ones by dotted names; `--print_config` prints what would be used.
    A bool is a flag: `--json` means `--json=true`. `--dry-run` and `--dry_run` are the same option.
    Where the function was marked by `with_presets`, everything given comes before the preset's options.

    Args:
        function: Typed; the `Args:` of its docstring describe the options, its `Example:` shows one use.
        program: What the user typed to get here, for messages.
        arguments: The rest of the command line.

    Returns:
        Keyword arguments for `function`.

    Raises:
        UsageError: The command line does not fit.
        SystemExit: `--help` or `--print_config` was asked for and has been printed.
    """
    description, example = _split(getdoc(function) or "")
    parser = jsonargparse.ArgumentParser(
        prog=program,
        description=description,
        epilog=f"example:\n{textwrap.indent(example, '  ')}" if example else None,
        formatter_class=_HelpFormatter,
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_argument("--config", action="config", help="Read options from this YAML file.")
    parser.add_function_arguments(function, as_group=False, as_positional=True)
    flags = {f"--{name}" for name, hint in get_type_hints(function).items() if hint is bool}
    for action in parser._actions:
        if flags & set(action.option_strings):
            action.nargs = "?"  # so that the help shows the value as optional
    known = [option for action in parser._actions for option in action.option_strings]
    arguments = _normalise(arguments, flags)
    find_preset: PresetFinder | None = getattr(function, "find_preset", None)
    try:
        if find_preset is not None:
            asked = [a for a in arguments if a.partition("=")[0] != "--print_config"]
            arguments = ["--config", str(find_preset(dict(parser.parse_args(asked)))), *arguments]
        options = parser.parse_args(arguments)
        options.pop("config", None)
        return dict(parser.instantiate(options).as_dict())
    except jsonargparse.ArgumentError as error:
        raise UsageError(f"{_readable(str(error), known)} ({program} --help explains)") from error


def _split(docstring: str) -> tuple[str, str]:
    """Description and example of a docstring, without its other sections."""
    head, *sections = re.split(r"^(\w+):\n(?=[ \t]+\S)", docstring, flags=re.MULTILINE)
    bodies = dict(zip(sections[::2], sections[1::2], strict=True))
    return head.strip(), textwrap.dedent(bodies.get("Example", "")).strip()


def _normalise(arguments: list[str], flags: set[str]) -> list[str]:
    """Give bare flags their value and option names their underscores; leave values alone."""
    result: list[str] = []
    for i, argument in enumerate(arguments):
        if argument == "--":
            return result + arguments[i:]
        if argument.startswith("--"):
            option, equals, value = argument.partition("=")
            option = "--" + option[2:].replace("-", "_")
            following = arguments[i + 1 : i + 2]
            if option in flags and not equals and following not in (["true"], ["false"]):
                equals, value = "=", "true"
            argument = option + equals + value
        result.append(argument)
    return result


def _readable(message: str, known: list[str]) -> str:
    """The parser's message in one line of plain words, with the nearest name for an unknown option."""
    message = " ".join(message.split())
    for pattern, plain in (
        (r'Parser key "([^"]+)":', r"\1:"),
        (r"<class '(?:\w+\.)*(\w+)'>", r"\1"),
        (r"typing\.Literal\[([^]]*)\]", r"one of \1"),
        (r"Expected an? (.+?)\. Got value: (.*)", r"expected \1, got \2"),
        (r"unrecognized arguments:", "unknown"),
    ):
        message = re.sub(pattern, plain, message)
    unknown = re.match(r"unknown (--[\w.-]+)", message)
    return message + closest(unknown.group(1), known) if unknown else message
