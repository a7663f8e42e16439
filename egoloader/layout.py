"""How one array lies on disk, parsed from its `zarr.json` (Zarr v3) or `.zarray` (Zarr v2).

Pure: takes parsed JSON, does no I/O. Zarr v3 core specification, section "Array metadata", and the
`sharding_indexed` codec; Zarr v2 specification, section "Arrays".
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from egoloader.errors import EpisodeFormatError

__all__ = ["ArrayLayout", "Codec", "parse_layout"]

_BYTES_SPELLINGS = frozenset({"bytes", "variable_length_bytes"})
#: Types of numbers as v3 calls them, and as v2 does. Others are not asked of NumPy, which makes
#: types of almost any text, and of none.
_NUMBERS = frozenset(
    {"bool", "float16", "float32", "float64"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
_NUMBERS_V2 = re.compile(r"[<>|](b1|[iu][1248]|f[248])")
_SEPARATORS = ("/", ".")
#: Rows that an array may have, padding among them.
MAX_ROWS = 2**27
#: Bytes of the largest row of numbers, and of the largest chunk, that metadata may promise.
MAX_CHUNK_BYTES = 2**31
#: What a row of variable length takes, however short it is.
_ROW_OF_BYTES = 64
#: Largest chunk of variable-length bytes, unpacked; one of numbers has the size of its shape.
MAX_BYTES_CHUNK = 2**30
#: What may come out of a chunk of bytes, and so many times what is stored of it.
UNPACKED_BYTES, UNPACKED_TIMES = 2**24, 128
#: Rows of one chunk of bytes, each of which is an object in memory.
MAX_BYTES_ROWS = 2**20
#: Chunks of one shard, each of which has 16 bytes in its index.
MAX_SHARD_CHUNKS = 2**24
#: Axes of an array, and codecs that a chunk may go through.
MAX_AXES = MAX_CODECS = 32
#: What an axis may have at most, so that products of some stay small numbers.
MAX_EXTENT = 2**53
#: What packing may add to a chunk, beyond an eighth of it: heads, checksums.
PACKING_BYTES = 2**16
#: Chunks that may lie side by side behind the axis of rows.
MAX_TAILS = 2**16


@dataclass(frozen=True, slots=True)
class Codec:
    """One step of a chunk's encoding.

    Attributes:
        name: as Zarr v3 calls it; the steps of a v2 array are called the same.
        configuration: its settings, as the metadata has them.
    """

    name: str
    configuration: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """Shape, chunks and codecs of one array.

    Attributes:
        shape: the array's shape; rows along the first axis.
        chunk_shape: the decode unit: the inner chunk where sharded, else the chunk.
        shard_shape: the fetch unit where sharded, else None.
        dtype: the numbers' dtype; None for rows of variable length.
        kind: `numeric`, `bytes` (variable-length bytes), or `other`, which egoloader can't read.
        type_name: the data type as the metadata spells it.
        chain: the codecs that a chunk goes through, in encoding order.
        fill_value: what a chunk that is not stored holds, as the metadata spells it.
        index_at_end: whether the shard's index is at its end, not its start.
        index_has_crc: whether the index carries a crc32c.
        index_is_plain: whether the index can be read from the shard's file as it is: little
            endian, with at most a crc32c behind it.
        separator: between the chunk coordinates in a chunk's path.
        chunk_prefix: what a chunk's path starts with, below the array: `c` or nothing.
        zarr_format: 2 or 3.
    """

    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    shard_shape: tuple[int, ...] | None
    dtype: np.dtype[Any] | None
    kind: Literal["numeric", "bytes", "other"]
    type_name: str
    chain: tuple[Codec, ...]
    fill_value: Any
    index_at_end: bool
    index_has_crc: bool
    index_is_plain: bool
    separator: str
    chunk_prefix: str
    zarr_format: int

    @property
    def codecs(self) -> tuple[str, ...]:
        """Names of the codecs of a chunk, in encoding order."""
        return tuple(codec.name for codec in self.chain)

    @property
    def stored_limit(self) -> int:
        """Bytes that a stored chunk may have; a whole shard where zarr-python may read it whole."""
        shape = self.chunk_shape if self.index_is_plain else self.object_shape
        most = MAX_BYTES_CHUNK
        if self.dtype is not None:
            # A codec may store wider numbers than it gives back.
            most = min(8 * math.prod(shape) * self.dtype.itemsize, MAX_CHUNK_BYTES)
        return most + most // 8 + PACKING_BYTES * (1 + len(self.chain))

    def unpacked_limit(self, stored: int) -> int:
        """Return the bytes that may come out of some stored ones on their way through the codecs.

        Rows of bytes have no declared size. JPEGs can't be packed, texts some dozen times.
        """
        if self.kind != "bytes":
            return self.stored_limit
        return min(self.stored_limit, UNPACKED_BYTES + UNPACKED_TIMES * stored)

    @property
    def rows(self) -> int:
        """Stored rows, padding among them."""
        return self.shape[0] if self.shape else 0

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one row; () for variable-length bytes."""
        return self.shape[1:]

    @property
    def chunk_rows(self) -> int:
        """Rows of one decoded chunk."""
        return self.chunk_shape[0]

    @property
    def object_shape(self) -> tuple[int, ...]:
        """The shape of one stored object: a shard where there are any, else a chunk."""
        return self.shard_shape or self.chunk_shape

    @property
    def chunks_per_shard(self) -> tuple[int, ...]:
        """Inner chunks of a shard along each axis; ones where the array isn't sharded."""
        return tuple(o // c for o, c in zip(self.object_shape, self.chunk_shape, strict=True))

    def object_path(self, coords: Sequence[int]) -> str:
        """Return the path below the array of the stored object at grid coordinates `coords`."""
        joined = self.separator.join(str(c) for c in coords)
        if not self.chunk_prefix:
            return joined
        return f"{self.chunk_prefix}{self.separator}{joined}"


def parse_layout(metadata: Mapping[str, Any], *, episode: str, key: str) -> ArrayLayout:
    """Parse an array's metadata.

    Args:
        metadata: the parsed `zarr.json` or `.zarray`.
        episode: named in errors.
        key: named in errors.

    Raises:
        EpisodeFormatError: the metadata is not that of an array, or contradicts itself.
    """
    try:
        layout = _parse_v2(metadata) if metadata.get("zarr_format") == 2 else _parse_v3(metadata)
        _check_grid(layout)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise EpisodeFormatError(
            f"the array's metadata can't be understood: {what}", episode=episode, key=key
        ) from error
    return layout


def _extent(value: Any, name: str) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or not all(type(n) is int and n >= 0 for n in value):
        raise ValueError(f"{name} must be a list of whole numbers, got {value!r:.200}")
    if len(value) > MAX_AXES:
        raise ValueError(f"{name} has {len(value)} axes, the limit is {MAX_AXES}")
    if max(value, default=0) > MAX_EXTENT:
        raise ValueError(f"{name} reaches {max(value)}, the limit is {MAX_EXTENT}")
    return tuple(value)


def _choice(value: Any, choices: tuple[str, ...]) -> str:
    """Return one of the choices; a separator that is none could lead out of the episode."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"one of {choices} is expected, got {value!r}")
    return value


def _codecs(value: Any, name: str = "name") -> tuple[Codec, ...]:
    """Return a chain of codecs, each of a name and settings; in v2 these are all that it has."""
    if not isinstance(value, list | tuple) or len(value) > MAX_CODECS:
        raise ValueError(f"codecs must be a list of at most {MAX_CODECS}, got {value!r:.200}")
    chain = []
    for one in value:
        configuration = one if name == "id" else one.get("configuration") or {}
        if not isinstance(one[name], str) or not isinstance(configuration, Mapping):
            raise ValueError(f"a codec has a name and settings, got {one!r:.200}")
        chain.append(Codec(one[name], configuration))
    return tuple(chain)


def _parse_v3(metadata: Mapping[str, Any]) -> ArrayLayout:
    if metadata.get("node_type") != "array" or metadata.get("zarr_format") != 3:
        raise ValueError(f"node_type is {metadata.get('node_type')!r}, not 'array'")
    grid = metadata["chunk_grid"]
    if grid["name"] != "regular":
        raise ValueError(f"chunk grid {grid['name']!r} is not supported, only 'regular'")
    outer = _extent(grid["configuration"]["chunk_shape"], "chunk_shape")
    if metadata.get("storage_transformers"):
        raise ValueError("storage transformers, which lie around the stored chunks, are not known")
    codecs = outermost = _codecs(metadata["codecs"])
    shard, inner, index_at_end = None, outer, True
    index_codecs: tuple[Codec, ...] = ()
    if codecs and codecs[0].name == "sharding_indexed":
        sharding = codecs[0].configuration
        shard, inner = outer, _extent(sharding["chunk_shape"], "chunk_shape")
        codecs = _codecs(sharding["codecs"])
        index_at_end = _choice(sharding.get("index_location", "end"), ("start", "end")) == "end"
        index_codecs = _codecs(sharding["index_codecs"])
    separator, prefix = _parse_encoding(metadata.get("chunk_key_encoding", {"name": "default"}))
    kind, dtype, type_name = _parse_type_v3(metadata["data_type"])
    return ArrayLayout(
        shape=_extent(metadata["shape"], "shape"),
        chunk_shape=inner,
        shard_shape=shard,
        dtype=dtype,
        kind=kind,
        type_name=type_name,
        chain=codecs,
        fill_value=metadata.get("fill_value"),
        index_at_end=index_at_end,
        index_has_crc=any(codec.name == "crc32c" for codec in index_codecs),
        # A codec around the whole shard hides its index.
        index_is_plain=_is_plain(index_codecs) and len(outermost) == 1,
        separator=separator,
        chunk_prefix=prefix,
        zarr_format=3,
    )


def _parse_encoding(encoding: Mapping[str, Any]) -> tuple[str, str]:
    """Return separator and prefix of chunks' paths."""
    default = _choice(encoding["name"], ("default", "v2")) == "default"
    separator = encoding.get("configuration", {}).get("separator", "/" if default else ".")
    return _choice(separator, _SEPARATORS), "c" if default else ""


def _is_plain(index_codecs: Sequence[Codec]) -> bool:
    names = [codec.name for codec in index_codecs]
    if names not in (["bytes"], ["bytes", "crc32c"]):
        return False
    return bool(index_codecs[0].configuration.get("endian", "little") == "little")


def _parse_v2(metadata: Mapping[str, Any]) -> ArrayLayout:
    filters = [f["id"] for f in metadata.get("filters") or []]
    chunk = _extent(metadata["chunks"], "chunks")
    type_name = str(metadata["dtype"])
    kind: Literal["numeric", "bytes", "other"] = "other"
    dtype = None
    if type_name == "|O" and "vlen-bytes" in filters:
        kind = "bytes"
    elif _NUMBERS_V2.fullmatch(type_name):
        kind, dtype = "numeric", np.dtype(type_name).newbyteorder("=")
    return ArrayLayout(
        shape=_extent(metadata["shape"], "shape"),
        chunk_shape=chunk,
        shard_shape=None,
        dtype=dtype,
        kind=kind,
        type_name=type_name,
        chain=_chain_v2(metadata, len(chunk)),
        fill_value=metadata.get("fill_value"),
        index_at_end=True,
        index_has_crc=False,
        index_is_plain=True,
        separator=_choice(metadata.get("dimension_separator", "."), _SEPARATORS),
        chunk_prefix="",
        zarr_format=2,
    )


def _chain_v2(metadata: Mapping[str, Any], num_axes: int) -> tuple[Codec, ...]:
    """Return the steps that v3 would list for a v2 array's order, byte order and compressor."""
    chain: list[Codec] = []
    if _choice(metadata.get("order", "C"), ("C", "F")) == "F" and num_axes > 1:
        chain.append(Codec("transpose", {"order": list(reversed(range(num_axes)))}))
    filters = metadata.get("filters") or []
    compressor = metadata.get("compressor")
    if not any(one["id"] == "vlen-bytes" for one in filters):
        is_big = str(metadata["dtype"]).startswith(">")
        chain.append(Codec("bytes", {"endian": "big" if is_big else "little"}))
    return (*chain, *_codecs([*filters, *filter(None, [compressor])], "id"))


def _parse_type_v3(
    data_type: Any,
) -> tuple[Literal["numeric", "bytes", "other"], np.dtype[Any] | None, str]:
    name = str(data_type["name"] if isinstance(data_type, Mapping) else data_type)
    if name in _BYTES_SPELLINGS:
        return "bytes", None, name
    if name not in _NUMBERS:
        return "other", None, name
    return "numeric", np.dtype(name), name


def _check_grid(layout: ArrayLayout) -> None:
    if not layout.shape:
        raise ValueError("the array has no axis of rows")
    if not len(layout.shape) == len(layout.chunk_shape) == len(layout.object_shape):
        raise ValueError(
            f"shape {layout.shape}, chunks {layout.chunk_shape} and shards {layout.shard_shape} "
            "differ in their number of axes"
        )
    if math.prod(layout.shape) == 0:
        return  # nothing is stored, and writers are known to put zeros into such a grid
    if 0 in layout.chunk_shape or 0 in layout.object_shape:
        raise ValueError(f"chunks {layout.chunk_shape} of shards {layout.shard_shape} hold nothing")
    for side, chunk in zip(layout.object_shape, layout.chunk_shape, strict=True):
        if side % chunk:
            raise ValueError(
                f"shard {layout.object_shape} is no multiple of chunk {layout.chunk_shape}"
            )
    _check_sizes(layout)


def _item_bytes(layout: ArrayLayout) -> int:
    """Return the bytes of one number; of other items, those that they have in memory at least."""
    if layout.dtype is not None:
        return layout.dtype.itemsize
    length = re.fullmatch(r"[<>|=]?[SU](\d{1,15})", layout.type_name, re.ASCII)
    return _ROW_OF_BYTES if length is None else 4 * int(length[1])


def _check_sizes(layout: ArrayLayout) -> None:
    """Refuse sizes that nobody records, before any memory is asked for."""
    if layout.rows > MAX_ROWS:
        raise ValueError(f"it has {layout.rows} rows, the limit is {MAX_ROWS}")
    item = _item_bytes(layout)
    sizes = {"a row": layout.row_shape, "a chunk": layout.chunk_shape}
    if not layout.index_is_plain:
        sizes["a shard, which zarr-python may read whole,"] = layout.object_shape
    for what, shape in sizes.items():
        size = math.prod(shape) * item
        if size > MAX_CHUNK_BYTES:
            raise ValueError(f"{what} has {size} bytes, the limit is {MAX_CHUNK_BYTES}")
    if layout.kind == "bytes" and math.prod(layout.chunk_shape) > MAX_BYTES_ROWS:
        rows = math.prod(layout.chunk_shape)
        raise ValueError(f"a chunk has {rows} rows of bytes, the limit is {MAX_BYTES_ROWS}")
    if math.prod(layout.chunks_per_shard) > MAX_SHARD_CHUNKS:
        chunks = math.prod(layout.chunks_per_shard)
        raise ValueError(f"a shard has {chunks} chunks, the limit is {MAX_SHARD_CHUNKS}")
    sides = zip(layout.row_shape, layout.chunk_shape[1:], strict=True)
    tails = math.prod(-(-extent // side) for extent, side in sides)
    if tails > MAX_TAILS:
        raise ValueError(f"a row is spread over {tails} chunks, the limit is {MAX_TAILS}")
