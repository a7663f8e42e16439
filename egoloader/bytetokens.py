"""Texts as their bytes: a tokenizer that needs no vocabulary file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from egoloader.errors import check_whole

__all__ = ["ByteTokenizer"]

_PAD, _EOS, _UNKNOWN = range(3)
_FIRST = _UNKNOWN + 1


@dataclass(frozen=True, slots=True)
class ByteTokenizer:
    """From texts to the bytes of their UTF-8, as ids.

    The ids are those of ByT5 (Xue et al., "ByT5: Towards a Token-Free Future with Pre-trained
    Byte-to-Byte Models", TACL 2022): 0 pads, 1 ends a text, 2 is unknown and never comes, and a
    byte b is b + 3. Half a surrogate pair, which JSON can hold, has three bytes like any other.

    Args:
        max_length: ids of a text at most, the one that ends it among them; of longer texts the
            last bytes are left out.

    Raises:
        SettingsError: a `max_length` that is no whole number above 0.
    """

    max_length: int = 128

    def __post_init__(self) -> None:
        check_whole("max_length", self.max_length, 1)

    @property
    def vocab_size(self) -> int:
        """How many ids there are: each is below it."""
        return _FIRST + 256

    @property
    def pad_id(self) -> int:
        """The id that pads."""
        return _PAD

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text; 1 at least, the one that ends it."""
        return [self._ids(text) for text in texts]

    def _ids(self, text: str) -> list[int]:
        kept = text[: self.max_length].encode("utf-8", "surrogatepass")[: self.max_length - 1]
        return [*(byte + _FIRST for byte in kept), _EOS]
