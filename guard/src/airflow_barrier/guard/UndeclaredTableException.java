package airflow_barrier.guard;

/** Ends a query before it has read or written anything. PySpark knows its base class, and shows the message alone. */
final class UndeclaredTableException extends IllegalArgumentException {
    private static final long serialVersionUID = 1L;

    UndeclaredTableException(String message) {
        super("airflow_barrier: " + message);
    }
}
