"""`flexformer doctor` tells whether attention is right on this machine."""

import json

from flexformer import kernels
from flexformer.cli import doctor as module
from flexformer.cli.main import main
from flexformer.ops.forms import FORMS, Comparison


def test_doctor_prints_a_table_of_forms_and_kernels_and_succeeds(capsys):
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert "torch" in printed
    assert "All forms agree with the definition" in printed
    for name in kernels.names():
        assert f" {name} " in printed
    for word in (word for form in FORMS for word in form.name.split()):
        assert f" {word}" in printed


def test_doctor_speaks_json(capsys):
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"] is True
    assert set(report["errors"]) == {form.name for form in FORMS}
    assert max(max(row.values()) for row in report["errors"].values()) < report["tolerance"]


def test_doctor_fails_where_a_form_disagrees(capsys, monkeypatch):
    monkeypatch.setattr(module, "compare", lambda *_, **__: Comparison(float("nan"), 1e-3))
    assert main(["doctor"]) == 1
    assert "Some forms disagree" in capsys.readouterr().out
