"""`flexformer bench`: speed and memory on this machine."""

from __future__ import annotations

import dataclasses
import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from flexformer import bench
from flexformer.bench.record import to_json
from flexformer.cli import bench_tables
from flexformer.cli.main import UserError, console
from flexformer.files import write_bytes, write_text

PLAIN_PROGRESS_SECONDS = 5.0
RESULTS = Path("results/bench")
SMALL: dict[str, Any] = {
    "lengths": (64, 128, 256),
    "heads": 2,
    "head_dim": 16,
    "frequencies": 16,
    "rounds": 2,
    "seconds": 0.1,
}
PAGE = Path("docs/benchmarks.md")

Report = Callable[[str, int, int], None]


def attention(
    lengths: tuple[int, ...] = bench.AttentionOptions.lengths,
    rows: tuple[str, ...] = (),
    batch: int = 1,
    heads: int = 8,
    head_dim: int = 64,
    frequencies: int = 64,
    dtype: Literal["float32", "bfloat16"] = "float32",
    is_causal: bool = False,
    direction: Literal["both", "forward", "forward+backward"] = "both",
    threads: int = 1,
    rounds: int = 9,
    seconds: float = 20.0,
    budget: float = 30.0,
    memory: bool = True,
    smoke: bool = False,
    output: Path = RESULTS,
    json: bool = False,
) -> None:
    """Compare ways to attend, without anything around them: time and peak memory at several lengths.

    Compared are torch's softmax, fused and not, every attention of this package, and other packages where they are
    installed. All take turns in one process; memory is measured in a process of its own for every figure. The limit
    is the time of the matrix products, cosines and sines that flexformer-n cannot do without, each timed alone.

    Args:
        lengths: Numbers of tokens.
        rows: What to compare, by name; everything by default.
        batch: Sequences at once.
        heads: Heads.
        head_dim: Width of one head.
        frequencies: Frequencies of the flexformer kernels; other kernels get as many features where they have a choice.
        dtype: Of queries, keys and values.
        is_causal: Let every position see itself and earlier ones only.
        direction: Time the forward pass, forward and backward together, or both.
        threads: Threads that torch may use.
        rounds: How often everything takes its turn.
        seconds: Time after which a slow row leaves the later rounds, with three samples at least.
        budget: Seconds that one call may take; what would take longer is skipped, and the table says so.
        memory: Measure peak memory.
        smoke: Run a small case that shows within seconds that everything works; its figures mean nothing.
        output: Folder for the JSON and the plot.
        json: Print the JSON instead of a table.

    Example:
        flexformer bench attention --lengths [1024,4096] --rows [softmax,flexformer-n] --threads 2
    """
    options = bench.AttentionOptions(
        lengths=lengths,
        rows=rows,
        batch=batch,
        heads=heads,
        head_dim=head_dim,
        frequencies=frequencies,
        dtype=dtype,
        is_causal=is_causal,
        passes=("forward", "forward+backward") if direction == "both" else (direction,),
        threads=threads,
        rounds=rounds,
        seconds=seconds,
        budget=budget,
        memory=memory,
        smoke=smoke,
    )
    if smoke:
        options = dataclasses.replace(options, **SMALL)
    _run("attention", options, bench.measure_attention, output, json)


