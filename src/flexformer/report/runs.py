"""The sections about training runs: what was run, how well it went, how it learned."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import mean
from typing import Any

from flexformer import ATTENTIONS

from .chart import Panel, Series, figure
from .html import Markup, join, table, tag
from .measures import CURVES, Measure, measure_of, paper_figures
from .sources import Run

Group = tuple[str, list[Run]]

_ORDER = {name: place for place, name in enumerate(ATTENTIONS)}


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Runs that can be compared: of one task, one text and one scale."""
    found: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: _ORDER.get(run.attention, len(_ORDER))):
        found.setdefault(title_of(run), []).append(run)
    return list(found.items())


def title_of(run: Run) -> str:
    """What a run was about, in words."""
    record, options = run.record, run.record["options"]
    task, scale = str(record["task"]), str(record.get("scale") or "custom")
    source = (options.get("data") or {}).get("source")
    if task == "lm":
        subject = f"Language model on {'the Python standard library' if source == 'python' else source}"
    elif task == "distill":
        subject = f"Distillation of {_tail(options.get('base'))}"
    elif options.get("base"):
        subject = f"{_tail(options['base'])} fine-tuned on {task}"
    else:
        subject = f"Task {task}"
    return f"{subject}, {scale} scale"


def section(runs: Sequence[Run]) -> Markup:
    """Every group with its table, its curves and, of distillations, what each layer learned."""
    return join(
        tag("section", tag("h3", title), _comparison(group), _curves(group), *map(_distilled, group))
        for title, group in grouped(runs)
    )


def _comparison(runs: list[Run]) -> Markup:
    """One line to an attention, seeds averaged, the best in bold."""
    measure = measure_of(runs)
    by_row = _rows(runs)
    theirs = paper_figures(runs[0], measure) if measure else {}
    values = {
        name: [run.metrics[measure.key] for run in own if measure.key in run.metrics] if measure else []
        for name, own in by_row.items()
    }
    best = _best(values, measure)
    head = ["attention", *([measure.title] if measure else []), *(["paper"] if theirs else [])]
    head += ["parameters", "steps", "ms a step", "peak MiB", "time", "seeds", "status"]
    rows = []
    for name, own in by_row.items():
        row: list[object] = [name]
        if measure:
            written = measure.write(values[name]) if values[name] else "–"
            row.append(tag("strong", written) if name == best else written)
        if theirs:
            paper = theirs.get(own[0].attention)
            row.append(f"{paper[0]:.2f} ± {paper[1]:.2f}" if paper else "–")
        rows.append([*row, *_costs(own)])
    note = tag("p", "The paper's figures are of its own, larger scale.", class_="note") if theirs else None
    return join(part for part in (table(head, rows), note) if part is not None)


