"""Jobs: functions of an epoch, and how they are found in a file or a module."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.spark.epoch import Epoch, Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class EpochJob:
    """A function of an epoch. Call it with an epoch in a unit test, or let Spark run it. Made by :func:`epoch_job`."""

    def __init__(self, function: Job) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self.name: str = function.__name__

    def __call__(self, epoch: Epoch) -> Any:
        return self._function(epoch)

    def main(self) -> None:
        """Run as the application of spark-submit; ends the process with exit code 1 if the job fails."""
        from airflow_barrier.spark.submit import run_submitted

        run_submitted(self)


def epoch_job(function: Job) -> EpochJob:
    """Make a function of an epoch a job, which runs by spark-submit and on Spark Connect from the same file.

        @epoch_job
        def amount(epoch):
            ...

        if __name__ == "__main__":
            amount.main()

    The last two lines are for spark-submit.
    """
    return EpochJob(function)


def current_epoch(spark: SparkSession) -> Epoch:
    """The epoch that a job which is no epoch job runs for: its time, its seed, its external sources by their cut.

        shopping = current_epoch(spark).source("shopping")

    Write to tables by their own names, as ever. On Spark Connect there is no file system to read the epoch spec from:
    raises :class:`~airflow_barrier.protocol.errors.ConfigurationError` there, and
    :class:`~airflow_barrier.protocol.errors.SpecError` where no ``barrier.job(...)`` started this session.
    """
    from airflow_barrier.spark.submit import read_spec

    if not hasattr(spark, "_jsc"):
        raise ConfigurationError(
            "current_epoch: expected a Spark session in this process, found one on a Spark Connect server, which "
            "cannot read the epoch spec; run the job as an epoch job (@epoch_job with SparkEpochOperator), or by "
            "spark-submit"
        )
    return Epoch(spark, read_spec(spark))


def load_job(where: str, name: str | None = None) -> EpochJob:
    """The epoch job in a Python file (``jobs/amount.py``) or a module (``shop.jobs.amount``).

    ``name`` is needed where there are several. Raises :class:`~airflow_barrier.protocol.errors.ConfigurationError`.
    """
    module = _load_file(Path(where)) if where.endswith(".py") else _load_module(where)
    jobs = {key: value for key, value in vars(module).items() if isinstance(value, EpochJob)}
    names = ", ".join(sorted(jobs)) or "none"
    if name is not None:
        if name not in jobs:
            raise ConfigurationError(f"{where}: expected an epoch job {name!r}, found {names}; correct its name")
        return jobs[name]
    if len(set(map(id, jobs.values()))) != 1:
        raise ConfigurationError(
            f"{where}: expected one function with @epoch_job, found {names}; "
            + ("name the one to run" if jobs else "decorate the function that takes the epoch")
        )
    return next(iter(jobs.values()))


def _load_module(name: str) -> ModuleType:
    if importlib.util.find_spec(name) is None:
        raise ConfigurationError(
            f"job module {name}: not found; install it where the task runs, or give the path of its .py file"
        )
    return importlib.import_module(name)


def _load_file(path: Path) -> ModuleType:
    """Import a file as spark-submit would: its folder is on the path, and its functions travel to Spark by value."""
    from pyspark import cloudpickle

    if not path.is_file():
        raise ConfigurationError(f"job file {path}: not found where the task runs; correct the path or deploy the file")
    path = path.resolve()
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"job file {path}: not a Python file that can be imported")
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    cloudpickle.register_pickle_by_value(module)  # Spark's workers have no module of this name to import
    return module
