"""Recycled memory: used again once nothing refers to it, and never a moment before."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from egoloader import EpisodeLoader, EpisodeWriter, MultiDataset
from egoloader.buffers import LEAST_BYTES, Buffers, no_fence
from tests.children import in_a_fork
from tests.entries import camera, entry, keymap
from tests.episodes import pictures, ramp

LARGE = (LEAST_BYTES // 8, 8)
BYTE, FLOAT = np.dtype(np.uint8), np.dtype(np.float32)
Memory = npt.NDArray[Any]


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    """Nothing here is in a reference cycle, so that the garbage collector is not needed."""
    gc.disable()
    yield
    gc.enable()


def make(capacity: int = 3, fence: Any = no_fence) -> Buffers:
    return Buffers(capacity, pin=False, fence=fence)


# What is let go is used again.


def test_a_buffer_is_used_again_when_its_memory_is_gone() -> None:
    buffers = make()
    memory = buffers.allocate("a", LARGE, BYTE)
    memory[:] = 7
    address = memory.ctypes.data
    assert buffers.num_free("a") == 0
    del memory
    assert buffers.num_free("a") == 1
    again = buffers.allocate("a", LARGE, BYTE)
    assert (again.ctypes.data, buffers.num_free("a")) == (address, 0)
    assert (again == 7).all()  # it is the same memory, as it was left


def test_memory_is_an_ordinary_writable_array() -> None:
    memory = make().allocate("a", (3, LEAST_BYTES), FLOAT)
    assert (memory.shape, memory.dtype) == ((3, LEAST_BYTES), FLOAT)
    assert memory.flags.c_contiguous
    assert memory.flags.writeable
    assert memory.flags.aligned
    memory[:] = 0.5
    assert torch.from_numpy(memory).sum() == 1.5 * LEAST_BYTES


def test_small_memory_is_not_kept() -> None:
    buffers = make()
    for shape, num_kept in (((LEAST_BYTES - 1,), 0), ((LEAST_BYTES,), 1)):
        memory = buffers.allocate("a", shape, BYTE)
        assert memory.shape == shape
        del memory
        assert buffers.num_free("a") == num_kept


def test_it_never_waits_and_keeps_no_more_than_its_capacity() -> None:
    buffers = make(capacity=3)
    held = [buffers.allocate("a", LARGE, BYTE) for _ in range(10)]
    for number, memory in enumerate(held):
        memory[:] = number
    assert [int(memory[0, 0]) for memory in held] == list(range(10))
    assert len({memory.ctypes.data for memory in held}) == 10
    del memory
    for num_free in (1, 2, 3, 3, 3, 3, 3, 3, 3, 3):
        held.pop()
        assert buffers.num_free("a") == num_free


def test_keys_do_not_share_buffers() -> None:
    buffers = make()
    buffers.allocate("a", LARGE, BYTE)
    assert (buffers.num_free("a"), buffers.num_free("b")) == (1, 0)
    kept = buffers.allocate("b", LARGE, BYTE)
    assert (buffers.num_free("a"), buffers.num_free("b")) == (1, 0)
    del kept
    assert (buffers.num_free("a"), buffers.num_free("b")) == (1, 1)


def test_other_shapes_and_dtypes_take_a_buffer_that_is_large_enough() -> None:
    buffers = make()
    address = buffers.allocate("a", (4, LEAST_BYTES), BYTE).ctypes.data
    for shape, dtype in (((LEAST_BYTES,), FLOAT), ((3, LEAST_BYTES // 2), np.dtype(np.int16))):
        memory = buffers.allocate("a", shape, dtype)
        assert (memory.ctypes.data, memory.shape, memory.dtype) == (address, shape, dtype)
        del memory
    larger = buffers.allocate("a", (4 * LEAST_BYTES + 1,), BYTE)
    larger[:] = 1
    assert larger.nbytes == 4 * LEAST_BYTES + 1


byte_sizes = st.sampled_from([LEAST_BYTES // 2, LEAST_BYTES, LEAST_BYTES + 8, 3 * LEAST_BYTES])
steps = st.one_of(
    st.tuples(
        st.just("take"), st.sampled_from("ab"), byte_sizes, st.sampled_from(["u1", "f4", "i8"])
    ),
    st.tuples(st.just("drop"), st.integers(0, 9)),
)


@settings(deadline=None, max_examples=60)
@given(capacity=st.integers(1, 4), plan=st.lists(steps, max_size=40))
def test_what_is_held_is_never_written_to(capacity: int, plan: list[Any]) -> None:
    buffers = make(capacity)
    held: list[tuple[Memory, int]] = []
    for number, (step, *arguments) in enumerate(plan):
        if step == "take":
            key, size, dtype = arguments
            memory = buffers.allocate(key, (size // np.dtype(dtype).itemsize,), np.dtype(dtype))
            assert (memory.nbytes, memory.dtype) == (size, np.dtype(dtype))
            memory[:] = number
            held.append((memory, number))
            del memory
        elif held:
            del held[arguments[0] % len(held)]
        assert all((memory == value).all() for memory, value in held)
        assert max(buffers.num_free("a"), buffers.num_free("b")) <= capacity


# Whatever is made of memory keeps it.

HOLDERS: dict[str, Callable[[Memory], Any]] = {
    "the array": lambda memory: memory,
    "a slice": lambda memory: memory[5:7, 1:],
    "one number's view": lambda memory: memory[5:6, 3],
    "a slice of a transposed reshape": lambda memory: memory.reshape(16, -1).T[3:5],
    "another dtype": lambda memory: memory.view(np.uint32)[9],
    "a memoryview": lambda memory: memory.data[4:6],
    "a tensor": torch.from_numpy,
    "a tensor's slice": lambda memory: torch.from_numpy(memory)[3:5, 2],
    "a tensor's view": lambda memory: torch.from_numpy(memory).view(torch.int32).view(-1)[7:9],
    "a tensor's storage": lambda memory: torch.from_numpy(memory).untyped_storage(),
    "a tensor's array": lambda memory: torch.from_numpy(memory).numpy(),
    "a view of a view": lambda memory: torch.from_numpy(memory)[2:].movedim(0, 1).numpy()[1:, 5],
    "a tensor of a tensor's array": lambda memory: torch.from_numpy(
        torch.from_numpy(memory).numpy()[3:9]
    ).detach(),
    "a module's parameter": lambda memory: torch.nn.Parameter(
        torch.from_numpy(memory)[1], requires_grad=False
    ),
    "a capsule's tensor": lambda memory: torch.utils.dlpack.from_dlpack(
        torch.from_numpy(memory)[4:6]
    ),
    "an array of a capsule": lambda memory: np.from_dlpack(torch.from_numpy(memory)[4:6]),
}


def bytes_of(holder: Any) -> bytes:
    if isinstance(holder, torch.UntypedStorage):
        return bytes(holder)
    if isinstance(holder, torch.Tensor):
        holder = holder.detach().numpy()
    return np.asarray(holder).tobytes()


@pytest.mark.parametrize("kind", HOLDERS)
def test_a_holder_keeps_its_memory_until_it_is_dropped(kind: str) -> None:
    buffers = make()
    memory = buffers.allocate("a", LARGE, BYTE)
    memory[:] = np.arange(memory.size).reshape(LARGE) % 251
    holder = HOLDERS[kind](memory)
    before = bytes_of(holder)
    del memory
    others = []
    for value in range(6):
        others.append(buffers.allocate("a", LARGE, BYTE))
        others[-1][:] = value
    assert buffers.num_free("a") == 0
    assert bytes_of(holder) == before
    del holder
    assert buffers.num_free("a") == 1


# Copies that a GPU was asked for.


class Fences:
    """Fences that are over when told so, in the order in which they were asked for."""

    def __init__(self) -> None:
        self.are_done: list[bool] = []

    def __call__(self) -> Callable[[], bool]:
        place = len(self.are_done)
        self.are_done.append(False)
        return lambda: self.are_done[place]


def test_a_buffer_is_not_used_again_before_its_fence_is_over() -> None:
    fences = Fences()
    buffers = make(fence=fences)
    memory = buffers.allocate("a", LARGE, BYTE)
    address = memory.ctypes.data
    assert fences.are_done == []  # asked for when the memory is let go
    del memory
    assert fences.are_done == [False]
    held = [buffers.allocate("a", LARGE, BYTE) for _ in range(5)]
    assert address not in {memory.ctypes.data for memory in held}
    assert buffers.num_free("a") == 1
    fences.are_done[0] = True
    assert buffers.allocate("a", LARGE, BYTE).ctypes.data == address


def test_a_fence_that_is_over_is_found_behind_those_that_are_not() -> None:
    fences = Fences()
    buffers = make(capacity=4, fence=fences)
    held = [buffers.allocate("a", LARGE, BYTE) for _ in range(4)]
    addresses = [memory.ctypes.data for memory in held]
    while held:
        del held[0]
    fences.are_done[2] = True
    again = buffers.allocate("a", LARGE, BYTE)
    assert again.ctypes.data == addresses[2]
    assert buffers.num_free("a") == 3
    assert buffers.allocate("a", LARGE, BYTE).ctypes.data not in addresses


def test_a_buffer_is_not_let_go_before_its_fence_is_over() -> None:
    fences = Fences()
    buffers = make(capacity=3, fence=fences)
    for value in range(20):
        memory = buffers.allocate("a", LARGE, BYTE)
        memory[:] = value
        assert (memory == value).all()
        del memory
    assert buffers.num_free("a") == 20  # its memory could be another's while a copy reads it
    for _ in range(20):
        fences.are_done[:] = [True] * len(fences.are_done)
        buffers.allocate("a", LARGE, BYTE)
    assert buffers.num_free("a") == 3


# Other threads and processes.


def test_threads_never_share_a_buffer() -> None:
    buffers = make(capacity=2)
    broken: list[int] = []

    def work(value: int) -> None:
        for _ in range(60):
            memory = buffers.allocate("a", LARGE, BYTE)
            memory[:] = value
            broken.extend([] if (memory == value).all() else [value])

    threads = [threading.Thread(target=work, args=(value,)) for value in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert broken == []
    assert 1 <= buffers.num_free("a") <= 2


def test_a_forked_child_gives_back_its_own_alone() -> None:
    buffers = make()
    held = [buffers.allocate("a", LARGE, BYTE) for _ in range(2)]
    held[0][:] = 5

    def child() -> None:
        held.pop()
        mine = buffers.allocate("a", LARGE, BYTE)
        mine[:] = 9
        del mine
        # What was lent out in the parent does not come back here, the child's own does.
        assert buffers.num_free("a") == 1
        assert (held[0] == 5).all()

    in_a_fork(child)
    assert buffers.num_free("a") == 0
    assert (held[0] == 5).all()
    held.clear()
    assert buffers.num_free("a") == 2


# Batches of a loader are made in such memory.

BATCH = 8


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> MultiDataset:
    """Frames whose images and numbers are both large enough to be recycled."""
    root = tmp_path_factory.mktemp("wide")
    for name, total in (("a", 25), ("b", 19)):
        EpisodeWriter.write(
            root / f"{name}.zarr",
            numeric={"pose": ramp(total, 2100)},
            images={"images.front_1": pictures(total, (64, 96))},
            fps=30,
            embodiment="human",
        )
    return MultiDataset.from_folder(root, keymap(cam=camera(), pose=entry("pose", history=2)))


PIECES: list[Callable[[dict[str, Any]], Any]] = [
    lambda batch: batch,
    lambda batch: batch["cam"],
    lambda batch: batch["cam"][1],
    lambda batch: batch["cam"][2:4, :, 5],
    lambda batch: batch["cam"].numpy(),
    lambda batch: batch["cam"].numpy()[..., 3:],
    lambda batch: batch["cam"].movedim(-3, -1).view(-1)[77:5000],
    lambda batch: batch["cam"][0].permute(1, 2, 0).numpy().reshape(-1),
    lambda batch: batch["pose"][3],
    lambda batch: batch["pose"].view(torch.int32)[:, 1],
    lambda batch: torch.from_numpy(batch["pose"].numpy()[1:, 0]),
    lambda batch: [batch["cam"][-1], batch["pose"][-1]],
]


def as_bytes(piece: Any) -> list[bytes]:
    if isinstance(piece, dict | list):
        values = piece.values() if isinstance(piece, dict) else piece
        return [one for value in values for one in as_bytes(value)]
    return [bytes_of(piece)] if isinstance(piece, torch.Tensor | np.ndarray) else []


@pytest.mark.parametrize("num_threads", [1, 3])
def test_kept_pieces_of_batches_stay_as_they_were(wide: MultiDataset, num_threads: int) -> None:
    rng = random.Random(num_threads)
    indices = [rng.choices(range(len(wide)), k=BATCH) for _ in range(30)]
    loader = EpisodeLoader(wide, batch_sampler=indices, num_threads=num_threads)
    kept: list[tuple[Any, list[bytes]]] = []
    for _ in range(2):
        for wanted, batch in zip(indices, loader, strict=True):
            # Row 0 of an image and of a pose tells its frame.
            frames = [wide.locate(index)[1] for index in wanted]
            assert batch["frame_index"].tolist() == frames
            assert batch["pose"][:, 1, 2099].tolist() == [1000 * t + 2099 for t in frames]
            assert torch.equal(batch["cam"][5], wide[wanted[5]]["cam"])
            if rng.random() < 0.6:
                piece = rng.choice(PIECES)(batch)
                kept.append((piece, as_bytes(piece)))
            if len(kept) > 12 and rng.random() < 0.3:
                kept.pop(rng.randrange(len(kept)))
            del batch
    assert len(kept) > 8
    for piece, before in kept:
        assert as_bytes(piece) == before


def test_dropped_batches_are_made_again_in_the_same_memory(wide: MultiDataset) -> None:
    indices = [[k % 44, 3, (5 * k) % 44, 40] for k in range(60)]
    loader = EpisodeLoader(wide, batch_sampler=indices, num_threads=1, look_ahead=2)
    addresses: dict[str, set[int]] = {"cam": set(), "pose": set()}
    taken: list[Memory] = []
    for wanted, batch in zip(indices, loader, strict=True):
        assert torch.equal(batch["cam"][0], wide[wanted[0]]["cam"])
        for key, seen in addresses.items():
            seen.add(batch[key].data_ptr())
        sizes = [batch[key].nbytes for key in addresses]
        del batch
        # These take the place of memory that was freed instead of kept.
        taken += [np.ones(size, dtype=np.uint8) for size in sizes]
    # Two wait or are made, one is in use, and one may be on its way back.
    assert {len(seen) <= 5 for seen in addresses.values()} == {True}


def test_smaller_last_batches_and_batches_that_are_all_held(wide: MultiDataset) -> None:
    loader = EpisodeLoader(wide, batch_size=BATCH, num_threads=2)
    held = [batch for _ in range(3) for batch in loader]
    assert [len(batch["cam"]) for batch in held] == [8, 8, 8, 8, 8, 4] * 3
    images = torch.cat([batch["cam"] for batch in held])
    for place in range(0, 3 * len(wide), 7):
        assert torch.equal(images[place], wide[place % len(wide)]["cam"])
    poses = torch.cat([batch["pose"][:, 1, 0] for batch in held])
    assert poses.tolist() == [1000 * t for t in [*range(25), *range(19)]] * 3
