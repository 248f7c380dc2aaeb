"""Each topology has an incarnation of its own: one is recovered without the others. Its changes are counted, for those
who wait. Items are found by their cut. Each attempt has a nonce.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("barrier_topology", sa.Column("incarnation", sa.Text, nullable=False, server_default=""))
    op.execute("UPDATE barrier_topology SET incarnation = (SELECT incarnation FROM barrier_service)")
    op.add_column("barrier_topology", sa.Column("changes", sa.BigInteger, nullable=False, server_default="0"))
    # attempts of before have none: of those that run, the files are not believed, and the next try begins anew
    op.add_column("barrier_attempt", sa.Column("nonce", sa.Text, nullable=False, server_default=""))
    op.drop_index("barrier_cut_item_by_barrier", "barrier_cut_item")
    op.create_index("barrier_cut_item_by_barrier", "barrier_cut_item", ["topology", "line", "barrier_id", "source"])
