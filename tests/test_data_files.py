"""Users' own files: what .npz and CSV files become, and what bad ones are told."""

import time
import zipfile

import numpy as np
import pytest

from parsgd.data import load_csv, load_npz
from parsgd.data.checksum import data_checksum
from parsgd.errors import UserError

TWO = {"x": np.arange(20.0).reshape(10, 2), "y": np.arange(10) % 2}


def test_npz_keeps_bytes_and_standardises_columns(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(50, 4, 4, 1), dtype=np.uint8)
    table = rng.normal(7, 3, size=(50, 4))
    table[:, 2:] = 5.0, 0.1  # of the latter's binary form no sum is exact
    labels = np.array(["cat", "dog"])[np.arange(50) % 2]
    np.savez(tmp_path / "a.npz", images=images, table=table, kind=labels, y=labels)
    data = load_npz(tmp_path / "a.npz", x="images", y="kind")
    assert data.train.x.dtype == np.uint8 and len(data.train.x) == 40
    prepared = np.asarray(data.prepare(data.train.x))
    assert abs(prepared.mean()) < 1e-3 and abs(prepared.std() - 1) < 1e-3
    data = load_npz(tmp_path / "a.npz", x="table")
    assert data.train.x.dtype == np.float32 and data.classes == 2
    np.testing.assert_allclose(data.train.x.std(axis=0), [1, 1, 0, 0], atol=1e-4)
    assert not np.any(data.train.x[:, 2:]) and not np.any(data.test.x[:, 2:])
    raw = load_npz(tmp_path / "a.npz", x="table", standardize=False)
    assert set(raw.train.x[:, 2]) == {5.0}


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float64])
def test_npz_standardises_the_columns_of_a_matrix_of_any_type(tmp_path, dtype):
    rng = np.random.default_rng(0)
    table = np.stack([rng.integers(0, 2, 50), rng.integers(90, 250, 50)], 1)
    table = np.concatenate([table, np.full((50, 1), 7)], 1).astype(dtype)
    np.savez(tmp_path / "a.npz", x=table, y=np.arange(50) % 2)
    data = load_npz(tmp_path / "a.npz")
    kept = dtype == np.uint8
    assert data.train.x.dtype == (np.uint8 if kept else np.float32)
    x = np.asarray(data.prepare(data.train.x))
    assert x.dtype == np.float32 and not np.any(x[:, 2])
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(x.std(axis=0), [1, 1, 0], atol=1e-5)
    np.testing.assert_allclose(data.prepare(data.train.x[3]), x[3], rtol=1e-6)
    again = load_npz(tmp_path / "a.npz", split_seed=0)
    assert again.prepare == data.prepare and hash(again.prepare) == hash(data.prepare)
    raw = load_npz(tmp_path / "a.npz", standardize=False)
    assert set(np.asarray(raw.prepare(raw.train.x))[:, 2]) == {7.0}
    # What the model sees is other data, though the stored bytes may be the same.
    assert len({*map(data_checksum, (data, again, raw))}) == 2


