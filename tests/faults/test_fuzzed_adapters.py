"""Mutated adapters, records and settings: a clear error or something usable, and nothing written anywhere."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest
from mutations import MANY, SOME, everything_outside, fuzz

import flexformer
from flexformer.cli.main import main
from flexformer.convert import manifest
from flexformer.training.options import RunOptions
from flexformer.training.record import RunFolder, RunFolderError

sys.path.insert(0, str(Path(__file__).parents[1] / "convert"))

from families import build

COUNTS = [SOME, pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])]


@pytest.fixture
def home(tmp_path, monkeypatch):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("as it was")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def saved(home):
    model = flexformer.convert(build("bert"), attention="flexformer-n")
    flexformer.save_adapter(model, home / "adapter")
    return home / "adapter"


@pytest.mark.parametrize("damaged", ["manifest", "manifest without checksum", "tensors", "tensors, checksum renewed"])
@pytest.mark.parametrize("count", COUNTS)
def test_adapter(saved, home, count, damaged):
    described = json.loads((saved / manifest.FILE).read_text())
    tensors = saved / f"flexformer_adapter-{described['sha256'][:16]}.safetensors"
    path = tensors if damaged.startswith("tensors") else saved / manifest.FILE
    if damaged == "manifest without checksum":
        path.write_text(json.dumps({key: value for key, value in described.items() if key != manifest.CHECKSUM}))
    good, model = path.read_bytes(), build("bert")
    before = everything_outside(home, saved)

    def load(content: bytes) -> None:
        for other in saved.glob("*.safetensors"):
            if other != tensors:
                other.unlink()
        if damaged == "tensors, checksum renewed":
            digest = hashlib.sha256(content).hexdigest()
            renewed = described | {"sha256": digest, "size": len(content)}
            renewed.pop(manifest.CHECKSUM)
            (saved / manifest.FILE).write_text(json.dumps(renewed))
            (saved / f"flexformer_adapter-{digest[:16]}.safetensors").write_bytes(content)
        else:
            path.write_bytes(content)
        try:
            flexformer.load_adapter(model, saved)
            flexformer.restore(model)
        finally:
            assert model.config._attn_implementation == "sdpa"

    assert fuzz(good, load, (ValueError, FileNotFoundError), count) > count // 4
    assert everything_outside(home, saved) == before


@pytest.mark.parametrize(
    "name", ["../../outside/precious", "/etc/passwd", "..%2f", "a" * 64 + "/..", "flexformer_adapter-0.safetensors"]
)
def test_adapter_cannot_name_a_file_elsewhere(saved, name):
    described = json.loads((saved / manifest.FILE).read_text()) | {"sha256": name}
    described.pop(manifest.CHECKSUM)
    (saved / manifest.FILE).write_text(json.dumps(described))
    with pytest.raises(ValueError, match="sha256 is not 64 hexadecimal digits"):
        flexformer.load_adapter(build("bert"), saved)


def test_bit_that_flips_in_a_manifest_is_noticed_by_its_checksum(saved):
    path = saved / manifest.FILE
    good = path.read_text()
    assert '"num_frequencies": 8' in good or '"scaling"' in good
    path.write_text(good.replace('"model_type": "bert"', '"model_type": "bart"'))
    with pytest.raises(ValueError, match="is damaged: its fields do not have the checksum they were written with"):
        flexformer.load_adapter(build("bert"), saved)


@pytest.mark.parametrize("count", COUNTS)
def test_settings_from_a_file(home, count, capsys):
    folder = home / "settings"
    folder.mkdir()
    path = folder / "settings.yaml"
    good = (Path(flexformer.__file__).parent / "experiments" / "presets" / "listops-smoke.yaml").read_bytes()
    before = everything_outside(home, folder)

    def load(content: bytes) -> None:
        path.write_bytes(content)
        status = main(["train", "listops", "--preset", "smoke", "--config", str(path), "--print_config"])
        captured = capsys.readouterr()
        assert status in (0, 1, 2)
        if status:
            assert captured.err.startswith("flexformer train: error: ")
            assert captured.err.count("\n") == 1
            raise RunFolderError(captured.err)

    assert fuzz(good, load, (RunFolderError,), count) > count // 10
    assert everything_outside(home, folder) == before


@pytest.mark.parametrize("count", COUNTS)
def test_record_of_a_run(home, count):
    folder = home / "run"
    folder.mkdir()
    record = {"command": [], "task": "listops", "attention": "linear", "scale": "smoke", "seed": 0}
    good = json.dumps(record | {"options": RunOptions("listops").as_dict()}, indent=1).encode()
    before = everything_outside(home, folder)

    def load(content: bytes) -> None:
        (folder / "run.json").write_bytes(content)
        found = RunFolder(folder).read()
        assert found is not None

    assert fuzz(good, load, (RunFolderError,), count) > count // 10
    assert everything_outside(home, folder) == before
