"""Fashion-MNIST: where it is looked for, how it is downloaded, what is refused."""

import functools
import gzip
import http.server
import threading
from pathlib import Path

import numpy as np
import pytest

from parsgd.data import fashion_mnist, load_fashion_mnist
from parsgd.errors import UserError


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


def test_fashion_mnist_named_folder_is_not_passed_over(nowhere, monkeypatch):
    write_idx(nowhere / "cache")
    monkeypatch.setenv("PARSGD_DATA", str(nowhere / "elsewhere"))
    with pytest.raises(
        UserError, match=r"PARSGD_DATA=.*elsewhere does not .* unset it"
    ):
        load_fashion_mnist()
    monkeypatch.setenv("PARSGD_DATA", "")
    assert len(load_fashion_mnist().train.x) == 6


def test_fashion_mnist_damaged_files_are_named(nowhere):
    folder = write_idx(nowhere / "cache")
    file = folder / "t10k-labels-idx1-ubyte.gz"
    whole = file.read_bytes()
    garbled = whole[:10] + b"\xff" * 8 + whole[18:]  # the header is as it was
    content = gzip.decompress(whole)
    cut = [gzip.compress(content[:length]) for length in (-1, 6, 0)]
    for damage in (whole[:-9], *cut, garbled):
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