def scaling(
    lengths: tuple[int, ...] = bench.ScalingOptions.lengths,
    rows: tuple[str, ...] = bench.ScalingOptions.rows,
    batch: int = 1,
    heads: int = 8,
    head_dim: int = 64,
    frequencies: int = 64,
    is_causal: bool = False,
    direction: Literal["both", "forward", "forward+backward"] = "both",
    threads: int = 1,
    rounds: int = 5,
    seconds: float = 20.0,
    budget: float = 30.0,
    fit_from: int = bench.ScalingOptions.fit_from,
    million: bool = False,
    smoke: bool = False,
    output: Path = RESULTS,
    json: bool = False,
) -> None:
    """Show how time and peak memory grow with the length, and fit the power they grow with.

    Args:
        lengths: Numbers of tokens.
        rows: What to compare, by the names of `flexformer bench attention`.
        batch: Sequences at once.
        heads: Heads.
        head_dim: Width of one head.
        frequencies: Frequencies of the flexformer kernels.
        is_causal: Let every position see itself and earlier ones only.
        direction: Time the forward pass, forward and backward together, or both.
        threads: Threads that torch may use.
        rounds: How often everything takes its turn.
        seconds: Time after which a slow row leaves the later rounds, with three samples at least.
        budget: Seconds that one call may take; what would take longer is skipped, and the table says so.
        fit_from: Shortest length that counts for the fitted power.
        million: Also measure the memory of a forward over 2^20 tokens with one head.
        smoke: Run a small case that shows within seconds that everything works; its figures mean nothing.
        output: Folder for the JSON and the plot.
        json: Print the JSON instead of a table.

    Example:
        flexformer bench scaling --lengths [1024,4096,16384,65536] --million
    """
    options = bench.ScalingOptions(
        lengths=lengths,
        rows=rows,
        batch=batch,
        heads=heads,
        head_dim=head_dim,
        frequencies=frequencies,
        is_causal=is_causal,
        passes=("forward", "forward+backward") if direction == "both" else (direction,),
        threads=threads,
        rounds=rounds,
        seconds=seconds,
        budget=budget,
        fit_from=fit_from,
        million=million,
        smoke=smoke,
    )
    if smoke:
        options = dataclasses.replace(options, **SMALL, fit_from=64)
    _run("scaling", options, bench.measure_scaling, output, json)


def decode(
    contexts: tuple[int, ...] = bench.DecodeOptions.contexts,
    rows: tuple[str, ...] = (),
    batch: int = 1,
    heads: int = 8,
    head_dim: int = 64,
    threads: int = 1,
    rounds: int = 15,
    smoke: bool = False,
    output: Path = RESULTS,
    json: bool = False,
) -> None:
    """Time one more token after contexts of several lengths, and show how much is kept of them.

    Kernel attentions keep a state of fixed size; softmax keeps all keys and values, in a cache that is copied as it
    grows or in one made for the whole sequence beforehand ("softmax-preallocated").

    Args:
        contexts: Numbers of tokens that came before.
        rows: What to compare, by name; everything that can decode by default.
        batch: Sequences at once.
        heads: Heads.
        head_dim: Width of one head.
        threads: Threads that torch may use.
        rounds: How often everything takes its turn.
        smoke: Run a small case that shows within seconds that everything works; its figures mean nothing.
        output: Folder for the JSON and the plot.
        json: Print the JSON instead of a table.

    Example:
        flexformer bench decode --contexts [64,65536] --rows [softmax,flexformer-n]
    """
    options = bench.DecodeOptions(contexts, rows, batch, heads, head_dim, threads, rounds, smoke)
    if smoke:
        options = dataclasses.replace(options, contexts=(16, 64), heads=2, head_dim=16, rounds=2)
    _run("decode", options, bench.measure_decode, output, json)


