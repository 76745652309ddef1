"""What a converted model costs beside the original, and the report of a conversion."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from flexformer.bench.memory import Memory, Probe
from flexformer.bench.timing import Failure, Timing, alternate, fixed_threads
from flexformer.convert import load_adapter
from flexformer.distill.fidelity import fidelity_at
from flexformer.distill.pretrained import load_config, load_model, longest_input, positions
from flexformer.distill.report import length_warning, lengths_line
from flexformer.distill.texts import Texts
from flexformer.training.run import quiet_libraries

SHORTEST, LONGEST = 128, 4096
WARM_UP_TOKENS = 8
ORIGINAL, CONVERTED = "softmax", "converted"
MODELS = (ORIGINAL, CONVERTED)
OUTPUTS = {
    "embedding_cosine": "embedding cosine",
    "hidden_error": "hidden error",
    "softmax_perplexity": "perplexity, softmax",
    "perplexity": "perplexity",
    "same_token": "same token",
}
"""What is left of a model's outputs, with headings."""

Progress = Callable[[str], None]
Reading = Callable[[], Tensor]


@dataclass(frozen=True)
class Cost:
    """One model at one length, batch 1. What could not be measured is None."""

    model: str
    """softmax or converted"""
    length: int
    seconds: float | None
    """of reading the whole sequence"""
    peak_bytes: int | None
    """that reading it takes beyond the model and its inputs"""
    token_seconds: float | None
    """of one more token; language models alone"""
    cache_bytes: int | None
    """that are kept for the next token; language models alone"""
    outputs: dict[str, float] | None = None
    """of the converted model beside the original's on held-out text of this length, see `fidelity`"""
    note: str = ""
    """why something is missing"""


def lengths_for(base: str, wanted: Sequence[int] | None, extended: int | None = None) -> list[int]:
    """Lengths to measure at: those wanted, or powers of two up to the positions that the model has.

    Args:
        base: The pretrained model.
        wanted: Lengths that were asked for.
        extended: Tokens that its positions are extended to.
    """
    config = load_config(base)
    if wanted is None:
        top = min(extended or positions(config), LONGEST)
        return [n for n in (SHORTEST * 2**i for i in range(6)) if n <= top] or [top]
    most = extended or longest_input(config)
    for length in wanted:
        if length < 1:
            raise ValueError(f"lengths has {length}; use numbers of tokens")
        if most is not None and length > most:
            raise ValueError(f"lengths has {length}; {base} has positions for 1 to {most} tokens")
    return sorted(set(wanted))


def costs(
    base: str,
    adapter: str,
    lengths: Sequence[int],
    *,
    texts: Texts | None = None,
    positions: int | None = None,
    threads: int = 1,
    rounds: int = 5,
    seconds: float = 5.0,
    timeout: float = 120.0,
    progress: Progress = lambda note: None,
) -> list[Cost]:
    """Time, memory and outputs of a model before and after its conversion, measured in turn.

    Args:
        base: The pretrained model.
        adapter: Its kernels.
        lengths: Tokens of a sequence.
        texts: Outputs are compared on what was held out of them, at each length that there is enough of.
        positions: Tokens that the model's positions are extended to.
        threads: Of torch.
        rounds: How often each is timed.
        seconds: A model that has had this much time at a length is not timed again there.
        timeout: Seconds that one measurement of memory may take.
        progress: Told what is being measured.
    """
    with quiet_libraries():
        models = {name: _load(base, adapter if name == CONVERTED else None, positions) for name in MODELS}
    found: list[Cost] = []
    with fixed_threads(threads), Probe(threads, timeout, preload=["transformers", __name__]) as probe, torch.no_grad():
        for length in lengths:
            progress(f"{length} tokens: time")
            ids = _tokens(base, length)
            whole = {name: _reading(model, ids) for name, model in models.items()}
            times = alternate(whole, rounds=rounds, seconds=seconds)
            writing = {name: _Writing(model, ids) for name, model in models.items() if model.can_generate()}
            steps = alternate({name: each.step for name, each in writing.items()}, rounds=rounds, seconds=seconds)
            progress(f"{length} tokens: outputs")
            outputs = None if texts is None else fidelity_at(models[CONVERTED], texts, length)
            for name in MODELS:
                progress(f"{length} tokens: memory of {name}")
                target, step = f"{__name__}:prepare", steps.get(name)
                kernels = adapter if name == CONVERTED else None
                memory = probe.measure(target, base=base, adapter=kernels, length=length, positions=positions)
                found.append(
                    Cost(
                        model=name,
                        length=length,
                        seconds=_median(times[name]),
                        peak_bytes=memory.peak_bytes if isinstance(memory, Memory) else None,
                        token_seconds=None if step is None else _median(step),
                        cache_bytes=writing[name].cache_bytes if name in writing else None,
                        outputs=outputs if name == CONVERTED else None,
                        note="; ".join(x.reason for x in (times[name], memory, step) if isinstance(x, Failure)),
                    )
                )
    return found


def prepare(
    base: str, adapter: str | None, length: int, positions: int | None = None
) -> tuple[Reading, Reading, list[Tensor]]:
    """For `flexformer.bench.probe`: the call whose memory is measured."""
    model, ids = _load(base, adapter, positions), _tokens(base, length)
    torch.set_grad_enabled(False)  # for this process, which ends with the call
    return _reading(model, ids[:, :WARM_UP_TOKENS]), _reading(model, ids), [ids]


