"""The protocol made durable: schema, migrations and :class:`~airflow_barrier.metaservice.store.MetaService`."""
