"""Attention without anything around it: time and memory of every way to attend, side by side."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from . import limit
from .memory import Memory, Probe
from .operations import OURS, PASSES, Case, CheckError, Inputs, Pass, Row, check, own_rows, prepare
from .peers import PEERS, peer_rows
from .timing import YARDSTICK, Failure, Timing, alternate, failure_of, fixed_threads, yardstick

Progress: TypeAlias = Callable[[str, int, int], None]
"""Told what is being done, how many steps are done and how many there are."""

WARM_UP_LENGTH = 256
TIMEOUT = 3.0  # times the budget; a forecast that was wrong ends here


def silent(what: str, done: int, total: int) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class AttentionOptions:
    """See `flexformer bench attention --help`."""

    lengths: tuple[int, ...] = (256, 512, 768, 1024, 2048, 4096, 8192, 16384)
    rows: tuple[str, ...] = ()
    batch: int = 1
    heads: int = 8
    head_dim: int = 64
    frequencies: int = 64
    dtype: str = "float32"
    is_causal: bool = False
    passes: tuple[Pass, ...] = PASSES
    threads: int = 1
    rounds: int = 9
    seconds: float = 20.0
    budget: float = 30.0
    memory: bool = True
    smoke: bool = False

    def __post_init__(self) -> None:
        for option in ("batch", "heads", "head_dim", "frequencies", "threads", "rounds"):
            if getattr(self, option) < 1:
                raise ValueError(f"{option} {getattr(self, option)} is too small; use at least 1")
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError(f"lengths {list(self.lengths)} must be one or more numbers of tokens, each at least 1")
        for option in ("seconds", "budget"):
            if not getattr(self, option) > 0:
                raise ValueError(f"{option} {getattr(self, option)} is not a time; use more than 0")

    def case(self, length: int) -> Case:
        return Case(length, self.batch, self.heads, self.head_dim, self.frequencies, self.dtype, self.is_causal)


class Key(NamedTuple):
    row: str
    direction: Pass


@dataclass
class Forecast:
    """How long a row will take at a length not tried yet, from the lengths before."""

    seen: dict[Key, list[tuple[int, float]]] = field(default_factory=dict)

    def add(self, key: Key, length: int, seconds: float) -> None:
        self.seen.setdefault(key, []).append((length, seconds))

    def seconds(self, key: Key, length: int) -> float:
        """Growth goes on as between the last two lengths; with one length alone it is taken to be linear."""
        points = self.seen.get(key, [])
        if not points:
            return 0.0
        last, seconds = points[-1]
        power = 1.0
        if len(points) > 1 and last > points[-2][0]:
            before, earlier = points[-2]
            power = min(max(math.log(seconds / earlier) / math.log(last / before), 1.0), 2.0)
        return seconds * (length / last) ** power


def choose_rows(wanted: Sequence[str], is_causal: bool) -> tuple[list[Row], dict[str, str]]:
    """The rows to measure, and for packages that could have given more why they did not."""
    peers, missing = peer_rows()
    known = {row.name: row for row in (*own_rows(), *peers)}
    for name in wanted:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"use some of {', '.join(known)}"
            raise ValueError(f"rows: {name!r} is unknown; {hint}")
    case = Case(1, is_causal=is_causal)
    chosen = [known[name] for name in wanted] if wanted else list(known.values())
    return [row for row in chosen if row.fits(case)], missing


def row_called(name: str) -> Row:
    """A row by name; of other packages only the one it belongs to is imported, and not before it is built."""
    everything = [*own_rows(), *(row for peer in PEERS for row in peer.rows)]
    return next(row for row in everything if row.name == name)


def measure_attention(options: AttentionOptions, progress: Progress = silent) -> dict[str, Any]:
    """Measure all rows at all lengths, the rows of a length in turn.

    Returns:
        `measurements`, one for every row, length and pass; `pace`, what the same call took beside each length, to see
        whether the machine's speed changed between them; and `missing`, packages without rows.
    """
    rows, missing = choose_rows(options.rows, options.is_causal)
    found: list[dict[str, Any]] = []
    pace: list[dict[str, float]] = []
    wrong: dict[str, str] = {}
    forecast = Forecast()
    lengths = sorted(set(options.lengths))
    with fixed_threads(options.threads), Probe(options.threads, TIMEOUT * options.budget) as probe:
        for number, row in enumerate(rows):
            progress(f"checking {row.name}", number, len(rows))
            try:
                check(row, options.case(lengths[0]))
            except CheckError as error:
                wrong[row.name] = f"failed: {error}"
            except Exception as error:
                wrong[row.name] = failure_of(error).reason
        for length in lengths:
            measured, same = _measure_length(options, rows, wrong, forecast, probe, length, progress)
            found += measured
            if isinstance(same, Timing):
                pace.append({"length": length, "seconds": same.median})
    return {"measurements": found, "pace": pace, "missing": missing}


def _measure_length(
    options: AttentionOptions,
    rows: Sequence[Row],
    wrong: dict[str, str],
    forecast: Forecast,
    probe: Probe,
    length: int,
    progress: Progress,
) -> tuple[list[dict[str, Any]], Timing | Failure]:
    """The measurements of a length, and what the yardstick took beside them."""
    case = options.case(length)
    keys = [Key(row.name, direction) for direction in options.passes for row in rows]
    families = {row.name: row.family for row in rows}
    notes: dict[Key, str] = {key: wrong[key.row] for key in keys if key.row in wrong}
    memories: dict[Key, Memory] = {}
    for number, key in enumerate(keys):
        progress(f"N = {length}: memory of {key.row}, {key.direction}", number, len(keys))
        if key in notes:
            continue
        expected = forecast.seconds(key, length)
        if expected > options.budget:
            notes[key] = f"skipped: about {expected:.0f} s a call, over the budget of {options.budget:g} s"
        elif options.memory:
            memory = probe.measure(
                "flexformer.bench.attention:probe_call", row=key.row, case=asdict(case), direction=key.direction
            )
            if isinstance(memory, Failure):
                notes[key] = memory.reason
            else:
                memories[key] = memory

    calls, parts = _calls(options, rows, case, [key for key in keys if key not in notes])
    timings = alternate(
        calls | {YARDSTICK: yardstick()},
        rounds=options.rounds,
        seconds=options.seconds,
        on_sample=lambda done, total: progress(f"N = {length}: timing {len(calls)} calls in turn", done, total),
    )
    found = []
    for key in keys:
        timing = timings.get(key)
        if isinstance(timing, Timing):
            forecast.add(key, length, timing.median)
        elif isinstance(timing, Failure):
            notes[key] = timing.reason
        found.append(
            measurement(key.row, families[key.row], length, key.direction, timing, memories.get(key), notes.get(key))
        )
    found += [_limit(direction, length, parts[direction], timings) for direction in parts]
    return found, timings[YARDSTICK]


def _calls(
    options: AttentionOptions, rows: Sequence[Row], case: Case, keys: Sequence[Key]
) -> tuple[dict[Any, Callable[[], Any]], dict[Pass, list[limit.Part]]]:
    """All calls of a length on shared inputs, with those of the limit where it applies."""
    by_name = {row.name: row for row in rows}
    layouts: dict[bool, Inputs] = {}

    def inputs(tokens_first: bool) -> Inputs:
        if tokens_first not in layouts:
            layouts[tokens_first] = inputs(False).tokens_first() if tokens_first else Inputs.draw(case)
        return layouts[tokens_first]

    calls: dict[Any, Callable[[], Any]] = {}
    for key in keys:
        row = by_name[key.row]
        calls[key] = prepare(row, case, key.direction, inputs(row.tokens_first))
    parts: dict[Pass, list[limit.Part]] = {}
    if OURS in by_name and case.dtype == "float32":
        work = limit.Work(case)
        parts = {direction: limit.parts(work, direction) for direction in options.passes}
        calls |= {part.call.__name__: part.call for several in parts.values() for part in several}
    return calls, parts


def _limit(
    direction: Pass, length: int, parts: Sequence[limit.Part], timings: dict[Any, Timing | Failure]
) -> dict[str, Any]:
    """The limit as a row: parts added up, their quartiles too."""
    timed = [(part, timings[part.call.__name__]) for part in parts]
    sums = [0.0, 0.0, 0.0]
    samples = []
    for part, timing in timed:
        if isinstance(timing, Failure):
            return measurement("limit", "limit", length, direction, None, None, f"{part.name}: {timing.reason}")
        sums = [total + part.times * seconds for total, seconds in zip(sums, timing[:3], strict=True)]
        samples.append(timing.samples)
    found = measurement("limit", "limit", length, direction, Timing(sums[0], sums[1], sums[2], min(samples)))
    found["parts"] = {part.name: {"times": part.times, "seconds": timing[0]} for part, timing in timed}
    return found


def measurement(
    row: str,
    family: str,
    length: int,
    direction: Pass | str,
    timing: Timing | Failure | None,
    memory: Memory | None = None,
    note: str | None = None,
) -> dict[str, Any]:
    """One call's figures as JSON, with what was called."""
    what = {"row": row, "family": family, "length": length, "pass": direction}
    return what | figures(timing, memory, note)


def figures(timing: Timing | Failure | None, memory: Memory | None = None, note: str | None = None) -> dict[str, Any]:
    """What was measured of a call, as JSON. Where there is nothing the note says why."""
    held = None if memory is None else {key: value for key, value in memory._asdict().items() if key != "seconds"}
    return {"seconds": timing._asdict() if isinstance(timing, Timing) else None, "memory": held, "note": note}


def probe_call(
    row: str, case: dict[str, Any], direction: Pass
) -> tuple[Callable[[], Any], Callable[[], Any], Sequence[Tensor]]:
    """What the memory probe runs: a short call to warm up, the call, and its inputs."""
    chosen = row_called(row)
    calls = []
    for length in (min(case["length"], WARM_UP_LENGTH), case["length"]):
        this = Case(**{**case, "length": length})
        inputs = Inputs.draw(this)
        inputs = inputs.tokens_first() if chosen.tokens_first else inputs
        calls.append(prepare(chosen, this, direction, inputs))
    return calls[0], calls[1], inputs[:3]