def test_a_quantity_for_a_label_is_told(tmp_path):
    rows = "".join(f"{i % 7}.5,{i * i}\n" for i in range(30))
    (note,) = load_csv(table(tmp_path, "a,price\n" + rows)).notes
    assert note.startswith("t: 30 of its 30 classes have a single example. This task")
    assert "chosen with task.label, in csv the last column" in note
    np.savez(tmp_path / "a.npz", x=np.ones((30, 2)), y=np.arange(30) ** 2)
    assert load_npz(tmp_path / "a.npz").notes == (note.replace("t: ", "a: ", 1),)
    np.savez(tmp_path / "b.npz", x=np.ones((30, 2)), y=np.arange(30) // 2)
    assert not any("single" in note for note in load_npz(tmp_path / "b.npz").notes)
    counted = "".join(f"{i},{i % 7}.5,{i * i}\n" for i in range(30))
    assert len(load_csv(table(tmp_path, "n,a,price\n" + counted)).notes) == 2


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
        ({"x": np.ones((1, 2)), "y": [0]}, {}, "1 example cannot be split"),
        ({"x": np.ones((2, 2)), "y": [0, 1]}, {}, "for example 0.5"),
        ({"x": np.array([["a"]] * 4), "y": np.arange(4)}, {}, "must be real numbers"),
        ({"x": np.ones(4), "y": np.arange(4)}, {}, "one row per example"),
        ({"x": np.full((9, 2), np.nan), "y": np.arange(9)}, {}, "NaN"),
        ({"x": np.ones((4, 2)), "y": [0.5, 1, 2, 3]}, {}, "0.5 are not whole"),
        ({"x": np.ones((4, 2)), "y": [np.nan, 1, 2, 3]}, {}, "labels are NaN"),
        ({"x": np.ones((4, 2)), "y": np.ones((4, 2))}, {}, "one class per example"),
        ({"x": np.ones((4, 2)), "y": np.array([{}] * 4)}, {}, "holds Python objects"),
        ({"x": np.ones((4, 2)), "y": np.arange(4)}, {"x_test": "x"}, "both x_test"),
        ({}, {}, "no array 'x'; it has none at all: set task.x"),
        ({"x": np.ones((0, 2)), "y": np.ones(0)}, {}, "none of them 0"),
        ({"x": np.ones((4, 0)), "y": np.arange(4)}, {}, "none of them 0"),
        ({"x": np.ones((4, 2)), "y": np.int64(3)}, {}, "'y' of .* is one number"),
        ({"x": np.ones((4, 2)), "y": [1, 2, 3, np.inf]}, {}, "NaN or infinite"),
        (
            {"x": np.array([[1, 1e300 * i] for i in range(4)]), "y": [0, 1] * 2},
            {},
            r"column 1 \(of the inputs, from 0\) .* values up to [23]e.300: correct",
        ),
        (
            {"x": 1e-200 * np.arange(16.0).reshape(4, 2, 2, 1), "y": [0, 1] * 2},
            {},
            "the inputs cannot be standardised, with values up to 1.*e-199",
        ),
        (
            {"x": np.ones((4, 2)), "y": np.arange(4)},
            {"split_seed": -1},
            "split_seed=-1",
        ),
        (
            {**TWO, "x2": np.ones((3, 5)), "y2": np.arange(3) % 2},
            {"x_test": "x2", "y_test": "y2"},
            "a training example is of shape .2,., a test example of .5,.",
        ),
        (
            {**TWO, "x2": np.ones((3, 2)), "y2": np.array(["a", "b", "a"])},
            {"x_test": "x2", "y_test": "y2"},
            "no class is in both",
        ),
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
    with pytest.raises(UserError, match="no NumPy archive, or only a part of one: "):
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
    # As pandas numbers columns without a name.
    lines = "".join(f"{i},{i % 3},{i % 5},{i % 2}\n" for i in range(30))
    counted = load_csv(table(tmp_path, "0,1,2,3\n" + lines))
    assert len(counted.train.x) + len(counted.test.x) == 30
    counted = load_csv(table(tmp_path, "0,1,2,3\n" + lines), label=1)
    assert len(counted.train.x) + len(counted.test.x) == 30


@pytest.mark.parametrize(("first", "label"), [(0, "label"), (1, "y"), (0, "answer")])
def test_csv_of_pandas_with_numbered_inputs_and_a_named_label(tmp_path, first, label):
    names = [str(i) for i in range(first, first + 8)]
    rows = "".join(
        ",".join([*(f"{(i * j) % 7}.5" for j in range(8)), f"{i % 2}\n"])
        for i in range(30)
    )
    wide = table(tmp_path, ",".join([*names, label]) + "\n" + rows)
    assert load_csv(wide, label=label).train.x.shape == (24, 8)
    assert load_csv(wide).train.x.shape == (24, 8)
    for header in ("0,1,a", "0,2,3,a", "1,2,2,a"):
        few = table(tmp_path, header + "\n" + f"{header}\n" * 30)
        with pytest.raises(UserError, match="looks like data"):
            load_csv(few)


@pytest.mark.parametrize(
    "classes", [("no", "yes"), ("7", "8"), ("none", "Na"), ("false", "true")]
)
def test_csv_with_spaces_after_the_commas(tmp_path, classes):
    rows = "".join(f"{i}, {i}.5, {classes[i % 2]}\n" for i in range(30))
    file = table(tmp_path, "a, b, answer\n" + rows)
    for label in ("answer", " answer", -1):
        data = load_csv(file, label=label, standardize=False)
        x, y = (
            np.concatenate(part) for part in zip(data.train, data.test, strict=True)
        )
        np.testing.assert_array_equal(x[:, 1], x[:, 0] + 0.5)
        order = sorted(classes).index(classes[1])
        np.testing.assert_array_equal(y, (x[:, 0] % 2 == 1) == bool(order))


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_csv_of_pandas_with_the_number_of_each_row(tmp_path, name):
    # Sorted by class, as many tables are: the number alone would tell it.
    rows = "".join(f"{i},0.{i % 7},{'k' if i < 15 else 'l'}\n" for i in range(30))
    with pytest.raises(UserError, match=r"column 1 .*counts the rows: .*index=False"):
        load_csv(table(tmp_path, f"{name},a,label\n" + rows))
    named = load_csv(table(tmp_path, "number,a,label\n" + rows))
    assert named.train.x.shape == (24, 2)


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("a,b\n1,0\n2,1\n", {"label": "c"}, "no column 'c'; it has a, b"),
        ("a,b\n1,0\n2,1\n", {"label": 2}, "has 2 columns.* from -2 to 1"),
        ("a;b\n1;0\n2;1\n", {}, "set separator"),
        ("a,b\n1,0\nword,1\n", {}, "'a' .* is not numeric, for example 'word'"),
        ("a,b\n1,0\n,1\n", {}, "'a' .* 1 missing, NaN or infinite value, .* 1 "),
        (
            "a,b\n1.0,0\nNaN,1\n",
            {},
            "'a' .* 1 missing, NaN or infinite value, .* 1 ",
        ),
        (
            "a,c,b\nnan,0.69,1\n1,1,0\nnan,1,0\n",
            {},
            "'a' .* 2 missing, NaN or infinite values, .* 0 ",
        ),
        ("a,b\nnan,1\nword,0\n", {}, "'a' .* not numeric, .* 'word'"),
        ("a,b\n1,1\n2,nan\n", {}, "'b' .* 1 missing, NaN or infinite value"),
        ("a,b\n1,0\n2,\n", {}, "'b' .* missing"),
        ("5.1,3.5,cat\n4.9,3,dog\n", {}, r"looks like data \(5.1, 3.5\), .* add one"),
        ("0.2,0.2,0\n4.9,3,1\n", {"label": "y"}, "looks like data"),
        ("0,1,1\n1,1,0\n", {}, "looks like data"),
        ("", {}, "cannot be read as a table"),
        ("a,b\n", {}, "no rows below"),
        ("a,b\n1,0\n2,1,3\n", {}, "as many values in each row"),
        ('a,b\n"1,0\n2,1\n', {}, "closed quotes"),
        ("a,b\n1,0\n", {"separator": ",,"}, "the one character between"),
        (",a,b\n1,3,0\n2,4,1\n", {}, "column 1 .* counts the rows: remove it, or"),
        ('"",a,b\n"1",3,0\n"2",4,1\n', {}, "column 1 .* no name and counts the rows"),
        (",a,,b\n5,1,3,0\n7,2,4,1\n", {}, "column 1 .* no name: name it .*index=False"),
        ("a,,b,\n1,0,0,\n2,1,1,\n", {}, "column 2 .* no name and counts the rows"),
        ("a,b,\n1,0,\n2,1,\n", {"label": "b"}, "no values: .* end of each line"),
        ("a,b,a \n1,0,2\n2,1,2\n", {"label": "b"}, "cannot be read as a table .*a"),
        ("a,b\n1,x\n2,nan\n3,y\n", {}, "'b' .* 1 missing, .* first in row 1 "),
        ("a,b\n1,x\n2,?\n3, NA\n", {}, "'b' .* 2 missing, .* first in row 1 "),
        ('a,b\n1,""\n2,N/A\n3,x\n', {}, "'b' .* 2 missing, .* first in row 0 "),
        ("a,b\n1,0\n?,1\n", {}, "'a' .* 1 missing, NaN or infinite value, .* 1 "),
        ("a;b\n1;0\n", {"label": "b"}, "one column 'a;b' .* set separator"),
        ("a,b,b\n1,0,1\n2,1,0\n", {"label": "b"}, "several columns 'b': give label a"),
        (f"a,b\n1,{10**20}\n2,9\n", {}, "'b' .* more than 64 bits, such as 1000000"),
        (f"a,b\n1,{2**64 - 1}\n2, {2**65}\n", {}, "'b' .* more than 64 bits"),
        ("a,b\n1,0.5\n2,1.5\n3,2\n4,0\n5,1\n", {}, "0.5 are not whole"),
        ("a,b\n,0\n,1\n", {}, "2 missing, NaN or infinite values, "),
    ],
)
def test_csv_says_what_is_wrong(tmp_path, text, arguments, message):
    with pytest.raises(UserError, match=message) as error:
        load_csv(table(tmp_path, text), **arguments)
    assert len(str(error.value).splitlines()) == 1


