"""Every table and figure by its command, at the smallest scale: run, skipped, continued, written again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flexformer.cli.main import main
from flexformer.experiments import presets

DISTILL_TESTS = Path(__file__).parents[1] / "distill"
ENDINGS = ("md", "tex", "png", "svg")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A tiny model, GLUE and a text."""
    sys.path.insert(0, str(DISTILL_TESTS))
    import tiny

    folder = tmp_path_factory.mktemp("pretrained")
    return tiny.save(folder / "tiny-bert"), tiny.glue(folder / "data"), tiny.corpus(folder / "text.txt", 200)


class Folders:
    """One working folder and its results."""

    def __init__(self, path):
        self.output, self.results = path / "runs", path / "results"

    def command(self, table, *arguments):
        given = ["--output", str(self.output), "--results", str(self.results)]
        return ["reproduce", table, "--preset", "smoke", *given, *map(str, arguments)]

    def run(self, table, *arguments):
        return main(self.command(table, *arguments))

    def cells(self, table):
        return {path.stem: json.loads(path.read_text()) for path in (self.results / table).glob("*.json")}

    def written(self, table):
        paths = sorted(path for path in (self.results / table).iterdir() if path.suffix != ".json")
        return {path.name: path.read_bytes() for path in paths}

    def times(self, table):
        return {path.name: path.stat().st_mtime_ns for path in (self.results / table).glob("*.json")}


@pytest.fixture
def folders(tmp_path):
    return Folders(tmp_path)


@pytest.fixture(scope="module")
def table2(tmp_path_factory):
    """Two finished cells; tests that change something copy them."""
    made = Folders(tmp_path_factory.mktemp("table2"))
    assert made.run("table2", "--attention", "softmax", "flexformer-n") == 0
    return made


@pytest.fixture
def finished(table2, tmp_path):
    shutil.copytree(table2.output, tmp_path / "runs")
    shutil.copytree(table2.results, tmp_path / "results")
    return Folders(tmp_path)


def test_table2_leaves_a_file_for_each_cell_with_all_that_was_done(table2):
    cells = table2.cells("table2")
    assert set(cells) == {"python-softmax-smoke-seed0", "python-flexformer-n-smoke-seed0"}
    cell = cells["python-flexformer-n-smoke-seed0"]
    assert " ".join(cell["command"]) == (
        "flexformer train lm --attention flexformer-n --preset smoke --seed 0 --optimizer.lr 0.005"
    )
    assert (cell["seed"], cell["steps"], cell["examples"], cell["preset"]) == (0, 40, 320, "smoke")
    assert cell["tokens"] == 320 * 64
    assert cell["seconds"] > 0
    assert cell["parameters"] > cells["python-softmax-smoke-seed0"]["parameters"]
    assert cell["metrics"]["test_bits_per_byte"] < 6
    assert [step for step, _ in cell["curve"]] == [20, 40]
    assert {"torch", "flexformer", "python"} <= set(cell["versions"])
    assert cell["dirty"] in (True, False, None)
    text = (table2.results / "table2" / "table2-smoke.md").read_text()
    assert f"| {cell['metrics']['test_bits_per_byte']:.2f}" in text.replace("**", "")
    assert "| linear |  |  |  |  |" in text


def test_tables_are_written_again_byte_by_byte_without_runs(finished):
    before = finished.written("table2")
    assert set(before) == {f"table2-smoke.{ending}" for ending in ENDINGS}
    for name in before:
        (finished.results / "table2" / name).unlink()
    shutil.rmtree(finished.output)
    assert finished.run("table2", "--tables-only") == 0
    assert finished.written("table2") == before


def test_finished_cells_are_skipped_even_if_their_runs_are_gone(finished, capfd):
    times = finished.times("table2")
    shutil.rmtree(finished.output)
    assert finished.run("table2", "--attention", "softmax", "flexformer-n") == 0
    assert "cell 1" not in capfd.readouterr().out
    assert finished.times("table2") == times
    assert not finished.output.exists()