def model(
    length: int = 4000,
    pairs: int = 1,
    rows: tuple[str, ...] = (),
    layers: int = 4,
    width: int = 128,
    feed_forward: int = 512,
    heads: int = 2,
    threads: int = 1,
    rounds: int = 5,
    seconds: float = 60.0,
    timeout: float = 300.0,
    memory: bool = True,
    smoke: bool = False,
    output: Path = RESULTS,
    json: bool = False,
) -> None:
    """Compare a training step of a whole model with every attention: time and peak memory.

    The model compares two texts through one encoder, with the settings of Long Range Arena's Retrieval task. A step is
    forward, backward and optimizer. "softmax-unfused" keeps all attention weights in memory, as the paper's baseline;
    "softmax-unfused-dropout" also drops some, as the task's settings have it.

    Args:
        length: Bytes of each text.
        pairs: Pairs of texts to a step.
        rows: Attentions to compare, by name; all by default.
        layers: Layers.
        width: Width of the residual stream.
        feed_forward: Width inside the feed-forward layers.
        heads: Heads.
        threads: Threads that torch may use.
        rounds: How often everything takes its turn.
        seconds: Time after which a slow row leaves the later rounds, with three samples at least.
        timeout: Seconds that a step may take while its memory is measured.
        memory: Measure peak memory.
        smoke: Run a small case that shows within seconds that everything works; its figures mean nothing.
        output: Folder for the JSON and the plot.
        json: Print the JSON instead of a table.

    Example:
        flexformer bench model --rows [softmax,softmax-unfused,flexformer-n]
    """
    importlib.import_module("transformers")  # where it is missing, say so before anything is measured
    options = bench.ModelOptions(
        length, pairs, rows, layers, width, feed_forward, heads, threads, rounds, seconds, timeout, memory, smoke
    )
    if smoke:
        options = dataclasses.replace(options, length=64, layers=1, width=32, feed_forward=64, rounds=2, seconds=0.1)
    _run("model", options, bench.measure_model, output, json)


def report(results: Path = RESULTS, page: Path = PAGE, check: bool = False) -> int:
    """Write the figures of the benchmark page anew from recorded runs.

    Args:
        results: Folder with the JSON of runs.
        page: Markdown page whose marked blocks are written.
        check: Change nothing; the exit status is 1 where the page would change.

    Example:
        flexformer bench report
    """
    if not page.is_file():
        raise UserError(f"page {page} is not there; name a page that has blocks for figures")
    if not results.is_dir():
        raise UserError(f"results {results} is not a folder; run flexformer bench attention first")
    before = page.read_text(encoding="utf-8")
    after = bench.page_with_figures(before, bench.read_records(results))
    if check:
        print(f"{page} {'shows' if before == after else 'does not show'} what {results} holds")
        return int(before != after)
    write_text(page, after)
    print(f"wrote {page}")
    return 0


def _run(name: str, options: Any, measure: Callable[..., dict[str, Any]], output: Path, json: bool) -> None:
    started, load_before = time.perf_counter(), bench.load()
    with _progress() as progress:
        found = measure(options, progress)
    given = {key: list(v) if isinstance(v, tuple) else v for key, v in dataclasses.asdict(options).items()}
    record = bench.new_record(name, given, found, time.perf_counter() - started, load_before)
    target = output / f"{bench.name_of(name, given)}.json"
    write_text(target, to_json(record))
    written = [str(target), *_plot(record, target.with_suffix(".png"))]
    if json:
        print(to_json(record), end="")
        return
    screen = console()
    bench_tables.show(screen, record)
    screen.print(f"wrote {' and '.join(written)}", soft_wrap=True)


def _plot(record: dict[str, Any], target: Path) -> list[str]:
    """Draw the plot where matplotlib is installed: hours of measuring should not fail for want of it."""
    from flexformer import viz

    try:
        write_bytes(target, viz.plot_of(record))
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        return ["no plot: matplotlib is not installed, pip install 'flexformer-pytorch[plots]'"]
    return [str(target)]


@contextmanager
def _progress() -> Iterator[Report]:
    """A bar on the terminal; elsewhere a line now and then. On stderr, for stdout may be JSON."""
    screen = console(errors=True)
    if screen.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=screen, transient=True) as bar:
            task = bar.add_task("starting", total=None)
            yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
        return
    said = time.monotonic()

    def say(what: str, done: int, total: int) -> None:
        nonlocal said
        if time.monotonic() - said >= PLAIN_PROGRESS_SECONDS:
            said = time.monotonic()
            screen.print(f"{what} ({done}/{total})", soft_wrap=True)

    yield say
