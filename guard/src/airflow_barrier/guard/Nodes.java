package airflow_barrier.guard;

import java.util.List;
import java.util.function.Consumer;
import java.util.stream.IntStream;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import scala.Option;
import scala.collection.Seq;

/**
 * Parts of plans, of whatever class in whatever version of Spark: nodes that name a table call it the same. Lists are asked for
 * by name as well, since methods that return one are others in Scala 2.12 and 2.13.
 */
final class Nodes {
    private Nodes() {}

    /** null if the node has no such part. */
    static Object get(Object node, String what) {
        if (node == null) {
            return null;
        }
        try {
            return node.getClass().getMethod(what).invoke(node);
        } catch (ReflectiveOperationException absent) {
            return null;
        }
    }

    /** The same of a part that the node may lack. */
    static Object option(Object node, String what) {
        return get(node, what) instanceof Option<?> found ? found.isDefined() ? found.get() : null : get(node, what);
    }

    /** Empty if the node has no such list. */
    static List<?> list(Object node, String what) {
        return get(node, what) instanceof Seq<?> found ? list(found) : List.of();
    }

    static List<?> list(Seq<?> found) {
        // no method reference, which would name a class that Scala 2.12 has not
        return IntStream.range(0, found.length()).<Object>mapToObj(at -> found.apply(at)).toList();
    }

    static List<LogicalPlan> children(LogicalPlan node) {
        return plans(node, "children");
    }

    /** The node, and all below it. */
    static void visit(LogicalPlan node, Consumer<LogicalPlan> visitor) {
        visitor.accept(node);
        plans(node, "subqueries").forEach(each -> visit(each, visitor));
        children(node).forEach(each -> visit(each, visitor));
    }

    private static List<LogicalPlan> plans(LogicalPlan node, String what) {
        return list(node, what).stream().map(LogicalPlan.class::cast).toList();
    }
}