def _rows(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs that differ in nothing but their seed, by attention, and by folder too where other options differ."""
    alike: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        options = {name: value for name, value in run.record["options"].items() if name != "seed"}
        alike.setdefault((run.attention, json.dumps(options, sort_keys=True)), []).append(run)
    attentions = [attention for attention, _ in alike]
    rows: dict[str, list[Run]] = {}
    for (attention, _), own in alike.items():
        name = attention if attentions.count(attention) == 1 else f"{attention}: {own[0].name}"
        rows[f"{name} ({len(rows) + 1})" if name in rows else name] = own  # folders of one name in two places
    return rows


def _best(values: dict[str, list[float]], measure: Measure | None) -> str | None:
    known = {name: mean(found) for name, found in values.items() if found}
    if measure is None or len(known) < 2:
        return None
    return (max if measure.greater else min)(known, key=lambda name: known[name])


def _costs(runs: list[Run]) -> list[str]:
    records = [run.record for run in runs]
    return [
        f"{records[0].get('parameters', 0):,}",
        f"{max(record.get('steps', 0) for record in records):,}",
        _mean([record.get("step_seconds") for record in records], 1e3),
        _mean([record.get("peak_memory") for record in records], 2.0**-20),
        _clock(mean(float(record.get("seconds") or 0.0) for record in records)),
        str(len({record.get("seed") for record in records})),
        ", ".join(sorted({str(record.get("status", "unknown")) for record in records})),
    ]


def _mean(values: list[Any], factor: float) -> str:
    known = [factor * value for value in values if value is not None]
    if not known:
        return "–"
    return f"{mean(known):.0f}" if mean(known) >= 100 else f"{mean(known):.1f}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _curves(runs: list[Run]) -> Markup | None:
    """Loss in training and what was validated, against steps."""
    panels = []
    losses = _series(runs, "loss", 1.0)
    if losses:
        panels.append(Panel("Training loss", "step", "", losses))
    known = {key for run in runs for entry in run.log for key in entry}
    shown = next((curve for curve in CURVES if curve.key in known), None)
    if shown is not None:
        validated = _series(runs, shown.key, shown.factor)
        panels.append(Panel(shown.title[0].upper() + shown.title[1:], "step", "", validated, markers=True))
    return figure(panels) if panels else None


def _series(runs: list[Run], key: str, factor: float) -> list[Series]:
    found = []
    for run in runs:
        points = [(float(entry["step"]), factor * float(entry[key])) for entry in run.log if key in entry]
        if points:
            found.append(Series(run.attention, points, f"seed {run.record.get('seed')}"))
    return found


def _distilled(run: Run) -> Markup | None:
    """By layer how near the kernels are to softmax, and what a conversion costs and saves."""
    parts = []
    if run.findings and {"before", "after"} <= run.findings.keys():
        parts.append(_layers(run))
    if run.costs:
        parts.append(_conversion(run.costs))
    return join(parts) if parts else None


def _layers(run: Run) -> Markup:
    from flexformer.distill.report import lengths_line

    assert run.findings is not None
    before, after = run.findings["before"]["layers"], run.findings["after"]["layers"]
    rows = [
        [
            f"layer {late['layer']}",
            f"{early['kl']:.3f} → {late['kl']:.3f}",
            f"{early['output_error']:.3f} → {late['output_error']:.3f}",
            f"{100 * early['negative_weights']:.2f} → {100 * late['negative_weights']:.2f}",
            f"{100 * late['floored_rows']:.2f}",
            f"{late['entropy']:.2f}",
        ]
        for early, late in zip(before, after, strict=True)
    ]
    head = ["", "divergence, nats", "output error", "negative weights, %", "floored rows, %", "entropy of softmax"]
    kept = run.findings["after"].get("outputs") or {}
    said = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in kept.items())
    lengths = lengths_line(run.findings)
    note = tag("p", f"{lengths} What is left of the model's outputs: {said}.", class_="note") if said else None
    return join(p for p in (table(head, rows, caption=f"{run.attention} beside softmax, by layer"), note) if p)


def _conversion(costs: list[dict[str, Any]]) -> Markup:
    def series(key: str, factor: float) -> list[Series]:
        names = list(dict.fromkeys(cost["model"] for cost in costs))
        known = [cost for cost in costs if cost.get(key) is not None]
        points = {n: [(float(c["length"]), factor * c[key]) for c in known if c["model"] == n] for n in names}
        return [Series(name, own) for name, own in points.items() if own]

    wanted = (
        ("Time to read a sequence", "seconds", 1e3, "ms"),
        ("Peak memory", "peak_bytes", 2.0**-20, "MiB"),
        ("Time of one more token", "token_seconds", 1e3, "ms"),
        ("Kept for the next token", "cache_bytes", 2.0**-20, "MiB"),
    )
    lengths = sorted({float(cost["length"]) for cost in costs})
    panels = [
        Panel(title, "tokens", unit, found, log_x=True, log_y=True, x_ticks=lengths, markers=True)
        for title, key, factor, unit in wanted
        if (found := series(key, factor))
    ]
    return figure(panels, "The model as it was and converted, batch 1.")


def _tail(name: object) -> str:
    return str(name).rstrip("/").rpartition("/")[2]