def test_csv_with_blank_lines_and_tabs(tmp_path):
    rows = "".join(f"{i}.5\t{i % 3}\t{i % 2}\n\n" for i in range(10))
    data = load_csv(table(tmp_path, "a\tb\ty\n" + rows + "\n"), separator="\\t")
    assert len(data.train.x) + len(data.test.x) == 10
    with pytest.raises(UserError, match="no rows below"):
        load_csv(table(tmp_path, "a,b\n\n"))


@pytest.mark.parametrize(
    ("encode", "message"),
    [
        (lambda text: text.replace("\n", "\r").encode(), "carriage returns alone"),
        (lambda text: text.replace("\n", "\r").encode() + b"\n", "carriage returns"),
        (lambda text: text.encode("utf-16"), "two bytes, as UTF-16 has"),
    ],
)
def test_csv_in_another_encoding(tmp_path, encode, message):
    (tmp_path / "t.csv").write_bytes(encode("a,b\n1,0\n2,1\n"))
    with pytest.raises(UserError, match=message):
        load_csv(tmp_path / "t.csv")


def test_csv_with_a_column_that_counts_the_rows(tmp_path):
    rows = [f"{i},{i % 3},{i % 2}\n" for i in range(5, 25)]
    (note,) = load_csv(table(tmp_path, "id,a,b\n" + "".join(rows))).notes
    assert "column 'id' counts the rows" in note
    shuffled = rows[1:] + rows[:1]
    assert not load_csv(table(tmp_path, "id,a,b\n" + "".join(shuffled))).notes


