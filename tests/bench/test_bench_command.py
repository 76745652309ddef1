"""`flexformer bench` as a user meets it."""

import json

import pytest

from flexformer.cli.main import main

ROWS = "--rows=[softmax,flexformer-n]"


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        status = main(["bench", *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def test_attention_prints_ratios_and_writes_json_and_plot(run, tmp_path):
    pytest.importorskip("matplotlib")
    status, out, _ = run("attention", "--smoke", "--memory=false", ROWS)
    assert status == 0
    assert "times as fast as softmax" in out
    assert "limit" in out
    folder = tmp_path / "results" / "bench"
    record = json.loads((folder / "attention-1-thread-smoke.json").read_text())
    assert record["bench"] == "attention"
    assert record["options"]["rows"] == ["softmax", "flexformer-n"]
    assert (folder / "attention-1-thread-smoke.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(folder.iterdir())) == 2


def test_json_is_all_that_stdout_holds_when_asked_for(run, tmp_path):
    status, out, _ = run("decode", "--smoke", "--json", "--rows=[softmax,linear]", "--output=elsewhere")
    record = json.loads(out)
    assert status == 0
    assert record["bench"] == "decode"
    assert record == json.loads((tmp_path / "elsewhere" / "decode-1-thread-smoke.json").read_text())


def test_scaling_prints_the_powers_of_growth(run):
    status, out, _ = run("scaling", "--smoke", ROWS, "--direction=forward", "--threads=1")
    assert status == 0
    assert "cost ~ N^power" in out


@pytest.mark.parametrize(("times", "warned"), [(3.0, True), (1.2, False)])
def test_lengths_measured_at_different_speeds_are_warned_of(run, monkeypatch, times, warned):
    pace = [{"length": 64, "seconds": 0.001 * times}, {"length": 128, "seconds": 0.001}]
    monkeypatch.setattr(
        "flexformer.bench.measure_attention", lambda *_: {"measurements": [], "pace": pace, "missing": {}}
    )
    _, out, _ = run("attention", "--json=false", "--smoke", ROWS)
    assert ("The machine was 3.0 times slower at one length than at another" in out) == warned


def test_model_prints_time_and_memory_against_both_kinds_of_softmax(run):
    pytest.importorskip("transformers")
    status, out, _ = run("model", "--smoke", "--memory=false", "--rows=[softmax,softmax-unfused,flexformer-n]")
    assert status == 0
    assert "times as fast" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["attention", "--rows=[nonsense]"], "rows: 'nonsense' is unknown"),
        (["attention", "--heads=0"], "heads 0 is too small"),
        (["decode", "--contexts=[]"], "contexts [] must be"),
        (["decode", "--rows=[skyformer]"], "rows: 'skyformer' is unknown"),
        (["model", "--rows=[nonsense]"], "rows: 'nonsense' is unknown"),
        (["report"], "docs/benchmarks.md is not there"),
    ],
)
def test_mistakes_are_one_line(run, arguments, message, tmp_path):
    status, out, err = run(*arguments)
    assert status == 1
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_report_writes_the_page_and_check_tells_whether_it_is_current(run, tmp_path):
    run("decode", "--smoke", "--json", "--rows=[linear]")
    record_path = tmp_path / "results" / "bench" / "decode-1-thread-smoke.json"
    record = json.loads(record_path.read_text())
    record["options"]["smoke"] = False
    record_path.with_name("decode-1-thread.json").write_text(json.dumps(record))
    page = tmp_path / "page.md"
    page.write_text("<!-- figures: decode begin -->\n<!-- figures: decode end -->\n")
    assert run("report", "--page=page.md", "--check")[0] == 1
    assert "linear" not in page.read_text()
    assert run("report", "--page=page.md")[0] == 0
    assert "| linear |" in page.read_text()
    assert run("report", "--page=page.md", "--check")[0] == 0
