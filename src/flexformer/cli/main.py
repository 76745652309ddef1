"""The frame of the `flexformer` command: find the sub-command, run it, turn its errors into one line.

A sub-command is a typed function and an entry in `COMMANDS`. Its signature is its options, its docstring is
its help, and what it returns, an int or None, is the exit status. Nothing of it is imported before it is
asked for, so that `flexformer --help` is immediate. A name of two words, such as "bench decode", belongs to a
group, which has a line of its own in `GROUPS`.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import json
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from flexformer import __version__
from flexformer.extras import too_old

if TYPE_CHECKING:
    from rich.console import Console

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("flexformer.cli.demo:demo", "train four small models, compare them and write a report, in minutes"),
    "doctor": ("flexformer.cli.doctor:doctor", "check on this machine that attention is right in every form"),
    "train": ("flexformer.cli.train:train", "train a model on a task, test it and record the run"),
    "train lm": ("flexformer.cli.language:train", "train a language model on any text, test it and record the run"),
    "evaluate": ("flexformer.cli.evaluate:evaluate", "evaluate the model of a training run"),
    "convert": ("flexformer.cli.convert:convert", "make a pretrained model linear: an adapter and a report"),
    "distill": ("flexformer.cli.distill:distill", "teach kernels the attention of a pretrained model"),
    "finetune": ("flexformer.cli.finetune:finetune", "fine-tune a pretrained model on GLUE, with any attention"),
    "generate": ("flexformer.cli.generate:generate", "let a language model write, from a state of fixed size"),
    "reproduce table1": ("flexformer.cli.reproduce:table1", "Long Range Arena with every attention"),
    "reproduce table2": ("flexformer.cli.reproduce:table2", "language models with every causal attention"),
    "reproduce table3": ("flexformer.cli.reproduce_pretrained:table3", "softmax recovered by distillation, on GLUE"),
    "reproduce table4": ("flexformer.cli.reproduce_pretrained:table4", "kernels carried from one GLUE task to others"),
    "reproduce fig2": ("flexformer.cli.reproduce_figures:fig2", "time and memory of the Retrieval model"),
    "reproduce distill-curves": ("flexformer.cli.reproduce_figures:distill_curves", "how fast kernels learn softmax"),
    "reproduce params": ("flexformer.cli.parameters:parameters", "parameters of the language models, without weights"),
    "reproduce kernels": ("flexformer.cli.kernels:kernels", "how near every learnable kernel comes to softmax"),
    "reproduce sentences": (
        "flexformer.cli.reproduce_pretrained:sentences",
        "what a linear sentence encoder keeps",
    ),
    "reproduce decoder": ("flexformer.cli.reproduce_pretrained:decoder", "what a linear language model keeps"),
    "reproduce n-sweep": ("flexformer.cli.reproduce:n_sweep", "accuracy, speed and memory against n"),
    "inspect": ("flexformer.cli.inspect:inspect", "look at learned kernels: spectra, curves, what they attend to"),
    "report": ("flexformer.cli.report:report", "write one HTML file about runs, results and benchmarks"),
    "data list": ("flexformer.cli.data:list_tasks", "list the tasks, where their data comes from, and if it is there"),
    "data check": ("flexformer.cli.data:check", "read all data: counts, labels, checksums"),
    "data prepare": ("flexformer.cli.data:prepare", "generate a task's data, or see that its files are there"),
    "bench attention": (
        "flexformer.cli.bench:attention",
        "compare ways to attend: time, memory, distance to the limit",
    ),
    "bench scaling": ("flexformer.cli.bench:scaling", "how time and memory grow with the length"),
    "bench decode": ("flexformer.cli.bench:decode", "time of one more token after long contexts"),
    "bench model": ("flexformer.cli.bench:model", "a training step of a whole model with every attention"),
    "bench vocabulary": ("flexformer.cli.bench_vocabulary:vocabulary", "the adaptive vocabulary beside a full softmax"),
    "bench ranks": ("flexformer.cli.bench_ranks:ranks", "a sequence divided over processes, and over many more"),
    "bench report": ("flexformer.cli.bench:report", "write the benchmark page's figures from recorded runs"),
}

GROUPS: dict[str, str] = {
    "reproduce": "the paper's tables and figures, each by one command",
    "data": "the data of the tasks: list, check and generate it",
    "bench": "measure speed and memory on this machine",
}

EXTRAS = {
    "accelerate": "hf",
    "datasets": "hf",
    "matplotlib": "plots",
    "peft": "lora",
    "PIL": "hf",
    "safetensors": "hf",
    "tokenizers": "hf",
    "transformers": "hf",
}

FAILED, USAGE, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141  # as shells count: 128 + SIGINT, 128 + SIGPIPE


class UserError(Exception):
    """What went wrong and what would be right, in one line for the user. Exit status 1."""

    status = FAILED


class UsageError(UserError):
    """The command line itself is wrong. Exit status 2."""

    status = USAGE


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own) and return the exit status."""
    arguments, debug = _take_debug(sys.argv[1:] if argv is None else argv)
    name, arguments = _choose(arguments)
    program = f"flexformer {name}" if name in COMMANDS or name in GROUPS else "flexformer"
    try:
        status = _run(name, arguments)
        sys.stdout.flush()  # here, because a full disk or a closed pipe may show only now
        return status
    except BrokenPipeError:
        # The reader has seen enough, as in `flexformer doctor | head`: no error, nothing more to say.
        _discard_output()
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return _report(f"{program}: interrupted", INTERRUPTED, debug)
    except UserError as error:
        return _report(f"{program}: error: {_one_line(error)}", error.status, debug)
    except (ValueError, TypeError, OSError) as error:
        status = _report(f"{program}: error: {_one_line(error)}", FAILED, debug)
        if getattr(error, "leave_at_once", False):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        return status
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRAS:
            raise  # not a choice of the user's but a fault of ours
        remedy = f"pip install 'flexformer-pytorch[{EXTRAS[missing]}]'"
        return _report(f"{program}: error: {missing} is not installed; {remedy}", FAILED, debug)
    except ImportError as error:
        complaint = too_old((error.name or "").partition(".")[0])
        if complaint is None:
            raise
        return _report(f"{program}: error: {complaint}", FAILED, debug)


