"""Figure 2, with and without accuracies, and before its second part was measured."""

import pytest

from flexformer.viz.efficiency import plot_efficiency


def measured(row, length, seconds, peak=2**20):
    return {"row": row, "length": length, "seconds": {"median": seconds}, "memory": {"peak_bytes": peak}}


LENGTHS = [
    measured(row, n, n * factor) for row, factor in (("softmax", 2e-3), ("flexformer-n", 1e-3)) for n in (64, 128)
]
STEPS = [measured("softmax", 4000, 2.0, 2**24), measured("linear", 4000, 0.5), measured("flexformer-n", 4000, 0.8)]


@pytest.mark.parametrize(
    ("steps", "accuracy", "shown", "hidden"),
    [
        ([], {}, b"Forward pass", b"Training step of every"),
        (STEPS, {"softmax": 60.0}, b"16 MiB", b"accuracy in"),
        (STEPS, {"softmax": 60.0, "linear": 55.0, "flexformer-n": 62.0}, b"Articles, accuracy in", b"16 MiB"),
    ],
)
def test_the_second_part_shows_what_is_known(steps, accuracy, shown, hidden):
    made = plot_efficiency(LENGTHS, steps, accuracy, "Articles", "cpu scale")
    assert made["png"].startswith(b"\x89PNG")
    assert shown in made["svg"]
    assert hidden not in made["svg"]
    assert made == plot_efficiency(LENGTHS, steps, accuracy, "Articles", "cpu scale")
