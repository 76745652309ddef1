"""`flexformer generate`: let a language model write."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, TextStreamer

from flexformer.bench.generation import TokenCost, token_costs, with_attention
from flexformer.cli.main import UserError, console, print_json
from flexformer.convert import load as load_converted
from flexformer.convert import manifest
from flexformer.convert.swap import CONFIG_KEY
from flexformer.distill.pretrained import longest_input, with_start
from flexformer.inspection.weights import NoWeightsError, weights_of
from flexformer.models import CausalLM
from flexformer.models.cache import state_bytes
from flexformer.training.run import quiet_libraries

TAIL = 16  # tokens of the prompt that new ones are decoded after


def generate(
    checkpoint: Path,
    prompt: str = "",
    tokens: int = 200,
    greedy: bool = False,
    temperature: float = 0.8,
    top_k: int = 0,
    top_p: float = 1.0,
    beams: int = 1,
    chunk: int | None = None,
    seed: int = 0,
    base: str | None = None,
    compare: str | None = None,
    contexts: list[int] = [128, 512, 2048, 8192],  # noqa: B006  (never changed)
    json: bool = False,
) -> int:
    """Write a continuation of a prompt with a trained language model, token by token.

    The text goes to the output as it is written; speed and the memory of the state to the error stream. With --compare
    the same model with another attention is timed beside it, after contexts of growing length.

    Args:
        checkpoint: The folder of a run, of a checkpoint in it, of an adapter, or of any causal model, converted ones
            too.
        prompt: What to continue; nothing by default.
        tokens: How many to write.
        greedy: Always take the likeliest token instead of drawing one.
        temperature: Below 1 for likelier tokens, above 1 for more varied ones.
        top_k: Draw among so many of the likeliest tokens; 0 for all.
        top_p: Draw among the likeliest tokens that make up this share; 1 for all.
        beams: Follow this many continuations and write the likeliest as a whole, without drawing.
        chunk: Read the prompt in pieces of so many tokens, to save memory.
        seed: Of what is drawn.
        base: The model that an adapter was made for, where it is not found under the name it had.
        compare: Also time this attention in place of the model's own, such as softmax.
        contexts: Lengths for --compare.
        json: Print text and figures as JSON.

    Example:
        flexformer generate runs/lm-flexformer-n-cpu-0 --prompt "def main(" --tokens 300 --compare softmax
    """
    for name, value in (("tokens", tokens), ("beams", beams), ("chunk", 1 if chunk is None else chunk)):
        if value < 1:
            raise UserError(f"{name} {value} is too small; use 1 or more")
    if not temperature > 0:
        raise UserError(f"temperature {temperature} is too small; use more than 0, or --greedy")
    if not 0 < top_p <= 1:
        raise UserError(f"top_p {top_p} is no share of all tokens; use more than 0 and at most 1")
    if top_k < 0:
        raise UserError(f"top_k {top_k} is negative; use 0 or more")
    notes = console(errors=True)
    how: dict[str, Any] = {"do_sample": False, "num_beams": beams}
    if not greedy and beams == 1:
        how = {"do_sample": True, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    with quiet_libraries():
        model, tokenizer = load(checkpoint, base)
        rival = None if compare is None else _rival(model, compare)
        ids = _read(prompt, model, tokenizer, notes)
        _check_lengths([model], ids.shape[1] + tokens, [])
        if rival is not None:
            _check_lengths([model, rival], 0, contexts)
        torch.manual_seed(seed)
        if not json:
            print(prompt, end="", flush=True)
        written = _write(model, tokenizer, ids, how | {"max_new_tokens": tokens, "prefill_chunk_size": chunk}, not json)
        costs = [] if rival is None else _compare((model, rival), contexts, notes)
    if json:
        print_json({"prompt": prompt, **asdict(written), "costs": [asdict(cost) for cost in costs]})
        return 0
    notes.print(
        f"{written.tokens} tokens, {written.tokens_per_second:.0f} a second; {_size(written.state_bytes)} remember "
        f"{written.context:,} tokens"
    )
    if costs:
        console().print(_table(costs))
    return 0


@dataclass(frozen=True)
class _Written:
    text: str
    tokens: int
    tokens_per_second: float
    seconds: float
    context: int
    state_bytes: int


def _write(model: Any, tokenizer: Any, ids: torch.Tensor, how: dict[str, Any], aloud: bool) -> _Written:
    """Continue `ids` (1, T), aloud token by token, save with beams, which are chosen in the end."""
    beams = how.get("num_beams", 1) > 1
    streamer = _TimedStreamer(tokenizer, aloud)
    how = how if beams else how | {"streamer": streamer}
    started = time.perf_counter()
    found = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), return_dict_in_generate=True, use_cache=True, **how
    )
    seconds = time.perf_counter() - started
    new = found.sequences[0, ids.shape[1] :]
    tail = tokenizer.decode(ids[0, -TAIL:])
    text = tokenizer.decode(torch.cat((ids[0, -TAIL:], new)))[len(tail) :]
    if aloud:
        print(text if beams else "")
    cache = found.past_key_values
    rate = streamer.rate or len(new) / seconds
    return _Written(text, len(new), rate, seconds, int(cache.get_seq_length()), state_bytes(cache))


def load(path: Path, base: str | None = None) -> tuple[PreTrainedModel, Any]:
    """A causal model and its tokenizer; an adapter, which has none, writes with that of its base.

    Args:
        path: Of a run, of a model or of an adapter.
        base: The model that an adapter was made for, where it does not have the name it had.
    """
    try:
        folder = weights_of(path)
    except NoWeightsError as error:
        raise UserError(str(error)) from None
    is_adapter = (folder / manifest.FILE).is_file()
    if base is not None and not is_adapter:
        raise UserError(f"base {base} is for adapters; {folder} holds a whole model")
    is_converted = is_adapter or hasattr(AutoConfig.from_pretrained(folder, trust_remote_code=False), CONFIG_KEY)
    try:
        if is_converted:
            model = load_converted(folder) if base is None else load_converted(base, folder)
        else:
            model = _load_whole(folder)
    except SafetensorError as error:
        raise UserError(f"{folder} holds weights that are damaged: {error}") from error
    if not model.can_generate():
        raise UserError(f"{folder} holds a {type(model).__name__}, which does not generate; name a language model")
    has_words = not is_adapter or (folder / "tokenizer_config.json").is_file()
    words = folder if has_words else model.name_or_path
    return model.eval(), AutoTokenizer.from_pretrained(words, trust_remote_code=False)


def _load_whole(folder: Path) -> PreTrainedModel:
    """A causal model all of whose weights are there: of an encoder, the head would be drawn at random."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, use_safetensors=True, trust_remote_code=False
    )
    model: PreTrainedModel = loaded[0]
    if missing := sorted(loaded[1]["missing_keys"]):
        raise UserError(f"{folder} holds no whole language model: {missing[0]} is not there")
    return model


