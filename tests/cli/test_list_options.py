"""Options that are lists take words, as many as follow."""

from __future__ import annotations

import pytest

from flexformer.cli.arguments import parse
from flexformer.cli.main import UsageError


def command(
    base: str = "",
    names: list[str] | None = None,
    seeds: list[int] = [0],  # noqa: B006
    rates: list[float] = [0.1],  # noqa: B006
    lengths: tuple[int, ...] = (1, 2),
    json: bool = False,
) -> int:
    """Do something.

    Args:
        base: A name.
        names: Some names.
        seeds: Some numbers.
        rates: Some rates.
        lengths: Some lengths.
        json: Print JSON.
    """
    return 0


def read(*arguments):
    return parse(command, "flexformer command", list(arguments))


@pytest.mark.parametrize("given", [["--seeds", "0", "1", "2"], ["--seeds", "[0,1,2]"], ["--seeds=[0, 1, 2]"]])
def test_words_and_brackets_are_the_same(given):
    assert read(*given, "--json")["seeds"] == [0, 1, 2]


def test_tuples_take_words_too():
    assert tuple(read("--lengths", "64")["lengths"]) == (64,)
    assert tuple(read("--lengths", "64", "128", "--json")["lengths"]) == (64, 128)
    assert tuple(read("--lengths=[64,128]")["lengths"]) == (64, 128)


def test_words_end_at_the_next_option():
    options = read("--names", "a", "b-c", "flexformer-c, all real", "--rates", "1e-2", "0.3", "--json", "--base", "x")
    assert options["names"] == ["a", "b-c", "flexformer-c, all real"]
    assert options["rates"] == [0.01, 0.3]
    assert (options["json"], options["base"]) == (True, "x")


def test_one_word_is_a_list_too():
    assert read("--names", "softmax")["names"] == ["softmax"]
    assert read("--seeds", "3")["seeds"] == [3]


def test_a_wrong_word_is_a_usage_error():
    with pytest.raises(UsageError, match="seeds"):
        read("--seeds", "zero")
