"""Data files that somebody prepared: each is refused at once, in one line that names it, in little memory."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from data.files import png, write_images, write_npz, write_parquet
from hostile.bounds import bounded, refused
from hostile.images import IMAGES
from hostile.npz import NPZ
from hostile.parquet import HARMLESS, PARQUET
from protofed.config.schema import load_recipe, parse_overrides
from protofed.data import DataOptions, load, load_pool
from protofed.errors import ConfigError, DataError
from support import few


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A client's folder with a test split, in a federation with an honest client."""
    for name in ("honest", "hostile"):
        write_npz(tmp_path / "clients" / name / "test.npz", np.ones((3, 2)), [0, 1, 2])
    write_npz(tmp_path / "clients" / "honest" / "train.npz", np.ones((3, 2)), [0, 1, 2])
    return tmp_path / "clients" / "hostile"


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A client's folder with an image to train on, ``cat/0.png``, in a federation with an honest client."""
    for name in ("honest", "hostile"):
        write_images(tmp_path / "clients" / name / "test", {"cat": 1})
        write_images(tmp_path / "clients" / name / "train", {"cat": 1})
    return tmp_path / "clients" / "hostile"


def read(folder: Path) -> object:
    return load(DataOptions(source="path", path=str(folder.parents[1]), max_gb=0.1), "iid", None, 0)


def refused_at(folder: Path, where: str, said: str) -> None:
    with bounded():
        message = refused(lambda: read(folder), DataError)
    assert where in message, message
    assert re.search(said, message), message


@few("name", NPZ, 3)
def test_npz(folder, name):
    write, said = NPZ[name]
    write(folder / "train.npz")
    refused_at(folder, "hostile/train.npz", said)


@few("name", PARQUET, 6)
def test_parquet(folder, name):
    write, said = PARQUET[name]
    write(folder / "train.parquet")
    refused_at(folder, "hostile/train.parquet", said)


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_damage(tmp_path, name):
    HARMLESS[name](tmp_path / "a.parquet")
    assert len(load_pool(DataOptions(source="path", path=str(tmp_path / "a.parquet")), 0).y) == 3


@pytest.mark.parametrize("name", IMAGES)
def test_images(pictures, name):
    content, said = IMAGES[name]
    (pictures / "train" / "cat" / "1.png").write_bytes(content)
    refused_at(pictures, "cat/1.png", said)


def test_images_of_other_sizes(pictures):
    (pictures / "train" / "cat" / "2.png").write_bytes(png(size=(9, 9)))
    refused_at(pictures, "cat/2.png", "others have 4×4")


def test_images_that_do_not_fit_into_memory_together(pictures):
    for i in range(30):
        (pictures / "train" / "cat" / f"{i}.png").write_bytes(png(size=(2000, 2000)))
    refused_at(pictures, "cat/0.png", "needs 0.12 GB of memory, but only 0.1 of data.max_gb = 0.1 is left")


def test_an_image_without_end(pictures):
    with (pictures / "train" / "cat" / "1.png").open("wb") as file:
        file.truncate(2**40)  # sparse
    refused_at(pictures, "cat/1.png", "has 1099511627776 bytes, more than 268435456")


def _socket(path: Path) -> None:
    before = Path.cwd()
    os.chdir(path.parent)  # addresses of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(before)


NO_FILES: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "socket": _socket,
    "folder": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "link to another client": lambda path: path.symlink_to("../honest/train.npz"),
    "link out": lambda path: path.symlink_to("/etc/passwd"),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("name", ["train.npz", "train.parquet", "client.toml"])
def test_what_is_no_file(folder, name, kind):
    if name == "client.toml":
        write_npz(folder / "train.npz", np.ones((3, 2)), [0, 1, 2])
    NO_FILES[kind](folder / name)
    refused_at(folder, f"hostile/{name}", "cannot be read|not an ordinary file|leads (nowhere|out of)")


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_image(pictures, kind):
    NO_FILES[kind](pictures / "train" / "cat" / "1.png")
    refused_at(pictures, "cat/1.png", "not an image|leads (nowhere|out of)")


def test_a_pipe_that_comes_between(pictures, monkeypatch):
    """What was a file when the folder was listed may be a pipe when it is read."""
    monkeypatch.setattr(Path, "is_file", lambda path: True)
    os.mkfifo(pictures / "train" / "cat" / "1.png")
    refused_at(pictures, "cat/1.png", "is not an ordinary file")


@pytest.mark.parametrize("where", ["train", "train/cat", ".", ".."])
def test_folders_that_lead_out(folder, tmp_path_factory, where):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    write_images(elsewhere / "cat", {"cat": 1, "train": 1})
    write_images(folder / "train", {"dog": 1})
    place = Path(os.path.normpath(folder / where))
    if place.exists():
        place.rename(elsewhere / "moved")
    place.symlink_to(elsewhere / "moved" if (elsewhere / "moved").exists() else elsewhere)
    refused_at(folder, place.name, "leads out of")


