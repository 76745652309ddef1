"""The figures of the benchmark page, written from recorded runs.

A page has blocks `<!-- figures: NAME begin -->` ... `<!-- figures: NAME end -->`; what stands between is written anew.
Prose around them may say why something is so, never how much.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping

from .figures import BOTH, Figures, bold, divide, mebibytes, milliseconds, power, table, times
from .model import BASES
from .operations import OURS, PAIRS, SDPA, WHOLE
from .record import Record
from .scaling import drift

ATTENTION, THREADS, CAUSAL = "attention-1-thread", "attention-2-threads", "attention-causal-1-thread"
BFLOAT16 = "attention-bfloat16-1-thread"
KERNELS, CAUSAL_KERNELS = "kernels/attention-1-thread", "kernels/attention-causal-1-thread"
SCALING, DECODE, MODEL = "scaling-1-thread", "decode-1-thread", "model-1-thread"
SPECTRAL = (OURS, "flexformer-s", "flexformer-c", PAIRS)
COMMANDS = {
    ATTENTION: "flexformer bench attention",
    THREADS: "flexformer bench attention --threads 2",
    CAUSAL: "flexformer bench attention --is-causal",
    BFLOAT16: "flexformer bench attention --dtype bfloat16",
    KERNELS: f"flexformer bench attention --output results/bench/kernels --rows [{','.join(SPECTRAL)}]",
    CAUSAL_KERNELS: f"flexformer bench attention --is-causal --output results/bench/kernels "
    f"--rows [{','.join(SPECTRAL)}]",
    SCALING: "flexformer bench scaling --million",
    DECODE: "flexformer bench decode",
    MODEL: "flexformer bench model",
}
TITLES = {
    ATTENTION: "bidirectional, float32, 1 thread",
    THREADS: "bidirectional, float32, 2 threads",
    CAUSAL: "causal, float32, 1 thread",
    BFLOAT16: "bidirectional, bfloat16, 1 thread",
}

Records = Mapping[str, Record]
Block = Callable[[Records], str]


def page_with_figures(text: str, records: Records) -> str:
    """The page with its blocks written anew."""

    def fill(match: re.Match[str]) -> str:
        name = match["name"]
        known = BLOCKS | OTHER_BLOCKS
        if name not in known:
            raise ValueError(f"page: block {name!r} is unknown; use one of {', '.join(known)}")
        return f"{match['begin']}\n\n{known[name](records)}\n\n{match['end']}"

    pattern = r"(?P<begin><!-- figures: (?P<name>[\w-]+) begin -->).*?(?P<end><!-- figures: (?P=name) end -->)"
    filled, count = re.subn(pattern, fill, text, flags=re.DOTALL)
    if count != text.count("<!-- figures: ") / 2:
        raise ValueError("page: a block of figures does not end, or ends under another name")
    return filled


def crossover(figures: Figures, direction: str) -> str:
    """The length from which on flexformer-n is faster than fused softmax, between measured ones by interpolation."""
    known = [(n, r) for n in figures.lengths if (r := figures.ratio(SDPA, OURS, n, direction))]
    slower = [n for n, r in known if r < 1]
    if not known:
        return "not measured"
    if not slower:
        return f"at or below {known[0][0]}"
    if slower[-1] == known[-1][0]:
        return f"above {known[-1][0]}"
    index = [n for n, _ in known].index(slower[-1])
    (n0, r0), (n1, r1) = known[index : index + 2]
    share = math.log(r0) / (math.log(r0) - math.log(r1))
    return f"{math.exp(math.log(n0) + share * math.log(n1 / n0)):.0f}"


def crossovers(records: Records) -> str:
    lines = []
    for name in TITLES:
        if name in records:
            figures = Figures(records[name])
            lines.append([TITLES[name], crossover(figures, "forward"), crossover(figures, BOTH)])
    return table(["setting", "forward", "forward and backward"], lines) or missing(ATTENTION)


def speed_of(name: str) -> Block:
    """Times as fast as fused softmax, forward and backward, with flexformer-n's own time below."""

    def block(records: Records) -> str:
        if name not in records:
            return missing(name)
        figures = Figures(records[name])
        lines = []
        for row in figures.rows:
            if row != SDPA:
                cells = [times(figures.ratio(SDPA, row, n)) or figures.note(row, n) for n in figures.lengths]
                lines.append([bold(row), *cells])
        for row in (SDPA, OURS):
            lines.append([f"{row}, ms", *(milliseconds(figures.seconds(row, n)) for n in figures.lengths)])
        return table(["forward and backward", *(f"N = {n}" for n in figures.lengths)], lines)

    return block