def test_npz_that_is_damaged(tmp_path):
    np.savez(tmp_path / "whole.npz", x=np.ones((1000, 4)), y=np.arange(1000) % 2)
    content = (tmp_path / "whole.npz").read_bytes()
    damaged = content[:3000] + b"\0" * 100 + content[3100:]
    for text, message in (
        (content[:9000], "or only a part of one"),
        (damaged, "array 'x' of .* is damaged"),
    ):
        (tmp_path / "bad.npz").write_bytes(text)
        with pytest.raises(UserError, match=message):
            load_npz(tmp_path / "bad.npz")
    with zipfile.ZipFile(tmp_path / "zip.npz", "w") as archive:
        archive.writestr("x", "text")
    with pytest.raises(UserError, match=r"is damaged \(not an array"):
        load_npz(tmp_path / "zip.npz")
    with pytest.raises(UserError, match=r"there is no file .*it is a folder"):
        load_npz(tmp_path)


def test_test_labels_that_no_training_example_has_are_told(tmp_path):
    x = np.eye(6, 2)
    labels = {"y": [0, 1, 2, 0, 1, 2], "xt": x[:3], "yt": [2, 7, 8]}
    np.savez(tmp_path / "a.npz", x=x, **labels)
    data = load_npz(tmp_path / "a.npz", x_test="xt", y_test="yt")
    assert data.notes == (
        "a: no training example has the labels 7, 8, which 2 test examples of 3 have: "
        "none of these can be got right",
    )


def test_labels_of_both_kinds_of_long_numbers_stay_apart(tmp_path):
    x, large = np.eye(4, 2), 2**63 + np.arange(2, dtype=np.uint64)
    labels = {"y": np.array([0, 1, 0, 1]), "xt": x[:2], "yt": large}
    np.savez(tmp_path / "a.npz", x=x, **labels)
    assert load_npz(tmp_path / "a.npz", x_test="xt", y_test="yt").classes == 4


def test_labels_of_another_shape_are_told_as_they_are_in_the_file(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.eye(40, 2), y=np.zeros((40, 3), int))
    with pytest.raises(UserError, match=r"labels of shape \(40, 3\): give one class"):
        load_npz(tmp_path / "a.npz")


def test_a_column_of_words_is_told_with_the_column_of_labels(tmp_path):
    path = table(tmp_path, "temp,kind,wind\n1,hot,2\n2,cold,3\n")
    with pytest.raises(UserError, match=r"'kind' .* labels are taken from 'wind'"):
        load_csv(path)


def test_a_single_nul_is_not_taken_for_utf_16(tmp_path):
    with pytest.raises(UserError, match="it has a character NUL"):
        load_csv(table(tmp_path, "a,b,y\n1,2,\0\n2,3,1\n"))