def test_links_inside_are_followed(folder):
    (folder / "data").mkdir()
    write_npz(folder / "data" / "x.npz", np.ones((3, 2)), [0, 1, 2])
    (folder / "train.npz").symlink_to("data/x.npz")
    assert len(read(folder).clients[1].train) == 3


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable for root")
@pytest.mark.parametrize("name", ["train.npz", "train.parquet", "train", "client.toml"])
def test_what_may_not_be_read(folder, name):
    if name == "client.toml":
        write_npz(folder / "train.npz", np.ones((3, 2)), [0, 1, 2])
    (folder / name).mkdir() if name == "train" else (folder / name).write_bytes(b"")
    (folder / name).chmod(0)
    refused_at(folder, f"hostile/{name}", "cannot be read|ermission")


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2Ja", "a\u202eb", os.fsdecode(b"\xff"), "a" * 255])
def test_names_of_files(folder, name):
    write_images(folder / "train", {"cat": 1})
    (folder / "train" / name).mkdir()
    (folder / "train" / name / "0.png").write_bytes(png())
    (folder / "train" / "cat" / name).write_bytes(b"")
    refused_at(folder, "train/cat", "not an image")
    (folder / "train" / "cat" / name).unlink()
    if len(name) < 200:
        refused_at(folder, "hostile/train", "control characters")


TOML = {
    "too large": ("#" * (5 * 2**20), "bytes, more than"),
    "nested deeply": ("classes = " + "[" * 3000, "nested too deeply|not valid TOML"),
    "many dots": (".".join("a" * 3000) + " = 1", "nested more than 64 deep"),
    "long number": ("classes = " + "1" * 5000, "not valid TOML"),
    "a null": ("classes = ['a\0']", "not valid TOML"),
    "no UTF-8": (b"\xff\xfe", "utf-8"),
    "half a pair": ('classes = ["\\ud800"]', "not valid TOML"),
    "control characters": ('classes = ["a\\u001b[2J"]', "control characters"),
    "long name": (f"classes = ['{'a' * 1000}']", "of 1000 characters"),
    "many classes": (f"classes = {[str(i) for i in range(70_000)]}", "70000 classes"),
    "numbers": ("classes = [1]", "list of different names"),
    "twice": ("classes = []\nclasses = []", "not valid TOML"),
}


ABOUT_CLASSES = ("control characters", "long name", "many classes", "numbers")


@few("name", TOML, 9)
def test_federation_toml(folder, name):
    content, said = TOML[name]
    (folder.parents[1] / "federation.toml").write_bytes(content if isinstance(content, bytes) else content.encode())
    write_npz(folder / "train.npz", np.ones((3, 2)), [0, 1, 2])
    refused_at(folder, "federation.toml", said)


@pytest.mark.parametrize(
    "name", [n for n in TOML if n not in ("control characters", "long name", "many classes", "numbers")]
)
def test_recipes(tmp_path, name):
    content, _ = TOML[name]
    path = tmp_path / "mine.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    message = refused(lambda: load_recipe(path), ConfigError)
    assert "mine.toml" in message


@pytest.mark.parametrize("kind", ["pipe", "socket", "folder", "device"])
def test_a_recipe_that_is_no_file(tmp_path, kind):
    NO_FILES[kind](tmp_path / "mine.toml")
    refused(lambda: load_recipe(tmp_path / "mine.toml"), ConfigError)


def test_overrides_without_end():
    assert parse_overrides(["seed=" + "[" * 5000])["seed"].startswith("[[")
    assert isinstance(parse_overrides(["seed=" + "1" * 5000])["seed"], str)


def test_the_budget_is_shared_by_all_clients(tmp_path):
    for name in ("a", "b", "c"):
        for split in ("train", "test"):
            write_npz(tmp_path / "clients" / name / f"{split}.npz", np.ones((1000, 25), np.float32), [0] * 1000)
    data = DataOptions(source="path", path=str(tmp_path), max_gb=0.0005)
    assert "c/train.npz" in refused(lambda: load(data, "iid", None, 0), DataError)


def test_options_out_of_range():
    for name, value in (("classes", 2**62), ("max_gb", -1.0), ("max_gb", float("nan")), ("max_gb", float("inf"))):
        assert name in refused(lambda n=name, v=value: load(DataOptions(**{n: v}), "iid", None, 0), ConfigError)


def test_paths_in_parquet_are_never_opened(folder):
    """Neither a file that is there nor a pipe: the row is refused for having no bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    (folder / "0.png").write_bytes(png())
    os.mkfifo(folder / "1.png")
    images = pa.array([{"bytes": None, "path": str(folder / f"{i}.png")} for i in (0, 1)], kind)
    pq.write_table(pa.table({"image": images, "label": [0, 1]}), folder / "train.parquet")
    refused_at(folder, "hostile/train.parquet", "row 0: no image bytes")


def test_what_is_not_needed_is_not_unpacked(tmp_path):
    """A column beside images and labels may be as large as it likes."""
    write_parquet(tmp_path / "a.parquet", [0, 1, 2], [png()] * 3, notes=[["x" * 10**6] * 30] * 3)
    data = DataOptions(source="path", path=str(tmp_path / "a.parquet"), max_gb=0.01, image_column="image")
    assert len(load_pool(data, 0).y) == 3