def peers(records: Records) -> str:
    lines = []
    lengths = all_lengths(records, (ATTENTION, CAUSAL))
    for name in (ATTENTION, CAUSAL):
        if name in records:
            figures = Figures(records[name])
            theirs = list(dict.fromkeys(m["row"] for m in figures.record["measurements"] if m["family"] == "peer"))
            for row in theirs:
                cells = [times(figures.ratio(row, OURS, n)) or figures.note(row, n) for n in lengths]
                lines.append([row, TITLES[name].partition(",")[0], *cells])
    if not lines:
        return f"No other package was installed when this was measured. {missing(ATTENTION)}"
    return table(["package", "", *(f"N = {n}" for n in lengths)], lines)


def memory(records: Records) -> str:
    if ATTENTION not in records:
        return missing(ATTENTION)
    figures = Figures(records[ATTENTION])
    lengths = [n for n in figures.lengths if n >= 1024]
    lines = [
        [bold(row), *(mebibytes(figures.peak(row, n)) or figures.note(row, n) for n in lengths)]
        for row in figures.rows
        if row != "limit"
    ]
    return table(["forward and backward, MiB", *(f"N = {n}" for n in lengths)], lines)


def whole(records: Records) -> str:
    """flexformer-n block by block against features of the whole sequence."""
    lines = []
    for name in (ATTENTION, CAUSAL):
        if name in records:
            figures = Figures(records[name])
            for n in figures.lengths:
                saved = divide(figures.peak(OURS, n), figures.peak(WHOLE, n))
                speed = figures.ratio(WHOLE, OURS, n)
                if n >= 1024 and speed is not None:
                    share = "" if saved is None else f"{saved:.2f}"
                    lines.append([TITLES[name].partition(",")[0], str(n), times(speed), share])
    return table(["", "N", "times as fast", "share of the memory"], lines) or missing(ATTENTION)


def kernels(records: Records) -> str:
    """The time of every spectral kernel in units of flexformer-n's, equal numbers of features."""
    lines = []
    lengths = all_lengths(records, (KERNELS, CAUSAL_KERNELS))
    for name, form in ((KERNELS, "bidirectional"), (CAUSAL_KERNELS, "causal")):
        if name in records:
            figures = Figures(records[name])
            for row in figures.rows:
                lines.append([bold(row), form, *(times(figures.ratio(row, OURS, n)) for n in lengths)])
    return table(["time, flexformer-n = 1", "", *(f"N = {n}" for n in lengths)], lines) or missing(KERNELS)


def growth(records: Records) -> str:
    if SCALING not in records:
        return missing(SCALING)
    record = records[SCALING]
    lines = [[bold(s["row"]), s["pass"], power(s["time"]), power(s["memory"])] for s in record["slopes"]]
    text = table(["", "pass", "time ~ N^", "memory ~ N^"], [line for line in lines if line[0] != "limit"])
    fitted = [m for m in record["measurements"] if m["length"] >= record["options"]["fit_from"] and m["seconds"]]
    if fitted:
        longest = {(m["row"], m["pass"]): m["length"] for m in sorted(fitted, key=lambda m: m["length"])}
        last = max(longest.values())
        text += f"\n\nFitted from N = {min(m['length'] for m in fitted)} to {last}, where three lengths were measured."
        for (row, direction), length in longest.items():
            if length < last and any(
                s["row"] == row and s["pass"] == direction and s["time"] for s in record["slopes"]
            ):
                text += f" Of {row}, {direction}, the longest was {length}."
    if fitted and record.get("pace"):
        text += f" The same call took at most {drift(record):.2f} times as long beside one length as beside another."
    million = record.get("million") or {}
    if million.get("peak_bytes") is not None:
        share = million["peak_bytes"] / million["tensors_bytes"]
        text += (
            f"\n\nA forward of {OURS} over {million['length']} tokens with one head takes "
            f"{mebibytes(million['peak_bytes'])} MiB above its inputs, {share:.2f} times q, k, v and outputs together."
        )
    return text


def limits(records: Records) -> str:
    lines = []
    lengths = all_lengths(records, TITLES)
    for name in TITLES:
        if name in records:
            figures = Figures(records[name])
            for direction in ("forward", BOTH):
                cells = [times(figures.ratio(OURS, "limit", n, direction)) for n in lengths]
                if any(cells):
                    lines.append([TITLES[name], direction, *cells])
    return table(["", "pass", *(f"N = {n}" for n in lengths)], lines) or missing(ATTENTION)


