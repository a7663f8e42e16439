"""The index of a shard, against the bytes that zarr-python writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, ShardingCodec

from egoloader.shards import EMPTY, crc32c, decode_index, encode_index, index_size
from tests.episodes import foreign_group, foreign_numbers, ramp, write_human


def test_the_checksum_is_castagnolis() -> None:
    # RFC 3720, section B.4: 32 bytes of zeros, and the nine digits' well-known check value.
    assert crc32c(bytes(32)) == bytes.fromhex("aa36918a")
    assert crc32c(b"123456789") == (0xE3069283).to_bytes(4, "little")


def test_sizes() -> None:
    assert index_size(3, has_crc=True) == 52
    assert index_size(3, has_crc=False) == 48


@pytest.mark.parametrize("location", ["start", "end"])
def test_an_index_by_zarr_python_leads_to_its_chunks(tmp_path: Path, location: str) -> None:
    values = ramp(250, 7)
    sharding = ShardingCodec(chunk_shape=(100, 7), codecs=[BytesCodec()], index_location=location)
    group = foreign_group(tmp_path / "ep.zarr", 250)
    foreign_numbers(group, "a", values, chunks=(300, 7), serializer=sharding, compressors=None)
    shard = (tmp_path / "ep.zarr/a/c/0/0").read_bytes()
    size = index_size(3, has_crc=True)
    data = shard[:size] if location == "start" else shard[-size:]
    for number, (offset, length) in enumerate(decode_index(data, 3, has_crc=True).tolist()):
        chunk = np.frombuffer(shard[offset : offset + length], "<f4").reshape(100, 7)
        wanted = values[100 * number : 100 * number + 100]
        assert (chunk[: len(wanted)] == wanted).all()


def test_the_writers_index_comes_last_and_its_chunks_follow_each_other(tmp_path: Path) -> None:
    episode = write_human(tmp_path / "ep.zarr", 250)
    shard = (episode / "left.obs_ee_pose/c/0/0").read_bytes()
    index = decode_index(shard[-index_size(3, has_crc=True) :], 3, has_crc=True).tolist()
    ends = [offset + length for offset, length in index]
    assert [offset for offset, _ in index] == [0, *ends[:-1]]
    assert ends[-1] == len(shard) - index_size(3, has_crc=True)
    for offset, length in index:
        chunk = shard[offset : offset + length]
        assert crc32c(chunk[:-4]) == chunk[-4:]


def test_a_chunk_that_zarr_python_left_out_is_empty(tmp_path: Path) -> None:
    values = ramp(300, 2)
    values[100:200] = 0
    group = foreign_group(tmp_path / "ep.zarr", 300)
    array = group.create_array(
        "a", shape=values.shape, dtype=values.dtype, chunks=(100, 2), shards=(300, 2)
    )
    array[...] = values
    shard = (tmp_path / "ep.zarr/a/c/0/0").read_bytes()
    index = decode_index(shard[-index_size(3, has_crc=True) :], 3, has_crc=True)
    assert (index == EMPTY).all(axis=1).tolist() == [False, True, False]


@settings(deadline=None, max_examples=50)
@given(
    entries=st.lists(st.tuples(st.integers(0, 2**63), st.integers(0, 2**32)), max_size=20),
    has_crc=st.booleans(),
)
def test_encoding_and_decoding_are_inverse(entries: list[tuple[int, int]], has_crc: bool) -> None:
    data = encode_index([offset for offset, _ in entries], [length for _, length in entries])
    data = data if has_crc else data[:-4]
    index = decode_index(data, len(entries), has_crc=has_crc)
    assert index.shape == (len(entries), 2)
    assert [tuple(pair) for pair in index.tolist()] == entries


@settings(deadline=None, max_examples=50)
@given(bit=st.integers(0, 8 * 52 - 1))
def test_a_flipped_bit_is_noticed(bit: int) -> None:
    data = bytearray(encode_index([0, 10, 30], [10, 20, 5]))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ValueError, match="crc32c"):
        decode_index(bytes(data), 3, has_crc=True)


@pytest.mark.parametrize("size", [0, 51, 53])
def test_another_size_is_refused(size: int) -> None:
    data = encode_index([0, 10, 30], [10, 20, 5]) + b"\0"
    with pytest.raises(ValueError, match=f"{size} bytes"):
        decode_index(data[:size], 3, has_crc=True)
