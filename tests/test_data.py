"""Data sets: what they hold, how they are split, and what bad files are told."""

import functools
import gzip
import http.server
import threading
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from parsgd.data import (
    Dataset,
    Split,
    Standardize,
    fashion_mnist,
    load_breast_cancer,
    load_csv,
    load_digits,
    load_fashion_mnist,
    load_npz,
    load_text,
    make_synthetic,
    validate,
)
from parsgd.data.dataset import as_floats
from parsgd.errors import UserError


def toy(**changes):
    x, y = np.ones((4, 2), np.float32), np.array([0, 1, 2, 0], np.int32)
    fields = {"x": x, "y": y, "x_test": x[:2], "y_test": y[:2], "classes": 3, **changes}
    train = Split(fields["x"], fields["y"])
    test = Split(fields["x_test"], fields["y_test"])
    return Dataset("toy", train, test, fields["classes"], as_floats)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": np.ones((3, 2), np.float32)}, "3 inputs but 4 labels"),
        ({"x": np.zeros((0, 2), np.float32)}, "training split is empty"),
        ({"x_test": np.full((2, 2), np.nan, np.float32)}, "test split has 2 example"),
        ({"y": np.array([0, 1, 3, 0], np.int32)}, "from 0 to 3.*0 .. 2.*classes to 4"),
        ({"y": np.array([0, -1, 2, 0], np.int32)}, "from -1 to 2"),
        ({"y": np.array([0.0, 1, 2, 0])}, "float64"),
        ({"classes": 1}, "at least 2"),
        ({"x_test": np.ones((2, 3), np.float32)}, "same kind of example"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(changes, message):
    validate(toy())
    with pytest.raises(UserError, match=f"(?s)toy: .*{message}"):
        validate(toy(**changes))


def test_non_finite_inputs_name_the_first_example():
    x = np.ones((4, 2), np.float32)
    x[2, 1] = np.inf
    with pytest.raises(UserError, match="the first is number 2"):
        validate(toy(x=x))


def test_standardize_compares_by_value_and_computes_float32():
    assert Standardize(1.0, 2.0) == Standardize(1.0, 2.0)
    assert hash(Standardize(1.0, 2.0)) == hash(Standardize(1.0, 2.0))
    out = Standardize(mean=10.0, std=5.0)(np.array([0, 20], np.uint8))
    assert out.dtype == jnp.float32 and out.tolist() == [-2.0, 2.0]


@pytest.mark.parametrize(
    ("load", "examples", "held_out"),
    [(load_digits, 1797, 359), (load_breast_cancer, 569, 114)],
)
def test_scikit_learn_sets_are_split_by_a_stated_seed(load, examples, held_out):
    data = load()
    assert len(data.test.x) == held_out and len(data.train.x) == examples - held_out
    rows = np.concatenate([data.train.x, data.test.x]).reshape(examples, -1)
    other = load(split_seed=1)
    again = np.concatenate([other.train.x, other.test.x]).reshape(examples, -1)
    assert not np.array_equal(data.test.x, other.test.x)
    if data.train.x.dtype == np.uint8:  # the same examples, split differently
        np.testing.assert_array_equal(
            rows[np.lexsort(rows.T)], again[np.lexsort(again.T)]
        )
    assert load() is data
    with pytest.raises(UserError, match="test_fraction=0"):
        load(test_fraction=0)


def test_digits_stay_bytes_and_are_prepared_on_the_device():
    data = load_digits()
    assert data.train.x.dtype == np.uint8 and data.train.x.shape[1:] == (8, 8, 1)
    assert data.train.y.dtype == np.int32 and data.classes == 10
    x = np.asarray(data.prepare(data.train.x))
    assert abs(x.mean()) < 0.02 and abs(x.std() - 1) < 0.02
    with pytest.raises(ValueError, match="read-only"):
        data.train.x[0] = 0


def test_breast_cancer_is_standardised_by_the_training_split():
    x = load_breast_cancer().train.x
    assert x.dtype == np.float32 and x.shape == (455, 30)
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(x.std(axis=0), 1, atol=1e-4)


def test_synthetic_clusters_lie_as_far_apart_as_asked():
    data = make_synthetic(examples=20_000, features=20, classes=8, separation=6.0)
    x, y = data.train
    centers = np.stack([x[y == c].mean(axis=0) for c in range(8)])
    distance = np.linalg.norm(centers[:, None] - centers[None], axis=-1)
    assert abs(distance[np.triu_indices(8, 1)].mean() - 6.0) < 1.0
    assert abs(np.std(x - centers[y]) - 1) < 0.01


def test_synthetic_test_split_does_not_depend_on_the_training_size():
    for kind in ("clusters", "teacher"):
        small = make_synthetic(examples=10, kind=kind, test_examples=50)
        large = make_synthetic(examples=200, kind=kind, test_examples=50)
        np.testing.assert_array_equal(small.test.x, large.test.x)
        np.testing.assert_array_equal(small.test.y, large.test.y)
        other = make_synthetic(kind=kind, test_examples=50, data_seed=1)
        assert not np.array_equal(small.test.x, other.test.x)


def test_synthetic_teacher_uses_every_class_and_noise_only_in_training():
    clean = make_synthetic(kind="teacher", classes=4)
    noisy = make_synthetic(kind="teacher", classes=4, label_noise=0.4)
    assert np.bincount(clean.train.y).min() > 500
    np.testing.assert_array_equal(clean.test.y, noisy.test.y)
    # A random label is right one time in four.
    assert abs((clean.train.y != noisy.train.y).mean() - 0.3) < 0.02


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"examples": 0}, "examples=0"),
        ({"classes": 1}, "classes=1"),
        ({"kind": "moons"}, "'clusters' or 'teacher'"),
        ({"label_noise": 1.5}, "label_noise=1.5"),
    ],
)
def test_synthetic_refuses_values_out_of_range(arguments, message):
    with pytest.raises(UserError, match=message):
        make_synthetic(**arguments)


