import os
from hashlib import blake2b
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
from safetensors.torch import save

from data.files import png, write_images, write_npz, write_parquet
from protofed.data import DataOptions, apart, load, load_pool
from protofed.errors import ConfigError, DataError
from support import one_line

pytestmark = pytest.mark.fast


def options(source, **more):
    return DataOptions(source=source, **more)


def test_digits_are_bytes_from_0_to_255():
    pool = load_pool(options("digits"), 0)
    assert pool.x.shape == (1797, 1, 8, 8)
    assert pool.x.dtype == torch.uint8
    assert (int(pool.x.min()), int(pool.x.max())) == (0, 255)
    assert pool.class_names == tuple("0123456789")


def test_digits_divide_into_clients():
    federated = load(options("digits", clients=7, validation_fraction=0.1), "iid", None, 0)
    assert federated.num_classes == 10
    assert federated.input_shape == (1, 8, 8)
    assert sum(len(c.train) + len(c.test) + len(c.validation) for c in federated.clients) == 1797
    for client in federated.clients:
        n = len(client.train) + len(client.test) + len(client.validation)
        assert abs(len(client.test) - 0.25 * n) <= 1
        assert client.train.x.shape[1:] == client.test.x.shape[1:] == (1, 8, 8)
        assert client.train.y.dtype == torch.int64
        assert client.train.x.untyped_storage().nbytes() == client.train.x.nbytes, "no view of everyone's data"


def test_features_stay_with_their_labels():
    pool = load_pool(options("digits"), 0)
    label = {x.numpy().tobytes(): int(y) for x, y in zip(pool.x, pool.y, strict=True)}
    for client in load(options("digits", clients=5, samples=300), "dirichlet", {"min_size": 1}, 3).clients:
        for part in (client.train, client.test):
            assert [label[x.numpy().tobytes()] for x in part.x] == part.y.tolist()


def test_the_split_depends_on_seed_and_client_only():
    def tests(seed):
        return [c.test.x for c in load(options("digits", clients=3), "iid", None, seed).clients]

    one, again, other = tests(0), tests(0), tests(1)
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_samples_is_a_stratified_subset():
    pool = load_pool(options("digits", samples=100), 0)
    assert len(pool.x) == 100
    assert set(torch.bincount(pool.y).tolist()) <= {9, 10, 11}
    with pytest.raises(ConfigError, match=r"data.samples = 2000, but digits has 1797"):
        load_pool(options("digits", samples=2000), 0)


def test_spiral_arms_interleave():
    pool = load_pool(options("spiral", options={"points": 400, "noise": 0.0}), 0)
    assert pool.x.shape == (2400, 2)
    assert pool.x.dtype == torch.float32
    assert torch.bincount(pool.y).tolist() == [400] * 6
    radius = pool.x.norm(dim=1)
    assert radius.min() == pytest.approx(1, abs=1e-5)
    assert radius.max() == pytest.approx(10, abs=1e-4)
    # At every radius the six arms are 60 degrees apart, in the order of their numbers.
    angle = torch.atan2(pool.x[:, 0], pool.x[:, 1]).reshape(6, 400)
    gap = (angle.roll(-1, 0) - angle).remainder(2 * torch.pi)
    torch.testing.assert_close(gap, torch.full_like(gap, torch.pi / 3), atol=1e-4, rtol=0)


def test_spiral_as_the_supplement_prints_it():
    # x = r sin w, y = r cos w, r = 1 + 9 t, w = k pi / 3 + t k pi / 3 for arm k, without the noise.
    pool = load_pool(options("spiral", options={"points": 11, "noise": 0.0, "winding": "printed"}), 0)
    k, t = 4, 0.7
    w, r = k * np.pi / 3 + t * k * np.pi / 3, 1 + 9 * t
    expected = torch.tensor([r * np.sin(w), r * np.cos(w)], dtype=torch.float32)
    torch.testing.assert_close(pool.x[k * 11 + 7], expected)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (options("digts"), "did you mean 'digits'"),
        (options("spiral", options={"pionts": 3}), "did you mean 'points'"),
        (options("spiral", options={"points": 0}), "data.options.points must be at least 1, not 0"),
        (options("spiral", options=3), "expected a mapping"),
        (options("path"), "data.path is not set"),
        (options("digits", path="/nowhere"), "data.source=digits reads no path: add data.source=path"),
    ],
)
def test_bad_options_are_told_in_one_line(data, expected):
    with one_line(ConfigError, expected):
        load(data, "iid", None, 0)


