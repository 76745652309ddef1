"""The ids of a language model as a tokenizer of Hugging Face's, saved beside the weights as tokenizer.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flexformer.tasks.tokens import BYTES, SPECIALS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD_BYTE = "\0"


def word_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """Words divided at white space, `</s>` for the end of a line, `<unk>` for words that are not in the vocabulary.

    Args:
        words: By id, the special symbols first.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    _, pad, eos, unk = SPECIALS
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=unk))
    tokenizer.normalizer = normalizers.Replace("\n", f" {eos} ")
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(Regex("^"), " "), decoders.Replace(f" {eos}", "\n"), decoders.Fuse()]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,  # the end of a line is a word like others: it must neither stop a text nor be left out of it
        unk_token=unk,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """UTF-8 bytes, each its own id; zero, which texts do not have, fills up batches."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    symbols = _byte_symbols()
    symbols[0] = PAD_BYTE  # the symbol that stands for the byte 0 is a letter that texts do have
    tokenizer = Tokenizer(models.BPE({symbol: number for number, symbol in enumerate(symbols)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD_BYTE,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def _byte_symbols() -> list[str]:
    """The printable character that byte-level tokenizers write for each byte: itself, or the next one free."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    symbols, free = [], BYTES
    for byte in range(BYTES):
        symbols.append(chr(byte if byte in printable else free))
        free += byte not in printable
    return symbols
