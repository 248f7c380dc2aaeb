"""The whole schema, as ``schema.py`` has it today. As long as nothing is released this is the only step."""

from __future__ import annotations

from uuid import uuid4

from alembic import op

from airflow_barrier.metaservice.schema import DatabaseNow, metadata, service
from airflow_barrier.metaservice.views import create_views

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    metadata.create_all(op.get_bind(), checkfirst=False)
    op.execute(service.insert().values(service_id=1, incarnation=uuid4().hex, created_at=DatabaseNow()))
    create_views(op.get_bind())