def test_classes_beyond_the_data_get_numbers_for_names():
    assert load_pool(options("digits", classes=12), 0).class_names[9:] == ("9", "10", "11")
    with pytest.raises(DataError, match=r"digits: sample \d+: label 9 is outside 0..8"):
        load_pool(options("digits", classes=9), 0)


# A copy on disk in the hub's layouts.


@pytest.mark.parametrize(
    "layout",
    [
        "mnist/{}-00000-of-00001.parquet",
        "mnist/data/{}-00000-of-00001-0123abcd.parquet",
        "mnist/mnist/{}-00000-of-00001.parquet",
        "mnist/default/{}/0000.parquet",
        "ylecun/mnist/{}.parquet",
    ],
)
def test_local_copies_are_found_and_splits_merged(tmp_path, layout, monkeypatch):
    for split, labels in (("test", [3, 3]), ("train", [0, 1, 2]), ("extra", [9])):
        write_parquet(tmp_path / layout.format(split), labels, names=[f"no {c}" for c in range(10)])
    monkeypatch.setenv("PROTOFED_DATA", str(tmp_path))
    pool = load_pool(options("mnist"), 0)
    assert pool.y.tolist() == [0, 1, 2, 3, 3]
    assert pool.x.shape == (5, 1, 4, 4)
    assert pool.x[:, 0, 0, 0].tolist() == [0, 10, 20, 30, 30]
    assert pool.class_names[1] == "no 1"


def test_images_of_a_public_set_are_decoded_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("PROTOFED_CACHE", str(tmp_path / "cache"))
    place = tmp_path / "mnist" / "{}.parquet"
    for split, labels in (("test", [3, 3]), ("train", [0, 1, 2])):
        path = write_parquet(Path(str(place).format(split)), labels)
    decode, decoded = apart.read_images, []
    monkeypatch.setattr(apart, "read_images", lambda some, *rest: decoded.append(len(some)) or decode(some, *rest))

    def pixels(**more):
        decoded.clear()
        found = load_pool(options("mnist", data_dir=str(tmp_path), **more), 0).x
        return found[:, 0, 0, 0].tolist(), sum(decoded)

    assert [pixels() for _ in range(2)] == [([0, 10, 20, 30, 30], 5), ([0, 10, 20, 30, 30], 0)]
    assert pixels(samples=4)[1] == 4  # whoever reads some decodes them
    (kept,) = (tmp_path / "cache").rglob("*.safetensors")
    content = kept.read_bytes()
    other = save({"images": torch.zeros(4, 1, 4, 4, dtype=torch.uint8)})
    for name, damaged in (
        (kept.name, content[:-1] + b"\1"),
        (kept.name, content[:40]),
        (f"{blake2b(other, digest_size=16).hexdigest()}.safetensors", other),
    ):
        kept.unlink()
        kept.with_name(name).write_bytes(damaged)
        caplog.clear()
        assert pixels() == ([0, 10, 20, 30, 30], 5)
        assert "damaged" in caplog.text
        assert [path.read_bytes() for path in kept.parent.iterdir()] == [content]
    before = path.stat()
    write_parquet(path, [0, 1, 4])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # what counts is what a file holds
    assert pixels() == ([0, 10, 40, 30, 30], 5)


def test_an_incomplete_copy_is_refused(tmp_path):
    write_parquet(tmp_path / "mnist" / "train-00000-of-00002.parquet", [0])
    write_parquet(tmp_path / "mnist" / "test-00000-of-00001.parquet", [0])
    with pytest.raises(DataError, match="1 of 2 files of the split 'train'"):
        load_pool(options("mnist", data_dir=str(tmp_path)), 0)
    (tmp_path / "mnist" / "train-00000-of-00002.parquet").unlink()
    with pytest.raises(DataError, match="no parquet file of the split 'train'"):
        load_pool(options("mnist", data_dir=str(tmp_path)), 0)


