"""Finding the job in a file or module. Needs no Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.spark.job import EpochJob, epoch_job, load_job

AMOUNT = Path(__file__).parent / "jobs" / "amount.py"
TWO = """
from airflow_barrier.spark.job import epoch_job
import helper_beside_the_jobs

@epoch_job
def first(epoch):
    return ("first", epoch, helper_beside_the_jobs.VALUE)

@epoch_job
def second(epoch):
    return ("second", epoch)
"""


@pytest.fixture
def two_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    (tmp_path / "helper_beside_the_jobs.py").write_text("VALUE = 3")
    (tmp_path / "two.py").write_text(TWO)
    return str(tmp_path / "two.py")


def test_the_only_job_of_a_file_needs_no_name() -> None:
    job = load_job(str(AMOUNT))
    assert isinstance(job, EpochJob)
    assert job.name == "amount"
    assert job.__doc__ is None


def test_a_job_is_still_a_function() -> None:
    @epoch_job
    def double(epoch):  # type: ignore[no-untyped-def]
        """Twice."""
        return epoch * 2

    assert double(21) == 42  # type: ignore[arg-type]
    assert double.__doc__ == "Twice."


def test_one_of_several_is_chosen_by_name_and_imports_what_lies_beside_it(two_jobs: str) -> None:
    assert load_job(two_jobs, "first")("e") == ("first", "e", 3)  # type: ignore[arg-type]
    assert load_job(two_jobs, "second")("e") == ("second", "e")  # type: ignore[arg-type]


def test_the_error_names_the_jobs_there_are(two_jobs: str) -> None:
    with pytest.raises(ConfigurationError, match="first, second; name the one to run"):
        load_job(two_jobs)
    with pytest.raises(ConfigurationError, match="'third', found first, second"):
        load_job(two_jobs, "third")


def test_a_file_without_a_job_and_missing_ones(tmp_path: Path) -> None:
    (tmp_path / "none.py").write_text("def job(epoch): ...")
    with pytest.raises(ConfigurationError, match="found none; decorate"):
        load_job(str(tmp_path / "none.py"))
    with pytest.raises(ConfigurationError, match=r"absent\.py: not found"):
        load_job(str(tmp_path / "absent.py"))
    with pytest.raises(ConfigurationError, match=r"module no_such_module_here: not found"):
        load_job("no_such_module_here")
