"""The index of a shard: where each inner chunk lies in the shard's file.

Zarr's `sharding_indexed` codec: for each inner chunk, in C order, offset and length as two uint64
little endian, both 2**64 - 1 for a chunk that isn't stored; then, as a rule, a crc32c of it all.
"""

from __future__ import annotations

import google_crc32c
import numpy as np
import numpy.typing as npt

__all__ = ["EMPTY", "crc32c", "decode_index", "encode_index", "index_size"]

#: Offset and length of a chunk that the shard does not hold.
EMPTY = 2**64 - 1

IndexArray = npt.NDArray[np.uint64]


def crc32c(data: bytes) -> bytes:
    """Return the 4 bytes, little endian, that Zarr's `crc32c` codec puts behind `data`."""
    return int(google_crc32c.value(data)).to_bytes(4, "little")


def index_size(num_chunks: int, *, has_crc: bool) -> int:
    """Return the size in bytes of the index of a shard of `num_chunks` inner chunks."""
    return 16 * num_chunks + (4 if has_crc else 0)


def encode_index(offsets: npt.ArrayLike, lengths: npt.ArrayLike) -> bytes:
    """Encode an index with its crc32c.

    Args:
        offsets: (n,) bytes from the shard's start to each chunk, in C order.
        lengths: (n,) bytes of each chunk.
    """
    pairs = np.stack([np.asarray(offsets, "<u8"), np.asarray(lengths, "<u8")], axis=1)
    data = pairs.tobytes()
    return data + crc32c(data)


def decode_index(data: bytes | memoryview, num_chunks: int, *, has_crc: bool) -> IndexArray:
    """Decode an index into an (n, 2) array of offset and length.

    Raises:
        ValueError: the size is not that of such an index, or the crc32c does not match.
    """
    wanted = index_size(num_chunks, has_crc=has_crc)
    if len(data) != wanted:
        raise ValueError(f"the shard's index has {len(data)} bytes, not {wanted}")
    body = bytes(data[: 16 * num_chunks])
    if has_crc and crc32c(body) != data[16 * num_chunks :]:
        raise ValueError("the shard's index does not match its crc32c")
    return np.frombuffer(body, dtype="<u8").reshape(num_chunks, 2).astype(np.uint64)