def test_without_copy_and_network_the_error_says_what_to_do(tmp_path, monkeypatch):
    def unreachable(*args, **kwargs):
        raise ConnectionError("no\nnetwork")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with one_line(DataError, r"mnist.*ConnectionError.*PROTOFED_DATA", says=str(tmp_path / "mnist")):
        load_pool(options("mnist", data_dir=str(tmp_path)), 0)
    with pytest.raises(DataError, match=r"data.data_dir = .*: no such folder"):
        load_pool(options("mnist", data_dir=str(tmp_path / "gone")), 0)


def test_femnist_from_the_hub_has_writers(tmp_path, monkeypatch):
    writers, names = ["f1", "f0", "f1", "f0", "f0", "f2"], [str(c) for c in range(62)]
    stored, asked = tmp_path / "cache" / "data" / "train-00000-of-00001.parquet", []
    write_parquet(stored, [5, 6, 7, 8, 9, 61], list(map(png, range(6))), names, writer_id=writers)

    def fetch(hub, **kwargs):
        asked.append(hub)
        return str(tmp_path / "cache")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    data = options("femnist", data_dir=str(tmp_path), label_column="label", clients=0, test_fraction=0.0)
    federated = load(data, "natural", None, 0)
    assert asked == ["flwrlabs/femnist"]
    assert [c.train.y.tolist() for c in federated.clients] == [[6, 8, 9], [5, 7]]
    assert federated.clients[0].train.x[:, 0, 0, 0].tolist() == [1, 3, 4]
    assert federated.num_classes == 62


def test_flowers_are_resized(tmp_path):
    sizes = [(90, 70), (80, 120)]
    for split in ("train", "test"):
        images = [png(7, size, "RGB") for size in sizes]
        write_parquet(tmp_path / "flowers102" / f"{split}-00000-of-00001.parquet", [0, 1], images)
    assert load_pool(options("flowers102", data_dir=str(tmp_path)), 0).x.shape == (4, 3, 64, 64)
    smaller = options("flowers102", data_dir=str(tmp_path), options={"resize": 16})
    assert load_pool(smaller, 0).x.shape == (4, 3, 16, 16)
    with pytest.raises(DataError, match=r"row 1: image of 120×80 pixels.*data.options.resize"):
        load_pool(options("flowers102", data_dir=str(tmp_path), options={"resize": 0}), 0)


# The user's own data.


def own(path, **more):
    return options("path", path=str(path), **more)


def test_image_folder_with_and_without_splits(tmp_path):
    write_images(tmp_path / "flat", {"dog": 2, "cat": 3})
    pool = load_pool(own(tmp_path / "flat"), 0)
    assert pool.class_names == ("cat", "dog")
    assert pool.y.tolist() == [0, 0, 0, 1, 1]
    assert pool.x[:, 0, 0, 0].tolist() == [0, 1, 2, 0, 1]
    write_images(tmp_path / "split" / "train", {"dog": 2})
    write_images(tmp_path / "split" / "test", {"cat": 1})
    assert load_pool(own(tmp_path / "split"), 0).y.tolist() == [0, 1, 1]


def test_large_images_decode_alike_in_threads(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (300, 96, 96), dtype=np.uint8)
    from PIL import Image

    for i, picture in enumerate(noise):
        (tmp_path / "c").mkdir(exist_ok=True)
        Image.fromarray(picture).save(tmp_path / "c" / f"{i:03d}.png")
    assert torch.equal(load_pool(own(tmp_path), 0).x[:, 0], torch.from_numpy(noise))


def test_several_parquet_files_and_natural_ids(tmp_path):
    write_parquet(tmp_path / "1.parquet", ["b", "a"], [png(1), png(2)], site=["y", "x"])
    write_parquet(tmp_path / "2.parquet", ["c", "a"], [png(3), png(4)], site=["x", "y"])
    data = own(tmp_path, options={"id_column": "site"}, clients=0, test_fraction=0.0)
    pool = load_pool(data, 0)
    assert pool.class_names == ("a", "b", "c")
    assert pool.y.tolist() == [1, 0, 2, 0]
    assert pool.ids.tolist() == [1, 0, 0, 1]
    clients = load(data, "natural", None, 0).clients
    assert [c.train.x[:, 0, 0, 0].tolist() for c in clients] == [[2, 3], [1, 4]]


