"""The frame of the command: what a user sees before, around and after a sub-command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flexformer import __version__
from flexformer.cli import main as frame

HERE = Path(__file__).parent
COMMANDS = frame.COMMANDS
PRIVATE = {
    "greet": ("frame_commands:greet", "say hello"),
    "fail": ("frame_commands:fail", "go wrong"),
    "talk": ("frame_commands:talk", "print a lot"),
    "table": ("frame_commands:table", "print a table"),
}


@pytest.fixture(autouse=True)
def private_commands(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setattr(frame, "COMMANDS", PRIVATE)
    monkeypatch.delenv("FLEXFORMER_DEBUG", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def run(capsys):
    """Run a command line in this process: (status, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        status = frame.main(list(arguments))
        out, err = capsys.readouterr()
        return status, out, err

    return run


def python(code: str, **options) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter that knows the private commands."""
    head = f"import sys; sys.path.insert(0, {str(HERE)!r})\nfrom flexformer.cli import main as frame\n"
    head += f"frame.COMMANDS = {PRIVATE!r}\n"
    environment = {k: v for k, v in os.environ.items() if k not in ("FLEXFORMER_DEBUG", "COLUMNS")}
    return subprocess.run([sys.executable, "-c", head + code], text=True, env=environment, timeout=120, **options)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"], ["--debug"]])
def test_overview_lists_every_command_with_its_help(run, arguments):
    status, out, err = run(*arguments)
    assert (status, err) == (0, "")
    assert out.startswith("usage: flexformer COMMAND")
    for name, (_, line) in PRIVATE.items():
        assert re.search(rf"^  {name} +{line}$", out, re.MULTILINE)


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version_is_one_line(run, option):
    assert run(option) == (0, f"flexformer {__version__}\n", "")


def test_overview_and_version_import_no_torch_no_parser_and_no_sub_command():
    code = """
for arguments in (["--help"], ["--version"], [], ["grete"]):
    frame.main(arguments)
print("loaded:", *sorted({"torch", "numpy", "jsonargparse", "rich", "frame_commands"} & set(sys.modules)))
"""
    result = python(code, capture_output=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "loaded:"


def test_help_starts_well_under_a_second():
    def seconds() -> float:
        start = time.perf_counter()
        assert python("sys.exit(frame.main(['--help']))", capture_output=True).returncode == 0
        return time.perf_counter() - start

    assert min(seconds() for _ in range(3)) < 0.5


def test_installed_command_is_the_frame():
    command = Path(sys.executable).with_name("flexformer")
    if not command.exists():
        pytest.skip("the package is not installed in this environment")
    result = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (0, f"flexformer {__version__}\n")


@pytest.mark.parametrize("arguments", [["help", "greet"], ["greet", "--help"], ["greet", "Ada", "-h"]])
def test_help_of_a_command_comes_from_its_docstring(run, arguments):
    status, out, err = run(*arguments)
    assert (status, err) == (0, "")
    assert out.startswith("usage: flexformer greet")
    assert "Say hello.\n\nMore than once if asked." in out
    assert re.search(r"name +Whom to greet\.", out)
    assert re.search(r"--times TIMES +How often\. \(type: int, default: 1\)", out)
    assert "--dry_run [{true,false}]" in out
    assert "Step size." in out
    assert out.endswith("example:\n  flexformer greet Ada --times 2\n")
    assert "Args:" not in out


@pytest.mark.parametrize(("typed", "meant"), [("gret", "greet"), ("tabel", "table")])
@pytest.mark.parametrize("before", [[], ["help"]])
def test_unknown_command_suggests_the_closest(run, typed, meant, before):
    status, out, err = run(*before, typed)
    assert (status, out) == (2, "")
    assert err == f"flexformer: error: unknown command {typed!r}; did you mean {meant!r}?\n"


@pytest.mark.parametrize(("typed", "kind"), [("zzz", "command"), ("--frobnicate", "option")])
def test_unknown_command_without_a_likeness_points_to_help(run, typed, kind):
    status, out, err = run(typed)
    assert (status, out) == (2, "")
    assert err == f"flexformer: error: unknown {kind} {typed!r}; flexformer --help lists what there is\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["Ada"], "Ada 1 plain False Optimizer(lr=0.1)"),
        (["Ada", "--times", "2", "--tone=loud"], "Ada 2 loud False Optimizer(lr=0.1)"),
        (["--dry_run", "Ada"], "Ada 1 plain True Optimizer(lr=0.1)"),
        (["Ada", "--dry-run"], "Ada 1 plain True Optimizer(lr=0.1)"),
        (["Ada", "--dry-run", "false"], "Ada 1 plain False Optimizer(lr=0.1)"),
        (["Ada", "--dry-run", "True"], "Ada 1 plain True Optimizer(lr=0.1)"),
        (["Ada", "--dry-run=true"], "Ada 1 plain True Optimizer(lr=0.1)"),
        (["Ada", "--optimizer.lr", "0.5"], "Ada 1 plain False Optimizer(lr=0.5)"),
    ],
)
def test_options_come_from_the_signature(run, arguments, said):
    assert run("greet", *arguments) == (0, said + "\n", "")


def test_config_file_gives_options_and_the_command_line_overrides_it(run, tmp_path):
    config = tmp_path / "greet.yaml"
    config.write_text("times: 4\noptimizer:\n  lr: 0.5\n")
    status, out, _ = run("greet", "Ada", "--config", str(config), "--times", "5")
    assert (status, out) == (0, "Ada 5 plain False Optimizer(lr=0.5)\n")


def test_print_config_shows_what_would_be_used(run):
    status, out, err = run("greet", "Ada", "--times", "3", "--print_config")
    assert (status, err) == (0, "")
    assert "times: 3\n" in out
    assert "lr: 0.1\n" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Ada", "--times", "x"], "times: expected int, got x"),
        (["Ada", "--tone", "huge"], "tone: expected one of 'plain', 'loud', got huge"),
        (["Ada", "--tims", "3"], "unknown --tims 3; did you mean '--times'?"),
        (["Ada", "--time", "3"], "unknown --time 3; did you mean '--times'?"),
        (["Ada", "Bob"], "unknown Bob"),
        ([], "the following arguments are required: name"),
        (["Ada", "--config", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(run, arguments, message):
    status, out, err = run("greet", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("flexformer greet: error: ")
    assert message in err
    assert err.endswith(" (flexformer greet --help explains)\n")
    assert err.count("\n") == 1


def test_broken_config_file_is_one_line_and_status_2(run, tmp_path):
    config = tmp_path / "broken.yaml"
    config.write_text("times: [4\n")
    status, out, err = run("greet", "Ada", "--config", str(config))
    assert (status, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("user", "width 7 is odd; use an even one"),
        ("value", "head_dim 30 is not divisible by 4; use a multiple of 4"),
        ("type", "q must be a Tensor"),
        ("silent", "ValueError"),
        ("disk", "/no/such/folder/file: No such file or directory"),
        ("extra", "transformers is not installed; pip install 'flexformer-pytorch[hf]'"),
    ],
)
def test_user_error_is_one_line_and_status_1(run, how, message):
    assert run("fail", how) == (1, "", f"flexformer fail: error: {message}\n")


@pytest.mark.parametrize("arguments", [["--debug", "fail", "value"], ["fail", "--debug", "value"]])
def test_debug_anywhere_shows_the_traceback_and_keeps_line_and_status(run, arguments):
    status, _, err = run(*arguments)
    assert status == 1
    assert err.startswith("Traceback")
    assert "frame_commands.py" in err
    assert err.endswith("\nflexformer fail: error: head_dim 30 is not divisible by 4; use a multiple of 4\n")


def test_debug_after_a_double_dash_is_a_value(run):
    assert run("greet", "--", "--debug") == (0, "--debug 1 plain False Optimizer(lr=0.1)\n", "")


@pytest.mark.parametrize(("value", "shown"), [("1", True), ("0", False), ("", False)])
def test_debug_may_come_from_the_environment(run, monkeypatch, value, shown):
    monkeypatch.setenv("FLEXFORMER_DEBUG", value)
    status, _, err = run("fail", "value")
    assert status == 1
    assert err.startswith("Traceback") is shown


@pytest.mark.parametrize(("how", "kind"), [("bug", KeyError), ("fault", ModuleNotFoundError)])
def test_a_fault_of_ours_keeps_its_traceback(how, kind):
    with pytest.raises(kind):
        frame.main(["fail", how])


def test_what_a_command_returns_is_the_exit_status(run):
    assert run("fail", "status") == (3, "", "")


def test_interrupt_is_one_line_and_status_130(run):
    assert run("fail", "interrupt") == (130, "", "flexformer fail: interrupted\n")


def test_interrupt_of_the_process_is_one_line_and_status_130():
    code = """
import os, signal, threading
import frame_commands
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent in the background may have it ignored
def wait() -> None:
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    threading.Event().wait(60)
frame_commands.wait = wait
frame.COMMANDS["wait"] = ("frame_commands:wait", "wait")
sys.exit(frame.main(["wait"]))
"""
    result = python(code, capture_output=True)
    assert (result.returncode, result.stderr) == (130, "flexformer wait: interrupted\n")


def test_closed_pipe_is_quiet(run):
    assert run("fail", "pipe") == (141, "", "")


def test_reader_that_leaves_early_ends_the_command_quietly(tmp_path):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        result = python("sys.exit(frame.main(['talk']))", stdout=closed, stderr=subprocess.PIPE)
    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full to stand for a full disk")
@pytest.mark.parametrize("command", ["talk", "--help"])
def test_full_disk_is_one_line_and_status_1(command):
    with open("/dev/full", "w") as full:
        result = python(f"sys.exit(frame.main([{command!r}]))", stdout=full, stderr=subprocess.PIPE)
    assert result.returncode == 1
    assert result.stderr.endswith(": error: No space left on device\n")
    assert result.stderr.count("\n") == 1


def test_tables_are_plain_and_whole_where_there_is_no_terminal(run):
    status, out, _ = run("table")
    assert status == 0
    assert "\x1b" not in out
    assert "x" * 90 in out


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_real_command_has_help_with_an_example(run, monkeypatch, name):
    monkeypatch.setattr(frame, "COMMANDS", COMMANDS)
    status, out, err = run(name, "--help")
    assert (status, err) == (0, "")
    assert out.startswith(f"usage: flexformer {name}")
    assert f"example:\n  flexformer {name}" in out


@pytest.fixture
def group(monkeypatch):
    commands = PRIVATE | {"sing low": ("frame_commands:greet", "hum"), "sing high": ("frame_commands:fail", "shriek")}
    monkeypatch.setattr(frame, "COMMANDS", commands)
    monkeypatch.setattr(frame, "GROUPS", {"sing": "make music"})


@pytest.mark.parametrize("arguments", [["sing"], ["sing", "--help"], ["sing", "-h"], ["help", "sing"]])
def test_a_group_lists_its_commands(run, group, arguments):
    status, out, err = run(*arguments)
    assert (status, err) == (0, "")
    assert "Make music." in out
    assert re.search(r"^  low +hum$", out, re.MULTILINE)
    assert re.search(r"^  high +shriek$", out, re.MULTILINE)


def test_the_overview_shows_a_group_as_one_line(run, group):
    _, out, _ = run("--help")
    assert re.search(r"^  sing +make music$", out, re.MULTILINE)
    assert "shriek" not in out


def test_a_command_of_a_group_runs_and_has_its_own_help(run, group):
    assert run("sing", "low", "Ada")[0] == 0
    for arguments in (["sing", "low", "--help"], ["help", "sing", "low"]):
        status, out, _ = run(*arguments)
        assert status == 0
        assert "usage: flexformer sing low" in out


def test_an_unknown_command_of_a_group_is_a_usage_error_with_a_hint(run, group):
    assert run("sing", "lo")[::2] == (2, "flexformer sing: error: unknown command 'lo'; did you mean 'low'?\n")
    assert "flexformer sing --help lists what there is" in run("sing", "zzz")[2]
