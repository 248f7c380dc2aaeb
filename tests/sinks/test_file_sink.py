"""What only files do: formats, names, sizes, and a ledger beside them that others can lose, copy or put back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet
import pytest

from airflow_barrier.protocol.codec import encode
from airflow_barrier.protocol.deliveries import Counts, Position, Remedy, Rows
from airflow_barrier.protocol.errors import (
    BarrierError,
    ConfigurationError,
    FencedDelivererError,
    LedgerError,
    RowRefusedError,
    SinkRefusedError,
    SinkUnavailableError,
)
from airflow_barrier.sinks import sink_of
from airflow_barrier.sinks.files import FileSink
from airflow_barrier.sinks.files.stores import LocalStore
from airflow_barrier.sinks.port import Delivery
from airflow_barrier.sinks.postgresql.rows import Part
from tests.sinks.behaviour import (
    CHANGES,
    CORRECTION,
    SCHEMAS,
    Batches,
    Step,
    catch_up,
    check,
    deliverer,
    delivery,
    expected,
)
from tests.sinks.files import LocalFiles
from tests.support.cases import cases

LEDGER = Path("_barrier") / "shopping.out"


@pytest.fixture
def place(tmp_path: Path) -> LocalFiles:
    return LocalFiles(str(tmp_path / "out"))


def deliver_rows(sink: FileSink, barrier: int, batches: Batches, after: Position | None = None) -> Counts:
    """One table, `shop.t`, whole."""
    declared = sink.declare("shop.t", Rows.TABLE, "dag")
    moment = datetime(2017, 1, 1, tzinfo=timezone.utc)
    with sink.connect(declared, None) as channel:
        channel.validate({"shop.t": batches.schema})
        assert channel.open(deliverer()).position == after
        return channel.deliver(Delivery(barrier, 0, moment, after, Rows.TABLE, ["shop.t"], {"shop.t": batches}))[
            "shop.t"
        ]


# --- the declaration ------------------------------------------------------------------------------

CONTRADICTIONS: Sequence[tuple[Mapping[str, Any], str]] = (
    ({"url": "gs://bucket/out"}, "or an object store with conditional puts (s3), found 'gs'"),
    ({"url": "s3://bucket/out"}, "expected readers='manifest' with s3://, since an object store renames no folder"),
    ({"url": "s3://bucket/out", "readers": "manifest", "success_file": True}, "success_file: expected False"),
    ({"url": "s3://bucket/out", "readers": "manifest", "roll_bytes": 2**33}, "roll_bytes: expected 4294967296 or less"),
    ({"url": "/out", "readers": "manifest"}, "readers: expected 'pattern' with file://"),
    ({"url": "/out", "readers": "glob"}, "readers: expected one of pattern, manifest, found 'glob'"),
    ({"url": "http://host/out"}, "expected a storage"),
    ({"url": "out"}, "expected an absolute path"),
    ({"url": "/a/../out"}, "expected a path that means one place"),
    ({"url": "/a*/out"}, "expected a path without *"),
    ({"url": "hdfs://nodes/out"}, "expected conn_id with hdfs://"),
    ({"url": "/out", "format": "json"}, "expected one of parquet, csv, jsonl, found 'json'"),
    ({"url": "/out", "roll_bytes": 0}, "roll_bytes: expected 1 or more, found 0"),
    ({"url": "/out", "name": "../x"}, "expected a name of letters"),
    ({"url": "/out/2017"}, "pass name="),
)
UNDECLARABLE: Sequence[tuple[Any, Rows, str]] = (
    ("shop._prices", Rows.TABLE, "readers by pattern pass over"),
    ({"shop.a": "x/y"}, Rows.TABLE, "has / in it"),
    ({"shop.a": ""}, Rows.TABLE, "is empty"),
    ({"shop.a": "x" * 201}, Rows.TABLE, "is too long"),
    ({"shop.a": "x\n"}, Rows.TABLE, "has characters in it that cannot be seen"),
    ({"shop.a": "x", "shop.b": "X"}, Rows.TABLE, "found 'X' for both shop.a and shop.b"),
    ("shop.a", Rows.CHANGES, "expected the columns that tell rows apart, key=[…]"),
)


def test_contradictions_are_told_when_a_dag_is_parsed() -> None:
    with cases() as case:
        for options, said in CONTRADICTIONS:
            with case(options), pytest.raises(ConfigurationError) as told:
                FileSink(**options)
            with case((options, "says")):
                assert said in str(told.value)
        for tables, rows, said in UNDECLARABLE:
            with case(tables), pytest.raises(ConfigurationError) as told:
                FileSink("/out").declare(tables, rows, "dag")
            with case((tables, "says")):
                assert said in str(told.value)


def test_keys_are_of_the_targets() -> None:
    two = {"shop.a": "a", "shop.b": "b"}
    for key in ({"a": ["id"]}, {"a": ["id"], "b": "id"}, {"a": ["id"], "b": []}, {"shop.a": ["id"], "shop.b": ["id"]}):
        with pytest.raises(ConfigurationError, match="expected columns for each target"):
            FileSink("/out", key=key).declare(two, Rows.CHANGES, "dag")  # type: ignore[arg-type]
    assert FileSink("/out", key=["id"]).declare("shop.a", Rows.CHANGES, "dag").options["keys"] == {"a": ["id"]}
    assert FileSink("/out", key=["id"]).declare(two, Rows.CHANGES, "dag").options["keys"] == {"a": ["id"], "b": ["id"]}


def test_a_declaration_is_found_again() -> None:
    sink = FileSink("hdfs://nodes/out/", format="csv", name="csv", conn_id="h", roll_bytes=5, success_file=True)
    declared = sink.declare({"shop.a": "one", "shop.b": "two"}, Rows.APPENDS, "dag")
    json.dumps(encode(declared))
    assert sink_of(declared).declare(declared.targets, Rows.APPENDS, "dag") == declared
    assert (sink.path, sink.identity, sink.location) == ("/out", "hdfs://nodes/out", "hdfs://nodes/out/")
    assert {FileSink(url, name="x").identity for url in ("/a/b", "/a/b/", "file:///a/b")} == {"file:///a/b"}


# --- formats --------------------------------------------------------------------------------------

ALL_TYPES = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("price", pa.decimal128(20, 3)),
        ("weight", pa.float64()),
        ("day", pa.date32()),
        ("stamp", pa.timestamp("us", tz="UTC")),
        ("ok", pa.bool_()),
    ]
)
ODD = [
    dict.fromkeys(ALL_TYPES.names) | {"id": 1},
    {
        "id": -(2**63),
        "name": 'quote " comma , line\nend \u2028 é \\',
        "price": Decimal("12345678901234567.891"),
        "weight": 0.1,
        "day": date(1, 1, 1),
        "stamp": datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=timezone.utc),
        "ok": True,
    },
    {**dict.fromkeys(ALL_TYPES.names), "id": 2, "name": "", "ok": False},
]
_COLUMNS = (
    "columns={{'id': 'BIGINT', 'name': 'VARCHAR', 'price': 'DECIMAL(20,3)', 'weight': 'DOUBLE', 'day': 'DATE', "
    "'stamp': 'TIMESTAMPTZ', 'ok': 'BOOLEAN'}}"
)
READ = {
    "parquet": "read_parquet('{}')",
    "csv": f"read_csv('{{}}', header=true, quote='\"', escape='\"', allow_quoted_nulls=false, {_COLUMNS})",
    "jsonl": f"read_json('{{}}', format='newline_delimited', {_COLUMNS})",
}


@pytest.mark.parametrize("format_", list(READ))
def test_another_reader_finds_the_same_by_a_pattern(tmp_path: Path, format_: Any) -> None:
    sink = FileSink(str(tmp_path), format=format_, name="out", success_file=True)
    assert deliver_rows(sink, 1, Batches(ALL_TYPES, ODD, 2)) == Counts(inserted=3)
    assert deliver_rows(sink, 2, Batches(ALL_TYPES, []), Position(1, 0)) == Counts()
    with duckdb.connect() as connection:
        connection.execute("SET timezone = 'UTC'")
        found = connection.execute(
            "SELECT id, name, price, weight, day, strftime(stamp, '%Y-%m-%d %H:%M:%S.%f'), ok "
            f"FROM {READ[format_].format(f'{tmp_path}/t/*/*.{format_}')}"
        ).fetchall()
    at = "9999-12-31 23:59:59.999999"
    assert found == [(*tuple(row.values())[:5], row["stamp"] and at, row["ok"]) for row in ODD]
    for barrier in (1, 2):
        names = sorted(path.name for path in (tmp_path / "t" / f"b0000000{barrier}.r00000").iterdir())
        assert names == ["_SUCCESS", f"part-00000.{format_}"]


REFUSED = (
    ("csv", pa.list_(pa.int32()), "expected a type that csv can hold"),
    ("csv", pa.struct([("a", pa.int32())]), "expected a type that csv can hold"),
    ("csv", pa.binary(), "expected text, numbers or times in CSV, found binary"),
    ("jsonl", pa.map_(pa.string(), pa.time64("ns")), "expected a type that JSON can hold exactly, found time64"),
    ("jsonl", pa.list_(pa.timestamp("ns")), "expected a type that JSON can hold exactly, found timestamp"),
)


def test_types_that_a_format_cannot_hold_are_refused_before_a_first_barrier(tmp_path: Path) -> None:
    with cases() as case:
        for format_, kind, said in REFUSED:
            sink = FileSink(str(tmp_path), format=format_, name="out")  # type: ignore[arg-type]
            channel = sink.connect(sink.declare("shop.t", Rows.TABLE, "dag"), None)
            with case((format_, kind)), channel, pytest.raises(SinkRefusedError) as told:
                channel.validate({"shop.t": pa.schema([("id", pa.int64()), ("odd", kind)])})
            with case((format_, kind, "says")):
                assert f"table shop.t, column 'odd': {said}" in str(told.value)


def test_columns_that_changes_need(tmp_path: Path) -> None:
    sink = FileSink(str(tmp_path), name="out", key=["id"])
    with (
        sink.connect(sink.declare("shop.t", Rows.CHANGES, "dag"), None) as channel,
        pytest.raises(SinkRefusedError, match="expected the columns of its key, found no id among name"),
    ):
        channel.validate({"shop.t": pa.schema([("name", pa.string())])})


@pytest.mark.kills("nothing-lost-in-json")
@pytest.mark.parametrize("deep", [False, True])
def test_json_has_no_nan(tmp_path: Path, deep: bool) -> None:
    """The row is named, and the barrier is delivered once it is corrected."""
    kind = pa.list_(pa.struct([("x", pa.float64())])) if deep else pa.float64()
    schema = pa.schema([("id", pa.int64()), ("n", kind)])

    def rows(number: float) -> Batches:
        found = [{"id": each, "n": [{"x": 1.0}] if deep else 1.0} for each in range(10)]
        return Batches(schema, [*found, {"id": 4711, "n": [{"x": number}] if deep else number}])

    sink = FileSink(str(tmp_path), format="jsonl", name="out")
    for number in (float("nan"), float("inf")):
        with pytest.raises(RowRefusedError, match=r"column n: .* that JSON can hold, found a NaN .* row {'id': 4711"):
            deliver_rows(sink, 1, rows(number))
    assert deliver_rows(sink, 1, rows(2.0)).inserted == 11


def test_what_python_has_no_object_for_is_told_of_json(tmp_path: Path) -> None:
    """Spark writes such texts and years; the row is named all the same."""
    texts = pa.array([b"a", b"\xff"]).cast(pa.string(), safe=False)
    days = pa.array([0, -719528], pa.int32()).cast(pa.date32())
    sink = FileSink(str(tmp_path), format="jsonl", name="out")
    for odd, said, row in (
        (texts, "bytes that are no UTF-8", r"'odd': b'\xff'"),
        (days, "a time beyond years 1 to 9999", "'odd': '0000-01-01'"),
    ):
        with pytest.raises(RowRefusedError) as refused:
            deliver_rows(sink, 1, Part(pa.record_batch({"id": [1, 2], "odd": odd})))
        assert f"column odd: expected values that JSON can hold, found {said}, in the row" in str(refused.value)
        assert row in str(refused.value)


def test_json_of_what_is_nested(tmp_path: Path) -> None:
    """As a column of PostgreSQL has it, but for decimals."""
    labels, pairs = pa.map_(pa.string(), pa.list_(pa.decimal128(5, 2))), pa.map_(pa.date32(), pa.binary())
    schema = pa.schema([("labels", labels), ("nested", pa.struct([("pairs", pairs), ("n", pa.int64())]))])
    rows = [
        {"labels": [("a", [Decimal("1.50"), None]), ("", None)], "nested": {"pairs": [(date(1, 1, 1), b"ab")], "n": 1}},
        {"labels": [], "nested": {"pairs": None, "n": 2}},
        {"labels": None, "nested": None},
    ]
    deliver_rows(FileSink(str(tmp_path), format="jsonl", name="out"), 1, Batches(schema, rows))
    assert (tmp_path / "t" / "b00000001.r00000" / "part-00000.jsonl").read_text().splitlines() == [
        '{"labels":{"a":["1.50",null],"":null},"nested":{"pairs":[["0001-01-01","YWI="]],"n":1}}',
        '{"labels":{},"nested":{"pairs":null,"n":2}}',
        '{"labels":null,"nested":null}',
    ]


def test_files_are_rolled_by_size_and_are_the_same_whatever_batches_rows_come_in(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    rows = [{"id": number, "text": f"{number * 7919:x}" * 3} for number in range(200_000)]
    contents = []
    for size in (9_973, 200_000):
        folder = tmp_path / str(size)
        sink = FileSink(str(folder), name="out", roll_bytes=500_000)
        deliver_rows(sink, 1, Batches(schema, rows, size))
        files = sorted((folder / "t" / "b00000001.r00000").iterdir())
        assert [file.name for file in files] == [f"part-{number:05}.parquet" for number in range(len(files))]
        assert len(files) > 2
        assert [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()] == rows
        record = json.loads((folder / LEDGER / "delivered" / "b00000001.r00000" / "record.json").read_text())
        told = [(each["name"], each["bytes"]) for each in record["files"]["t"]]
        assert told == [(file.name, file.stat().st_size) for file in files]
        assert sum(each["rows"] for each in record["files"]["t"]) == len(rows)
        contents.append([file.read_bytes() for file in files])
    assert contents[0] == contents[1]


# --- the ledger -----------------------------------------------------------------------------------


def deliver_steps(place: LocalFiles, steps: Sequence[Step]) -> list[Mapping[str, Counts]]:
    with place.channel(Rows.CHANGES) as channel:
        return catch_up(channel, Rows.CHANGES, steps)


@pytest.mark.parametrize("taken", ["prices/b00000003.r00000", "prices", "amounts/b00000004.r00000/part-00000.parquet"])
def test_files_that_readers_take_away_do_not_come_back(place: LocalFiles, tmp_path: Path, taken: str) -> None:
    deliver_steps(place, CHANGES[:2])
    (tmp_path / "out" / taken).rename(tmp_path / "taken")
    assert deliver_steps(place, CHANGES[:2]) == []
    assert not (tmp_path / "out" / taken / "b00000003.r00000").exists()
    deliver_steps(place, CHANGES)
    assert (tmp_path / "out" / "prices" / "b00000007.r00001").exists()


@pytest.mark.kills("ledger-is-there")
@pytest.mark.parametrize(
    ("lost", "said"),
    [
        (LEDGER, "expected the ledger .* was delivered to by this sink, found none; put it back"),
        (LEDGER / "_delivered_by", "shopping.out/_delivered_by to say format 2, found None"),
        (
            LEDGER / "delivered",
            "expected no barriers, since the ledger knows of none in .*, found .*/prices/b0000000",
        ),
    ],
)
def test_a_ledger_that_is_lost_is_no_beginning(place: LocalFiles, tmp_path: Path, lost: Path, said: str) -> None:
    deliver_steps(place, CHANGES[:2])
    there = tmp_path / "out" / lost
    there.rename(tmp_path / "aside")
    with pytest.raises(LedgerError, match=said):
        deliver_steps(place, CHANGES)
    if there.exists():  # it is made anew before it is found to be empty
        shutil.rmtree(there)
    (tmp_path / "aside").rename(there)
    deliver_steps(place, CHANGES)
    check(place, CHANGES, Rows.CHANGES)


@pytest.mark.kills("no-data-ahead-of-ledger")
def test_a_ledger_that_was_restored_from_yesterday_is_told(place: LocalFiles, tmp_path: Path) -> None:
    deliver_steps(place, CHANGES[:1])
    shutil.copytree(tmp_path / "out" / "_barrier", tmp_path / "yesterday")
    deliver_steps(place, CHANGES[:2])
    shutil.rmtree(tmp_path / "out" / "_barrier")
    (tmp_path / "yesterday").rename(tmp_path / "out" / "_barrier")
    with pytest.raises(LedgerError, match=r"expected no .*b00000004\.r00000, since .* knows of nothing after b3\.r0"):
        deliver_steps(place, CHANGES)
    check(place, CHANGES[:2], Rows.CHANGES)


@pytest.mark.kills("no-data-without-ledger")
def test_data_without_a_ledger_is_nobodys_to_go_on_with(place: LocalFiles, tmp_path: Path) -> None:
    (tmp_path / "out" / "amounts" / "b00000001.r00000").mkdir(parents=True)
    with pytest.raises(LedgerError, match=r"expected no barriers, .* found .*/amounts/b00000001\.r00000"):
        deliver_steps(place, CHANGES)
    assert place.left_over() == []


def test_a_folder_that_was_copied_is_told(place: LocalFiles, tmp_path: Path) -> None:
    deliver_steps(place, CHANGES[:2])
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    with pytest.raises(LedgerError, match=r"in \(file://.*/out\), found a copy of it \(file://.*/copy\), "):
        deliver_steps(LocalFiles(str(tmp_path / "copy")), CHANGES)
    deliver_steps(place, CHANGES)
    check(place, CHANGES, Rows.CHANGES)


def test_a_person_says_that_a_moved_folder_goes_on(place: LocalFiles, tmp_path: Path) -> None:
    """Adopted at its new place, and no more at the old one; with the incarnation of a recovered MetaService, too."""
    deliver_steps(place, CHANGES[:2])
    (tmp_path / "out").rename(tmp_path / "moved")
    moved = LocalFiles(str(tmp_path / "moved"))
    recovered = deliverer(incarnation="recovered")
    with moved.channel(Rows.CHANGES) as channel:
        with pytest.raises(LedgerError, match=r"of another one \(first\), which delivered up to b4\.r0"):
            channel.open(recovered)
        assert channel.open(recovered, remedy=Remedy.ADOPT).position == CHANGES[1].position
    with moved.channel(Rows.CHANGES) as channel:
        assert channel.open(recovered).position == CHANGES[1].position
        with pytest.raises(LedgerError):
            channel.open(deliverer("banking"), remedy=Remedy.ADOPT)
    check(moved, CHANGES[:2], Rows.CHANGES)
    assert moved.left_over() == []


@pytest.mark.parametrize("lost", [False, True], ids=["with its ledger", "whose ledger is lost"])
def test_a_sink_that_is_loaded_anew_is_emptied_first(place: LocalFiles, tmp_path: Path, lost: bool) -> None:
    deliver_steps(place, CHANGES)
    if lost:
        shutil.rmtree(tmp_path / "out" / LEDGER)
    now = Step(
        CHANGES[-1].position,
        {table: expected(CHANGES, Rows.CHANGES, table) for table in SCHEMAS},
        whole=True,
    )

    def load_anew() -> None:
        with place.channel(Rows.CHANGES) as channel:
            after = channel.open(deliverer(), remedy=Remedy.ADOPT).position
            assert after == (None if lost else now.position)
            former = {table: Batches(schema, []) for table, schema in SCHEMAS.items()}
            channel.deliver(replace(delivery(now, Rows.CHANGES, after), former=former))

    with pytest.raises(SinkRefusedError, match=r"expected no barriers, since the tables come whole .* move away"):
        load_anew()
    check(place, CHANGES, Rows.CHANGES)
    for target in ("prices", "amounts"):
        for barrier in (tmp_path / "out" / target).glob("b*"):
            shutil.rmtree(barrier)
    load_anew()
    check(place, [now], Rows.CHANGES)
    deliver_steps(place, [*CHANGES, CORRECTION])
    check(place, [now, CORRECTION], Rows.CHANGES)
    assert place.left_over() == []


def test_a_folder_that_somebody_made_in_the_way_is_left_alone(place: LocalFiles, tmp_path: Path) -> None:
    deliver_steps(place, CHANGES[:1])
    theirs = tmp_path / "out" / "amounts" / "b00000004.r00000"
    theirs.mkdir()
    (theirs / "note.txt").write_text("mine")
    with pytest.raises(LedgerError, match="found it"):
        deliver_steps(place, CHANGES[:2])
    assert (theirs / "note.txt").read_text() == "mine"
    assert not (tmp_path / "out" / "prices" / "b00000004.r00000").exists()


@pytest.mark.kills("no-data-ahead-of-ledger")
def test_a_folder_that_somebody_makes_meanwhile_is_left_alone(
    place: LocalFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The barrier is in the ledger by then: it is delivered once the folder is out of the way."""
    deliver_steps(place, CHANGES[:1])
    theirs, rename = tmp_path / "out" / "amounts" / "b00000004.r00000", LocalStore.rename

    def after_somebody(store: LocalStore, source: str, target: str) -> bool:
        if target.endswith("/delivered/b00000004.r00000"):
            theirs.mkdir()
            (theirs / "note.txt").write_text("mine")
        return rename(store, source, target)

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "rename", after_somebody)
        with pytest.raises(LedgerError, match="made by somebody else; move it away"):
            deliver_steps(place, CHANGES[:2])
    assert (theirs / "note.txt").read_text() == "mine"
    theirs.rename(tmp_path / "moved away")
    deliver_steps(place, CHANGES)
    check(place, CHANGES, Rows.CHANGES)


