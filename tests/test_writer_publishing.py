"""How an episode appears: whole, once, whoever else writes, whenever the writer dies."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import stat
import subprocess
import threading
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg

from egoloader import EpisodeWriter, ZarrEpisode
from egoloader.catalog import find_episodes
from egoloader.errors import (
    EpisodeExistsError,
    EpisodeNotFoundError,
    WriterError,
)
from tests.episodes import pictures, ramp
from tests.writing import (
    HEAD,
    child_command,
    child_environment,
    files,
    good_frame,
    same_bytes,
    stored,
)


class TestPublishing:
    def test_nothing_opens_before_the_end(self, tmp_path: Path) -> None:
        path = tmp_path / "ep.zarr"
        with EpisodeWriter(path, **HEAD) as writer:
            for t in range(8):
                writer.add_frame(**good_frame(t))
                assert_no_episode(path)
        assert find_episodes(tmp_path) == ["ep.zarr"]
        assert [entry.name for entry in tmp_path.iterdir()] == ["ep.zarr"]

    @pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
    @pytest.mark.parametrize("frames", [0, 5])
    def test_an_exception_discards_everything(
        self, tmp_path: Path, kind: type[BaseException], frames: int
    ) -> None:
        def record() -> None:
            with EpisodeWriter(tmp_path / "ep.zarr", **HEAD) as writer:
                for t in range(frames):
                    writer.add_frame(**good_frame(t))
                raise kind("stop")

        with pytest.raises(kind, match="stop"):
            record()
        assert list(tmp_path.iterdir()) == []

    def test_zero_frames(self, tmp_path: Path) -> None:
        with (
            pytest.raises(WriterError, match=r"ep\.zarr': it needs at least one frame"),
            EpisodeWriter(tmp_path / "ep.zarr", **HEAD),
        ):
            pass
        assert list(tmp_path.iterdir()) == []

    def test_parents_are_made_and_relative_paths_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path)
        with EpisodeWriter("a/b/ep.zarr", **HEAD) as writer:
            monkeypatch.chdir(tmp_path / "elsewhere")
            writer.add_frame(**good_frame(0))
        assert find_episodes(tmp_path) == ["a/b/ep.zarr"]

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_files_have_the_modes_of_the_umask(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
    ) -> None:
        before = os.umask(0o027)
        with monkeypatch.context() as patch:
            # It belongs to the whole process: a file made by another thread would get it, too.
            patch.setattr(os, "umask", lambda mask: pytest.fail("the umask was touched"))
            for _ in range(1 + overwrite):
                EpisodeWriter.write(
                    tmp_path / "ep.zarr",
                    numeric={"a/b": ramp(3, 1)},
                    images={"cam": pictures(3)},
                    annotations=[("a", 0, 1)],
                    overwrite=overwrite,
                    **HEAD,
                )
        os.umask(before)
        for path in ((tmp_path / "ep.zarr"), *(tmp_path / "ep.zarr").rglob("*")):
            wanted = 0o750 if path.is_dir() else 0o640
            assert stat.S_IMODE(path.stat().st_mode) == wanted, path

    def test_same_input_same_bytes(self, tmp_path: Path) -> None:
        values = {"b": ramp(120, 3), "a/c": ramp(120, 2, "int16")}
        frames = pictures(120)
        options: dict[str, Any] = {
            "annotations": [("pick", 0, 80)],
            "attrs": {"z": 1, "a": {"y": 2, "b": 3}},
            **HEAD,
        }
        for name in ("one", "two"):
            EpisodeWriter.write(tmp_path / name, numeric=values, images={"cam": frames}, **options)
        with EpisodeWriter(tmp_path / "three", **options) as writer:
            for t in range(120):
                row = {key: value[t] for key, value in values.items()}
                writer.add_frame(numeric=row, images={"cam": frames[t]})
        assert files(tmp_path / "one") == files(tmp_path / "two") == files(tmp_path / "three")
        assert "a/zarr.json" in files(tmp_path / "one")


def write_number(path: Path, number: int, **options: Any) -> None:
    EpisodeWriter.write(path, numeric={"x": np.full((150, 2), number)}, **options, **HEAD)


def assert_number(path: Path, number: int) -> None:
    assert same_bytes(stored(path, "x"), np.full((150, 2), number))
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def assert_no_episode(path: Path) -> None:
    with pytest.raises(EpisodeNotFoundError):
        ZarrEpisode(path)
    with pytest.raises(EpisodeNotFoundError):
        find_episodes(path.parent)


class TestExistingPaths:
    @pytest.mark.parametrize("kind", ["episode", "folder", "file", "dangling link"])
    def test_are_refused(self, tmp_path: Path, kind: str) -> None:
        path = tmp_path / "ep.zarr"
        make: dict[str, Callable[[], object]] = {
            "episode": lambda: write_number(path, 1),
            "folder": path.mkdir,
            "file": path.touch,
            "dangling link": lambda: path.symlink_to(tmp_path / "nowhere"),
        }
        make[kind]()
        before = list(tmp_path.rglob("*"))
        with pytest.raises(EpisodeExistsError, match="pass overwrite=True"):
            EpisodeWriter(path, **HEAD)
        assert list(tmp_path.rglob("*")) == before

    @pytest.mark.parametrize("kind", ["folder", "file", "link"])
    def test_that_appear_meanwhile_are_refused(self, tmp_path: Path, kind: str) -> None:
        path = tmp_path / "ep.zarr"
        writer = EpisodeWriter(path, **HEAD)
        writer.add_frame(numeric={"x": 1})
        if kind == "link":
            path.symlink_to(tmp_path)
        else:
            (path.mkdir if kind == "folder" else path.touch)()
        with pytest.raises(EpisodeExistsError, match="pass overwrite=True"):
            writer.close()
        assert [entry.name for entry in tmp_path.iterdir()] == ["ep.zarr"]

    def test_overwrite_replaces_an_episode_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "ep.zarr"
        EpisodeWriter.write(path, numeric={"old": ramp(3, 1)}, images={"c": pictures(3)}, **HEAD)
        write_number(path, 2, overwrite=True)
        assert_number(path, 2)
        assert set(ZarrEpisode(path).keys) == {"x", "annotations"}
        assert not (path / "old").exists()

    def test_an_exception_keeps_the_old_episode(self, tmp_path: Path) -> None:
        path = tmp_path / "ep.zarr"
        write_number(path, 1)

        def record() -> None:
            with EpisodeWriter(path, overwrite=True, **HEAD) as writer:
                writer.add_frame(numeric={"x": 2})
                assert same_bytes(stored(path, "x"), np.full((150, 2), 1))
                raise RuntimeError("stop")

        with pytest.raises(RuntimeError, match="stop"):
            record()
        assert_number(path, 1)

    def test_a_failing_rename_brings_the_old_episode_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "ep.zarr"
        write_number(path, 1)
        rename = Path.rename

        def refuse(self: Path, target: Path) -> Path:
            if self.name.endswith(".partial") and not path.exists():
                raise PermissionError(13, "Permission denied")
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", refuse)
        with pytest.raises(PermissionError):
            write_number(path, 2, overwrite=True)
        assert_number(path, 1)

    def test_a_link_is_replaced_and_its_target_kept(self, tmp_path: Path) -> None:
        write_number(tmp_path / "kept" / "ep.zarr", 1)
        path = tmp_path / "new" / "ep.zarr"
        path.parent.mkdir()
        path.symlink_to(tmp_path / "kept" / "ep.zarr")
        write_number(path, 2, overwrite=True)
        assert not path.is_symlink()
        assert_number(path, 2)
        assert_number(tmp_path / "kept" / "ep.zarr", 1)

    @pytest.mark.parametrize("kind", ["file", "empty folder", "broken episode"])
    def test_leftovers_are_replaced(self, tmp_path: Path, kind: str) -> None:
        path = tmp_path / ("ep" if kind == "empty folder" else "ep.zarr")
        if kind == "file":
            path.touch()
        else:
            path.mkdir()
        if kind == "broken episode":
            (path / "x" / "c").mkdir(parents=True)
            (path / "x" / "c" / "0").touch()
        write_number(path, 2, overwrite=True)
        assert_number(path, 2)

    def test_overwrite_spares_folders_of_other_things(self, tmp_path: Path) -> None:
        write_number(tmp_path / "many.zarr" / "ep.zarr", 1)
        (tmp_path / "more.zarr" / "cut.zarr" / "x").mkdir(parents=True)
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / "thesis.tex").touch()
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(EpisodeExistsError, match=r"holds episodes, such as 'ep\.zarr'"):
            EpisodeWriter(tmp_path / "many.zarr", overwrite=True, **HEAD)
        with pytest.raises(EpisodeExistsError, match=r"holds episodes, such as 'cut\.zarr'"):
            EpisodeWriter(tmp_path / "more.zarr", overwrite=True, **HEAD)
        with pytest.raises(EpisodeExistsError, match="not that of an episode"):
            EpisodeWriter(tmp_path / "home", overwrite=True, **HEAD)
        writer = EpisodeWriter(tmp_path / "later", overwrite=True, **HEAD)
        writer.add_frame(numeric={"x": 1})
        (tmp_path / "home").rename(tmp_path / "later")
        with pytest.raises(EpisodeExistsError, match="not that of an episode"):
            writer.close()
        (tmp_path / "later").rename(tmp_path / "home")
        assert sorted(tmp_path.rglob("*")) == before


class TestTwoWriters:
    @pytest.mark.parametrize("overwrite", [False, True])
    def test_the_second_is_refused_at_once(self, tmp_path: Path, overwrite: bool) -> None:
        path = tmp_path / "ep.zarr"
        first = EpisodeWriter(path, overwrite=overwrite, **HEAD)
        for _ in range(150):
            first.add_frame(numeric={"x": np.full(2, 1)})
        with pytest.raises(EpisodeExistsError, match="is being written to by another writer"):
            EpisodeWriter(path, overwrite=overwrite, **HEAD)
        first.close()
        assert_number(path, 1)
        assert find_episodes(tmp_path) == ["ep.zarr"]
        write_number(tmp_path / "ep2.zarr", 2)

    def test_when_the_first_gives_up_the_next_may_begin(self, tmp_path: Path) -> None:
        path = tmp_path / "ep.zarr"
        with suppress(ZeroDivisionError), EpisodeWriter(path, **HEAD) as first:
            first.add_frame(numeric={"x": np.full(2, 1)})
            raise ZeroDivisionError
        write_number(path, 2)
        assert_number(path, 2)
        assert [one.name for one in tmp_path.iterdir()] == ["ep.zarr"]

    def test_a_forked_child_does_not_keep_the_lock(self, tmp_path: Path) -> None:
        path = tmp_path / "ep.zarr"
        writer = EpisodeWriter(path, overwrite=True, **HEAD)
        for _ in range(150):
            writer.add_frame(numeric={"x": np.full(2, 1)})
        context = multiprocessing.get_context("fork")
        done = context.Event()
        child = context.Process(target=done.wait)
        child.start()
        try:
            writer.close()
            with EpisodeWriter(path, overwrite=True, **HEAD) as second:
                second.add_frame(numeric={"x": np.full(2, 2)})
        finally:
            done.set()
            child.join()
        assert same_bytes(stored(path, "x"), np.full((1, 2), 2))

    def test_beginning_at_once(self, tmp_path: Path) -> None:
        path, count = tmp_path / "ep.zarr", 8
        barrier = threading.Barrier(count)
        writers: list[tuple[int, EpisodeWriter]] = []
        lost: list[int] = []

        def work(number: int) -> None:
            barrier.wait()
            try:
                writers.append((number, EpisodeWriter(path, **HEAD)))
            except EpisodeExistsError:
                lost.append(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ((number, writer),) = writers
        assert len(lost) == count - 1
        for _ in range(150):
            writer.add_frame(numeric={"x": np.full(2, number)})
        writer.close()
        assert_number(path, number)

    def test_the_check_and_the_rename_are_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "ep.zarr"
        rename = Path.rename

        def late(self: Path, target: Path) -> Path:
            # Another machine's writer publishes at the last moment: the path was found free.
            monkeypatch.setattr(Path, "rename", rename)
            rename(other, path)
            return rename(self, target)

        other = tmp_path / "other.zarr"
        write_number(other, 1)
        writer = EpisodeWriter(path, **HEAD)
        writer.add_frame(numeric={"x": np.full(2, 2)})
        monkeypatch.setattr(Path, "rename", late)
        with pytest.raises(EpisodeExistsError):
            writer.close()
        assert_number(path, 1)

    @pytest.mark.parametrize("at", ["check", "rename"])
    def test_the_old_episode_may_go_at_any_moment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
    ) -> None:
        path = tmp_path / "ep.zarr"
        writer = EpisodeWriter(path, overwrite=True, **HEAD)
        for _ in range(150):
            writer.add_frame(numeric={"x": np.full(2, 2)})
        write_number(tmp_path / "other.zarr", 1)
        (tmp_path / "other.zarr").rename(path)
        name = {"check": "iterdir", "rename": "rename"}[at]
        original = getattr(Path, name)

        def late(self: Path, *arguments: Any) -> Any:
            # The other writer, replacing it as well, has just moved it aside.
            if self == path:
                monkeypatch.setattr(Path, name, original)
                shutil.rmtree(path)
            return original(self, *arguments)

        monkeypatch.setattr(Path, name, late)
        writer.close()
        assert getattr(Path, name) is original, "the moment came"
        assert_number(path, 2)


def kill_child(folder: Path, code: str) -> None:
    """Run code in another process until it says that it is ready, then kill it."""
    with subprocess.Popen(
        child_command(code),
        cwd=folder,
        env=child_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL


class TestKilledWriters:
    @pytest.mark.parametrize(
        "code",
        [
            pytest.param("write(stop_at=0)", id="no frame"),
            pytest.param("write(stop_at=249)", id="many frames"),
            pytest.param(
                "ScratchFolder.publish = lambda self: pause()\nwrite(stop_at=None)", id="finished"
            ),
        ],
    )
    def test_nothing_opens_and_a_second_run_succeeds(self, tmp_path: Path, code: str) -> None:
        kill_child(tmp_path, code)
        (leftover,) = tmp_path.iterdir()
        assert leftover.name.startswith(".ep.zarr.")
        assert_no_episode(tmp_path / "ep.zarr")
        rows = np.repeat(np.arange(250)[:, None], 2, axis=1)
        EpisodeWriter.write(tmp_path / "ep.zarr", numeric={"x": rows}, **HEAD)
        assert same_bytes(stored(tmp_path / "ep.zarr", "x"), rows)
        assert find_episodes(tmp_path) == ["ep.zarr"]

    def test_an_episode_to_be_overwritten_stays(self, tmp_path: Path) -> None:
        write_number(tmp_path / "ep.zarr", 1)
        kill_child(tmp_path, "write(stop_at=249, overwrite=True)")
        assert same_bytes(stored(tmp_path / "ep.zarr", "x"), np.full((150, 2), 1))
        assert find_episodes(tmp_path) == ["ep.zarr"]


class TestMemory:
    def test_the_peak_does_not_grow_with_the_episode(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        picture = rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)
        jpeg = simplejpeg.encode_jpeg(picture, quality=95)
        assert len(jpeg) > 5000
        short, long = (self.peak(tmp_path / f"{n}", n, picture, jpeg) for n in (400, 4000))
        # 3,600 more frames are over 35 MB; what stays is some tens of bytes of index a chunk.
        assert long - short < 600_000

    def peak(self, path: Path, total: int, picture: npt.NDArray[np.uint8], jpeg: bytes) -> int:
        tracemalloc.start()
        with EpisodeWriter(path, **HEAD) as writer:
            for t in range(total):
                writer.add_frame(
                    numeric={"x": np.full(63, t, np.float64)},
                    images={"pixels": picture, "jpeg": jpeg},
                )
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak
