import numpy as np
import pytest
import torch

from data.files import png, write_images, write_npz, write_parquet
from protofed.data import DataOptions, load
from protofed.data.federation import load_client
from protofed.errors import ConfigError, DataError
from support import few, one_line


def fed(root, seed=0, **more):
    return load(DataOptions(source="path", path=str(root), **more), "dirichlet", None, seed)


def test_parquet_clients_in_order_of_names(federation):
    (federation / "clients" / ".hidden").write_text("")
    data = fed(federation)
    assert [c.name for c in data.clients] == ["north", "south"]
    assert data.num_classes == 3
    assert data.class_names == ("0", "1", "2")
    assert data.input_shape == (1, 4, 4)
    north = data.clients[0]
    assert north.train.y.tolist() == [0, 0, 1]
    assert north.train.x[:, 0, 0, 0].tolist() == [0, 0, 10]
    assert north.validation is None
    assert north.settings == {}
    assert data.clients[1].train.counts(3).add(data.clients[1].test.counts(3)).tolist() == [0, 1, 4]


def test_the_three_formats_mix(tmp_path):
    clients = tmp_path / "clients"
    write_npz(clients / "a" / "train.npz", np.full((2, 4, 4), 5, np.uint8), [0, 1])
    write_npz(clients / "a" / "test.npz", np.full((1, 4, 4), 6, np.uint8), [2])
    write_parquet(clients / "b" / "train.parquet", [1])
    write_npz(clients / "b" / "test.npz", np.zeros((0, 4, 4), np.uint8), np.zeros(0, np.int64))
    write_npz(clients / "b" / "validation.npz", np.ones((1, 4, 4), np.uint8), [1])
    data = fed(tmp_path)
    assert data.num_classes == 3
    assert data.clients[1].test.x.shape == (0, 1, 4, 4)
    assert data.clients[1].test.x.dtype == torch.uint8
    assert data.clients[1].validation.y.tolist() == [1]


def test_image_folders_share_the_union_of_class_names(tmp_path):
    clients = tmp_path / "clients"
    write_images(clients / "a" / "train", {"dog": 2})
    write_images(clients / "a" / "test", {"dog": 1})
    write_images(clients / "b" / "train", {"ant": 1, "cat": 2})
    write_images(clients / "b" / "test", {"cat": 1})
    data = fed(tmp_path)
    assert data.class_names == ("ant", "cat", "dog")
    assert data.clients[0].train.y.tolist() == [2, 2]
    assert data.clients[1].train.y.tolist() == [0, 1, 1]
    (tmp_path / "federation.toml").write_text('classes = ["dog", "cat", "ant", "owl"]')
    data = fed(tmp_path)
    assert data.num_classes == 4
    assert data.clients[0].train.y.tolist() == [0, 0]
    (tmp_path / "federation.toml").write_text('classes = ["dog", "cat", "aunt"]')
    with pytest.raises(DataError, match=r"b.train: unknown class 'ant': did you mean 'aunt'"):
        fed(tmp_path)


def test_class_names_from_toml_option_or_metadata(federation):
    assert fed(federation, classes=5).class_names == ("0", "1", "2", "3", "4")
    (federation / "federation.toml").write_text('classes = ["a", "b", "c", "d"]')
    assert fed(federation).class_names == ("a", "b", "c", "d")
    (federation / "federation.toml").unlink()
    write_parquet(federation / "clients" / "north" / "train.parquet", [0], names=["x", "y", "z"])
    assert fed(federation).class_names == ("x", "y", "z")
    write_parquet(federation / "clients" / "south" / "train.parquet", [0], names=["x", "z", "y"])
    with pytest.raises(DataError, match=r"south.train.parquet: its class names differ"):
        fed(federation)


def test_odd_but_legitimate_clients(federation):
    write_parquet(federation / "clients" / "north" / "train.parquet", [], [])
    write_parquet(federation / "clients" / "south" / "train.parquet", [2])
    data = fed(federation, validation_fraction=0.5)
    assert len(data.clients[0].train) == 0
    assert data.clients[0].train.x.shape == (0, 1, 4, 4)
    assert data.clients[1].train.y.tolist() == [2]
    assert len(data.clients[1].validation) == 0


def test_test_samples_that_are_set_aside_are_known_as_the_same(tmp_path):
    """Seeds hold out other validation samples, and so scale test samples otherwise."""
    rng = np.random.default_rng(0)
    for split, n in (("train", 40), ("test", 10)):
        write_npz(tmp_path / "clients" / "a" / f"{split}.npz", rng.normal(size=(n, 3)), np.arange(n) % 2)
    one, other = (fed(tmp_path, seed, validation_fraction=0.25, standardise="site") for seed in (0, 1))
    assert not torch.equal(one.clients[0].test.x, other.clients[0].test.x)
    assert one.test_hash() == other.test_hash()
    write_npz(tmp_path / "clients" / "a" / "test.npz", rng.normal(size=(10, 3)), np.arange(10) % 2)
    assert fed(tmp_path, 0, validation_fraction=0.25, standardise="site").test_hash() != one.test_hash()


def test_training_samples_are_limited_per_client_and_class(federation):
    """The labels keep their shares, to within one sample; tests and clients with fewer samples are as they were."""
    write_parquet(federation / "clients" / "south" / "train.parquet", [0] * 24 + [1] * 12 + [2] * 4)
    whole, (north, south) = fed(federation), fed(federation, train_samples=10).clients
    assert len(south.train) == 10
    for found, share in zip(torch.bincount(south.train.y).tolist(), (6, 3, 1), strict=True):
        assert abs(found - share) <= 1
    assert torch.equal(south.train.x[:, 0, 0, 0], (10 * south.train.y).to(torch.uint8))
    assert torch.equal(south.test.x, whole.clients[1].test.x)
    assert torch.equal(north.train.x, whole.clients[0].train.x)
    for value in (0, 40, 41):
        for a, b in zip(fed(federation, train_samples=value).clients, whole.clients, strict=True):
            assert torch.equal(a.train.x, b.train.x)
            assert torch.equal(a.train.y, b.train.y)
    again, other = (fed(federation, seed, train_samples=10).clients[1].train.y for seed in (0, 1))
    assert torch.equal(again, south.train.y)
    assert len(other) == 10
    options = DataOptions(source="path", path=str(federation), train_samples=10)
    alone, _ = load_client(federation / "clients" / "south", options, 0, whole.class_names)
    assert torch.equal(alone.clients[0].train.x, south.train.x)  # a node keeps the samples that the simulation does


def test_validation_samples_are_held_out_of_all_training_samples(federation):
    """The limit is for training alone: the same validation samples with and without."""
    write_parquet(federation / "clients" / "south" / "train.parquet", [0] * 8 + [1] * 8)
    whole, limited = (fed(federation, validation_fraction=0.25, train_samples=n).clients[1] for n in (0, 6))
    assert torch.bincount(limited.train.y).tolist() == [3, 3]
    assert torch.equal(limited.validation.x, whole.validation.x)


def test_samples_are_shared_out_over_clients_and_splits(federation):
    for split, each in (("train", 30), ("test", 10)):
        for client in ("north", "south"):
            write_parquet(federation / "clients" / client / f"{split}.parquet", [0, 1] * (each // 2))
    data = fed(federation, samples=40)
    assert [(len(c.train), len(c.test)) for c in data.clients] == [(15, 5), (15, 5)]
    with pytest.raises(ConfigError, match=r"data.samples = 81, but the federation has 80"):
        fed(federation, samples=81)


def test_client_settings(federation):
    path = federation / "clients" / "north" / "client.toml"
    path.write_text('model = "cnn"\nd = 64\nepochs = 2\nbatch_size = 8\nlr = 1')
    data = fed(federation)
    assert data.clients[0].settings == {"model": "cnn", "d": 64, "epochs": 2, "batch_size": 8, "lr": 1}
    assert data.clients[1].settings == {}


@few(
    ("content", "expected"),
    [
        ("bach_size = 8", "did you mean 'batch_size'"),
        ("epochs = 0", "epochs: must be from 1 to 1000, not 0"),
        ("lr = 0", "lr: must be above 0 and at most 10"),
        ("lr = nan", "not nan"),
        ("model = 3", "expected the name of an architecture"),
        ("model = 'os:'", "expected the name of an architecture"),
        ("counts = 'few'", "counts: must be exact, coarse or none, not 'few'"),
        ("model = ", "not valid TOML"),
        ("d = " + "[" * 5000, "nested too deeply"),
    ],
    9,
)
def test_bad_client_settings(federation, content, expected):
    path = federation / "clients" / "north" / "client.toml"
    path.write_text(content)
    refused(federation, str(path), expected)


@pytest.mark.parametrize(
    ("content", "expected"),
    [("class = ['a']", "did you mean 'classes'"), ("classes = 3", "list"), ("classes = ['a', 'a']", "different")],
)
def test_bad_federation_toml(federation, content, expected):
    (federation / "federation.toml").write_text(content)
    refused(federation, "federation.toml", expected)


def refused(root, where, expected, **more):
    """Loading fails with one line that names ``where``."""
    with one_line(DataError, expected, says=where):
        fed(root, **more)


def north(root, name):
    return root / "clients" / "north" / name


def test_missing_split(federation):
    north(federation, "test.parquet").rename(north(federation, "tset.parquet"))
    refused(federation, "north/test.parquet", "missing.*the folder holds train.parquet, tset.parquet")


def test_two_forms_of_a_split(federation):
    write_npz(north(federation, "train.npz"), np.zeros((1, 4, 4), np.uint8), [0])
    refused(federation, "north/train.parquet", "train.npz exists too")


@pytest.mark.parametrize("label", [-1, 3])
def test_label_out_of_range(federation, label):
    write_parquet(north(federation, "test.parquet"), [0, label], [png(), png()])
    refused(federation, "north/test.parquet", rf"column 'label', row 1: label {label} is outside 0..2", classes=3)


def test_grey_images_of_one_client_become_colour_with_a_note(federation):
    grey = fed(federation).clients[0].train.x
    for split in ("train", "test"):
        write_parquet(federation / "clients" / "south" / f"{split}.parquet", [0], [png(mode="RGB")])
    data = fed(federation)
    assert data.input_shape == (3, 4, 4)
    assert torch.equal(data.clients[0].train.x, grey.expand(-1, 3, -1, -1))
    (note,) = data.notes
    assert note.startswith("Grey images were converted to colour")
    assert "north" in note
    assert "south" not in note


def test_grey_images_in_a_file_with_colour_ones_are_named_in_a_note(federation):
    images = [png(), png(mode="RGB"), *[png()] * 9]
    write_parquet(north(federation, "train.parquet"), [0] * 11, images)
    write_parquet(north(federation, "test.parquet"), [0], [png(mode="RGB")])
    for split in ("train", "test"):
        write_parquet(federation / "clients" / "south" / f"{split}.parquet", [0], [png(mode="RGB")])
    (note,) = fed(federation).notes
    named, _, more = note.partition(" and ")
    rows = [0, 2, 3, 4, 5, 6, 7, 8]
    assert [int(name.rpartition("row ")[2]) for name in named.split(", ")[1:]] == rows
    assert more == "2 more."


def test_sizes_differ_between_clients(federation):
    write_parquet(north(federation, "test.parquet"), [0], [png(size=(5, 4))])
    refused(federation, "north/test.parquet", r"\(1, 4, 5\).*: set data.options.resize")


def test_bad_columns(federation):
    path = north(federation, "train.parquet")
    write_parquet(path, [0], [png()], scan=[png()])
    refused(federation, "north/train.parquet", r"\['image', 'scan'\]: set data.image_column")
    assert fed(federation, image_column="image").num_classes == 3
    write_parquet(path, [0], [png()], target=[1])
    refused(federation, "north/train.parquet", "cannot identify the label column among image, target, label")
    refused(federation, "north/train.parquet", "did you mean 'label'", label_column="lable")
    write_parquet(path, [0], text=["word"])
    refused(federation, "north/train.parquet", "holds a table, but .*north/test.parquet does not")
    write_parquet(path, [0, None], [png(), png()])
    refused(federation, "north/train.parquet", "column 'label', row 1 has no value")
    write_parquet(path, [0, 1], v=[[1.0], [1.0, 2.0]])
    refused(federation, "north/train.parquet", "'v': the list of row 1 has 2 entries, others 1")
    write_parquet(path, ["zero"], [png()])
    refused(federation, "numbered labels", "class names: use one kind")


def test_bad_folders(tmp_path):
    clients = tmp_path / "clients"
    clients.mkdir()
    refused(tmp_path, "clients", "empty folder")
    (clients / "notes.txt").write_text("")
    refused(tmp_path, "notes.txt", "one client's folder")
    (clients / "notes.txt").unlink()
    (clients / "a+b").mkdir()
    refused(tmp_path, "'a+b'", "letters, digits")
    (clients / "a+b").rmdir()
    (clients / "a").mkdir()
    refused(tmp_path, "a/train.parquet", "missing.*holds nothing")
    (clients / "a" / "train").mkdir()
    (clients / "a" / "test").mkdir()
    refused(tmp_path, "a/train", "empty folder")
    (clients / "a" / "train" / "cat").mkdir()
    refused(tmp_path, "train/cat", "holds no images")
    write_images(clients / "a" / "train", {"dog": 1})
    (clients / "a" / "train" / "cat" / "1.txt").write_text("meow")
    refused(tmp_path, "cat/1.txt", "not an image")
    (clients / "a" / "train" / "cat" / "1.txt").rename(clients / "a" / "train" / "cat" / "1.png")
    write_images(clients / "a" / "test", {"dog": 1})
    refused(tmp_path, "cat/1.png", "not a readable image")
    (clients / "a" / "train" / "readme.png").write_bytes(png())
    refused(tmp_path, "readme.png", "not a folder")


def test_names_that_differ_in_case_only(tmp_path):
    for name in ("site", "Site"):
        (tmp_path / "clients" / name).mkdir(parents=True, exist_ok=True)
    if len(list((tmp_path / "clients").iterdir())) < 2:
        pytest.skip("this file system does not tell upper from lower case")
    refused(tmp_path, "clients", "'Site' and 'site' are the same")


def test_nobody_has_anything(federation):
    for client in ("north", "south"):
        for split in ("train", "test"):
            write_parquet(federation / "clients" / client / f"{split}.parquet", [], [])
    refused(federation, "north/train.parquet", "no samples at all")


def test_a_path_that_holds_nothing_useful(tmp_path):
    refused(tmp_path, str(tmp_path), "expected a federation folder")
    refused(tmp_path / "gone", "gone", "no such file or folder")
    (tmp_path / "a.txt").write_text("1,2")
    refused(tmp_path / "a.txt", "a.txt", "expected a federation folder")


@pytest.mark.parametrize("file", ["train.csv", "train.parquet", "train.npz"])
def test_clients_outside_their_folder_are_not_pooled_or_taken_for_images(tmp_path, file):
    for client in ("Köln", "north clinic"):
        (tmp_path / client).mkdir()
        (tmp_path / client / file).write_bytes(b"x")
    refused(tmp_path, f"Köln/{file}", f"move the clients to {tmp_path / 'clients'}")


def test_validation_may_not_leave_a_client_without_training_data(federation, tmp_path):
    clients = tmp_path / "own" / "clients"
    for name, train in (("a", [0, 1]), ("b", [])):
        write_npz(clients / name / "train.npz", np.ones((len(train), 4, 4), np.uint8), train)
        write_npz(clients / name / "test.npz", np.ones((1, 4, 4), np.uint8), [1])
    assert len(fed(tmp_path / "own", classes=2).clients[1].train) == 0
    write_npz(clients / "b" / "validation.npz", np.ones((3, 4, 4), np.uint8), [1, 0, 1])
    with one_line(DataError, r"clients/b: its 3 samples for validation leave none for training"):
        fed(tmp_path / "own")
    with pytest.raises(DataError, match="leave none for training"):
        load_client(clients / "b", DataOptions(), 0)