def test_a_ledger_of_a_hundred_thousand_barriers_costs_what_one_of_ten_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.schema([("id", pa.int64())])
    sink = FileSink(str(tmp_path), name="out")
    declared = sink.declare("shop.t", Rows.TABLE, "dag")
    listed: list[int] = []
    calls: list[str] = []

    def names(self: LocalStore, folder: str) -> list[str] | None:
        found = original(self, folder)
        listed.append(len(found or []))
        return found

    def counted(name: str) -> Any:
        method = getattr(LocalStore, name)
        return lambda *arguments: calls.append(name) or method(*arguments)

    def deliver(barrier: int, after: int | None) -> list[str]:
        calls.clear()
        batches = {"shop.t": Batches(schema, [{"id": barrier}])}
        position = Position(after, 0) if after else None
        moment = datetime(2017, 1, 1, tzinfo=timezone.utc)
        channel.deliver(Delivery(barrier, 0, moment, position, Rows.TABLE, batches, batches))
        return [*calls]

    with sink.connect(declared, None) as channel:
        channel.open(deliverer())
        deliver(1, None)
        for barrier in range(2, 99_800):  # as they are there once they were delivered
            (tmp_path / "t" / f"b{barrier:08}.r00000").mkdir()
        original = LocalStore.names
        monkeypatch.setattr(LocalStore, "names", names)
        for method in ("exists", "read", "create", "make", "rename", "remove"):
            monkeypatch.setattr(LocalStore, method, counted(method))
        costs = [deliver(99_800, 1)]
        costs += [deliver(barrier, barrier - 1) for barrier in range(99_801, 100_001)]
    assert len(costs[-1]) == len(costs[0]) + 1, "what is forgotten is one folder a barrier"
    assert len(list((tmp_path / LEDGER / "delivered").iterdir())) == 101
    with sink.connect(declared, None) as channel:
        assert channel.open(deliverer()).position == Position(100_000, 0)
    assert max(listed) <= 101


@pytest.mark.kills("one-token")
def test_of_many_who_open_at_once_one_can_deliver(place: LocalFiles) -> None:
    deliver_steps(place, CHANGES[:1])
    after = CHANGES[0].position

    def race(_: int) -> str:
        with place.channel(Rows.CHANGES) as channel:
            try:
                found = channel.open(deliverer()).position
                if found != after:  # one who opened it before had the time to deliver
                    assert found == CHANGES[1].position
                    return "nothing"
                channel.deliver(delivery(CHANGES[1], Rows.CHANGES, after))
            except BarrierError as error:
                return type(error).__name__
        return "delivered"

    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(race, range(24)))
    assert said.count("delivered") == 1
    assert set(said) <= {
        "delivered",
        "nothing",
        *(each.__name__ for each in (FencedDelivererError, SinkUnavailableError)),
    }
    deliver_steps(place, CHANGES)
    check(place, CHANGES, Rows.CHANGES)
    assert place.left_over() == []
