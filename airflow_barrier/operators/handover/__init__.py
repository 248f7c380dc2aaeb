"""Handing an attempt to an operator that knows nothing of barriers: where its Spark conf goes.

One file per operator class, each with the functions of :class:`~airflow_barrier.operators.handover.port.Adapter`. They
are found by the class's name, so nothing of a provider is imported before a DAG uses it.
"""
