"""Whether epochs of the past can be computed again into a table as it is now: it is written with today's columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_barrier.protocol.errors import SchemaChangedError, SnapshotMissingError
from airflow_barrier.tables._metadata import Document, snapshots_of


@dataclass(frozen=True)
class _Column:
    """A column, or a field ``within`` one (its id), by its full name. ``type`` without what is within it."""

    name: str
    type: str
    required: bool
    within: int | None


def incompatibilities(table: str, document: Document, snapshot_ids: Sequence[int | None]) -> list[str]:
    """Return what of the table's columns is not as at those snapshots (None: it had none), a sentence each, in their
    order.

    Columns added since that may be NULL, and columns that may be NULL since, are no fault. Raises
    :class:`~airflow_barrier.protocol.errors.SnapshotMissingError`.
    """
    snapshots = snapshots_of(document)
    schemas = {schema["schema-id"]: schema for schema in document["schemas"]}
    current_id = document["current-schema-id"]
    now = _columns(schemas[current_id])
    since: dict[str, int] = {}  # fault -> the first snapshot that shows it
    for snapshot_id in snapshot_ids:
        if snapshot_id is None:
            continue
        if snapshot_id not in snapshots:
            raise SnapshotMissingError(  # safety: revised-snapshot-is-there
                f"table {table}: expected snapshot {snapshot_id}, found that it was expired; a revision begins at a "
                "barrier whose tables are all still held"
            )
        # A snapshot that does not say its schema is from before Iceberg wrote that down.
        then = _columns(schemas[snapshots[snapshot_id].get("schema-id", current_id)])
        for fault in _faults(then, now):
            since.setdefault(fault, snapshot_id)
    return [f"{fault} (since snapshot {snapshot_id})" for fault, snapshot_id in since.items()]


def differences(document: Document, declared: Mapping[str, Any]) -> list[str]:
    """Return what of the table's columns is not as in the ``declared`` schema (as Iceberg writes it), a phrase each.

    Names are compared as Spark does. Further columns that may be NULL are no fault.
    """
    schemas = {schema["schema-id"]: schema for schema in document["schemas"]}
    now = _columns(schemas[document["current-schema-id"]])
    there = {column.name.lower(): column for column in now.values()}
    wanted = {column.name.lower(): column for column in _columns(declared).values()}
    faults = [fault for key, column in wanted.items() if (fault := _difference(column, there.get(key))) is not None]
    for key, column in there.items():
        parent = now[column.within].name.lower() if column.within is not None else None
        if key not in wanted and column.required and (parent is None or parent in wanted):
            faults.append(f"column {column.name} is not declared, and must not be NULL")
    return faults


def _difference(declared: _Column, found: _Column | None) -> str | None:
    if found is None:
        return f"column {declared.name} ({declared.type}) is missing"
    if found.type != declared.type:
        return f"column {declared.name} is {found.type}, declared {declared.type}"
    if found.required != declared.required:
        return f"column {declared.name} {'must not' if found.required else 'may'} be NULL, declared otherwise"
    return None


def check_schema(table: str, faults: Sequence[str]) -> None:
    """Raise :class:`~airflow_barrier.protocol.errors.SchemaChangedError` if there are faults, with what to do.

    >>> check_schema("shop.shopping", tables.schema_faults("shop.shopping", [7, 8]))  # doctest: +SKIP
    """
    if faults:
        raise SchemaChangedError(  # safety: schema-as-it-was
            f"table {table}: expected the columns that the revised barriers were computed with, besides further ones "
            f"that may be NULL, found: {'; '.join(faults)}. Begin the revision at a later barrier, or compute "
            "history into a new table: declare the table under a new name as the job's outlet, and let the job join "
            "with it"
        )


def _faults(then: Mapping[int, _Column], now: Mapping[int, _Column]) -> Iterator[str]:
    for field_id, column in then.items():
        found = now.get(field_id)
        if found is None:
            yield f"column {column.name} was dropped"
        elif found.type != column.type:
            yield f"column {column.name} was {column.type} and is {found.type}"
        elif found.name != column.name:
            yield f"column {column.name} is called {found.name}"
        elif found.required and not column.required:
            yield f"column {column.name} may no longer be NULL"
    for field_id, column in now.items():
        if field_id not in then and column.required and (column.within is None or column.within in then):
            yield f"column {column.name} was added since and must not be NULL, which older rows are"


def _columns(schema: Mapping[str, Any]) -> dict[int, _Column]:
    return dict(_fields(schema["fields"], "", None))


def _fields(fields: Sequence[Mapping[str, Any]], prefix: str, within: int | None) -> Iterator[tuple[int, _Column]]:
    for field in fields:
        yield from _field(field["id"], f"{prefix}{field['name']}", field["type"], field["required"], within)


def _field(
    field_id: int, name: str, kind: str | Mapping[str, Any], required: bool, within: int | None
) -> Iterator[tuple[int, _Column]]:
    if isinstance(kind, str):
        yield field_id, _Column(name, kind.replace(" ", ""), required, within)
        return
    yield field_id, _Column(name, kind["type"], required, within)
    if kind["type"] == "struct":
        yield from _fields(kind["fields"], f"{name}.", field_id)
        return
    for part in ("element",) if kind["type"] == "list" else ("key", "value"):
        is_required = part == "key" or kind[f"{part}-required"]
        yield from _field(kind[f"{part}-id"], f"{name}.{part}", kind[part], is_required, field_id)
