"""What other people do to a table, each in one word; through pyiceberg, as any engine of theirs would.

All of it is done to one table of the shop. What the table was before stands in the shop's oracle, which the hands that
write tell what rows they leave.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.types import LongType

from airflow_barrier.protocol.names import parse_branch, tag_name
from airflow_barrier.protocol.records import Barrier
from tests.support.shop import AMOUNT, Shop

#: A column that no job writes.
NOTE = "note"
#: What they write.
THEIRS = 7
RENAMED = "shop.renamed_by_hand"


@dataclass
class Hands:
    """Other people at work on a table of ``shop`` while ``barrier`` is under way; ``previous`` is COMMIT."""

    shop: Shop
    barrier: Barrier
    previous: Barrier
    name: str = AMOUNT
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def table(self) -> Table:
        return self.shop.deployment.tables.load(self.name)

    def append(self) -> None:
        self.table.append(theirs(self.table))

    def overwrite(self) -> None:
        self.table.overwrite(theirs(self.table))

    def delete(self) -> None:
        self.table.delete("amount == 100")

    def rollback(self) -> None:
        """One publish back."""
        mains = [entry.snapshot_id for entry in self.table.history()]
        self.table.manage_snapshots().rollback_to_snapshot(mains[-2]).commit()

    def compact(self) -> None:
        compact(self.table)

    def expire(self) -> None:
        """All that no ref holds."""
        self.table.maintenance.expire_snapshots().older_than(_tomorrow()).commit()

    def drop_branches(self) -> None:
        for name in [name for name in self.table.refs() if parse_branch(name)]:
            self.table.manage_snapshots().remove_branch(name).commit()

    def drop_branches_and_expire(self) -> None:
        self.drop_branches()
        self.expire()

    def drop_tags(self) -> None:
        for name, ref in self.table.refs().items():
            if ref.snapshot_ref_type == "tag":
                self.table.manage_snapshots().remove_tag(name).commit()

    def move_tag(self) -> None:
        """The tag of the barrier before is somewhere else now."""
        oldest = self.table.history()[0].snapshot_id
        name = self.previous.tag
        self.table.manage_snapshots().remove_tag(name).create_tag(oldest, name).commit()

    def take_tag(self) -> None:
        """The name that this barrier's tag will have is in use."""
        oldest = self.table.history()[0].snapshot_id
        name = tag_name("shopping", self.barrier.barrier_id, 0)
        if name in self.table.refs():  # published already
            self.table.manage_snapshots().remove_tag(name).commit()
        self.table.manage_snapshots().create_tag(oldest, name).commit()

    def add_column(self) -> None:
        with self.table.update_schema() as update:
            update.add_column("added_by_hand", LongType())

    def drop_column(self) -> None:
        with self.table.update_schema(allow_incompatible_changes=True) as update:
            update.delete_column(NOTE)

    def recreate(self) -> None:
        schema = self.table.schema()
        catalog = self.shop.deployment.tables.catalog
        self.notes["lost"] = self.table.metadata_location
        catalog.drop_table(self.name)
        catalog.create_table(self.name, schema, properties={"format-version": "2"})
        self.append()

    def drop(self) -> None:
        self.notes["lost"] = self.table.metadata_location
        self.shop.deployment.tables.catalog.drop_table(self.name)

    def rename(self) -> None:
        self.shop.deployment.tables.catalog.rename_table(self.name, RENAMED)

    # --- what a person does about it, by the words of the error -----------------------------------

    def set_main_back(self, snapshot_id: int) -> None:
        self.table.manage_snapshots().set_current_snapshot(snapshot_id).commit()

    def rename_back(self) -> None:
        self.shop.deployment.tables.catalog.rename_table(RENAMED, self.name)

    def register_again(self) -> None:
        catalog = self.shop.deployment.tables.catalog
        if catalog.table_exists(self.name):
            catalog.drop_table(self.name)
        catalog.register_table(self.name, self.notes["lost"])

    def free_tag(self) -> None:
        self.table.manage_snapshots().remove_tag(tag_name("shopping", self.barrier.barrier_id, 0)).commit()


Hand = Callable[[Hands], None]


def theirs(table: Table) -> pa.Table:
    """One row of theirs, equal in all columns that jobs write."""
    fields = table.schema().fields
    row = {field.name: THEIRS for field in fields if isinstance(field.field_type, LongType)}
    return pa.Table.from_pylist([row], table.schema().as_arrow())


class _Replace(_OverwriteFiles):
    """A rewrite of data files as engines commit it, which the library itself does not offer."""

    def _summary(self, snapshot_properties: dict[str, str] | None = None) -> Summary:
        written = super()._summary(snapshot_properties or {})
        return Summary(Operation.REPLACE, **written.additional_properties)


def compact(table: Table) -> None:
    """All data files of `main` rewritten into one, by a `replace` snapshot."""
    data = table.scan().to_arrow()
    with table.transaction() as transaction, _Replace(Operation.OVERWRITE, transaction, table.io) as rewrite:
        for task in table.scan().plan_files():
            rewrite.delete_data_file(task.file)
        for file in _dataframe_to_data_files(transaction.table_metadata, data, table.io):
            rewrite.append_data_file(file)


def _tomorrow() -> datetime:
    return datetime.now(timezone.utc) + timedelta(days=1)
