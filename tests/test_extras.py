"""Packages that are too old are named with what is needed, instead of failing somewhere inside."""

import re
from pathlib import Path

import pytest

import flexformer
from flexformer import extras
from flexformer.cli import main as frame

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def test_the_oldest_versions_are_those_of_the_extras():
    wanted = re.search(r"^hf = \[(.*)\]$", PROJECT.read_text(encoding="utf-8"), re.MULTILINE)[1]
    stated = dict(re.findall(r'"([\w-]+)>=([\d.]+)"', wanted))
    assert {package: stated[package] for package in extras.OLDEST} == extras.OLDEST


@pytest.mark.parametrize(
    ("installed", "does"), [("4.57.1", False), ("5.19.9", False), ("5.20.0", True), ("5.20.0rc1", True), ("6.1", True)]
)
def test_versions_are_compared_by_their_numbers(monkeypatch, installed, does):
    monkeypatch.setattr(extras, "version", lambda package: installed)
    complaint = extras.too_old("transformers")
    assert (complaint is None) == does
    assert does or complaint == f"transformers {installed} is too old; 5.20 or newer is needed"


def test_converting_with_an_old_transformers_says_so(monkeypatch):
    monkeypatch.setattr(extras, "version", lambda package: "4.57.1")
    with pytest.raises(ImportError, match=r"transformers 4\.57\.1 is too old; 5\.20 or newer is needed"):
        flexformer.convert(object())


def test_commands_say_it_in_one_line(monkeypatch, capsys):
    def fail(name, arguments):
        raise ImportError("cannot import name 'PreTrainedConfig'", name="transformers.configuration_utils")

    monkeypatch.setattr(frame, "_run", fail)
    monkeypatch.setattr(extras, "version", lambda package: "4.57.1")
    assert frame.main(["doctor"]) == 1
    assert capsys.readouterr().err == (
        "flexformer doctor: error: transformers 4.57.1 is too old; 5.20 or newer is needed\n"
    )
    monkeypatch.setattr(extras, "version", lambda package: "5.22")
    with pytest.raises(ImportError):  # then it is a fault of ours
        frame.main(["doctor"])