@pytest.mark.parametrize(
    ("x", "shape", "dtype"),
    [
        (np.zeros((4, 5, 6), np.uint8), (4, 1, 5, 6), torch.uint8),
        (np.zeros((4, 3, 5, 6), np.uint8), (4, 3, 5, 6), torch.uint8),
        (np.zeros((4, 5, 6, 3), np.uint8), (4, 3, 5, 6), torch.uint8),
        (np.zeros((4, 7), np.uint8), (4, 7), torch.float32),
        (np.zeros((4, 3, 5, 6)), (4, 3, 5, 6), torch.float32),
    ],
)
def test_npz_shapes(tmp_path, x, shape, dtype):
    path = write_npz(tmp_path / "a.npz", x, [0, 1, 2, 0], class_names=["u", "v", "w"], ids=[5, 5, 2, 2])
    pool = load_pool(own(path), 0)
    assert pool.x.shape == shape
    assert pool.x.dtype == dtype
    assert pool.class_names == ("u", "v", "w")
    assert pool.ids.tolist() == [1, 1, 0, 0]


def test_only_chosen_images_are_decoded(tmp_path):
    names = {"image": [png(1), b"broken", png(3)], "who": ["me", "other", "me"]}
    path = write_parquet(tmp_path / "a.parquet", [0, 1, 0], names["image"], who=names["who"])
    data = own(path, test_fraction=0.0, clients=0, options={"id_column": "who"})
    client = load(data, "natural", None, 0).clients[0]
    assert client.train.x[:, 0, 0, 0].tolist() == [1, 3]


def beside_digits(tmp_path, x, y, **several):
    path = tmp_path / "other.npz"
    write_npz(path, x, y)
    return options("several", path=str(path), options={"names": ["digits", "path"], **several}, clients=4)


def test_several_data_sets_are_one_with_their_names_as_origins(tmp_path):
    """Images in one size, grey ones in colour if some are; classes agree by name."""
    x = np.zeros((40, 3, 16, 16), dtype=np.uint8)
    x[:, 0] = 200
    given = beside_digits(tmp_path, x, np.arange(40) % 10, samples=30)
    federated = load(given, "domain", {}, 0)
    assert [c.name for c in federated.clients] == ["digits-00", "digits-01", "path-00", "path-01"]
    assert federated.class_names == tuple("0123456789")
    assert federated.input_shape == (3, 8, 8)
    for client in federated.clients:
        assert len(client.train) + len(client.test) == 15
        colours = client.train.x.double().mean((0, 2, 3))
        red = client.name.startswith("path")
        assert torch.equal(colours, torch.tensor([200.0, 0, 0])) if red else len(colours.unique()) == 1
    wide = load_pool(beside_digits(tmp_path, x, np.arange(40) % 10), 0)
    assert wide.x.shape == (1797 + 40, 3, 8, 8)
    own = load_pool(options("digits"), 0)
    assert torch.equal(load_pool(beside_digits(tmp_path, x[:, :1], np.arange(40) % 10), 0).x[:1797], own.x)
    assert torch.equal(wide.y[:1797], own.y)
    assert wide.ids.bincount().tolist() == [1797, 40]


@pytest.mark.parametrize(
    ("x", "names", "error", "expected"),
    [
        (np.zeros((4, 5), np.float32), ["digits", "path"], DataError, "samples are float32"),
        (None, ["digits"], ConfigError, "two or more different data sets"),
        (None, ["digits", "several"], ConfigError, "two or more different data sets"),
        (None, ["digits", "breast_cancer"], ConfigError, "for images and vectors, and breast_cancer is a table"),
        (None, ["digits", "digitz"], ConfigError, "digitz"),
    ],
)
def test_data_sets_that_are_not_alike_are_refused_in_one_line(tmp_path, x, names, error, expected):
    given = {"options": {"names": names}, "clients": 4}
    if x is not None:
        write_npz(tmp_path / "x.npz", x, np.arange(len(x)))
        given["path"] = str(tmp_path / "x.npz")
    with one_line(error, expected):
        load(options("several", **given), "domain", {}, 0)
