"""Keep what was tried on the way to settings and kernels, and list it by task.

    python scripts/trials.py RUN_FOLDER ...

Copies the records and validation curves of finished runs of `flexformer train`, `distill` and `finetune` to
results/trials/, and writes a table of each task there, "lm" and "distill" being two. Without folders only the tables
are written anew.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from flexformer.distill.options import DISTILL
from flexformer.experiments import presets
from flexformer.experiments.cells import portable
from flexformer.experiments.digest import digest, essentials
from flexformer.experiments.presets import pretrained
from flexformer.files import write_json, write_text
from flexformer.tasks import glue
from flexformer.training import RunFolder
from flexformer.training.callbacks import read_log
from flexformer.training.language_options import TASK as LANGUAGE

FOLDER = Path(__file__).resolve().parent.parent / "results" / "trials"
CURVES = ("eval_score", "eval_accuracy", "eval_perplexity", "eval_kl")  # the first of them that a run has
SILENT = ("_every", ".eval_batch_size", "adapter")  # options that hardly matter
KEPT = ("task", "attention", "seed", "steps", "tokens", "seconds", "metrics", "commit", "versions", "machine")


def keep(path: Path) -> None:
    """Copy what matters of a run."""
    run = RunFolder(path)
    record = run.read()
    if record is None or record.status != "finished":
        raise ValueError(f"{path} holds no finished run")
    log = read_log(run.log_file)
    measure = next(name for name in CURVES if any(name in entry for entry in log))
    curve = [[entry["step"], entry[measure]] for entry in log if measure in entry]
    trial = {name: getattr(record, name) for name in KEPT}
    trial |= {"command": portable(record.command), "options": essentials(record.options), "curve": curve}
    FOLDER.mkdir(parents=True, exist_ok=True)
    write_json(FOLDER / f"{record.task}-{digest(trial['options'])}.json", trial)


def tables() -> dict[str, str]:
    """Markdown by task, the best trial first."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(FOLDER.glob("*.json")):
        trial = json.loads(path.read_text(encoding="utf-8"))
        found.setdefault(trial["task"], []).append(trial)
    kinds = {DISTILL: _distilled, LANGUAGE: _modelled} | dict.fromkeys(glue.TASKS, _tuned)
    return {task: kinds.get(task, _trained)(trials) for task, trials in found.items()}


def _tuned(trials: list[dict[str, Any]]) -> str:
    return _trained(trials, "score")


def _trained(trials: list[dict[str, Any]], measure: str = "accuracy") -> str:
    lines = [
        f"| other than the preset | validation {measure} in per cent at step | test | minutes |",
        "|---|---|---:|---:|",
    ]
    for trial in sorted(trials, key=lambda trial: -trial["curve"][-1][1]):
        curve = ", ".join(f"{100 * value:.1f} at {step}" for step, value in trial["curve"])
        test, minutes = 100 * trial["metrics"][f"test_{measure}"], trial["seconds"] / 60
        lines.append(f"| {_difference(trial)} | {curve} | {test:.1f} | {minutes:.1f} |")
    return "\n".join(lines) + "\n"


def _modelled(trials: list[dict[str, Any]]) -> str:
    lines = ["| other than the preset | validation perplexity | test perplexity | minutes |", "|---|---:|---:|---:|"]
    for trial in sorted(trials, key=lambda trial: trial["metrics"]["validation_perplexity"]):
        found = [trial["metrics"][f"{split}_perplexity"] for split in ("validation", "test")]
        lines.append(f"| {_difference(trial)} | {found[0]:.2f} | {found[1]:.2f} | {trial['seconds'] / 60:.1f} |")
    return "\n".join(lines) + "\n"


def _distilled(trials: list[dict[str, Any]]) -> str:
    lines = [
        "| other than `flexformer reproduce kernels` | KL | output error | negative, % | den <= 0, % | minutes |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for trial in sorted(trials, key=lambda trial: trial["metrics"]["after_kl"]):
        found = {name.removeprefix("after_"): value for name, value in trial["metrics"].items()}
        shares = [100 * found[name] for name in ("negative_weights", "nonpositive_denominators")]
        figures = f"{found['kl']:.4f} | {found['output_error']:.3f} | {shares[0]:.2f} | {shares[1]:.3f}"
        lines.append(f"| {_difference(trial)} | {figures} | {trial['seconds'] / 60:.1f} |")
    return "\n".join(lines) + "\n"


def _preset(trial: dict[str, Any]) -> dict[str, Any]:
    attention, own = trial["attention"], trial["options"]
    if trial["task"] == DISTILL:
        return pretrained.load_distill("study", own["base"], own["text"], attention=attention).as_dict()
    if trial["task"] == LANGUAGE:
        return presets.load_language("cpu", attention=attention, data={"source": own["data.source"]}).as_dict()
    if trial["task"] in glue.TASKS:
        return pretrained.load_finetune("cpu", own["base"], trial["task"], attention=attention)[0].as_dict()
    return presets.load(trial["task"], "cpu", attention=attention).as_dict()


def _difference(trial: dict[str, Any]) -> str:
    preset, own = essentials(_preset(trial)), trial["options"]
    changed = [name for name in sorted(own.keys() | preset.keys()) if own.get(name) != preset.get(name)]
    shown = [f"{name} {own.get(name, 'off')}" for name in changed if not name.endswith(SILENT)]
    earlier = [trial["code"]] if "code" in trial else []  # what no option says: a version that is no more
    return ", ".join([trial["attention"], *shown, *earlier])


def main() -> None:
    for folder in sys.argv[1:]:
        keep(Path(folder))
    for task, text in tables().items():
        write_text(FOLDER / f"{task}.md", text)
        print(f"wrote {FOLDER / task}.md")


if __name__ == "__main__":
    main()
