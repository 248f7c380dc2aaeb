"""Running corrections, as the job of an epoch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from airflow_barrier.protocol.ddl import Column, parse_ddl, quoted
from airflow_barrier.protocol.errors import ConfigurationError, SourceDataError
from airflow_barrier.sources.files import header_in_files, names_in_files, read_files
from airflow_barrier.sources.spark_errors import condition_of
from airflow_barrier.sources.text.csv_dialect import CsvDialect
from airflow_barrier.spark._reusing import apply_again
from airflow_barrier.spark.corrections import CorrectBySql, Correction, ReplaceByFile, ReuseRows
from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.spec import EpochSpec
from airflow_barrier.spark.sql import SqlJob

log = logging.getLogger(__name__)


class Correcting:
    """The corrections of a spec as a job: one after the other, also where several are about one table.

    Raises :class:`~airflow_barrier.protocol.errors.ConfigurationError` unless each outlet of the attempt has one, and
    none is about another table.
    """

    def __init__(self, spec: EpochSpec) -> None:
        self._spec = spec
        corrected = {correction.table for correction in spec.corrections}
        if corrected != set(spec.bases):
            raise ConfigurationError(
                f"corrections of job {spec.job} at barrier {spec.barrier_id}: expected one for each of its outlets "
                f"({', '.join(sorted(spec.bases))}), found them for {', '.join(sorted(corrected))}; an outlet that "
                "stays as it was takes ReuseRows"
            )

    def __call__(self, epoch: Epoch) -> None:
        for correction in self._spec.corrections:
            log.info("correcting %s: %s", correction.table, correction.kind)
            self._apply(epoch, correction)
        for table in self._spec.bases:
            own = [correction for correction in self._spec.corrections if correction.table == table]
            if all(isinstance(correction, ReuseRows) and _changed_nothing(correction) for correction in own):
                epoch.unchanged(table)

    def _apply(self, epoch: Epoch, correction: Correction) -> None:
        if isinstance(correction, CorrectBySql):
            pinned = replace(self._spec, inputs={**self._spec.inputs, **correction.reads})
            SqlJob(correction.statement)(Epoch(epoch.spark, pinned))
        elif isinstance(correction, ReplaceByFile):
            _append_files(epoch, correction)
        elif not _changed_nothing(correction):
            apply_again(epoch, correction, self._spec.catalog)


def _changed_nothing(correction: ReuseRows) -> bool:
    return correction.end is None or correction.start == correction.end


def _require_same_columns(table: str, expected: Sequence[str], found: Sequence[str], what: str) -> None:
    """Raise SourceDataError unless both have the same columns, in any order; Spark does not tell upper from lower
    case.
    """
    wanted, there = {name.lower() for name in expected}, {name.lower() for name in found}
    if wanted == there and len(found) == len(there):
        return
    missing = [name for name in expected if name.lower() not in there]
    more = [name for name in found if name.lower() not in wanted]
    odd = [f"none named {', '.join(missing)}"] if missing else []
    odd += [f"{', '.join(more)} besides"] if more else []
    raise SourceDataError(  # safety: replacement-has-the-columns
        f"correction of {table}: expected the columns {', '.join(expected)} in {what}, found "
        f"{' and '.join(odd) or 'one of them twice'}; name each column of the table once: where it has no value write "
        "NULL, and leave out what the table does not have"
    )


def _append_files(epoch: Epoch, correction: ReplaceByFile) -> None:
    """Read as the table's own types, so that nothing is rounded on its way into the table."""
    target = epoch.target(correction.table)
    schema = epoch.spark.table(target).schema
    names = _names_in(epoch, correction)
    _require_same_columns(correction.table, schema.names, names, correction.uri)
    kinds = {name.lower(): schema[name].dataType.simpleString() for name in schema.names}
    columns: tuple[Column, ...] = parse_ddl(", ".join(f"{quoted(name)} {kinds[name.lower()]}" for name in names))
    dialect, what = CsvDialect.of(correction.options), f"correction of {correction.table}"
    # files of a folder might have the same columns in another order
    header = header_in_files(epoch.spark, correction.uri) if dialect.header else None
    rows = read_files(epoch.spark, [correction.uri], correction.format, columns, dialect, what, header)
    if not rows.inputFiles():
        raise _without_files(correction)  # safety: replacement-has-files
    rows.select(*map(quoted, schema.names)).writeTo(target).append()


def _names_in(epoch: Epoch, correction: ReplaceByFile) -> list[str]:
    from pyspark.errors import AnalysisException

    if correction.format == "csv" and correction.columns:
        return list(correction.columns)
    try:
        dialect = CsvDialect.of(correction.options)
        found = names_in_files(epoch.spark, correction.uri, correction.format, dialect)
    except AnalysisException as error:
        if condition_of(error) not in ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"):
            raise
        raise _without_files(correction) from error
    return [*correction.columns, *(name for name in found if name not in correction.columns)]


def _without_files(correction: ReplaceByFile) -> SourceDataError:
    return SourceDataError(
        f"correction of {correction.table}: expected rows in {correction.uri}, found no such file, or none in that "
        "folder, or only such as Spark takes for no data (names that begin with '_' or '.'); correct the URI or the "
        "name, and see that the Spark driver can read it"
    )
