"""From a typed function to its command line: options from the signature, help from the docstring."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import re
import textwrap
from collections.abc import Callable
from inspect import getdoc
from typing import Any, TypeVar, get_args, get_origin

import jsonargparse
import yaml

from flexformer.cli.main import UsageError, closest


class _HelpFormatter(argparse.RawDescriptionHelpFormatter, jsonargparse.DefaultHelpFormatter):
    """Types and defaults beside every option; descriptions and examples as they were written."""

    def _expand_help(self, action: argparse.Action) -> str:
        return re.sub(r"<class '(\w+)'>", r"\1", str(super()._expand_help(action)))


Command = TypeVar("Command", bound=Callable[..., Any])
PresetFinder = Callable[[dict[str, Any]], dict[str, Any]]
HELP = {"-h", "--help"}


def with_presets(find: PresetFinder) -> Callable[[Command], Command]:
    """Let a command take the options that are not given from a preset, which says what a `--config` file would.

    Args:
        find: Given the options as they stand without a preset, what it says; raises `UsageError` if there is none.
    """

    def mark(function: Command) -> Command:
        function.find_preset = find  # type: ignore[attr-defined]
        return function

    return mark


def parse(function: Callable[..., Any], program: str, arguments: list[str]) -> dict[str, Any]:
    """Read a command line for `function`.

    Parameters without a default are positional, those that are lists one or more words; the others are options.
    `--config FILE` reads options from YAML, later options override it, nested ones by dotted names; `--print_config`
    prints what would be used.
    A bool is a flag: `--json` means `--json=true`. A list takes words: `--seeds 0 1`. `--dry-run` and `--dry_run` are
    the same option.
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
    hints = {action.dest: action._typehint for action in parser._actions if hasattr(action, "_typehint")}
    flags = {f"--{name}" for name, hint in hints.items() if hint is bool}
    lists = {name: get_args(hint)[0] for name, hint in hints.items() if get_origin(hint) is list}
    for action in parser._actions:
        if flags & set(action.option_strings):
            action.nargs = "?"  # so that the help shows the value as optional
        elif not action.option_strings and action.dest in lists:
            action.nargs, action.metavar = "+", action.dest
            action._typehint = lists[action.dest]  # type: ignore[attr-defined]  # of each word
    known = [option for action in parser._actions for option in action.option_strings]
    arguments = _gather(_normalise(arguments, flags), {f"--{name}" for name, hint in hints.items() if _is_list(hint)})
    arguments = _spread(arguments, {f"--{name}" for name, hint in hints.items() if get_origin(hint) is dict})
    find_preset: PresetFinder | None = getattr(function, "find_preset", None)
    if find_preset is not None and set(arguments) & HELP:
        _show_preset(parser, find_preset, [argument for argument in arguments if argument not in HELP])
    try:
        if find_preset is not None:
            asked = [a for a in arguments if a.partition("=")[0] != "--print_config"]
            arguments = ["--config", json.dumps(find_preset(dict(parser.parse_args(asked)))), *arguments]
        options = parser.parse_args(arguments)
        options.pop("config", None)
        return dict(parser.instantiate(options).as_dict())
    except jsonargparse.ArgumentError as error:
        raise UsageError(f"{_readable(str(error), known)} ({program} --help explains)") from error


def _show_preset(parser: jsonargparse.ArgumentParser, find_preset: PresetFinder, arguments: list[str]) -> None:
    """Make the preset's settings the defaults that the help shows, where what was given is enough to find one."""
    try:
        asked = dict(parser.parse_args(arguments))
    except jsonargparse.ArgumentError:  # something required is missing, as is usual beside --help
        words = {action.dest: "" for action in parser._actions if not action.option_strings}
        asked = dict(parser.get_defaults()) | words
    try:
        preset = find_preset(asked)
    except UsageError:
        parser.description = f"{parser.description}\n\nA preset's settings replace the defaults below."
        return
    parser.set_defaults(preset)
    parser.description = f"{parser.description}\n\nDefaults below are those of the preset {asked['preset']}."


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
            if option in flags and not equals and not {word.lower() for word in following} & {"true", "false"}:
                equals, value = "=", "true"
            argument = option + equals + value
        result.append(argument)
    return result


def _is_list(hint: Any) -> bool:
    return any(get_origin(each) in (list, tuple) for each in (hint, *get_args(hint)))


def _gather(arguments: list[str], lists: set[str]) -> list[str]:
    """Make one value of the words after an option that is a list: `--seeds 0 1` is `--seeds=[0, 1]`."""
    result: list[str] = []
    rest = iter(enumerate(arguments))
    for i, argument in rest:
        if argument == "--":
            return result + arguments[i:]
        following = list(itertools.takewhile(lambda word: not word.startswith("--"), arguments[i + 1 :]))
        if argument in lists and following and following != ["null"] and not following[0].startswith("["):
            words = (word if re.fullmatch(r"[-+.\d]+(e[-+]?\d+)?", word) else json.dumps(word) for word in following)
            result.append(f"{argument}=[{', '.join(words)}]")
            for _ in following:
                next(rest)
        else:
            result.append(argument)
    return result


def _spread(arguments: list[str], mappings: set[str]) -> list[str]:
    """Give what a mapping holds one by one, so that a preset's other entries stay: `--x={a: 1}` is `--x.a=1`."""
    result: list[str] = []
    rest = iter(enumerate(arguments))
    for i, argument in rest:
        if argument == "--":
            return result + arguments[i:]
        option, equals, value = argument.partition("=")
        if option in mappings:
            text = value if equals else "".join(arguments[i + 1 : i + 2])
            with contextlib.suppress(yaml.YAMLError):
                entries = yaml.safe_load(text)
                if isinstance(entries, dict) and entries:
                    result += [f"{option}.{key}={_word(entry)}" for key, entry in entries.items()]
                    if not equals:
                        next(rest)
                    continue
        result.append(argument)
    return result


def _word(entry: Any) -> str:
    """An entry of a mapping as the command line has it; text goes without quotes."""
    return entry if isinstance(entry, str) else json.dumps(entry)


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
