"""What a person decided about a table in the way of a BLOCKED barrier."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("barrier_table_progress", sa.Column("decision", sa.Text))
    op.add_column("barrier_table_progress", sa.Column("set_aside", sa.BigInteger))
