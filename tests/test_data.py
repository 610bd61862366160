"""Data sets: what they hold, and how they are split."""

import jax.numpy as jnp
import numpy as np
import pytest

from parsgd.data import (
    Dataset,
    Split,
    Standardize,
    load_breast_cancer,
    load_digits,
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
        (
            {"x_test": np.full((2, 2), np.nan, np.float32)},
            "test split has 2 examples with",
        ),
        ({"y": np.array([0, 1, 3, 0], np.int32)}, "from 0 to 3.*0 .. 2.*classes to 4"),
        (
            {"y": np.array([0, -1, 2, 0], np.int32)},
            "from -1 to 2.*: number the classes from 0 or correct",
        ),
        (
            {"y": np.array([1, -1, 1, -1], np.int32), "classes": 2},
            "from -1 to 1.*: number the classes from 0 or correct",
        ),
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
    with pytest.raises(UserError, match=r"1 example with .* the first is number 2"):
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
    with pytest.raises(UserError, match="test_fraction=nan"):
        load(test_fraction=float("nan"))


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
        ({"data_seed": -1}, "data_seed=-1: give a whole number, 0 or more"),
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
