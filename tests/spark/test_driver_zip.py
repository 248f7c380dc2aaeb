"""The file that brings a driver what it imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from airflow_barrier.spark.driver_zip import driver_zip
from tests.support.waiting import patience


def test_the_same_package_gives_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    assert driver_zip(tmp_path).read_bytes() == driver_zip(tmp_path / "again").read_bytes()


def test_it_holds_all_that_a_driver_imports(tmp_path: Path) -> None:
    """In a Python without any installed package; pyspark is imported inside functions only."""
    names = [
        "driver",
        "submit",
        "connect",
        "sql",
        "correcting",
        "testing",
        "changes",
        "delta_join",
        "job",
        "batch",
        "applications.sql_job",
        "applications.extract",
    ]
    code = "; ".join(f"import airflow_barrier.spark.{name}" for name in names)
    code += "; from airflow_barrier.sources import files, iceberg_table; print(files.__file__)"
    said = subprocess.run(
        [sys.executable, "-S", "-I", "-c", f"import sys; sys.path.insert(0, {str(driver_zip(tmp_path))!r}); {code}"],
        capture_output=True,
        text=True,
        timeout=patience(),
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith(f"{tmp_path}/airflow_barrier_driver-")


def test_it_is_a_wheel_by_another_name(tmp_path: Path) -> None:
    """For an image that installs it."""
    path = driver_zip(tmp_path)
    wheel = path.rename(tmp_path / f"{path.stem}-py3-none-any.whl")
    target = tmp_path / "installed"
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--target", str(target), str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(), check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(each.name for each in target.iterdir()) == [
        "airflow_barrier",
        wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info",
    ]
