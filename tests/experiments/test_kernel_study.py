"""The comparison of learnable kernels."""

from __future__ import annotations

import pytest
from made_cells import kernel_cell

from flexformer import kernels
from flexformer.experiments.kernels import KernelStudy, best_cells
from flexformer.experiments.maps import MAPS


def result(label, lr, seed, kl):
    figures = {"output_error": 0.1, "negative_weights": 0.0, "nonpositive_denominators": 0.0, "floored_rows": 0.0}
    metrics = {f"after_{name}": value for name, value in (figures | {"kl": kl}).items()}
    heads = [[entropy, 2 * kl / (1 + entropy)] for entropy in (3.0, 0.0, 1.0, 2.0)]
    measured = {"parameters": 10, "curve": [[50, 2 * kl], [100, kl]]}
    measured["details"] = {"kl_by_layer": [kl, kl], "heads": heads}
    return kernel_cell(label, lr, seed, "cpu", metrics=metrics, **measured)


def study(**options):
    return KernelStudy("cpu", None, "owner/bert", "wiki/train.txt", **options)


def test_the_best_rate_is_the_first_seed_s_choice():
    found = [result("a", 0.1, 0, 2.0), result("a", 0.2, 0, 1.0), result("a", 0.2, 1, 5.0), result("b", 0.1, 0, 3.0)]
    best = best_cells(found)
    assert [(r.labels["lr"], r.seed) for r in best["a"]] == [(0.2, 0), (0.2, 1)]
    assert [r.labels["lr"] for r in best["b"]] == [0.1]


def test_other_seeds_follow_with_the_best_rate_once_all_were_tried():
    one = study(rates=[0.1, 0.2])
    assert [cell.labels["lr"] for cell in one.cells(["hedgehog"], [0, 1])] == [0.1, 0.2]
    tried = [result("hedgehog", 0.1, 0, 2.0), result("hedgehog", 0.2, 0, 1.0)]
    assert one.following(tried[:1], ["hedgehog"], [0, 1]) == []
    following = one.following(tried, ["hedgehog"], [0, 1, 2])
    assert [(cell.labels["lr"], cell.seed) for cell in following] == [(0.2, 1), (0.2, 2)]


def test_maps_are_told_apart_by_their_options_alone():
    digests = {cell.digest for cell in study(rates=[0.1]).cells([each.label for each in MAPS], [0])}
    assert len(digests) == len(MAPS)


def test_every_map_builds_with_as_many_features_as_the_others():
    widths = set()
    for each in MAPS:
        options = kernels.conversion_options(each.attention) | each.options
        widths.add(kernels.build(each.attention, 2, 32, **options).num_features)
    assert widths == {64}


def test_labels_make_different_folders_and_files():
    cells = study().cells([each.label for each in MAPS], [0])
    assert len({cell.stage.name for cell in cells}) == len({cell.name for cell in cells}) == 3 * len(MAPS)
    assert cells[0].stage.name == "hedgehog-lr0.01-seed0"
    assert cells[0].name == "owner-bert-wiki-train-cpu-hedgehog-lr0.01-seed0"


def test_an_unknown_map_is_named():
    with pytest.raises(ValueError, match="maps has 'hedgepig'; kernels knows hedgehog; "):
        study().check(["hedgepig"])


def test_table_ranks_maps_and_shows_those_not_run_with_the_scale_s_own_model():
    found = [result("flexformer-n", 0.01, seed, 0.3 + seed / 100) for seed in (0, 1)]
    found += [result("hedgehog", 0.01, 0, 0.2)]
    (table,) = study().tables(found)
    assert [row.label for row in table.rows] == ["hedgehog", "flexformer-n"]
    (full,) = KernelStudy("cpu").tables(found)
    assert full.rows[:2] == table.rows
    assert len(full.rows) == len(MAPS)
    assert full.rows[-1].values == (None,) * len(full.columns)
    shown = dict(zip([column.title for column in table.columns], table.rows[1].values, strict=True))
    assert shown["KL"].mean == pytest.approx(0.305)
    assert shown["times hedgehog's"].mean == pytest.approx(0.305 / 0.2)
    assert shown["sharp heads"].mean == pytest.approx(0.61)
    assert shown["flat heads"].mean == pytest.approx(0.61 / 4)


def test_a_note_names_settings_of_maps_that_are_shown():
    (table,) = study().tables([result("flexformer-c, pairs", 0.01, 0, 0.2)])
    assert "Settings of their own: flexformer-c, pairs: loss.line 0.001, floor 0.001." in table.notes[0]
    (table,) = study().tables([result("hedgehog", 0.01, 0, 0.2)])
    assert "Settings" not in table.notes[0]


def test_the_plot_is_a_picture():
    names = ("hedgehog", "flexformer-n", "flexformer-n, no centres")
    found = [result(name, 0.1, seed, kl) for seed in (0, 1) for name, kl in zip(names, (0.2, 0.3, 0.4), strict=True)]
    made = study().plot([], found)
    assert made["png"].startswith(b"\x89PNG")
    assert b"<svg" in made["svg"]
    assert made == study().plot([], found)
    assert b"flexformer-n" in made["svg"]
    assert b"no centres" not in made["svg"]  # in the table, not in the picture
    assert b"no centres" in study().plot([], found[2::3])["svg"]
