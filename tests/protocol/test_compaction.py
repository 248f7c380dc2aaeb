"""When compaction pays: many small files, many deleted rows, and never what no rewriting would do away with."""

from __future__ import annotations

import pytest

from airflow_barrier.protocol.compaction import DataFile, Reading, reading_at_most, reading_of

MB = 1 << 20
TARGET = 512 * MB


def small(number: int, partition: str = "", **settings: int) -> list[DataFile]:
    return [DataFile(partition, 10_000, 100, **settings)] * number


def pays(files: list[DataFile]) -> bool:
    return reading_of(files, TARGET).pays


def test_small_files_pay_when_opening_them_takes_as_long_as_a_quarter_of_a_statement() -> None:
    assert not pays(small(17))
    assert pays(small(18))
    assert pays(small(9, deletes=1, deleted=1))
    assert str(reading_of(small(9, deletes=1, deleted=1), TARGET)) == (
        "9 data files where 1 would do, 9 files of deletes, 1% of the bytes deleted"
    )


def test_the_larger_the_table_the_more_small_files_it_bears() -> None:
    large = [DataFile("", TARGET, 10**6)] * 20
    assert not pays(large + small(100))
    assert pays(large + small(1_000))


def test_deleted_rows_pay_by_their_bytes() -> None:
    def large(deleted: int) -> list[DataFile]:
        return [DataFile("", TARGET, 100, 1, deleted)] * 8

    assert not pays(large(19)), "Iceberg would leave it: less than a fifth of the file"
    assert pays(large(25))
    assert not pays([DataFile("", 10_000, 100, 1, 90)]), "a small file with deletes is read in no time"


def test_what_a_rewriting_would_leave_is_not_in_vain() -> None:
    assert not pays([file for day in range(400) for file in small(1, str(day))]), "one file a partition"
    assert not pays([file for day in range(400) for file in small(1, str(day), deletes=1, deleted=19)])
    assert pays([file for day in range(400) for file in small(2, str(day))])
    assert not pays([DataFile("", 400 * MB, 100)] * 400), "less than the target size, but large enough for Iceberg"


@pytest.mark.parametrize(
    "files", [[], small(40), small(40, deletes=1, deleted=30), [DataFile(day, 9, 9) for day in "abcdef"] * 9]
)
def test_the_summary_tells_no_less(files: list[DataFile]) -> None:
    exact = reading_of(files, TARGET)
    totals = {
        "total-data-files": len(files),
        "total-delete-files": sum(file.deletes for file in files),
        "total-files-size": sum(file.bytes for file in files),
        "total-records": sum(file.rows for file in files),
        "total-position-deletes": sum(file.deleted for file in files),
    }
    told = reading_at_most({name: str(total) for name, total in totals.items()}, TARGET)
    assert told is not None
    assert (told.files, told.pays) == (exact.files, exact.pays)
    assert told.needed <= exact.needed
    assert told.deletes >= exact.deletes
    assert reading_at_most({**dict.fromkeys(totals, "0"), "total-position-deletes": "9"}, TARGET) == Reading(
        0, 0, 0, 0, 0
    )
    assert reading_at_most({"total-records": "0"}, TARGET) is None
