package airflow_barrier.guard;

import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.write.RowLevelOperationTable;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;

/** The one state of its declared tables that a job reads and writes, and all ways that lead to another one. */
final class AttemptBranch {
    private static final String WAP_BRANCH = "spark.wap.branch";
    private static final String WAP_ID = "spark.wap.id";
    private static final String WAP_ENABLED = "write.wap.enabled";
    private static final String SELECTOR = "branch_";
    /** What Iceberg tells about a table, as `table.snapshots`. Any other suffix selects a state of its rows. */
    private static final Set<String> METADATA = Set.of("all_data_files", "all_delete_files", "all_entries", "all_files",
            "all_manifests", "data_files", "delete_files", "entries", "files", "history", "manifests",
            "metadata_log_entries", "partitions", "position_deletes", "refs", "snapshots");
    /** Options of readers that name a state of the table. */
    private static final Set<String> STATES = Set.of("tag", "snapshot-id", "as-of-timestamp", "start-snapshot-id",
            "end-snapshot-id", "start-timestamp", "end-timestamp", "versionAsOf", "timestampAsOf");

    private final String name;
    private final SQLConf conf;

    AttemptBranch(String name, SQLConf conf) {
        this.name = name;
        this.conf = conf;
    }

    @Override
    public String toString() {
        return name;
    }

    static boolean isMetadata(String suffix) {
        return METADATA.contains(suffix.toLowerCase(Locale.ROOT));
    }

    /** `suffix`: what follows the declared name of the table in the query, such as `branch_main`; empty if nothing. */
    void require(String table, String suffix, LogicalPlan relation, Map<String, String> options) {
        if (relation.isStreaming()) { // Iceberg reads main then, whatever names another branch
            throw elsewhere(table, "by a stream", "read it by a batch query");
        }
        if (!suffix.isEmpty() && !suffix.equals(SELECTOR + name)) {
            throw elsewhere(table, "by the name " + table + "." + suffix, "name the table alone");
        }
        if (travels(relation)) {
            throw elsewhere(table, "by time travel", "leave AS OF away");
        }
        requireOptions(table, options);
        if (suffix.isEmpty() && !options.containsKey("branch")) {
            requireConf(table);
            requireEnabled(table, relation);
        }
    }

    /** A relation of Spark 4.1 says so; of an older one the table says it that Iceberg has given to it. */
    boolean travels(LogicalPlan relation) {
        if (Nodes.get(relation, "timeTravelSpec") instanceof Option<?> said) {
            return said.isDefined();
        }
        Object table = relation instanceof DataSourceV2Relation ? tableOf(relation) : null;
        return Nodes.get(table, "snapshotId") != null
                || Nodes.get(table, "branch") instanceof String branch && !branch.equals(name);
    }

    private void requireOptions(String table, Map<String, String> options) {
        Optional<String> state = STATES.stream().filter(options::containsKey).findFirst();
        if (state.isPresent()) {
            throw elsewhere(table, "by the option " + state.get(), "leave it away");
        }
        if (options.containsKey("branch") && !name.equals(options.get("branch"))) {
            throw elsewhere(table, "by the option branch", "leave it away");
        }
    }

    private void requireConf(String table) {
        if (!name.equals(conf.getConfString(WAP_BRANCH, null))) {
            throw elsewhere(table, "since it has set or unset " + WAP_BRANCH, "leave that conf as it is");
        }
        if (conf.getConfString(WAP_ID, null) != null) {
            throw elsewhere(table, "since it has set " + WAP_ID, "leave that conf away");
        }
    }

    /** On other tables Iceberg ignores the conf without a word. */
    private void requireEnabled(String table, LogicalPlan relation) {
        if (tableOf(relation) instanceof Table found && !"true".equalsIgnoreCase(found.properties().get(WAP_ENABLED))) {
            throw elsewhere(table, "since somebody has switched off its property " + WAP_ENABLED,
                    "set it to true and clear the task");
        }
    }

    /** UPDATE, MERGE and DELETE wrap it. */
    private static Object tableOf(LogicalPlan relation) {
        Object table = Nodes.get(relation, "table");
        return table instanceof RowLevelOperationTable ? Nodes.get(table, "table") : table;
    }

    private UndeclaredTableException elsewhere(String table, String how, String way) {
        return new UndeclaredTableException("expected the job to use table " + table + " at the branch of its attempt, "
                + name + ", found that it leaves that branch " + how + ": " + way + ". The attempt's branch is what "
                + "the table's own name means in the job");
    }

    /** Of a relation or a command, whatever Spark calls them there; their names are case-insensitive. */
    static Map<String, String> optionsOf(Object... nodes) {
        Map<String, String> all = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
        for (Object node : nodes) {
            for (String kind : new String[] {"options", "writeOptions"}) {
                Object found = Nodes.get(node, kind);
                if (found instanceof CaseInsensitiveStringMap map) {
                    all.putAll(map);
                } else if (found instanceof scala.collection.Map<?, ?> map) {
                    map.foreach(Guard.function(each -> all.put(each._1().toString(), each._2().toString())));
                }
            }
        }
        return all;
    }
}
