"""Edits of metadata: any leaf or key, lies that agree with each other, text that is no JSON."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence
from typing import Any

from tests.fuzz.bases import Base

__all__ = ["NEIGHBOUR", "Documents", "edit_documents", "hostile_row"]

#: Metadata files by their paths.
Documents = dict[str, Any]
#: An episode in the folder that the mutated one is in; nothing of it may be served.
NEIGHBOUR = "neighbour"
#: Deeper than the parser goes, and about as deep as it does.
_DEPTHS = (100_000, 900)
_HUGE = (10**6, 10**9, 10**13, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30)
_NAMES = ("", "x", "..", "../../x", f"../{NEIGHBOUR}/count", "/etc/passwd", "a/../b", "a\\b",
          "a\0b", "\ud800", "c", "zarr.json", "x" * 300, "count", "NaN", "AAAA")  # fmt: skip
_SCALARS = (None, True, False, 0, -1, 1, 2, 3, 7, 100, 0.5, -0.0, 1e308, math.nan, math.inf,
            -math.inf, -(10**13), *_HUGE, *_NAMES)  # fmt: skip
_TYPES: tuple[Any, ...] = (
          "float64", "int64", "int32", "uint8", "bool", "float16", "complex64", "<f4", ">f4", ">i8",
          "O", "|O", "M8[ns]", "S4", "U4", "V8", "f4,i4", "(2,)f4", "(1,f4", "f4,", "longdouble",
          "bytes", "variable_length_bytes", "string", "r32", "float32", "i", "",
          {"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1}},
          {"name": "float32"}, {"name": None}, {}, [["a", "<f4"]])  # fmt: skip
_CODECS: tuple[Any, ...] = (
           {"name": "bytes"}, {"name": "bytes", "configuration": {"endian": "big"}},
           {"name": "crc32c"}, {"name": "vlen-bytes"}, {"name": "vlen-utf8"}, {"name": "pickle"},
           {"name": "numcodecs.pickle"}, {"name": "numcodecs.lz4"}, {"name": "gzip"},
           {"name": "zstd", "configuration": {"level": 0, "checksum": True}}, "bytes", None, {},
           {"name": "transpose", "configuration": {"order": [1, 0]}},
           {"name": "transpose", "configuration": {"order": [0, 0]}},
           {"name": "blosc", "configuration": {"cname": "lz4", "typesize": 10**9}},
           {"id": "pickle"}, {"id": "zlib", "level": 1}, {"id": "delta"})  # fmt: skip
_ROWS = (b"", b"null", b"[]", b"{}", b"5", b"{", b"\xff\xfe", b"[" * 100_000, b"1" * 5000,
         b'{"text": 1, "start_idx": 0, "end_idx": 5}', b'{"text": "a", "start_idx": 0}',
         b'{"text": "a", "start_idx": -5, "end_idx": 99999999999999999999999}',
         b'{"text": "a", "start_idx": 7, "end_idx": 2}', b'{"text": "b", "start_idx": 2.5}',
         b'{"text": "\\ud800", "start_idx": 0, "end_idx": 3}', b'{"step": NaN}',
         b'{"text": "c", "start_idx": 1, "end_idx": 4}')  # fmt: skip
_SEPARATORS = (".", "/", "", "/./", "-", "\0", 5, None)


def hostile_row(rng: random.Random) -> bytes:
    """Return what is stored as a row of JSON."""
    return rng.choice(_ROWS)


def edit_documents(
    rng: random.Random, base: Base, files: Mapping[str, bytes]
) -> tuple[dict[str, bytes], str]:
    """Edit one metadata file or several; return those that are other now, and what was done."""
    names = [path for path in files if path.rpartition("/")[2] in _DOCUMENTS]
    if rng.random() < 0.08:
        path = rng.choice(names)
        return {path: rng.choice(_TEXTS)(rng, files[path])}, f"text of {path}"
    documents: Documents = {path: json.loads(files[path]) for path in names}
    told = rng.choice(_EDITS)(rng, base, documents)
    if rng.random() < 0.15:
        told += f"; {rng.choice(_EDITS)(rng, base, documents)}"
    changed = {path: json.dumps(documents[path]).encode() for path in names}
    was = {path: json.dumps(json.loads(files[path])).encode() for path in names}
    return {path: data for path, data in changed.items() if data != was[path]}, told


_DOCUMENTS = ("zarr.json", ".zarray", ".zattrs", ".zgroup")


# Text that is no JSON, or more than can be taken.


def _cut_within(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return (
        data[:at] + bytes(rng.choices(b'{}[]",:0 \0\xff\n', k=rng.randint(1, 5))) + data[at + 1 :]
    )


def _nested(rng: random.Random, data: bytes) -> bytes:
    depth = rng.choice(_DEPTHS)
    return data.rstrip()[:-1] + b', "x": ' + b"[" * depth + b"]" * depth + b"}"


def _huge_number(_: random.Random, data: bytes) -> bytes:
    return data.replace(b"10", b"1" * 5000, 1)


def _padded(rng: random.Random, data: bytes) -> bytes:
    # Seldom, as it takes a while to write.
    return data + b" " * (17 * 2**20 if rng.random() < 0.1 else 1000)


def _recoded(rng: random.Random, data: bytes) -> bytes:
    encoding = rng.choice(["utf-16", "utf-8-sig", "utf-32"])
    return data.decode().encode(encoding)


def _twice(_: random.Random, data: bytes) -> bytes:
    return data + data


_TEXTS: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    _cut_within, _nested, _huge_number, _padded, _recoded, _twice,
)  # fmt: skip


# Edits of what the text says.


def _edit_anything(rng: random.Random, _: Base, documents: Documents) -> str:
    """Change any one place of any file."""
    path = rng.choice([path for path in documents if documents[path]])
    holder, name = rng.choice(list(_places(documents[path])))
    op = rng.choice([_replace, _replace, _delete, _rename, _nudge, _wrap, _add])
    return f"{op.__name__.strip('_')} {name!r} of {path}: {op(rng, holder, name)!r:.60}"


def _places(value: Any) -> Any:
    """Yield every place: a container, and a key or number in it."""
    items: Any = ()
    if isinstance(value, MutableMapping):
        items = list(value.items())
    elif isinstance(value, MutableSequence):
        items = list(enumerate(value))
    for name, item in items:
        yield value, name
        yield from _places(item)


def _replace(rng: random.Random, holder: Any, name: Any) -> Any:
    holder[name] = _anything(rng)
    return holder[name]


def _anything(rng: random.Random) -> Any:
    kind = rng.random()
    if kind < 0.75:
        return rng.choice(_SCALARS)
    if kind < 0.85:
        return [rng.choice(_SCALARS) for _ in range(rng.randint(0, 3))]
    if kind < 0.95:
        return {str(rng.choice(_NAMES)): rng.choice(_SCALARS) for _ in range(rng.randint(0, 2))}
    nested: Any = 0
    for _ in range(rng.choice([5, 300])):
        nested = [nested]
    return nested


def _delete(_: random.Random, holder: Any, name: Any) -> Any:
    return holder.pop(name)


def _rename(rng: random.Random, holder: Any, name: Any) -> Any:
    value, other = holder.pop(name), rng.choice(_NAMES)
    if isinstance(holder, MutableMapping):
        holder[other] = value
    else:
        holder.insert(rng.randint(0, len(holder)), value)
    return other


def _nudge(rng: random.Random, holder: Any, name: Any) -> Any:
    value = holder[name]
    if isinstance(value, int | float) and not isinstance(value, bool):
        holder[name] = rng.choice(
            [-value, value + 1, value - 1, value * 2, float(value), str(value)]
        )
    elif isinstance(value, str):
        holder[name] = rng.choice([value.upper(), value[:-1], [value], value + "x", None])
    else:
        holder[name] = rng.choice([str(value), not value, 1])
    return holder[name]


def _wrap(rng: random.Random, holder: Any, name: Any) -> Any:
    holder[name] = rng.choice([[holder[name]], {"x": holder[name]}, [holder[name]] * 2])
    return holder[name]


def _add(rng: random.Random, holder: Any, name: Any) -> Any:
    value = copy.deepcopy(holder[name])
    if isinstance(holder, MutableMapping):
        holder[rng.choice(_NAMES)] = value
    else:
        holder.insert(0, value)
    return value


# Edits that aim at what a reader looks at.


def _edit_attribute(rng: random.Random, _: Base, documents: Documents) -> str:
    attrs = _attributes(documents)
    name = rng.choice(["total_frames", "fps", "embodiment", "features", "egoloader", "timestamp"])
    attrs[name] = _anything(rng)
    if name == "total_frames":
        attrs[name] = rng.choice([0, 1, 5, 9, 11, 12, 13, 10.0, "10", True, *_HUGE, -1, None])
    return f"{name} = {attrs[name]!r:.60}"


def _edit_feature(rng: random.Random, base: Base, documents: Documents) -> str:
    features = _attributes(documents).setdefault("features", {})
    if not isinstance(features, dict):
        return "nothing"
    key = rng.choice([rng.choice(base.keys), rng.choice(_NAMES)])
    dtype = rng.choice(["jpeg", "json", "bytes", "float32", "int64", *_SCALARS])
    shape = rng.choice([[], [3], [16, 24, 3], [17, 24, 3], [65500, 65500, 3], [0, 0, 3], [10**9]])
    features[key] = rng.choice([{"dtype": dtype, "shape": shape}, {"dtype": dtype}, _anything(rng)])
    return f"feature {key!r} = {features[key]!r:.60}"


def _edit_lengths(rng: random.Random, _: Base, documents: Documents) -> str:
    """Have the group and the arrays agree on another length."""
    total = rng.choice([0, 1, 9, 11, 12, 13, 100, *_HUGE])
    _attributes(documents)["total_frames"] = total
    for document in documents.values():
        if isinstance(document.get("shape"), list) and document["shape"]:
            document["shape"][0] = total
    return f"{total} rows everywhere"


def _edit_extent(rng: random.Random, base: Base, documents: Documents) -> str:
    """Change the shape of an array, of its chunks, or of its shards."""
    path, document = _array(rng, base, documents)
    extents = [one for one in _extents(document) if one]
    if not extents:
        return "nothing"
    extent = rng.choice(extents)
    place = rng.randrange(len(extent))
    number = extent[place] if type(extent[place]) is int else 1
    extent[place] = rng.choice([0, 1, 2, 3, -1, number + 1, number * 2, number * 1000, *_HUGE])
    if rng.random() < 0.2:
        extent.append(rng.choice([0, 1, 3, 10**9]))
    return f"extent of {path}: {extent!r:.60}"


def _extents(value: Any) -> Any:
    """Yield the lists that say how large something is."""
    if isinstance(value, dict):
        for name, item in value.items():
            if name in ("shape", "chunks", "chunk_shape") and isinstance(item, list):
                yield item
            yield from _extents(item)
    elif isinstance(value, list):
        for item in value:
            yield from _extents(item)


def _edit_type(rng: random.Random, base: Base, documents: Documents) -> str:
    path, document = _array(rng, base, documents)
    name = "data_type" if "data_type" in document else "dtype"
    document[name] = copy.deepcopy(rng.choice(_TYPES))
    return f"{name} of {path} = {document[name]!r}"


def _edit_codecs(rng: random.Random, base: Base, documents: Documents) -> str:
    path, document = _array(rng, base, documents)
    lists = [one for one in _codec_lists(document) if isinstance(one, list)]
    codec = copy.deepcopy(rng.choice(_CODECS))
    if not lists or (rng.random() < 0.5 and "compressor" in document):
        document[rng.choice(["compressor", "filters"])] = rng.choice([codec, [codec], None])
        return f"codec of {path}: {codec!r:.60}"
    codecs = rng.choice(lists)
    place = rng.randint(0, len(codecs))
    if rng.random() < 0.4 and codecs:
        codecs.pop(min(place, len(codecs) - 1))
    if rng.random() < 0.7:
        codecs.insert(place, codec)
    return f"codecs of {path}: {codecs!r:.60}"


def _codec_lists(value: Any) -> Any:
    if isinstance(value, dict):
        for name, item in value.items():
            if name in ("codecs", "index_codecs", "filters"):
                yield item
            yield from _codec_lists(item)
    elif isinstance(value, list):
        for item in value:
            yield from _codec_lists(item)


def _edit_places(rng: random.Random, base: Base, documents: Documents) -> str:
    """Change where an array's chunks are to be, or what they hold where they are not."""
    path, document = _array(rng, base, documents)
    key = path.rpartition("/")[0]
    out = f"/../{'../' * (key.count('/') + 1)}../{NEIGHBOUR}/{key}/c/"
    separator = rng.choice([out, out, *_SEPARATORS])
    fill = rng.choice([*_SCALARS, "AAAA"])
    if rng.random() < 0.4:
        document["fill_value"] = fill
        return f"fill value of {path} = {fill!r:.60}"
    if "chunk_key_encoding" in document:
        name = rng.choice(["default", "default", "v2", "x", None])
        document["chunk_key_encoding"] = {"name": name, "configuration": {"separator": separator}}
    else:
        document["dimension_separator"] = separator
    return f"separator of {path} = {separator!r}"


def _array(rng: random.Random, base: Base, documents: Documents) -> tuple[str, Any]:
    """Return the metadata of an array, which another edit may have changed before."""
    paths = [f"{key}/{name}" for key in base.keys for name in ("zarr.json", ".zarray")]
    path = rng.choice([path for path in paths if path in documents])
    return path, documents[path]


def _attributes(documents: Documents) -> dict[str, Any]:
    """Return the group's attributes; none where another edit has taken them away."""
    found = documents.get(".zattrs")
    if found is None:
        found = documents["zarr.json"].get("attributes")
    return found if isinstance(found, dict) else {}


_EDITS: tuple[Callable[[random.Random, Base, Documents], str], ...] = (
    _edit_anything, _edit_anything, _edit_anything, _edit_attribute, _edit_feature, _edit_lengths,
    _edit_extent, _edit_extent, _edit_type, _edit_codecs, _edit_places,
)  # fmt: skip