def parts(records: Records) -> str:
    """Where the time of the limit goes, at the longest length."""
    if ATTENTION not in records:
        return missing(ATTENTION)
    figures = Figures(records[ATTENTION])
    last = figures.found.get(("limit", figures.lengths[-1], BOTH), {})
    lines = [
        [name, str(part["times"]), milliseconds(part["times"] * part["seconds"])]
        for name, part in last.get("parts", {}).items()
    ]
    return table([f"forward and backward, N = {figures.lengths[-1]}", "times", "ms together"], lines)


def decode(records: Records) -> str:
    if DECODE not in records:
        return missing(DECODE)
    measurements = records[DECODE]["measurements"]
    contexts = sorted({m["context"] for m in measurements})
    lines = []
    for row in dict.fromkeys(m["row"] for m in measurements):
        these = {m["context"]: m for m in measurements if m["row"] == row}
        seconds = [(these[c]["seconds"] or {}).get("median") for c in contexts]
        cells = [f"{1e3 * s:.3f}" if s else "" for s in seconds]
        last = these[contexts[-1]]
        lines.append([bold(row), *cells, times(divide(seconds[-1], seconds[0])), mebibytes(last["state_bytes"])])
    head = ["ms a token after", *(str(c) for c in contexts), "last / first", f"MiB kept at {contexts[-1]}"]
    return table(head, lines)


def model(records: Records) -> str:
    if MODEL not in records:
        return missing(MODEL)
    figures = Figures(records[MODEL])
    length, step = figures.lengths[0], "training step"
    lines = []
    for row in figures.rows:
        peak = figures.peak(row, length, step)
        saved = [divide(peak, figures.peak(base, length, step)) for base in BASES]
        seconds = figures.seconds(row, length, step)
        lines.append(
            [
                bold(row),
                f"{seconds:.2f}" if seconds else figures.note(row, length, step),
                *(times(figures.ratio(base, row, length, step)) for base in BASES),
                mebibytes(peak),
                *("" if share is None else f"{1 - share:.0%}" for share in saved),
            ]
        )
    bases = ("unfused with dropout", "unfused", "SDPA")
    speed, less = [f"speed, {base} = 1" for base in bases], [f"less than {base}" for base in bases]
    return table(["attention", "s a step", *speed, "MiB", *less], lines)


def losses(records: Records) -> str:
    """Everything that was faster than flexformer-n, by setting."""
    lines = []
    for name in TITLES:
        if name not in records:
            continue
        figures = Figures(records[name])
        for row in figures.rows:
            if row in (OURS, "limit"):
                continue
            faster = {n: r for n in figures.lengths if (r := figures.ratio(OURS, row, n)) and r > 1}
            if faster:
                cells = ", ".join(f"{n} ({r:.1f}x)" for n, r in faster.items())
                lines.append([TITLES[name], row, cells])
    return table(["setting", "faster than flexformer-n, forward and backward", "at N"], lines) or missing(ATTENTION)


def runs(records: Records) -> str:
    lines = []
    for name in COMMANDS:
        if name in records:
            record = records[name]
            where = f"{record['machine']['cpu']}, {record['machine']['cores']} cores"
            load = "" if record["load_before"] is None else f"{record['load_before']:.1f}"
            torch, date = record["versions"]["torch"], record["date"][:10]
            lines.append([f"`{record['command']}`", where, load, torch, _short(record["commit"] or ""), date])
    return table(["command", "machine", "load before", "torch", "commit", "date"], lines) or missing(ATTENTION)


def _short(commit: str) -> str:
    """Twelve digits of it, with "+" where something was changed since."""
    return commit[:12] + "+" * commit.endswith(("-dirty", "+"))


BLOCKS: dict[str, Block] = {
    "runs": runs,
    "crossover": crossovers,
    "speed": speed_of(ATTENTION),
    "speed-2-threads": speed_of(THREADS),
    "speed-causal": speed_of(CAUSAL),
    "speed-bfloat16": speed_of(BFLOAT16),
    "peers": peers,
    "memory": memory,
    "whole": whole,
    "kernels": kernels,
    "growth": growth,
    "limit": limits,
    "limit-parts": parts,
    "decode": decode,
    "model": model,
    "losses": losses,
}
OTHER_BLOCKS: dict[str, Block] = {}  # of pages on something else, by whoever writes them


def all_lengths(records: Records, names: Iterable[str]) -> list[int]:
    """The lengths of any of these runs."""
    return sorted({n for name in names if name in records for n in Figures(records[name]).lengths})


def missing(name: str) -> str:
    return f"Not measured yet: run `{COMMANDS[name]}`, then `flexformer bench report`."
