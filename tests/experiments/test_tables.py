"""Tables beside the paper's numbers."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from made_cells import made

from flexformer.experiments.arena_table import ArenaTable, average, stuck
from flexformer.experiments.efficiency_figure import EfficiencyFigure
from flexformer.experiments.glue_tables import COMMONER, RecoveryTable, TransferTable, guesses
from flexformer.experiments.language_table import LanguageTable, largest_rise
from flexformer.experiments.results import write
from flexformer.experiments.tables import Column, Row, Table, Value, latex, markdown
from flexformer.tasks import MissingDataError, glue


def result(table="table1", preset="cpu", seed=0, metrics=None, stages=(), **labels):
    name = "-".join(map(str, labels.values()))
    figures = {"stages": list(stages), "metrics": metrics or {}, "parameters": 1_000_000, "step_seconds": 0.5}
    figures["details"] = {"largest_rise": 0.25}
    return made(table, name, labels, preset, seed, **figures)


def arena(accuracies, seeds=(0,), name="softmax"):
    return [
        result(seed=seed, metrics={"test_accuracy": value + seed / 100}, task=task, attention=name)
        for task, value in accuracies.items()
        for seed in seeds
    ]


def row(table, label):
    return next(each for each in table.rows if each.label == label)


def column(table, title, group):
    return next(i for i, each in enumerate(table.columns) if (each.title, each.group) == (title, group))


def value(table, label, title, group):
    return row(table, label).values[column(table, title, group)]


def test_mean_and_deviation_over_seeds():
    assert Value.of([1.0, 3.0]) == Value(2.0, pytest.approx(2**0.5), 2)
    assert Value.of([1.0]) == Value(1.0, None, 1)
    assert Value.of([]) is None


def test_best_is_bold_to_the_digits_shown_and_reference_does_not_compete():
    columns = (Column("accuracy", "here", 1), Column("loss", "here", 1, "lower"), Column("size", "here", 0, None))
    rows = (
        Row("reference", (Value(99.0), Value(0.0), Value(1.0)), unranked=True),
        Row("a", (Value(50.04), Value(2.0), Value(1.0))),
        Row("b", (Value(50.0, 0.2, 3), Value(1.0), Value(2.0))),
        Row("c", (None, None, None)),
    )
    text = markdown([Table("t", "Title", "attention", columns, rows, ("A note.",))])
    assert "| a | **50.0** | 2.0 | 1 |" in text
    assert "| b | **50.0 ± 0.2** | **1.0** | 2 |" in text
    assert "| reference | 99.0 | 0.0 | 1 |" in text
    assert "| c |  |  |  |" in text


def test_latex_escapes_and_spans_groups():
    columns = (Column("a_1", "x & y"), Column("b", "x & y"), Column("c", "paper", measured=False))
    text = latex([Table("t", "50 % of it", "name", columns, (Row("r", (Value(1.0), None, Value(2.0, 0.1))),))])
    assert r"\multicolumn{2}{c}{x \& y} & \multicolumn{1}{c}{paper}" in text
    assert r"a\_1" in text
    assert r"r & 1.00 &  & 2.00$\pm$0.10 \\" in text
    assert r"50 \% of it" in text


def test_average_needs_every_task():
    assert average([{0: 50.0}, {}]) is None
    assert average([{0: 50.0}, {1: 60.0}]) is None
    assert average([{0: 50.0, 1: 52.0}, {0: 60.0, 1: 64.0}]) == Value(56.5, pytest.approx(2.1213203), 2)
    assert average([{0: 50.0}, {0: 60.0, 1: 64.0}]) == Value(55.0, None, 1)


def test_table1_names_the_substitute_and_never_calls_it_retrieval():
    scores = {"listops": 0.3, "text": 0.6, "articles": 0.7, "image": 0.4, "pathfinder": 0.5}
    (table,) = ArenaTable("cpu", tasks=["image"]).tables(arena(scores, seeds=(0, 1)))
    here = [each.title for each in table.columns if each.group == "cpu scale"]
    assert here == ["ListOps", "Text", "Articles", "Image", "Pathfinder", "average without Articles"]
    assert value(table, "softmax", "average without Articles", "cpu scale").mean == pytest.approx(45.5)
    assert value(table, "linear", "average without Articles", "cpu scale") is None
    assert any("not to be compared with the paper's Retrieval" in note for note in table.notes)
    assert table.rows[0].label == "softmax"
    assert [each.label for each in table.rows][-3:] == ["flexformer-s", "flexformer-n", "flexformer-c"]
    assert len(table.rows) == 14


def test_table1_says_what_counts_of_bytes_alone_tell_of_articles():
    pieces = [replace(each, options={"data.max_length": 512}) for each in arena({"articles": 0.6})]
    assert "alone right in 65 of 100 cases with pieces of 512" in " ".join(ArenaTable("cpu").tables(pieces)[0].notes)
    (other,) = ArenaTable("paper").tables(arena({"articles": 0.6}))
    assert "of 100 cases" not in " ".join(other.notes)


def test_table1_with_aan_averages_retrieval_alone():
    scores = {"listops": 0.3, "text": 0.6, "retrieval": 0.7, "articles": 0.1, "image": 0.4, "pathfinder": 0.5}
    (table,) = ArenaTable("paper", tasks=["image"]).tables(arena(scores))
    assert value(table, "softmax", "average", "paper scale").mean == pytest.approx(50.0)
    (without,) = ArenaTable("paper", tasks=["image"]).tables(arena({"retrieval": 0.7}))
    assert "Articles" not in [each.title for each in without.columns]


def test_attentions_that_see_a_part_see_less_of_shorter_sequences():
    def options(preset, name):
        (cell,) = ArenaTable(preset, tasks=["image"]).cells([name], [0])
        return cell.stage.options.model.attention_options

    assert options("cpu", "longformer") == {"window": 128}
    assert options("cpu", "skyformer") == {"num_landmarks": 32}
    assert options("paper", "longformer") == options("cpu", "softmax") == {}


def test_table1_says_which_attentions_were_made_to_see_less():
    def notes(preset, name):
        (table,) = ArenaTable(preset, tasks=["image"]).tables(arena({"image": 0.4}, name=name))
        return " ".join(table.notes)

    assert "sees of a sequence" not in notes("paper", "longformer") + notes("cpu", "softmax")
    assert "What longformer sees of a sequence" in notes("cpu", "longformer")


def test_table1_says_how_long_contours_of_an_easier_pathfinder_are():
    (hard,) = ArenaTable("paper").tables(arena({"pathfinder": 0.7}))
    assert "dashes" not in " ".join(hard.notes)
    easier = [replace(each, options={"data.options.contour_length": 4}) for each in arena({"pathfinder": 0.7})]
    notes = " ".join(ArenaTable("cpu").tables(easier)[0].notes)
    assert "Contours of Pathfinder have 4 dashes; the paper's have 14." in notes
    assert "alone is right in 74 of 100 cases" in notes
    assert "On Pathfinder no run is better than the rule below" in notes
    assert "no run is better" not in " ".join(hard.notes)
    (guessed,) = ArenaTable("paper").tables(arena({"pathfinder": 0.5}))
    assert "On Pathfinder no run is better than a guess" in " ".join(guessed.notes)


def test_table1_names_runs_that_have_not_learned_their_task():
    found = arena({"text": 0.51, "image": 0.4}, name="performer") + arena({"text": 0.62, "image": 0.1})
    assert stuck(found) == {"text": ["performer"], "image": ["softmax"]}
    notes = " ".join(ArenaTable("cpu").tables(found)[0].notes)
    assert "no better than a guess, or than the rule below: performer on Text; softmax on Image." in notes
    assert stuck(arena({"text": 0.51})) == {}


# Typed from the paper's LaTeX source.
TABLE_1 = [
    ("softmax", "ListOps", 37.23, 0.17),
    ("reformer", "Retrieval", 57.60, 0.58),
    ("longformer", "Pathfinder", 72.44, 0.42),
    ("performer", "average", 50.48, 0.20),
    ("polaformer", "Text", 69.65, 0.61),
    ("polaformer", "average", 57.23, 0.22),
    ("flexformer-s", "average", 59.11, 0.24),
    ("flexformer-n", "Image", 45.42, 0.32),
    ("flexformer-n", "average", 59.99, 0.25),
]
TABLE_2 = [
    ("softmax", "test", "small", 31.3, 0.07),
    ("linear", "dev", "big", 27.9, 0.08),
    ("cosformer", "test", "big", 26.2, 0.06),
    ("flexformer-s", "dev", "small", 31.1, 0.06),
    ("flexformer-n", "test", "big", 22.3, 0.04),
]
TABLE_3 = [
    ("softmax (reference)", "RTE", 76.9, None),
    ("performer (swapped)", "CoLA", 22.8, 1.21),
    ("rfa (swapped)", "MNLI", 80.8, 0.29),
    ("hedgehog (distilled)", "average", 83.3, 0.11),
    ("flexformer-n (distilled)", "STS-B", 88.3, 0.16),
]
TABLE_4 = [("hedgehog", "CoLA", 55.6), ("hedgehog", "RTE", 53.1), ("flexformer-n", "QQP", 90.7)]
TABLE_4_FULL = [
    ("STS-B: hedgehog", "CoLA", 58.0),
    ("QQP: hedgehog", "STS-B", 85.1),
    ("MNLI: flexformer-n", "MRPC", 80.4),
    ("QNLI: flexformer-n", "RTE", 59.4),
]


def test_papers_numbers_stand_beside_ours():
    (first,) = ArenaTable("paper", tasks=["image"]).tables([])
    for name, title, mean, std in TABLE_1:
        assert value(first, name, title, "paper") == Value(mean, std)
    (second,) = LanguageTable("paper").tables([])
    for name, title, size, mean, std in TABLE_2:
        assert value(second, name, title, f"paper, {size}") == Value(mean, std)
    third, _ = RecoveryTable("paper").tables([])
    for name, title, mean, std in TABLE_3:
        assert value(third, name, title, "paper") == Value(mean, std)
    averages, full = TransferTable("paper").tables([])
    for name, title, mean in TABLE_4:
        assert value(averages, name, title, "paper") == Value(mean)
    for name, title, mean in TABLE_4_FULL:
        assert value(full, name, title, "paper") == Value(mean)
    assert value(full, "STS-B: hedgehog", "STS-B", "paper") is None


def test_table3_has_the_divergence_of_what_was_distilled_on_the_way_and_no_other():
    distilled = {"metrics": {"after_kl": 0.125}}
    stages = {"flexformer-n": [{"metrics": {"test_score": 0.5}}, distilled], "softmax-twice": [{"metrics": {}}]}
    found = [
        result("table3", "cpu", 0, {"test_score": 0.5}, task="cola", attention=name, stages=own)
        for name, own in stages.items()
    ]
    _, divergences = RecoveryTable("cpu", base="owner/bert").tables(found)
    assert value(divergences, "flexformer-n", "CoLA", "KL") == Value(0.125, None, 1)
    assert value(divergences, "flexformer-n", "RTE", "KL") is None
    assert {row.label for row in divergences.rows}.isdisjoint(("softmax", "softmax-twice", "performer"))


def test_table1_averages_of_the_paper_are_those_of_its_columns():
    (table,) = ArenaTable("paper", tasks=["image"]).tables([])
    start = column(table, "ListOps", "paper")
    for each in table.rows:
        *tasks, printed = each.values[start:]
        if printed is not None:
            assert sum(task.mean for task in tasks) / 5 == pytest.approx(printed.mean, abs=0.011)


def test_table2_has_both_sizes_at_the_papers_scale():
    found = [
        result(
            "table2", "paper", 0, {"validation_perplexity": 20.0, "test_perplexity": 21.0}, size=size, attention="rfa"
        )
        for size in ("paper-small", "paper-big")
    ]
    (table,) = LanguageTable("paper").tables(found)
    assert value(table, "rfa", "test", "WikiText-103, paper-big") == Value(21.0, None, 1)
    (enwik8,) = LanguageTable("cpu", corpus="enwik8").tables([])
    assert enwik8.title == "Table 2: bits per byte of language models, cpu scale"
    assert not [each for each in enwik8.columns if not each.measured]
    assert "scored on the first 1,000 blocks" in enwik8.notes[0]
    own = LanguageTable("cpu", corpus="enwik8").options("cpu", "rfa", 0).data
    assert own.validation_limit == own.test_limit == 1000
    assert LanguageTable("cpu").options("cpu", "rfa", 0).data.test_limit is None


def test_table4_averages_over_sources_other_than_the_target():
    found = [
        result("table4", "cpu", 0, {"test_score": score}, source=source, task=task, attention="hedgehog")
        for source, task, score in (
            ("stsb", "cola", 0.5),
            ("sst2", "cola", 0.6),
            ("sst2", "stsb", 0.8),
            ("stsb", "rte", 1),
        )
    ]
    averages, full = TransferTable("cpu", base="owner/bert").tables(found)
    assert value(averages, "hedgehog", "CoLA", "here") == Value(pytest.approx(55.0), None, 1)
    assert value(averages, "hedgehog", "STS-B", "here") == Value(80.0, None, 1)
    assert value(averages, "hedgehog", "RTE", "here") is None  # one source is missing
    assert value(full, "SST-2: hedgehog", "CoLA", "here") == Value(60.0, None, 1)


@pytest.mark.parametrize("bad", [{"lengths": [-5]}, {"lengths": []}, {"threads": 0}])
def test_figure_2_refuses_what_cannot_be_measured(bad):
    (name, value), *_ = bad.items()
    with pytest.raises(ValueError, match=re.escape(f"{name} {value}")):
        EfficiencyFigure("smoke", **bad)


@pytest.mark.parametrize("make", [ArenaTable, LanguageTable, RecoveryTable, TransferTable])
def test_unknown_scale_is_named(make):
    with pytest.raises(ValueError, match="preset 'huge' is unknown; use one of paper, cpu, smoke"):
        make("huge")


def test_unknown_rows_and_tasks_are_named():
    with pytest.raises(ValueError, match="attention has 'softmx'; table2 knows softmax; linear"):
        LanguageTable("cpu").check(["softmx"])
    with pytest.raises(ValueError, match="tasks has 'images'; table1 knows listops"):
        ArenaTable("cpu", tasks=["images"])
    with pytest.raises(ValueError, match="GLUE task 'colla' is unknown, did you mean 'cola'"):
        RecoveryTable("paper", tasks=["colla"])


def test_fig2_joins_accuracy_of_table1_and_names_its_task(tmp_path):
    planned = {cell.name: cell for cell in ArenaTable("cpu", tasks=["articles"]).cells(["linear", "softmax"], [0, 1])}
    for name, cell in planned.items():
        one = result(seed=cell.seed, metrics={"test_accuracy": 0.7 + cell.seed / 10}, **cell.labels)
        write(cell.path(tmp_path), replace(one, cell=name, digest=cell.digest))
    figure = EfficiencyFigure("cpu")
    assert figure.results(tmp_path) == ([], [])
    _, table = figure.tables([])
    assert value(table, "linear", "Articles, %", "table 1, cpu").mean == pytest.approx(75.0)
    assert value(table, "flexformer-n", "Articles, %", "table 1, cpu") is None


def test_a_rise_is_above_the_five_before_it():
    assert largest_rise([5.0, 4.0, 3.0, 2.0, 1.0]) == 0.0
    assert largest_rise([5.0, 4.0, 3.0, 2.0, 1.0, 4.0, 1.0, 2.2]) == pytest.approx(1.0)


def test_tables_name_tasks_on_which_all_might_have_guessed():
    def told(**scores):
        return guesses([result("table3", task=task, metrics={"test_score": score}) for task, score in scores.items()])

    assert told(rte=0.61, mrpc=0.76, cola=0.0) == [
        "On RTE no run is clearly better than the more frequent answer, right in 52.7 %."
    ]
    assert told(rte=0.58, mrpc=0.72)[0].startswith("On MRPC and RTE no run is")
    assert told(rte=0.63) == told() == []


@pytest.mark.data
@pytest.mark.parametrize("task", COMMONER)
def test_how_often_the_more_frequent_answer_is_right(data_folder, task):
    try:
        labels = glue.Glue(task, data_folder).examples("test").labels
    except MissingDataError as error:
        pytest.skip(str(error))
    _, counts = np.unique(labels, return_counts=True)
    assert (counts.max(), counts.sum()) == COMMONER[task]
