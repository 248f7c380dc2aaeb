"""What must be true of all tables and of the MetaService when the tasks have ended, whatever died on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from airflow_barrier.coordinator.deployment import Deployment, with_password
from airflow_barrier.protocol.names import parse_branch
from airflow_barrier.protocol.states import AttemptState, BarrierState, TableState
from tests.crash.shopping import COLUMNS, Row, Shop, purchases, rows_of
from tests.metaservice.auditing import check_audit

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table

_ENDED = {AttemptState.FENCED, AttemptState.VOIDED, AttemptState.ABORTED}


def expected_rows(priced: Sequence[bool]) -> list[dict[str, list[Row]]]:
    """Barrier -> table -> its rows: the oracle. ``priced`` says of each day whether its purchases have prices."""
    at: list[dict[str, list[Row]]] = [{table: [] for table in COLUMNS}]
    for day, with_prices in enumerate(priced, start=1):
        landed = purchases(day, with_prices)
        at.append({table: sorted(rows + rows_of(table, landed)) for table, rows in at[-1].items()})
    return at


def files_of(manifest: ManifestFile, io: FileIO, cache: dict[str, Any]) -> list[str]:
    """The data files that a manifest names. It never changes, so it is read once, into ``cache``."""
    if manifest.manifest_path not in cache:
        entries = manifest.fetch_manifest_entry(io)
        cache[manifest.manifest_path] = [entry.data_file.file_path for entry in entries]
    files: list[str] = cache[manifest.manifest_path]
    return files


def rows_at(table: Table, snapshot_id: int | None, cache: dict[str, Any]) -> list[Row]:
    """The rows of a snapshot. Files never change, so each is read once, into ``cache``."""
    if snapshot_id is None:
        return []
    snapshot = table.snapshot_by_id(snapshot_id)
    assert snapshot is not None, f"{table.name()}: snapshot {snapshot_id} is gone"
    rows: list[Row] = []
    for manifest in snapshot.manifests(table.io):
        for file in files_of(manifest, table.io, cache):
            if file not in cache:
                with table.io.new_input(file).open() as stream:
                    cache[file] = [tuple(row.values()) for row in pq.read_table(stream).to_pylist()]
            rows += cache[file]
    return sorted(rows)


def check_committed(
    deployment: Deployment, shop: Shop, day: int, *, newest: bool = True, branches: bool = False
) -> None:
    """The barrier of ``day`` is COMMIT, all is final, and tags (of the ``newest`` barrier: `main`, too) stand where the
    map says.

    ``branches``: whether a zombie may have left attempt branches, which go with the next publish, and files.
    """
    meta, tables = deployment.meta, deployment.tables
    barrier = meta.barriers.get(shop.name, day)
    assert barrier.state is BarrierState.COMMIT, barrier
    attempts = meta.attempts.of(shop.name, day)
    counted = sorted(attempt.job for attempt in attempts if attempt.state is AttemptState.PROCESSED)
    assert counted == ["amount", "load", "price"], attempts
    assert all(attempt.state in {*_ENDED, AttemptState.PROCESSED} for attempt in attempts), attempts
    for progress in meta.barriers.progress(shop.name, day):
        assert progress.state is TableState.WRITTEN, progress
        refs = {name: ref.snapshot_id for name, ref in tables.load(progress.table).metadata.refs.items()}
        assert not newest or refs.get("main") == progress.snapshot_id, f"{progress.table}: main is {refs.get('main')}"
        assert refs.get(barrier.tag) == progress.snapshot_id, f"{progress.table}: tag {refs.get(barrier.tag)}"
        left = [name for name in refs if parse_branch(name) is not None]
        assert branches or not left, f"{progress.table}: branches {left}"
    left_over = [path.name for path in (shop.lake / "_barrier" / shop.name / f"b{day}").glob("[!.]*")]
    assert branches or not left_over, f"files of a committed barrier: {left_over}"


def check_all(shop: Shop, priced: Sequence[bool]) -> None:
    """Every barrier of the topology, its rows by the map and by its tag, and everything that is named exists."""
    deployment = Deployment.connect(shop.settings)
    oracle, cache = expected_rows(priced), dict[str, Any]()
    tables = {name: deployment.tables.load(shop.table(name)) for name in COLUMNS}
    for day, expected in enumerate(oracle):
        if day == 0:
            continue
        barrier = deployment.meta.barriers.get(shop.name, day)
        assert barrier.state is BarrierState.COMMIT, barrier
        mapped = {p.table: p.snapshot_id for p in deployment.meta.barriers.progress(shop.name, day)}
        for name, table in tables.items():
            tag = table.metadata.snapshot_by_name(barrier.tag)
            assert (tag and tag.snapshot_id) == mapped[shop.table(name)], f"{name}: tag of {barrier}"
            _check_rows(f"{name} at {barrier}", rows_at(table, mapped[shop.table(name)], cache), expected[name])
        _check_attempts(deployment, shop, day)
    for name, table in tables.items():
        _check_rows(f"main of {name}", rows_at(table, _main(table), cache), oracle[-1][name])
        branches = [ref for ref in table.metadata.refs if parse_branch(ref) is not None]
        assert not branches, f"{name}: attempt branches of committed barriers: {branches}"
    for table in (*tables.values(), outside := deployment.tables.load(shop.outside)):
        check_files(table, cache)
    pins = {ref for ref in outside.metadata.refs if ref != "main"}
    held = {deployment.meta.cuts.of(shop.name, len(priced))["rates"].end["ref"]}
    assert pins == held, f"expected only what the newest cut holds, found {sorted(pins)}"
    deployment.close()
    check_audit(with_password(shop.settings.metaservice_url, shop.settings.metaservice_password))


def _main(table: Table) -> int | None:
    main = table.metadata.current_snapshot()
    return None if main is None else main.snapshot_id


def _check_rows(what: str, found: Sequence[Row], expected: Sequence[Row]) -> None:
    if found != expected:
        lost = [row for row in expected if row not in found]
        more = [row for row in found if found.count(row) != expected.count(row)]
        raise AssertionError(f"{what}: lost {lost}, not expected (or twice) {more}")


def _check_attempts(deployment: Deployment, shop: Shop, day: int) -> None:
    states: Mapping[int, AttemptState] = {a.attempt_id: a.state for a in deployment.meta.attempts.of(shop.name, day)}
    assert all(state in {*_ENDED, AttemptState.PROCESSED} for state in states.values()), states
    assert list(states.values()).count(AttemptState.PROCESSED) == 3, states


def check_files(table: Table, cache: dict[str, Any]) -> None:
    """Every file that the current metadata names is there: its log, manifest lists, manifests and data files.

    ``cache``: of :func:`files_of`. That all are there is looked at anew.
    """
    io = table.io
    named = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    for snapshot in table.metadata.snapshots:
        named.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(io):
            named |= {manifest.manifest_path, *files_of(manifest, io, cache)}
    gone = sorted(file for file in named if not io.new_input(file).exists())
    assert not gone, f"{table.name()} names files that are not there: {gone}"