def console(errors: bool = False) -> Console:
    """A rich console for tables and progress: in colour and as wide as the terminal, plain elsewhere.

    Rich takes 80 columns where there is no terminal, which would cut tables that go to a file or a pipe.

    Args:
        errors: Write to the error stream, where JSON goes to standard output.
    """
    from rich.console import Console

    plain = not (sys.stderr if errors else sys.stdout).isatty() and "COLUMNS" not in os.environ
    return Console(stderr=errors, width=120 if plain else None, highlight=False, quiet=not _speaks())


def print_json(value: Any) -> None:
    """Print as JSON on one line."""
    if _speaks():
        print(json.dumps(value))


def _speaks() -> bool:
    """Of several processes under torchrun the first alone does."""
    return os.environ.get("RANK", "0") == "0"


def closest(name: str, known: Iterable[str]) -> str:
    """A hint such as `; did you mean 'doctor'?`, or nothing if no known name is near."""
    matches = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def _take_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    end = arguments.index("--") if "--" in arguments else len(arguments)
    rest = [a for i, a in enumerate(arguments) if a != "--debug" or i > end]
    asked = os.environ.get("FLEXFORMER_DEBUG", "") not in ("", "0")
    return rest, asked or len(rest) < len(arguments)


def _choose(arguments: list[str]) -> tuple[str, list[str]]:
    """Split off the sub-command; `help X` is `X --help`, and nothing at all is `--help`."""
    if not arguments or arguments == ["help"]:
        return "--help", []
    if arguments[0] == "help":
        arguments = [*arguments[1:], "--help"]
    words = 2 if " ".join(arguments[:2]) in COMMANDS else 1
    return " ".join(arguments[:words]), arguments[words:]


def _run(name: str, arguments: list[str]) -> int:
    if name in ("-h", "--help"):
        print(_overview())
        return 0
    if name in ("-V", "--version"):
        print(f"flexformer {__version__}")
        return 0
    if name in GROUPS:
        if not arguments or arguments[0] in ("-h", "--help"):
            print(_group_overview(name))
            return 0
        members = [command.partition(" ")[2] for command in _members(name)]
        hint = closest(arguments[0], members) or f"; flexformer {name} --help lists what there is"
        raise UsageError(f"unknown command {arguments[0]!r}{hint}")
    if name not in COMMANDS:
        kind = "option" if name.startswith("-") else "command"
        hint = closest(name, [*COMMANDS, *GROUPS]) or "; flexformer --help lists what there is"
        raise UsageError(f"unknown {kind} {name!r}{hint}")

    from flexformer.cli.arguments import parse

    module, _, attribute = COMMANDS[name][0].partition(":")
    function = getattr(importlib.import_module(module), attribute)
    try:
        options = parse(function, f"flexformer {name}", arguments)
    except SystemExit as stop:  # --help and --print_config have printed and are done
        return int(stop.code or 0)
    return int(function(**options) or 0)


def _members(group: str) -> list[str]:
    return [name for name in COMMANDS if name.startswith(f"{group} ")]


def _group_overview(group: str) -> str:
    members = _members(group)
    width = max(len(name) for name in members) - len(group) - 1
    return "\n".join(
        [
            f"usage: flexformer {group} COMMAND [options]",
            "",
            f"{GROUPS[group][0].upper()}{GROUPS[group][1:]}.",
            "",
            "commands:",
            *(f"  {name[len(group) + 1 :]:<{width}}  {COMMANDS[name][1]}" for name in members),
            "",
            f"flexformer {group} COMMAND --help shows the options of one, with an example.",
        ]
    )


def _overview() -> str:
    entries = {name: help for name, (_, help) in COMMANDS.items() if name.partition(" ")[0] not in GROUPS} | GROUPS
    width = max(map(len, [*entries, "help"]))
    commands = [f"  {name:<{width}}  {help}" for name, help in entries.items()]
    return "\n".join(
        [
            "usage: flexformer COMMAND [options]",
            "",
            "Attention whose cost grows linearly with length and whose similarity function is learned.",
            "",
            "commands:",
            *commands,
            f"  {'help':<{width}}  show the options of a command, with an example: flexformer help COMMAND",
            "",
            "options:",
            "  -h, --help     show this overview",
            "  -V, --version  show the version",
            "  --debug        with any command: show where an error came from (or set FLEXFORMER_DEBUG=1)",
        ]
    )


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    else:
        text = str(error) or type(error).__name__
    return " ".join(text.split())


def _report(line: str, status: int, debug: bool) -> int:
    try:
        sys.stdout.flush()  # what the command printed comes before the error that ended it
    except OSError:
        _discard_output()
    if debug:
        traceback.print_exc()
    print(line, file=sys.stderr)
    return status


def _discard_output() -> None:
    """Send what is still unwritten nowhere: the interpreter would complain about it once more at exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