def _load(base: str, adapter: str | None, positions: int | None) -> Any:
    model = load_model(base, positions=positions).eval()
    return model if adapter is None else load_adapter(model, adapter)


def _tokens(base: str, length: int) -> Tensor:
    size = int(load_config(base).get_text_config().vocab_size)
    return torch.arange(length)[None] * 7 % size


def _reading(model: Any, ids: Tensor) -> Reading:
    mask = torch.ones_like(ids)
    options = {"use_cache": False} if model.can_generate() else {}
    return lambda: model.base_model(ids, attention_mask=mask, **options)[0]


class _Writing:
    """A language model that has read a text and goes on token by token."""

    def __init__(self, model: Any, ids: Tensor) -> None:
        read = ids[:, :-1] if ids.shape[1] > 1 else ids
        out = model(read, attention_mask=torch.ones_like(read), use_cache=True)
        self.model, self.cache = model, out.past_key_values
        self.cache_bytes = sum(tensor.nbytes for layer in self.cache.layers for tensor in _tensors(vars(layer)))
        self.inputs: dict[str, Any] = {"input_ids": ids[:, -1:], "past_key_values": self.cache, "use_cache": True}
        if "position_ids" in inspect.signature(model.forward).parameters:
            # However many tokens are timed, there is a position for each: always the last one's.
            self.inputs["position_ids"] = torch.full((1, 1), ids.shape[1] - 1)

    def step(self) -> Tensor:
        logits: Tensor = self.model(**self.inputs).logits
        return logits


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)


def _median(timing: Timing | Failure) -> float | None:
    return timing.median if isinstance(timing, Timing) else None


def page(report: dict[str, Any], measured: Sequence[Cost]) -> str:
    """The report of a conversion as Markdown."""
    lines = [
        f"# {report['base']} with {report['attention']}",
        "",
        f"Kernels were distilled on {report['text']}; the figures are from text that was held out.",
        lengths_line(report),
        "",
        "## Attention weights, layer by layer",
        "",
        "KL is the cross-entropy above softmax's own entropy. The others are figures of the linear form, which is what "
        "runs: the error of its output relative to softmax's, the share of negative weights, and of rows whose weights "
        "sum to nothing or less.",
        "",
        "| layer | entropy | KL before | KL after | output error | negative weights | denominators <= 0 |",
        "|---|---|---|---|---|---|---|",
    ]
    for before, after in zip(report["before"]["layers"], report["after"]["layers"], strict=True):
        lines.append(
            f"| {after['layer']} | {after['entropy']:.3f} | {before['kl']:.3f} | {after['kl']:.3f} | "
            f"{after['output_error']:.3f} | {after['negative_weights']:.2%} | {after['nonpositive_denominators']:.2%} |"
        )
    lines += ["", "## Outputs beside those of the original", "", "| | before | after |", "|---|---|---|"]
    for name, value in report["after"]["outputs"].items():
        lines.append(f"| {name.replace('_', ' ')} | {report['before']['outputs'][name]:.4g} | {value:.4g} |")
    lines += ["", *_cost_lines(measured)]
    if (warning := warning_for(report, measured)) is not None:
        lines += ["", warning]
    return "\n".join(lines) + "\n"


def warning_for(report: dict[str, Any], measured: Sequence[Cost]) -> str | None:
    """What to know where costs were measured at lengths far beyond those that the kernels learned from."""
    return length_warning(report, max(cost.length for cost in measured))


def compared_outputs(measured: Sequence[Cost]) -> list[str]:
    """Those of `OUTPUTS` that there are figures of."""
    return [name for name in OUTPUTS if any(name in (cost.outputs or {}) for cost in measured)]


def _cost_lines(measured: Sequence[Cost]) -> list[str]:
    writes = any(cost.token_seconds is not None for cost in measured)
    headings = ["tokens", "ms, softmax", "ms", "peak MiB, softmax", "peak MiB"]
    headings += ["ms per token, softmax", "ms per token", "cache KiB, softmax", "cache KiB"] if writes else []
    kept = compared_outputs(measured)
    headings += [OUTPUTS[name] for name in kept]
    lines = ["## Cost and outputs against length", ""]
    if kept:
        lines += ["Outputs are compared on held-out text put together to sequences of each length.", ""]
    lines += [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    by_length: dict[int, dict[str, Cost]] = {}
    for cost in measured:
        by_length.setdefault(cost.length, {})[cost.model] = cost
    for length, pair in by_length.items():
        both = [pair[name] for name in MODELS]
        cells = [_cell(cost.seconds, 1e3) for cost in both] + [_cell(cost.peak_bytes, 2**-20) for cost in both]
        if writes:
            cells += [_cell(cost.token_seconds, 1e3) for cost in both]
            cells += [_cell(cost.cache_bytes, 2**-10) for cost in both]
        cells += [_cell((pair[CONVERTED].outputs or {}).get(name), 1.0) for name in kept]
        lines.append(f"| {length} | {' | '.join(cells)} |")
    return lines


def _cell(value: float | None, unit: float) -> str:
    return "–" if value is None else f"{value * unit:.3g}" if value * unit < 1000 else f"{value * unit:,.0f}"


def as_rows(measured: Sequence[Cost]) -> list[dict[str, Any]]:
    """Plain values, for JSON."""
    return [asdict(cost) for cost in measured]
