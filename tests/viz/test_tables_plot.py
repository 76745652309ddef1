"""Pictures of tables say what their dots are."""

from dataclasses import asdict

from flexformer.experiments.tables import Column, Row, Table, Value
from flexformer.viz.tables import MOST_PANELS, plot_tables


def picture(*values, better="higher", panels=1):
    """Of one row for each value."""
    columns = tuple(Column(f"column {i}", "here", 1, better) for i in range(panels))
    rows = tuple(Row(f"row {i}", (value,) * panels) for i, value in enumerate(values))
    return plot_tables([asdict(Table("made", "Made up", "row", columns, rows, ()))])["svg"]


ONCE, OFTEN = Value.of([1.0]), Value.of([1.0, 2.0, 4.0])


def test_runs_of_one_seed_are_hollow():
    assert b"hollow: one seed" in picture(ONCE, OFTEN)
    assert b"hollow: one seed" in picture(ONCE, ONCE)
    assert b"hollow" not in picture(OFTEN, OFTEN)


def test_where_less_is_better_the_panel_says_so():
    assert b"lower is better" in picture(ONCE, better="lower")
    assert b"lower is better" not in picture(ONCE)


def test_many_columns_stand_in_several_lines():
    assert f"column {MOST_PANELS}".encode() in picture(ONCE, panels=MOST_PANELS + 1)

    def width(panels):
        return float(picture(ONCE, panels=panels).split(b'width="')[1].split(b"pt")[0])

    assert width(MOST_PANELS - 1) < width(MOST_PANELS) == width(MOST_PANELS + 1)
