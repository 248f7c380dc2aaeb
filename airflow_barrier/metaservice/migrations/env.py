"""What alembic runs: the steps join the transaction of the connection that was handed over, all or nothing."""

from alembic import context

from airflow_barrier.metaservice.versions import VERSION_TABLE

context.configure(connection=context.config.attributes["connection"], version_table=VERSION_TABLE)
context.run_migrations()