def test_a_lost_file_is_collected_from_its_finished_run(finished, capfd):
    path = finished.results / "table2" / "python-softmax-smoke-seed0.json"
    before = path.read_text()
    path.unlink()
    assert finished.run("table2", "--attention", "softmax") == 0
    assert "step" not in capfd.readouterr().out.partition("Table 2")[0]
    assert path.read_text() == before


@pytest.mark.slow
def test_a_changed_preset_reruns_what_it_touches_and_leaves_the_table_honest(finished, monkeypatch, tmp_path, capfd):
    copied = tmp_path / "presets"
    shutil.copytree(presets.FOLDER, copied)
    smoke = copied / "lm-smoke.yaml"
    smoke.write_text(
        smoke.read_text().replace("steps: 40", "steps: 6").replace("evaluate_every: 20", "evaluate_every: 3")
    )
    monkeypatch.setattr(presets, "FOLDER", copied)
    assert finished.run("table2", "--tables-only") == 0
    assert "Left out, because options have changed since: python-softmax" in capfd.readouterr().out
    assert "| softmax |  |  |" in (finished.results / "table2" / "table2-smoke.md").read_text()
    assert finished.run("table2", "--attention", "softmax") == 0
    cells = finished.cells("table2")
    assert cells["python-softmax-smoke-seed0"]["steps"] == 6
    assert cells["python-flexformer-n-smoke-seed0"]["steps"] == 40
    assert len(list(finished.output.glob("python-softmax-smoke-seed0*"))) == 2


def test_plan_shows_what_is_done_and_how_long_the_rest_takes(finished, capfd):
    arguments = ("--attention", "softmax", "linear", "--seeds", "0", "1", "--dry-run")
    assert finished.run("table2", *arguments, "--json") == 0
    planned = {each["name"]: each for each in json.loads(capfd.readouterr().out)}
    assert list(planned) == [f"python-{name}-smoke-seed{seed}" for seed in (0, 1) for name in ("softmax", "linear")]
    assert planned["python-softmax-smoke-seed0"] == {
        "name": "python-softmax-smoke-seed0",
        "status": "done",
        "seconds": 0.0,
        "note": "",
    }
    # The other seed is expected to take as long as this one did; what never ran was timed.
    known = finished.cells("table2")["python-softmax-smoke-seed0"]["seconds"]
    assert planned["python-softmax-smoke-seed1"]["seconds"] == known
    assert 0 < planned["python-linear-smoke-seed1"]["seconds"] < 120
    assert set(finished.cells("table2")) == {"python-softmax-smoke-seed0", "python-flexformer-n-smoke-seed0"}


