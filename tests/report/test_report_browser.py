"""The report in a real browser: Chromium, at the width of a desk and of a phone, by day and by night."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from report_sources import bench_record, write_results, write_run

from flexformer.report import collect, page

PROBE = Path(__file__).with_name("browser.py")

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("PyQt6.QtWebEngineCore") is None if importlib.util.find_spec("PyQt6") else True,
    reason="no Chromium: pip install 'flexformer-pytorch[browser]'",
)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    for attention in ("softmax", "flexformer-n"):
        write_run(folder / "runs" / attention, attention)
    write_results(folder / "results" / "table1")
    (folder / "bench.json").write_text(json.dumps(bench_record()))
    path = folder / "report.html"
    path.write_text(page(collect([folder / "runs", folder / "results", folder / "bench.json"])), encoding="utf-8")
    return path


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_whole_quiet_and_fits(report, tmp_path, width, theme):
    picture = tmp_path / "page.png"
    command = [sys.executable, str(PROBE), str(report), str(picture), str(width), theme]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if result.returncode and "cannot open shared object file" in result.stderr:
        pytest.skip(f"Chromium cannot start here: {result.stderr.strip().splitlines()[-1]}")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["loaded"]
    assert found["messages"] == []
    assert found["requests"] == [report.as_uri()]  # nothing but itself
    assert found["overflow"] <= 0, found["widest"]
    red, green, blue = (int(part) for part in found["background"][4:-1].split(","))
    assert (red + green + blue < 200) is (theme == "dark")
    _assert_drawn(picture, width, found["height"])


def _assert_drawn(picture, width, height):
    from PIL import Image

    with Image.open(picture) as image:
        assert image.size == (width, height)
        colours = image.convert("RGB").getcolors(maxcolors=1 << 24)
    assert len(colours) > 100  # text and lines, not an empty page
