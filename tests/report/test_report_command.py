"""`flexformer report`."""

import json

import pytest
from report_sources import bench_record, write_run

from flexformer.cli import main as frame


@pytest.fixture
def run(capsys):
    def run(*arguments):
        status = frame.main(["report", *map(str, arguments)])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def test_the_report_is_written_and_found(run, tmp_path):
    write_run(tmp_path / "runs" / "a")
    status, out, err = run(tmp_path / "runs", "--output", tmp_path / "new" / "report.html", "--title", "Mine")
    assert (status, err) == (0, "")
    assert "report.html" in out
    html = (tmp_path / "new" / "report.html").read_text(encoding="utf-8")
    assert "<h1>Mine</h1>" in html
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["report.html"]


def test_several_sources_are_taken_in_one_command(run, tmp_path):
    write_run(tmp_path / "a")
    (tmp_path / "bench.json").write_text(json.dumps(bench_record()))
    assert run(tmp_path / "a", tmp_path / "bench.json", "--output", tmp_path / "r.html")[0] == 0
    html = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "Speed and memory" in html
    assert "What was run" in html


def test_a_folder_without_anything_is_one_line(run, tmp_path):
    status, out, err = run(tmp_path, "--output", tmp_path / "r.html")
    assert (status, out) == (1, "")
    assert err.startswith("flexformer report: error: ")
    assert err.count("\n") == 1
    assert not (tmp_path / "r.html").exists()


def test_no_source_at_all_is_a_usage_error(run):
    status, _, err = run()
    assert status == 2
    assert "runs" in err


def test_a_report_that_cannot_be_written_leaves_the_old_one(run, tmp_path):
    write_run(tmp_path / "a")
    target = tmp_path / "taken"
    target.mkdir()
    status, _, err = run(tmp_path / "a", "--output", target)
    assert status == 1
    assert err.count("\n") == 1
    assert list(target.iterdir()) == []
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