def test_a_plan_generates_no_data(folders, tmp_path, capfd):
    arguments = ("--tasks", "listops", "--attention", "softmax", "--root", tmp_path / "data", "--dry-run")
    assert folders.run("table1", *arguments) == 0
    assert "listops is not generated yet" in " ".join(capfd.readouterr().out.replace("│", " ").split())
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_a_grid_that_was_killed_goes_on(finished):
    arguments = finished.command("table2", "--attention", "linear")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "flexformer", *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    run = finished.output / "python-linear-smoke-seed0"
    deadline = time.monotonic() + 300
    while not (run / "log.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    times = finished.times("table2")
    assert "python-linear-smoke-seed0.json" not in times
    assert finished.run("table2", "--attention", "softmax", "linear", "flexformer-n") == 0
    cells = finished.cells("table2")
    assert len(cells) == 3
    assert cells["python-linear-smoke-seed0"]["steps"] == 40
    again = finished.times("table2")
    assert {name: again[name] for name in times} == times


def test_no_cell_begins_when_time_is_up_and_nothing_is_half_written(folders, capfd):
    assert folders.run("table2", "--attention", "softmax", "--time-limit", "1e-6") == 0
    assert "1e-06 minutes are over; the same command goes on from here." in capfd.readouterr().out
    assert folders.cells("table2") == {}
    assert folders.run("table2", "--time-limit", "0") == 1
    assert "time_limit 0.0 leaves no time" in capfd.readouterr().err


def test_missing_data_is_one_line_and_ends_the_grid(folders, tmp_path, capfd):
    assert folders.run("table2", "--attention", "softmax", "--corpus", tmp_path / "nothing.txt") == 1
    err = capfd.readouterr().err
    assert err.startswith("flexformer reproduce table2: error: nothing-softmax-smoke-seed0: ")
    assert err.count("\n") == 1


def test_table1_trains_on_its_tasks(folders, tmp_path, capfd):
    arguments = ("--tasks", "listops", "--attention", "softmax", "flexformer-n", "--root", tmp_path / "data")
    assert folders.run("table1", *arguments) == 0
    out = capfd.readouterr().out
    assert "Table 1: Long Range Arena" in out
    cells = folders.cells("table1")
    assert set(cells) == {"listops-softmax-smoke-seed0", "listops-flexformer-n-smoke-seed0"}
    assert all("root" not in " ".join(cell["command"]) for cell in cells.values())
    assert set(folders.written("table1")) == {f"table1-smoke.{ending}" for ending in ENDINGS}


def test_table3_recovers_softmax_from_one_reference(folders, pretrained, capfd):
    base, root, _ = pretrained
    arguments = ("--base", base, "--root", root, "--tasks", "cola", "--attention")
    assert folders.run("table3", *arguments, "softmax", "softmax-twice", "performer", "hedgehog", "flexformer-n") == 0
    cells = folders.cells("table3")
    assert len(cells) == 5
    control = cells["tiny-bert-cola-softmax-twice-smoke-seed0"]
    assert [stage["name"] for stage in control["stages"]] == ["tiny-bert-cola-softmax-smoke-seed0"]
    assert control["steps"] == control["stages"][0]["steps"]
    recovered = cells["tiny-bert-cola-flexformer-n-smoke-seed0"]
    names = [stage["name"] for stage in recovered["stages"]]
    assert names == ["tiny-bert-cola-softmax-smoke-seed0", "tiny-bert-cola-flexformer-n-smoke-seed0-distill"]
    assert "after_kl" in recovered["stages"][1]["metrics"]
    assert all(stage["steps"] > 0 and stage["tokens"] > 0 and stage["seconds"] > 0 for stage in recovered["stages"])
    assert {stage["commit"] for stage in recovered["stages"]} == {recovered["commit"]}
    assert "test_score" in recovered["metrics"]
    assert len(list(folders.output.glob("*/run.json"))) == 5 + 2  # the reference is one run for all
    assert "table3-tiny-bert-smoke.md" in capfd.readouterr().out.replace("\n", "")


def test_a_plan_says_which_task_is_missing_for_each_cell(folders, pretrained, tmp_path, capfd):
    arguments = ("--base", pretrained[0], "--root", tmp_path, "--tasks", "cola", "sst2", "--attention", "hedgehog")
    assert folders.run("table3", *arguments, "--dry-run", "--json") == 0
    notes = [each["note"] for each in json.loads(capfd.readouterr().out)]
    assert [note.split()[0] for note in notes] == ["CoLA", "SST-2"]
    assert folders.run("table3", *arguments, "rfa", "--dry-run") == 0
    assert "as above" in capfd.readouterr().out


@pytest.mark.slow
def test_table4_carries_kernels_to_other_tasks(folders, pretrained):
    base, root, _ = pretrained
    arguments = ("--base", base, "--root", root, "--sources", "stsb", "--tasks", "cola", "rte", "stsb")
    assert folders.run("table4", *arguments, "--attention", "flexformer-n") == 0
    cells = folders.cells("table4")
    assert set(cells) == {f"tiny-bert-stsb-to-{task}-flexformer-n-smoke-seed0" for task in ("cola", "rte")}
    assert len(list(folders.output.glob("*/run.json"))) == 3
    text = (folders.results / "table4" / "table4-tiny-bert-smoke.md").read_text()
    assert "mean over sources" in text
    assert "| STS-B: flexformer-n |" in text


@pytest.mark.slow
def test_sentence_encoders_are_scored_as_converted_distilled_and_fine_tuned(folders, pretrained):
    base, root, text = pretrained
    given = ["--base", base, "--root", root, "--text", text, "--seeds", "0", "--attention", "softmax", "flexformer-n"]
    assert folders.run("sentences", *given) == 0
    cells = folders.cells("sentences")
    own, linear = (
        next(cell for cell in cells.values() if cell["labels"] == {"attention": name})
        for name in ("softmax", "flexformer-n")
    )
    assert "distilled" not in own["details"]
    assert len({own["details"]["converted"], linear["details"]["converted"], linear["details"]["distilled"]}) == 3
    assert linear["stages"][0]["metrics"]["after_embedding_cosine"] > 0.5
    table = next(text for name, text in folders.written("sentences").items() if name.endswith(".md")).decode()
    assert f"{100 * linear['details']['distilled']:.2f}" in table
    assert f"{100 * linear['metrics']['test_spearman']:.2f}" in table
    layers = linear["details"]["kl_by_layer"]
    assert sum(layers) / len(layers) == pytest.approx(linear["stages"][0]["metrics"]["after_kl"])
    assert table.count("| attention | layer: 0 | layer: 1 |\n") == 2
    assert f"| flexformer-n | {layers[0]:.3f} |" in table.replace("**", "")


@pytest.mark.slow
def test_language_models_read_what_they_wrote_and_are_scored_at_every_step(folders, pretrained, tmp_path):
    import tiny

    base, root = tiny.save(tmp_path / "tiny-llama", "llama"), tmp_path / "data"
    given = ["--base", base, "--root", root, "--seeds", "0", "--attention", "softmax", "flexformer-c"]
    assert folders.run("decoder", *given) == 0
    (text,) = (root / "own-text").iterdir()
    written = text.read_text()
    assert written.count("\n\n") == 15
    own, linear = (
        next(cell for cell in folders.cells("decoder").values() if cell["labels"] == {"attention": name})
        for name in ("softmax", "flexformer-c")
    )
    assert "distilled" not in own["details"]
    assert len({own["details"]["converted"], linear["details"]["converted"], linear["details"]["distilled"]}) == 3
    assert str(tmp_path) not in json.dumps([own["command"], own["options"], linear["stages"]])
    table = next(text for name, text in folders.written("decoder").items() if name.endswith(".md")).decode()
    assert f"{linear['details']['distilled']:.2f}" in table
    assert f"{linear['metrics']['test_perplexity']:.2f}" in table
    assert linear["details"]["sample"].split()[-1] in table
    times = folders.times("decoder")
    text.write_text("")  # what was written once is not written again
    assert folders.run("decoder", *given) == 0
    assert folders.times("decoder") == times
    assert text.read_text() == ""


@pytest.mark.slow
def test_kernels_are_compared(folders, pretrained):
    base, _, text = pretrained
    given = ("--base", base, "--text", text, "--rates", "0.01", "--seeds", "0", "1")
    assert folders.run("kernels", *given, "--maps", "hedgehog", "flexformer-c, all real") == 0
    cells = folders.cells("kernels")
    assert len(cells) == 2 * 2
    assert all(len(cell["details"]["kl_by_layer"]) == 2 for cell in cells.values())
    assert all(len(cell["details"]["heads"]) == 2 * 4 for cell in cells.values())


@pytest.mark.slow
def test_curves_are_fine_and_drawn_once(folders, pretrained):
    base, _, text = pretrained
    given = ("--base", base, "--text", text, "--seeds", "0", "--maps", "hedgehog", "flexformer-c, all real")
    assert folders.run("distill-curves", *given) == 0
    cells = folders.cells("distill-curves")
    assert [len(cell["curve"]) for cell in cells.values()] == [10, 10]
    for cell in cells.values():
        layers = [values for _, values in cell["details"]["curve_by_layer"]]
        assert [sum(values) / len(values) for values in layers] == pytest.approx([kl for _, kl in cell["curve"]])
    assert {name.rpartition(".")[2] for name in folders.written("distill-curves")} == set(ENDINGS)
    times = folders.times("distill-curves")
    assert folders.run("distill-curves", *given) == 0
    assert folders.times("distill-curves") == times


@pytest.mark.parametrize(
    ("given", "shown"), [(["null"], "attention: null"), (["softmax", "rfa"], "attention:\n- softmax\n- rfa")]
)
def test_lists_take_words_or_nothing(given, shown, capsys):
    assert main(["reproduce", "table1", "--attention", *given, "--print_config"]) == 0
    assert shown in capsys.readouterr().out


@pytest.mark.slow
def test_n_sweep_counts_frequencies(folders, tmp_path):
    arguments = ("--tasks", "listops", "--multiples", "0.5", "1", "--root", tmp_path / "data")
    assert folders.run("n-sweep", *arguments) == 0
    found = folders.cells("n-sweep")
    steps = found.pop("listops-flexformer-n-smoke-steps-n8-16")
    assert [this["row"] for this in steps["details"]["measurements"]] == ["8", "16"]
    assert all(this["seconds"]["median"] > 0 and this["note"] is None for this in steps["details"]["measurements"])
    cells = sorted(found.values(), key=lambda cell: cell["labels"]["n"])
    assert [cell["labels"]["n"] for cell in cells] == [8, 16]
    assert cells[1]["parameters"] - cells[0]["parameters"] == 2 * 2 * 8 * 16
    assert "| 8 | 0.50 |" in (folders.results / "n-sweep" / "n-sweep-smoke.md").read_text()
    assert (folders.results / "n-sweep" / "n-sweep-smoke.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_fig2_measures_lengths_and_attentions(tmp_path, capfd):
    results = tmp_path / "results"
    command = ["reproduce", "fig2", "--preset", "smoke", "--results", str(results)]
    command += ["--attention", "softmax", "linear", "flexformer-n", "--lengths", "64"]
    assert main([*command, "--dry-run", "--json"]) == 0
    assert {each["status"] for each in json.loads(capfd.readouterr().out)} == {"to do"}
    assert main(command) == 0
    names = {path.stem for path in (results / "fig2").glob("*.json")}
    assert names == {"forward-64-smoke-1-threads", "step-128-smoke-1-threads"}
    text = (results / "fig2" / "fig2-smoke.md").read_text()
    assert "Figure 2 (a)" in text
    assert "Figure 2 (b)" in text
    before = {path: path.read_bytes() for path in (results / "fig2").iterdir()}
    assert main([*command, "--tables-only"]) == 0
    assert {path: path.read_bytes() for path in (results / "fig2").iterdir()} == before


@pytest.mark.parametrize(
    "table",
    [
        "table1",
        "table2",
        "table3",
        "table4",
        "fig2",
        "kernels",
        "distill-curves",
        "sentences",
        "decoder",
        "n-sweep",
        "params",
    ],
)
def test_every_command_explains_itself(table, capsys):
    assert main(["reproduce", table, "--help"]) == 0
    assert f"flexformer reproduce {table}" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.data
def test_table2_learns_from_wikitext2(folders, data_folder):
    assert folders.run("table2", "--corpus", "wikitext2", "--attention", "softmax", "--root", data_folder) == 0
    (cell,) = folders.cells("table2").values()
    assert cell["metrics"]["test_perplexity"] < 3000