def test_text_windows_continue_each_other_and_never_share_test_text(tmp_path):
    raw = bytes(range(32, 122)) * 3
    (tmp_path / "story.txt").write_bytes(raw)
    data = load_text(path=tmp_path / "story.txt", context=7, test_fraction=0.2)
    assert data.name == "story" and data.classes == 256
    (x, y), (x_test, y_test) = data.train, data.test
    assert x.dtype == y.dtype == np.uint8
    assert x.tobytes() == raw[: x.size] and y.tobytes() == raw[1 : x.size + 1]
    assert x_test.tobytes() == raw[216 : 216 + x_test.size]
    assert x.size + 1 <= 216 and y_test.tobytes() == raw[217 : 217 + x_test.size]
    assert data.prepare(x).dtype == jnp.int32


def test_text_default_corpus_is_english():
    data = load_text()
    assert data.train.x.size > 300_000
    assert b" the " in data.train.x.tobytes() and b" the " in data.test.x.tobytes()


def test_text_says_what_is_wrong_with_a_file(tmp_path):
    with pytest.raises(UserError, match=r"text: there is no file .*none\.txt"):
        load_text(path=tmp_path / "none.txt")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 " * 100)
    with pytest.raises(UserError, match=r"not UTF-8 \(byte 3\)"):
        load_text(path=tmp_path / "latin.txt")
    (tmp_path / "short.txt").write_text("too short")
    with pytest.raises(UserError, match="smaller context"):
        load_text(path=tmp_path / "short.txt")
    with pytest.raises(UserError, match="context=0"):
        load_text(context=0)


def test_npz_keeps_bytes_and_standardises_columns(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(50, 4, 4, 1), dtype=np.uint8)
    table = rng.normal(7, 3, size=(50, 3))
    table[:, 2] = 5.0
    labels = np.array(["cat", "dog"])[np.arange(50) % 2]
    np.savez(tmp_path / "a.npz", images=images, table=table, kind=labels, y=labels)
    data = load_npz(tmp_path / "a.npz", x="images", y="kind")
    assert data.train.x.dtype == np.uint8 and len(data.train.x) == 40
    prepared = np.asarray(data.prepare(data.train.x))
    assert abs(prepared.mean()) < 1e-3 and abs(prepared.std() - 1) < 1e-3
    data = load_npz(tmp_path / "a.npz", x="table")
    assert data.train.x.dtype == np.float32 and data.classes == 2
    np.testing.assert_allclose(data.train.x.std(axis=0), [1, 1, 0], atol=1e-4)
    raw = load_npz(tmp_path / "a.npz", x="table", standardize=False)
    assert set(raw.train.x[:, 2]) == {5.0}


def test_npz_with_its_own_test_arrays_and_labels_of_any_numbers(tmp_path):
    x = np.eye(6, 2)
    np.savez(
        tmp_path / "b.npz",
        **{"x": x, "y": [5, 7, 9, 5, 7, 9], "xt": x[:2], "yt": [9.0, 5.0]},
    )
    data = load_npz(tmp_path / "b.npz", x_test="xt", y_test="yt", standardize=False)
    np.testing.assert_array_equal(data.train.y, [0, 1, 2, 0, 1, 2])
    np.testing.assert_array_equal(data.test.y, [2, 0])
    np.testing.assert_array_equal(data.train.x, x)


def test_a_changed_file_is_read_again(tmp_path):
    file = tmp_path / "c.npz"
    np.savez(file, x=np.zeros((10, 2)), y=np.arange(10) % 2)
    first = load_npz(file)
    assert load_npz(file) is first
    time.sleep(0.02)
    np.savez(file, x=np.ones((20, 2)), y=np.arange(20) % 2)
    assert len(load_npz(file).train.x) == 16


