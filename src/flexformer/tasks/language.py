"""Language modelling: which token comes next?"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from flexformer.tasks.base import SPLITS, Split, data_root
from flexformer.tasks.corpus import PYTHON, Corpus, Unit, find
from flexformer.tasks.progress import Progress, silent
from flexformer.tasks.tokenizer import byte_tokenizer, word_tokenizer
from flexformer.tasks.tokens import BYTES, EOS, NEWLINE, PAD_WORD, TokenFiles

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

IGNORED = -100  # a label that is not scored


class Blocks(Dataset[dict[str, Tensor]]):
    """A stream of tokens cut into blocks, none left out and none twice; the last may be shorter.

    An item is {"input_ids": LongTensor (T,), "labels": LongTensor (T,)}: labels are the block, inputs the same one
    token earlier, so that every token of the stream is predicted.

    Args:
        tokens: (N,) ids.
        length: of a block.
        before: what stands before the stream.
        indices: Only these blocks.
    """

    def __init__(self, tokens: np.ndarray, length: int, before: int, indices: np.ndarray | None = None) -> None:
        self.tokens, self.length, self.before, self.indices = tokens, length, before, indices

    def __len__(self) -> int:
        return -(-len(self.tokens) // self.length) if self.indices is None else len(self.indices)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is outside a dataset of {len(self)} blocks")
        row = range(len(self))[index] if self.indices is None else int(self.indices[index])
        start = row * self.length
        stop = min(start + self.length, len(self.tokens))
        known = np.empty(stop - start + 1, np.int64)
        known[0] = self.tokens[start - 1] if start else self.before
        known[1:] = self.tokens[start:stop]
        ids = torch.from_numpy(known)
        return {"input_ids": ids[:-1], "labels": ids[1:]}


class LanguageModelling:
    """A text cut into blocks; every token is predicted once from those before it in its block.

    `prepare()` builds the files of token ids, `dataset(split)` reads them, `collate` makes batches and `metrics` says
    how well blocks were predicted.

    Args:
        root: The folder data lives in; default $FLEXFORMER_DATA, else ~/.cache/flexformer/data.
        source: "python" for the standard library's own sources, "wikitext103", "wikitext2" or "enwik8" under the root,
            a text file, a folder, or a Hugging Face `datasets` id.
        unit: "word" for words at white space with `</s>` after each line, "byte" for UTF-8 bytes; default what is usual
            for the source.
        length: Tokens of a block; the paper's 512.
        vocab_limit: Keep at most this many words.
        min_count: Keep words that occur at least so often; others are `<unk>`.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        source: str = PYTHON,
        unit: Unit | None = None,
        length: int = 512,
        vocab_limit: int | None = None,
        min_count: int = 1,
    ) -> None:
        if unit is not None and unit not in get_args(Unit):
            raise ValueError(f"unit {unit!r} is unknown; use one of {', '.join(get_args(Unit))}")
        for name, value in (("length", length), ("min_count", min_count), ("vocab_limit", vocab_limit)):
            if value is not None and value < 1:
                raise ValueError(f"{name} {value} is too small; use 1 or more")
        self.root = data_root(root)
        self.source = source
        self.asked_unit = unit
        self.length = length
        self.vocab_limit = vocab_limit
        self.min_count = min_count

    @cached_property
    def corpus(self) -> Corpus:
        """The text; raises `MissingDataError` where it is not there."""
        return find(self.source, self.root, self.asked_unit)

    @property
    def unit(self) -> Unit:
        """What a token is."""
        return self.asked_unit or self.corpus.unit

    @cached_property
    def tokens(self) -> TokenFiles:
        """The files of token ids, which `prepare` writes."""
        return TokenFiles(self.root / "lm", self.corpus, self.unit, self.vocab_limit, self.min_count)

    @cached_property
    def words(self) -> list[str] | None:
        """What ids stand for; None for bytes."""
        return self.tokens.words()

    @property
    def vocab_size(self) -> int:
        """Distinct ids; of words known once `prepare` has read them."""
        return BYTES if self.unit == "byte" else len(self.words or ())

    @property
    def start_token(self) -> int:
        """What stands before a text: the end of a line."""
        return NEWLINE if self.unit == "byte" else EOS

    @property
    def pad_token(self) -> int:
        """Fills up batches, never scored."""
        return 0 if self.unit == "byte" else PAD_WORD

    def prepare(self, progress: Progress = silent) -> None:
        """Build the token files unless they are there already.

        Args:
            progress: Called as progress(done, total) while work goes on.

        Raises:
            MissingDataError: There is no such text.
            CorruptDataError: It is empty, or token files are damaged.
        """
        self.tokens.build(progress)

    def dataset(self, split: Split, *, limit: int | None = None) -> Blocks:
        """The blocks of a split.

        Args:
            split: "train", "validation" or "test".
            limit: Keep only so many blocks, drawn from all over the text and always the same ones.
        """
        if split not in SPLITS:
            raise ValueError(f"split {split!r} is unknown; use one of {', '.join(SPLITS)}")
        if limit is not None and limit < 1:
            raise ValueError(f"limit {limit} leaves no blocks; use 1 or more, or None for all")
        blocks = Blocks(self.tokens.read(split), self.length, self.start_token)
        if limit is not None and limit < len(blocks):
            blocks.indices = np.sort(np.random.default_rng(0).permutation(len(blocks))[:limit])
        return blocks

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The vocabulary as a tokenizer for Hugging Face's tools."""
        return byte_tokenizer() if self.words is None else word_tokenizer(self.words)

    def collate(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Blocks as one batch.

        Returns:
            input_ids (B, T), shift_labels (B, T) with the token after each, -100 where a block is padded, and key_mask
            (B, T) that is True at tokens.
        """
        ids = _filled([example["input_ids"] for example in examples], self.pad_token)
        labels = _filled([example["labels"] for example in examples], IGNORED)
        return {"input_ids": ids, "shift_labels": labels, "key_mask": labels != IGNORED}

    def metrics(self, surprise: Tensor | np.ndarray, counts: Tensor | np.ndarray) -> dict[str, float]:
        """What all blocks together give.

        Args:
            surprise: (B,) -log p in nats, summed over each block.
            counts: (B,) tokens in it.

        Returns:
            loss in nats per token, perplexity e^loss, and for bytes the loss in bits.
        """
        total, count = (torch.as_tensor(x).double().sum().item() for x in (surprise, counts))
        loss = total / count
        found = {"loss": loss, "perplexity": math.exp(loss) if loss < 700 else math.inf}
        return found | ({"bits_per_byte": loss / math.log(2)} if self.unit == "byte" else {})


def _filled(sequences: Sequence[Tensor], filler: int) -> Tensor:
    filled = torch.full((len(sequences), max(map(len, sequences))), filler, dtype=torch.long)
    for row, sequence in zip(filled, sequences, strict=True):
        row[: len(sequence)] = sequence
    return filled