def _read(prompt: str, model: PreTrainedModel, tokenizer: Any, notes: Console) -> torch.Tensor:
    """(1, T) token ids; of nothing, what stands before a text.

    A pretrained model gets the start token that distillation and fine-tuning put before every text.
    """
    found = tokenizer(prompt).input_ids
    if not isinstance(model, CausalLM):
        found = with_start(found, model.config, tokenizer)
    if not found:
        start = model.config.bos_token_id
        if start is None:
            raise UserError("prompt is empty and this model has no token to start with; give it a prompt")
        found = [start]
    unknown = found.count(tokenizer.unk_token_id) if tokenizer.unk_token_id is not None else 0
    if unknown:
        notes.print(f"{unknown} of {len(found)} words are not in the vocabulary and are read as {tokenizer.unk_token}")
    return torch.tensor([found], device=model.device)


def _check_lengths(models: Iterable[Any], tokens: int, contexts: list[int]) -> None:
    """Refuse what models with a longest length cannot read."""
    for model in models:
        own = isinstance(model, CausalLM)
        longest = model.config.longest if own else longest_input(model.config)
        if longest is not None and max([tokens, *contexts]) > longest:
            asked = f"prompt and tokens make {tokens}" if tokens > longest else f"contexts {max(contexts)} is too long"
            having = f"with {model.config.attention} " if own else ""
            raise UserError(f"{asked}; {having}this model reads {longest} tokens at most")


class _TimedStreamer(TextStreamer):
    """Writes text as it comes, and knows when the first and the last token came."""

    def __init__(self, tokenizer: Any, aloud: bool) -> None:
        super().__init__(tokenizer, skip_prompt=True)
        self.aloud = aloud
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        if self.next_tokens_are_prompt:
            # Some tokenizers drop the space before a first word, so new words must not be the first.
            self.next_tokens_are_prompt = False
            self.token_cache = value.flatten().tolist()[-TAIL:]
            self.print_len = len(self.tokenizer.decode(self.token_cache))
            return
        self.times.append(time.perf_counter())
        super().put(value)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        if self.aloud:
            print(text, end="", flush=True)

    @property
    def rate(self) -> float | None:
        """Tokens a second after the first, which waits for the prompt to be read."""
        return (len(self.times) - 1) / (self.times[-1] - self.times[0]) if len(self.times) > 1 else None


def _rival(model: PreTrainedModel, attention: str) -> CausalLM:
    if not isinstance(model, CausalLM):
        raise UserError(f"compare {attention} is for models of flexformer train lm; this is a {type(model).__name__}")
    return with_attention(model, attention)


def _compare(models: Iterable[Any], contexts: list[int], notes: Console) -> list[TokenCost]:
    costs: list[TokenCost] = []
    with notes.status("timing") as status:

        def show(what: str, done: int, total: int) -> None:
            status.update(f"{escape(what)}, {done:,} of {total:,} tokens")

        for candidate in models:
            costs += token_costs(candidate, contexts, progress=show)
    return costs


def _table(costs: list[TokenCost]) -> Table:
    names = list(dict.fromkeys(cost.attention for cost in costs))
    table = Table(title="One more token after a context", title_justify="left")
    table.add_column("context", justify="right")
    for name in names:
        table.add_column(f"{name}\nms", justify="right")
        table.add_column("\nmemory", justify="right")
    for context in sorted({cost.context for cost in costs}):
        cells = [cost for name in names for cost in costs if (cost.attention, cost.context) == (name, context)]
        numbers = [text for c in cells for text in (f"{1000 * c.seconds:.2f}", _size(c.state_bytes))]
        table.add_row(f"{context:,}", *numbers)
    return table


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"