@pytest.mark.parametrize(
    ("arrays", "arguments", "message"),
    [
        (
            {"x": np.ones((4, 2)), "y": np.arange(4)},
            {"y": "label"},
            "'label'; it has x, y",
        ),
        ({"x": np.ones((4, 2)), "y": np.arange(3)}, {}, "4 inputs but 3 labels"),
        ({"x": np.array([["a"]] * 4), "y": np.arange(4)}, {}, "must be real numbers"),
        ({"x": np.ones(4), "y": np.arange(4)}, {}, "one row per example"),
        ({"x": np.full((9, 2), np.nan), "y": np.arange(9)}, {}, "NaN"),
        ({"x": np.ones((4, 2)), "y": [0.5, 1, 2, 3]}, {}, "0.5 are not whole"),
        ({"x": np.ones((4, 2)), "y": [np.nan, 1, 2, 3]}, {}, "labels are NaN"),
        ({"x": np.ones((4, 2)), "y": np.ones((4, 2))}, {}, "one class per example"),
        ({"x": np.ones((4, 2)), "y": np.array([{}] * 4)}, {}, "holds Python objects"),
        ({"x": np.ones((4, 2)), "y": np.arange(4)}, {"x_test": "x"}, "both x_test"),
    ],
)
def test_npz_says_what_is_wrong(tmp_path, arrays, arguments, message):
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(UserError, match=message):
        load_npz(tmp_path / "bad.npz", **arguments)


def test_npz_standardises_in_double_precision(tmp_path):
    dates = 1.7e9 + np.arange(40.0).reshape(40, 1)
    np.savez(tmp_path / "dates.npz", x=dates, y=np.arange(40) % 2)
    data = load_npz(tmp_path / "dates.npz")
    assert len(np.unique(data.train.x)) == 32
    np.testing.assert_allclose(data.train.x.std(), 1, rtol=1e-5)


def test_npz_that_is_none(tmp_path):
    with pytest.raises(UserError, match=r"npz: there is no file"):
        load_npz(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(UserError, match="no NumPy archive"):
        load_npz(tmp_path / "text.npz")
    np.save(tmp_path / "one.npy", np.ones(3))
    with pytest.raises(UserError, match="one array without keys"):
        load_npz(tmp_path / "one.npy")


def table(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    return tmp_path / "t.csv"


def test_csv_reads_columns_and_labels_by_name_or_position(tmp_path):
    rows = "".join(f"{i},{'yes' if i % 3 else 'no'},{i * i}.5\n" for i in range(30))
    file = table(tmp_path, "a,answer,b\n" + rows)
    data = load_csv(file, label="answer", standardize=False)
    assert data.train.x.shape == (24, 2) and data.train.x.dtype == np.float32
    x, y = (np.concatenate(parts) for parts in zip(data.train, data.test, strict=True))
    np.testing.assert_array_equal(x[:, 1], x[:, 0] ** 2 + 0.5)
    np.testing.assert_array_equal(y, (x[:, 0] % 3 != 0).astype(np.int32))
    same = load_csv(file, label=1, standardize=False)
    np.testing.assert_array_equal(same.train.x, data.train.x)


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("a,b\n1,0\n2,1\n", {"label": "c"}, "no column 'c'; it has a, b"),
        ("a,b\n1,0\n2,1\n", {"label": 2}, "has 2 columns"),
        ("a;b\n1;0\n2;1\n", {}, "set separator"),
        ("a,b\n1,0\nword,1\n", {}, "'a' .* is not numeric, for example 'word'"),
        ("a,b\n1,0\n,1\n", {}, "'a' .* 1 missing, NaN or infinite .* row 1"),
        ("a,b\n1.0,0\nNaN,1\n", {}, "'a' .* 1 missing, NaN or infinite .* row 1"),
        ("a,b\n1,0\n2,\n", {}, "'b' .* missing"),
        ("", {}, "cannot be read as a table"),
        ("a,b\n", {}, "no rows below"),
        ("a,b\n,0\n,1\n", {}, "2 missing"),
    ],
)
def test_csv_says_what_is_wrong(tmp_path, text, arguments, message):
    with pytest.raises(UserError, match=message):
        load_csv(table(tmp_path, text), **arguments)


