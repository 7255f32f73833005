"""What the toolkit promises about finding, verifying and reading Fashion-MNIST."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from compare.engine import data
from compare.engine.data import FILES, SAMPLE, Source, locate_fashion_mnist, read_fashion_mnist
from compare.errors import RequestError

ROOT = Path(__file__).resolve().parents[1]
TRAIN_IMAGES, TRAIN_LABELS, VAL_IMAGES, VAL_LABELS = FILES
# Taken before the tests replace them.
FETCH = data._fetch
FULL_FOLDER = next((f for f in (data.keras_cache(), data.DEBIAN_FOLDER) if not data._missing(f)), None)
needs_full_data = pytest.mark.skipif(
    FULL_FOLDER is None, reason="needs all of Fashion-MNIST, in Keras's cache or from Debian's package"
)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "keras" / "datasets" / "fashion-mnist"


@pytest.fixture
def debian(tmp_path: Path) -> Path:
    return tmp_path / "debian"


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, debian: Path) -> None:
    """No test sees the machine's own data or network; a download that a test does not expect fails it."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.setattr(data, "DEBIAN_FOLDER", debian)
    monkeypatch.setattr(data, "_fetch", lambda file, folder: pytest.fail(f"downloads {file}"))


def fill(folder: Path, packed: bool = True) -> Path:
    """Put the four files of the sample into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        content = (data.SAMPLE_FOLDER / f"{name}.gz").read_bytes()
        if packed:
            (folder / f"{name}.gz").write_bytes(content)
        else:
            (folder / name).write_bytes(gzip.decompress(content))
    return folder


def fetching(monkeypatch: pytest.MonkeyPatch, failing_file: str = "", error: Exception | None = None) -> None:
    """Serve the sample's files in place of the full ones; one of them fails with an error, or is damaged."""

    def fetch(file: str, folder: Path) -> None:
        content = (data.SAMPLE_FOLDER / file).read_bytes()
        if file == failing_file:
            content = content[:-20]
            if error:
                (folder / file).write_bytes(content)
                raise error
        (folder / file).write_bytes(content)

    monkeypatch.setattr(data, "FULL_SHA256", data.SAMPLE_SHA256)
    monkeypatch.setattr(data, "_fetch", fetch)


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


# Finding it


def test_keras_cache_comes_before_debians_package(cache: Path, debian: Path) -> None:
    fill(cache)
    fill(debian)
    source = locate_fashion_mnist()
    assert (source.folder, source.sample) == (cache, False)
    assert source.description == f"Fashion-MNIST from {cache}"


def test_keras_cache_is_in_the_home_folder_unless_keras_home_is_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path
) -> None:
    in_home = fill(tmp_path / ".keras" / "datasets" / "fashion-mnist")
    fill(cache)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))  # Windows
    assert locate_fashion_mnist().folder == cache
    monkeypatch.delenv("KERAS_HOME")
    assert locate_fashion_mnist().folder == in_home


def test_debians_package_comes_before_a_download(debian: Path) -> None:
    fill(debian)
    source = locate_fashion_mnist()
    assert (source.folder, source.sample) == (debian, False)
    assert source.description == f"Fashion-MNIST from {debian}"


def test_a_folder_that_lacks_a_file_is_passed_over(cache: Path, debian: Path) -> None:
    (fill(cache) / f"{VAL_LABELS}.gz").unlink()
    fill(debian)
    assert locate_fashion_mnist().folder == debian


def test_each_file_may_be_packed_or_decoded(cache: Path) -> None:
    fill(cache, packed=False)
    shutil.copy(data.SAMPLE_FOLDER / f"{VAL_IMAGES}.gz", cache)
    (cache / VAL_IMAGES).unlink()
    assert locate_fashion_mnist().folder == cache


