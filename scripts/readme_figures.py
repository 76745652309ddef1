"""Write the figures of README.md anew from results/: the picture, and the tables in its marked blocks.

python scripts/readme_figures.py

Times are those of `flexformer bench` in results/bench/, losses those of scripts/study_floor.py in results/floor/.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from flexformer.bench.figures import Figures, divide, table
from flexformer.files import write_bytes, write_text
from flexformer.viz.overview import plot_overview

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "README.md"
PICTURE = ROOT / "docs" / "images" / "overview.png"
BENCH, STUDY = ROOT / "results" / "bench", ROOT / "results" / "floor"
SCALING = "scaling-1-thread"
OURS, SOFTMAX = "flexformer-n", "softmax"
SHOWN = (SOFTMAX, "linear", OURS)
FLOOR = "0.01"  # the default


def record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((BENCH / f"{SCALING}.json").read_text(encoding="utf-8"))
    return found


def speed() -> dict[str, list[tuple[int, float]]]:
    """Attention -> (length, seconds) of a forward and backward pass."""
    figures = Figures(record())
    lines = {name: [(n, s) for n in figures.lengths if (s := figures.seconds(name, n))] for name in SHOWN}
    return {name: points for name, points in lines.items() if points}


def quality() -> dict[str, list[tuple[int, float]]]:
    """Attention -> (length, loss), seeds averaged."""
    found: dict[str, dict[int, list[float]]] = {}
    for path in sorted(STUDY.glob("bytes-*.json")):
        cell = json.loads(path.read_text(encoding="utf-8"))
        options = cell["options"]
        if options["attention"] in (SOFTMAX, OURS) and options["label"] in ("", FLOOR):
            found.setdefault(options["attention"], {}).setdefault(options["length"], []).append(cell["metrics"]["loss"])
    return {
        name: [(length, sum(values) / len(values)) for length, values in sorted(found[name].items())]
        for name in (SOFTMAX, OURS)
    }


def digest() -> str:
    """Changes with what the picture shows."""
    shown = json.dumps([speed(), quality(), note()])
    return hashlib.sha256(shown.encode()).hexdigest()


def note() -> str:
    options, machine = record()["options"], record()["machine"]
    setting = f"batch {options['batch']}, {options['heads']} heads of {options['head_dim']}, {options['dtype']}"
    return f"left: {setting}, one thread, {machine['cpu']} · right: 400 steps, one seed"


def overview() -> str:
    """Both tables."""
    seconds = {name: dict(points) for name, points in speed().items()}
    lengths = sorted({n for points in seconds.values() for n in points})
    rows = [[name, *(_seconds(points.get(n)) for n in lengths)] for name, points in seconds.items()]
    ratios = [divide(seconds[SOFTMAX].get(n), seconds[OURS].get(n)) for n in lengths]
    rows.append([f"**softmax / {OURS}**", *("" if r is None else f"**{r:.1f}x**" for r in ratios)])
    times = table(["attention, seconds", *(f"N = {n}" for n in lengths)], rows)
    losses = {name: dict(points) for name, points in quality().items()}
    contexts = sorted({n for points in losses.values() for n in points})
    rows = [[name, *(f"{p[n]:.3f}" if n in p else "" for n in contexts)] for name, p in losses.items()]
    return times + "\n\n" + table(["language model, loss in nats", *(f"N = {n}" for n in contexts)], rows)


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if value < 10 else f"{value:.0f}"


def page_with_figures(text: str) -> str:
    """The page with its block written anew."""
    pattern = r"(<!-- figures: overview begin -->).*?(<!-- figures: overview end -->)"
    filled, count = re.subn(pattern, lambda m: f"{m[1]}\n\n{overview()}\n\n{m[2]}", text, flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"{PAGE.name} has {count} blocks of figures called overview; it needs one")
    return filled


def main() -> None:
    write_bytes(PICTURE, plot_overview(speed(), quality(), note(), digest()))
    write_text(PAGE, page_with_figures(PAGE.read_text(encoding="utf-8")))
    print(f"wrote {PICTURE.relative_to(ROOT)} and {PAGE.name}")


if __name__ == "__main__":
    main()
