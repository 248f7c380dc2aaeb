package airflow_barrier.guard;

/** Parts of plans, of whatever class in whatever version of Spark: nodes that name a table call it the same. */
final class Nodes {
    private Nodes() {}

    /** null if the node has no such part. */
    static Object get(Object node, String what) {
        try {
            return node.getClass().getMethod(what).invoke(node);
        } catch (ReflectiveOperationException absent) {
            return null;
        }
    }
}