def write_idx(folder: Path, *, packed=True, images=6):
    """Small files that stand in for the real ones."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in fashion_mnist.SHA256:
        rank = 3 if "images" in name else 1
        shape = (images, 28, 28) if rank == 3 else (images,)
        values = np.arange(np.prod(shape)) % (256 if rank == 3 else 10)
        raw = bytes([0, 0, 8, rank]) + np.array(shape, ">u4").tobytes()
        raw += values.astype(np.uint8).tobytes()
        path = folder / (name if packed else name.removesuffix(".gz"))
        path.write_bytes(gzip.compress(raw) if packed else raw)
    return folder


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """No copy on this machine, an address that refuses, no waiting between tries."""
    monkeypatch.delenv("PARSGD_DATA", raising=False)
    monkeypatch.setattr(fashion_mnist, "_cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(fashion_mnist, "SYSTEM", tmp_path / "system")
    monkeypatch.setattr(fashion_mnist, "URL", "http://127.0.0.1:9/")
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)
    return tmp_path


@pytest.mark.parametrize("place", ["data_dir", "PARSGD_DATA", "cache", "system"])
@pytest.mark.parametrize("packed", [True, False])
def test_fashion_mnist_is_found(nowhere, monkeypatch, place, packed):
    write_idx(nowhere / place / "fashion-mnist", packed=packed)
    if place == "PARSGD_DATA":
        monkeypatch.setenv("PARSGD_DATA", str(nowhere / place))
    data_dir = nowhere / place if place == "data_dir" else None
    data = load_fashion_mnist(data_dir=data_dir)
    assert data.train.x.shape == (6, 28, 28, 1) and data.train.x.dtype == np.uint8
    np.testing.assert_array_equal(data.train.x.ravel()[:300], np.arange(300) % 256)
    np.testing.assert_array_equal(data.test.y, np.arange(6))
    assert load_fashion_mnist(data_dir=data_dir) is data


def test_fashion_mnist_prefers_the_named_folder(nowhere, monkeypatch):
    write_idx(nowhere / "cache", images=3)
    write_idx(nowhere / "mine", images=4)
    monkeypatch.setenv("PARSGD_DATA", str(nowhere / "mine"))
    assert len(load_fashion_mnist().train.x) == 4


def test_fashion_mnist_nowhere_names_the_three_ways(nowhere):
    with pytest.raises(UserError) as error:
        load_fashion_mnist()
    message = str(error.value)
    for way in ("apt install dataset-fashion-mnist", "PARSGD_DATA", "network"):
        assert way in message
    with pytest.raises(UserError, match=r"data_dir=.*does not hold the four files"):
        load_fashion_mnist(data_dir=nowhere)


def test_fashion_mnist_damaged_files_are_named(nowhere):
    folder = write_idx(nowhere / "cache")
    file = folder / "t10k-labels-idx1-ubyte.gz"
    whole = file.read_bytes()
    for damage in (whole[:-9], gzip.compress(gzip.decompress(whole)[:-1])):
        file.write_bytes(damage)
        with pytest.raises(UserError, match=r"t10k-labels-idx1-ubyte\.gz"):
            load_fashion_mnist()


class Flaky(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and fails the first request."""

    failures = 1

    def do_GET(self):
        if Flaky.failures > 0:
            Flaky.failures -= 1
            self.send_error(503)
        else:
            super().do_GET()

    def log_message(self, *_):
        pass


@pytest.fixture
def site(nowhere, monkeypatch):
    folder = write_idx(nowhere / "site")
    handler = functools.partial(Flaky, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(
            fashion_mnist, "URL", f"http://127.0.0.1:{server.server_port}/"
        )
        yield folder
        server.shutdown()


def test_fashion_mnist_download_is_retried_and_kept(nowhere, site, monkeypatch):
    import pooch

    hashes = {name: pooch.file_hash(site / name) for name in fashion_mnist.SHA256}
    monkeypatch.setattr(fashion_mnist, "SHA256", hashes)
    monkeypatch.setattr(Flaky, "failures", 1)
    assert len(load_fashion_mnist().train.x) == 6
    kept = nowhere / "cache" / "fashion-mnist"
    assert sorted(p.name for p in kept.iterdir()) == sorted(hashes)


def test_fashion_mnist_download_with_a_wrong_checksum_is_refused(nowhere, site):
    with pytest.raises(UserError, match="does not match the known hash"):
        load_fashion_mnist()
    assert not any((nowhere / "cache" / "fashion-mnist").glob("*.gz"))


@pytest.mark.skipif(
    not fashion_mnist.SYSTEM.is_dir(), reason="dataset-fashion-mnist is not installed"
)
def test_fashion_mnist_of_debian_is_the_published_data():
    data = load_fashion_mnist(data_dir=fashion_mnist.SYSTEM)
    assert data.train.x.shape == (60_000, 28, 28, 1) and len(data.test.x) == 10_000
    assert np.bincount(data.train.y).tolist() == [6000] * 10
    x = np.asarray(data.prepare(data.train.x[:10_000]))
    assert abs(x.mean()) < 0.02 and abs(x.std() - 1) < 0.02