def test_a_download_goes_into_keras_cache_and_is_found_there_later(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    fetching(monkeypatch)
    source = locate_fashion_mnist()
    assert (source.folder, source.sample) == (cache, False)
    assert sorted(path.name for path in cache.iterdir()) == sorted(f"{name}.gz" for name in FILES)
    assert len(read_fashion_mnist(source)[0][0]) == 6000
    monkeypatch.setattr(data, "_fetch", lambda file, folder: pytest.fail("downloads again"))
    assert locate_fashion_mnist() == source


def test_a_download_completes_a_cache_that_lacks_a_file(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    (fill(cache) / f"{TRAIN_LABELS}.gz").unlink()
    fetching(monkeypatch)
    assert locate_fashion_mnist().folder == cache


def test_a_failed_download_leaves_the_sample_and_no_files(
    monkeypatch: pytest.MonkeyPatch, cache: Path, debian: Path
) -> None:
    fetching(monkeypatch, f"{VAL_IMAGES}.gz", Exception("URL fetch failure:\nno network"))
    source = locate_fashion_mnist()
    assert (source.folder, source.sample) == (data.SAMPLE_FOLDER, True)
    assert source.description.startswith(
        "embedded sample of Fashion-MNIST (6,000 / 1,000 images), because the full dataset was not found in "
    )
    for place in (str(cache), str(debian), data.ORIGIN, "URL fetch failure: no network", "--data-dir"):
        assert place in source.description
    assert "\n" not in source.description
    assert files_in(cache) == []


def test_a_corrupt_download_leaves_the_sample_and_no_files(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    fetching(monkeypatch, f"{VAL_LABELS}.gz")
    source = locate_fashion_mnist()
    assert source.sample
    assert f"{VAL_LABELS}.gz cannot be used" in source.description
    assert files_in(cache) == []


def test_a_cache_that_cannot_be_written_leaves_the_sample(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fetching(monkeypatch)
    (tmp_path / "keras").write_text("a file where Keras's folder should be")
    assert locate_fashion_mnist().sample


def test_a_download_is_over_https_and_silent_on_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    calls = []

    def get_file(fname: str, origin: str, cache_subdir: str) -> None:
        print("Downloading data")
        calls.append((fname, origin, cache_subdir))

    keras = SimpleNamespace(utils=SimpleNamespace(get_file=get_file))
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(keras=keras))
    FETCH("x.gz", tmp_path)
    url = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/x.gz"
    assert calls == [("x.gz", url, str(tmp_path))]
    assert capsys.readouterr().out == ""


def test_importing_and_reading_take_no_tensorflow() -> None:
    code = (
        "import sys; from compare.engine.data import *; read_fashion_mnist(SAMPLE);"
        "sys.exit(sorted({'tensorflow', 'keras'} & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_given_folder_is_used_rather_than_any_other(tmp_path: Path, cache: Path, debian: Path) -> None:
    given = fill(tmp_path / "given")
    fill(cache)
    fill(debian)
    source = locate_fashion_mnist(given)
    assert (source.folder, source.sample) == (given, False)
    assert source.description == f"Fashion-MNIST from {given}"


def no_folder(folder: Path) -> str:
    return f"{folder} does not exist"


def a_file(folder: Path) -> str:
    folder.write_text("")
    return f"{folder} is not a folder"


def a_file_is_missing(folder: Path) -> str:
    (fill(folder) / f"{VAL_LABELS}.gz").unlink()
    return f"{folder} lacks {VAL_LABELS}"


def a_file_is_a_folder(folder: Path) -> str:
    (fill(folder) / f"{VAL_LABELS}.gz").unlink()
    (folder / f"{VAL_LABELS}.gz").mkdir()
    return f"{folder} lacks {VAL_LABELS}"


@pytest.mark.parametrize("wrong", [no_folder, a_file, a_file_is_missing, a_file_is_a_folder])
def test_a_given_folder_without_the_data_is_an_error_although_the_data_is_elsewhere(
    wrong: Callable[[Path], str], tmp_path: Path, cache: Path, debian: Path
) -> None:
    fill(cache)
    fill(debian)
    expected = wrong(tmp_path / "given")
    with pytest.raises(RequestError) as error:
        locate_fashion_mnist(tmp_path / "given")
    problem, files = str(error.value).split(": ")
    assert problem == expected
    assert files == f"expected a folder with {', '.join(FILES)}, each with or without .gz"
    assert "\n" not in files


# Reading it


def test_the_sample_is_uint8_images_and_labels() -> None:
    source = SAMPLE
    assert source.sample
    assert source.description == "embedded sample of Fashion-MNIST (6,000 / 1,000 images)"
    (x_train, y_train), (x_val, y_val) = read_fashion_mnist(source)
    assert (x_train.shape, y_train.shape) == ((6000, 28, 28), (6000,))
    assert (x_val.shape, y_val.shape) == ((1000, 28, 28), (1000,))
    assert {a.dtype for a in (x_train, y_train, x_val, y_val)} == {np.dtype(np.uint8)}
    assert (x_train.min(), x_train.max()) == (0, 255)


def test_the_sample_is_stratified() -> None:
    (_, y_train), (_, y_val) = read_fashion_mnist(SAMPLE)
    assert np.bincount(y_train).tolist() == [600] * 10
    assert np.bincount(y_val).tolist() == [100] * 10


def test_the_sample_comes_with_its_licence() -> None:
    text = (data.SAMPLE_FOLDER / "LICENSE").read_text(encoding="utf-8")
    assert text.startswith("The MIT License (MIT) Copyright © 2017 Zalando SE, https://tech.zalando.com\n")


def test_decoded_files_read_the_same(tmp_path: Path) -> None:
    decoded = read_fashion_mnist(Source(fill(tmp_path / "decoded", packed=False), "decoded", sample=True))
    for split, expected in zip(decoded, read_fashion_mnist(SAMPLE), strict=True):
        for array, expected_array in zip(split, expected, strict=True):
            np.testing.assert_array_equal(array, expected_array)


def test_a_packed_file_is_read_rather_than_a_decoded_one_as_a_download_relies_on(tmp_path: Path) -> None:
    folder = fill(tmp_path / "both")
    (folder / VAL_LABELS).write_text("damaged")
    read_fashion_mnist(Source(folder, "both", sample=True))


def repacked(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    return lambda packed: gzip.compress(change(gzip.decompress(packed)), compresslevel=1)


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "truncated": (lambda packed: packed[: len(packed) // 2], "ended before the end-of-stream marker"),
    "a bad byte in the header": (lambda packed: packed[:3] + b"\xff" + packed[4:], ""),
    "a bad byte within": (lambda packed: packed[:300] + bytes([packed[300] ^ 255]) + packed[301:], ""),
    "a bad checksum": (lambda packed: packed[:-8] + b"\0\0\0\0" + packed[-4:], "CRC check failed"),
    "not gzip": (lambda packed: b"<html>404 Not Found</html>", "Not a gzipped file"),
    "empty": (lambda packed: b"", "not an idx file"),
    "wrong magic": (repacked(lambda content: b"\0\0\x09" + content[3:]), "not an idx file"),
    "wrong dimensions": (repacked(lambda content: b"\0\0\x08\x02" + content[4:]), "not an idx file"),
    "a header cut short": (repacked(lambda content: content[:6]), "not an idx file"),
    "an example too few": (repacked(lambda content: content[:-1]), "bytes of data where its header says"),
    "a byte too many": (repacked(lambda content: content + b"\0"), "bytes of data where its header says"),
    "a huge size": (repacked(lambda c: c[:4] + b"\xff" * 4 + c[8:]), "bytes of data where its header says"),
    "wrong content": (repacked(lambda c: c[:-1] + bytes([c[-1] ^ 1])), "by SHA-256"),
}


@pytest.mark.parametrize("name", [VAL_IMAGES, VAL_LABELS])
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_an_error_of_one_line_that_names_it(kind: str, name: str, tmp_path: Path) -> None:
    damage, cause = DAMAGE[kind]
    file = fill(tmp_path / "damaged") / f"{name}.gz"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(RequestError) as error:
        read_fashion_mnist(Source(file.parent, "damaged", sample=True, remedy="throw it away"))
    message = str(error.value)
    assert message.startswith(f"{file} cannot be used (")
    assert cause in message
    assert message.endswith("): throw it away")
    assert "\n" not in message


def test_a_truncated_decoded_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    file = fill(tmp_path / "damaged", packed=False) / TRAIN_IMAGES
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(RequestError, match=f"^{file} cannot be used"):
        read_fashion_mnist(Source(file.parent, "damaged", sample=True))


def test_a_file_that_vanished_is_an_error_that_names_it(tmp_path: Path) -> None:
    file = fill(tmp_path / "incomplete") / f"{TRAIN_LABELS}.gz"
    file.unlink()
    with pytest.raises(RequestError, match=f"^{file} cannot be used"):
        read_fashion_mnist(Source(file.parent, "incomplete", sample=True))


def test_what_to_do_about_a_damaged_file_depends_on_whose_it_is(cache: Path, debian: Path, tmp_path: Path) -> None:
    assert SAMPLE.remedy == "reinstall this package"
    assert locate_fashion_mnist(fill(tmp_path / "given")).remedy == "replace it with an intact copy"
    fill(debian)
    assert locate_fashion_mnist().remedy == "run apt-get install --reinstall dataset-fashion-mnist"
    fill(cache)
    assert locate_fashion_mnist().remedy.startswith("delete it")


def test_the_sample_does_not_pass_for_the_full_data(cache: Path) -> None:
    fill(cache)
    with pytest.raises(RequestError, match="by SHA-256"):
        read_fashion_mnist(locate_fashion_mnist())


# The full data


@needs_full_data
def test_the_full_data_reads_and_the_sample_is_the_first_of_each_class() -> None:
    assert FULL_FOLDER
    full = read_fashion_mnist(locate_fashion_mnist(FULL_FOLDER))
    assert [images.shape for images, _ in full] == [(60000, 28, 28), (10000, 28, 28)]
    assert [labels.shape for _, labels in full] == [(60000,), (10000,)]
    sample = read_fashion_mnist(SAMPLE)
    for (x, y), (x_sample, y_sample), count in zip(full, sample, (600, 100), strict=True):
        for label in range(10):
            np.testing.assert_array_equal(x_sample[y_sample == label], x[y == label][:count])
