"""The floor: decoding the JPEGs of a block and nothing else, in this process or in two others."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg

from bench.blocks import Block, Frames, Served

__all__ = ["DecodingProcesses", "Floor"]

Pixels = npt.NDArray[np.uint8]
#: Blocks' JPEGs by number of the block; the lists share the JPEGs.
Work = dict[int, list[bytes]]


class Floor:
    """Decodes every distinct JPEG of a block into one buffer that is used again.

    Args:
        frames: of the folder.
        blocks: that it will be asked for.
        size: (height, width) of the pictures in pixels.
    """

    def __init__(self, frames: Frames, blocks: Sequence[Block], size: tuple[int, int]) -> None:
        self._work, self._served = _work(frames, blocks), _served(frames, blocks)
        self._buffer = np.empty((*size, 3), dtype=np.uint8)

    def answer(self, block: Block) -> Served:
        """Decode a block's JPEGs."""
        _decode(self._work[block.number], self._buffer)
        return Served(self._served[block.number].frames, self._buffer.copy())


class DecodingProcesses:
    """Processes that decode a block's JPEGs between them, each into one buffer of its own.

    They hold the JPEGs from the beginning, and are told which block over a pipe.

    Args:
        frames: of the folder.
        blocks: that they will be asked for.
        size: (height, width) of the pictures in pixels.
        count: of the processes.
    """

    def __init__(
        self, frames: Frames, blocks: Sequence[Block], size: tuple[int, int], count: int
    ) -> None:
        work, self._served = _work(frames, blocks), _served(frames, blocks)
        self._last = {number: (len(jpegs) - 1) % count for number, jpegs in work.items()}
        self._size = size
        # Processes that share nothing with this one, whatever threads it has.
        context = multiprocessing.get_context("spawn")
        self._buffers = [context.RawArray("B", size[0] * size[1] * 3) for _ in range(count)]
        self._pipes: list[Connection] = []
        self._processes = []
        for place, buffer in enumerate(self._buffers):
            ours, theirs = context.Pipe()
            share = {number: jpegs[place::count] for number, jpegs in work.items()}
            process = context.Process(target=_decode_on_request, args=(theirs, buffer, share, size))
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def answer(self, block: Block) -> Served:
        """Have a block's JPEGs decoded."""
        for pipe in self._pipes:
            pipe.send(block.number)
        for pipe in self._pipes:
            pipe.recv()
        pixels = _as_pixels(self._buffers[self._last[block.number]], self._size)
        return Served(self._served[block.number].frames, pixels.copy())

    def __enter__(self) -> DecodingProcesses:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.close()  # which ends the process
            process.join()


def _decode_on_request(pipe: Connection, shared: Any, work: Work, size: tuple[int, int]) -> None:
    """Decode the blocks asked for, until the other end of the pipe closes."""
    buffer = _as_pixels(shared, size)
    while True:
        try:
            number = pipe.recv()
        except EOFError:
            return
        _decode(work[number], buffer)
        pipe.send(number)


def _decode(jpegs: Sequence[bytes], buffer: Pixels) -> None:
    for jpeg in jpegs:
        simplejpeg.decode_jpeg(jpeg, buffer=buffer)


def _as_pixels(shared: Any, size: tuple[int, int]) -> Pixels:
    return np.frombuffer(shared, dtype=np.uint8).reshape(*size, 3)


def _work(frames: Frames, blocks: Sequence[Block]) -> Work:
    return {
        block.number: [frames.jpeg(picture) for batch in block.pictures for picture in batch]
        for block in blocks
    }


def _served(frames: Frames, blocks: Sequence[Block]) -> dict[int, Served]:
    return {block.number: frames.served(block) for block in blocks}
