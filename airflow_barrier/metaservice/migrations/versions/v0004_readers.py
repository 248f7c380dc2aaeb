"""Leases of readers, barriers that expire, and the metadata as tables that people query."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from airflow_barrier.metaservice.schema import UtcTime

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_BARRIER_KEY = ("topology", "revision", "barrier_id")


def upgrade() -> None:
    _extend_barriers()
    _make_leases()


def _extend_barriers() -> None:
    for column in ("thinned_at", "expiring_at", "expired_at"):
        op.add_column("barrier_barrier", sa.Column(column, UtcTime))
    op.add_column("barrier_barrier", sa.Column("rollbacks", sa.Integer, nullable=False, server_default="0"))
    for name, where in (
        ("barrier_barrier_thinned", "thinned_at IS NOT NULL AND expired_at IS NULL"),
        ("barrier_barrier_readable", "state = 'COMMIT' AND expiring_at IS NULL"),
    ):
        op.create_index(
            name, "barrier_barrier", list(_BARRIER_KEY), sqlite_where=sa.text(where), postgresql_where=sa.text(where)
        )


def _make_leases() -> None:
    """Anew: nothing has granted one so far."""
    op.drop_table("barrier_lease")
    op.create_table(
        "barrier_lease",
        sa.Column("lease_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("topology", sa.Text, nullable=False),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("barrier_id", sa.BigInteger, nullable=False),
        sa.Column("through_id", sa.BigInteger, nullable=False),
        sa.Column("rollbacks", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("granted_at", UtcTime, nullable=False),
        sa.Column("expires_at", UtcTime, nullable=False),
        sa.ForeignKeyConstraint(_BARRIER_KEY, [f"barrier_barrier.{column}" for column in _BARRIER_KEY]),
        sqlite_autoincrement=True,
    )
    op.create_index("barrier_lease_by_barrier", "barrier_lease", list(_BARRIER_KEY))
    op.create_index("barrier_lease_by_end", "barrier_lease", ["topology", "revision", "expires_at"])
