"""The matrix: no cell stays empty, whatever happens in it."""

from __future__ import annotations

import pytest

from scripts import measure, tables
from scripts.pages.matrix import draw, markdown

HEAD = "strategy,size,keras,fit,loop,verdict,weights,metrics,seconds\n"


def matrix(out, *arguments):
    measure.run("scripts/matrix.py", "--out", str(out), *arguments, limit=300)
    return tables.read(out / "matrix.csv").to_dict("records")


@pytest.mark.slow
def test_a_cell_says_what_runs_and_how_far_it_is_from_the_truth(tmp_path):
    rows = matrix(tmp_path, "--only", "default")
    assert [(row["keras"], row["fit"], row["loop"], row["verdict"]) for row in rows] == [
        ("3", "", "", "identical"),
        ("2", "", "", "identical"),
    ]
    assert all(0 < float(row["weights"]) < 1e-4 for row in rows)
    assert (tmp_path / "README.md").exists() and (tmp_path / "matrix.png").exists()


@pytest.mark.parametrize(
    ("only", "limit", "told"),
    [pytest.param("tpu", "60", "no TPU was found", marks=pytest.mark.slow), ("one-device", "1", "no end")],
)
def test_a_cell_that_fails_or_hangs_says_so(tmp_path, only, limit, told):
    rows = matrix(tmp_path, "--only", only, "--limit", limit)
    assert len(rows) == 2
    for row in rows:
        assert told in row["fit"]
        assert row["verdict"] == "not-comparable"


def test_the_table_and_the_picture_are_made_from_the_file_alone(tmp_path):
    path = tmp_path / "matrix.csv"
    path.write_text(
        HEAD + "mirrored,2,3,,,identical,1e-6,1e-4,9.5\n" + 'tpu,1,3,"no | TPU <here>",no TPU,not-comparable,,,2\n'
    )
    table = markdown(path)
    assert "| mirrored × 2 | 3 | runs | runs | identical | 1e-06 | 1e-04 |" in table
    assert "no \\| TPU &lt;here>" in table
    assert draw(path).stat().st_size > 10_000


def test_equal_numbers_that_are_far_from_the_truth_are_said_to_be_off(tmp_path):
    path = tmp_path / "matrix.csv"
    path.write_text(HEAD + "default,1,3,,,identical,1e-6,1e-3,9\ncentral-storage,2,3,,,identical,1e-6,4e-1,9\n")
    default, central = markdown(path).splitlines()[-4:-2]
    assert "off" not in default
    assert "**off**" in central
