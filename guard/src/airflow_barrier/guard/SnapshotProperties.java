package airflow_barrier.guard;

import java.lang.reflect.Field;
import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.sql.internal.SQLConf;

/**
 * Has all that an attempt writes bear the properties that its session's conf names. By itself Iceberg forgets them where a
 * DELETE drops whole files, and in Spark 3.5 everywhere. It takes those of the thread that commits, and a command is analysed,
 * planned and committed in one thread.
 */
final class SnapshotProperties {
    private static final String CONF = "spark.sql.iceberg.snapshot-property.";
    /** Iceberg's, whose public way needs the commit to be called inside of it. */
    private static final ThreadLocal<Map<String, String>> OF_THREAD = ofThread();
    private static final ThreadLocal<Boolean> HANDED_OVER = ThreadLocal.withInitial(() -> false);

    private SnapshotProperties() {}

    /** Before each command: another session of the same thread has other properties, or none. */
    static void handOver(SQLConf conf) {
        if (OF_THREAD == null) {
            return;
        }
        Map<String, String> properties = of(conf);
        if (!properties.isEmpty()) {
            OF_THREAD.set(properties);
            HANDED_OVER.set(true);
        } else if (HANDED_OVER.get()) {
            OF_THREAD.remove();
            HANDED_OVER.remove();
        }
    }

    private static Map<String, String> of(SQLConf conf) {
        Map<String, String> properties = new TreeMap<>();
        conf.getAllConfs().foreach(Guard.function(each -> {
            if (each._1().startsWith(CONF)) {
                properties.put(each._1().substring(CONF.length()), each._2());
            }
            return null;
        }));
        return properties;
    }

    /** null without an Iceberg that has it: then the properties are missing, and the attempt does not count. */
    @SuppressWarnings("unchecked")
    private static ThreadLocal<Map<String, String>> ofThread() {
        try {
            ClassLoader loader = Thread.currentThread().getContextClassLoader();
            Field field = Class.forName("org.apache.iceberg.spark.CommitMetadata", true, loader)
                    .getDeclaredField("COMMIT_PROPERTIES");
            field.setAccessible(true);
            return (ThreadLocal<Map<String, String>>) field.get(null);
        } catch (ReflectiveOperationException absent) {
            return null;
        }
    }
}
