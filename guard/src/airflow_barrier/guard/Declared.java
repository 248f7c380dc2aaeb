package airflow_barrier.guard;

import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.collection.Seq;

/** The tables that the session's conf says its job declares, and what may be done to them. */
final class Declared {
    private static final String CONF = "spark.airflow_barrier.";
    /** Makes each snapshot that the session writes say that the guard was there, and what it promises. */
    private static final String MARK = "spark.sql.iceberg.snapshot-property.airflow-barrier.guard";
    /** What looks at tables or at what Spark remembers of them, and changes nothing. */
    private static final Set<String> HARMLESS = Set.of("DescribeRelation", "DescribeColumn", "DescribeTablePartition",
            "ShowColumns", "ShowCreateTable", "ShowPartitions", "ShowTableProperties", "ShowTablePartition",
            "RefreshTable", "CacheTable", "UncacheTable");
    private static final Set<String> CREATING = Set.of("CreateTable", "CreateTableAsSelect");
    private static final Set<String> ROW_LEVEL = Set.of("DeleteFromTable", "UpdateTable", "MergeIntoTable", "TruncateTable");
    private static final Set<String> RESOLVED = Set.of("ResolvedTable", "ResolvedIdentifier");
    private static final Set<String> LOOKING = Set.of("ancestors_of", "create_changelog_view");
    /** Without versionAsOf, which Spark 3.5 ignores; where it does not, the relation travels. */
    private static final String[] PINS = {"snapshot-id", "start-snapshot-id", "end-snapshot-id"};

    private final String catalog;
    private final Set<String> reads;
    private final Set<String> writes;
    private final Set<String> pinned;
    private final AttemptBranch branch;

    private Declared(SQLConf conf) {
        catalog = conf.getConfString(CONF + "catalog");
        reads = names(conf, "reads");
        writes = names(conf, "writes");
        pinned = names(conf, "pinned");
        branch = new AttemptBranch(conf.getConfString(CONF + "branch"), conf);
    }

    /** What the session's job declares; null where the session is none of a job. */
    static Declared inSession() {
        SQLConf conf = SQLConf.get();
        if (conf.getConfString(CONF + "reads", null) == null) {
            return null;
        }
        conf.setConfString(MARK, "4"); // as GUARD_PROMISE of airflow_barrier/spark/unchanged.py
        return new Declared(conf);
    }

    /** Names are case-insensitive: some catalogs fold them, and then the job may write them as it likes. */
    private static Set<String> names(SQLConf conf, String key) {
        Set<String> names = new TreeSet<>(String.CASE_INSENSITIVE_ORDER);
        for (String name : conf.getConfString(CONF + key, "").split(",")) {
            names.add(URLDecoder.decode(name, StandardCharsets.UTF_8));
        }
        return names;
    }

    /** A procedure is run as soon as its name is resolved, so that is looked at: `[catalog.]namespace.procedure`. */
    void checkProcedure(LogicalPlan node) {
        if (!node.getClass().getSimpleName().equals("UnresolvedProcedure")) {
            return;
        }
        List<?> parts = Nodes.list(node, "nameParts");
        boolean elsewhere = parts.size() > 2 && !catalog.equalsIgnoreCase(parts.get(0).toString());
        if (!elsewhere && !LOOKING.contains(parts.get(parts.size() - 1).toString().toLowerCase(Locale.ROOT))) {
            throw procedure(dotted(parts));
        }
    }

    private static UndeclaredTableException procedure(String name) {
        return new UndeclaredTableException("the job calls procedure " + name + ", which works on main and not on the "
                + "attempt's branch: call it outside the job");
    }

    /** In Spark 3.5 the query has Iceberg's own class by now, called as the procedure; of which catalog, it does not say. */
    private static void requireLooking(String called) {
        String name = called.replaceAll("Procedure$", "").replaceAll("(?<=[a-z])(?=[A-Z])", "_").toLowerCase(Locale.ROOT);
        if (!LOOKING.contains(name)) {
            throw procedure(name);
        }
    }

    /** Spark alters the table of a MERGE as soon as its columns are resolved, so that is looked at before. */
    void checkEvolution(LogicalPlan node) {
        if (Boolean.TRUE.equals(Nodes.get(node, "withSchemaEvolution"))
                && Nodes.get(firstLeaf(node), "multipartIdentifier") instanceof Seq<?> parts) {
            requireNotOurs(Nodes.list(parts), "WITH SCHEMA EVOLUTION");
        }
    }

    void check(LogicalPlan node) {
        String kind = node.getClass().getSimpleName();
        if (node instanceof V2WriteCommand write) {
            requireOutlet((LogicalPlan) write.table(), node);
            requireNoEvolution(write);
        } else if (Nodes.get(node, "sink") instanceof Table sink) {
            requireNoStream(sink);
        } else if (ROW_LEVEL.contains(kind)) {
            requireOutlet(firstLeaf(node), node);
        } else if (kind.startsWith("Resolved")) {
            return; // of the command above it, which was seen before
        } else if (isDdl(kind, node)) {
            nameOf(Nodes.children(node).get(0)).ifPresent(name -> requireNoDdl(name, kind, node));
        } else if (Nodes.get(node, "table") instanceof Seq<?> parts) { // Iceberg's own DDL names its table by parts
            requireNotOurs(Nodes.list(parts), kind);
        } else if (kind.equals("Call") && !(Nodes.get(node, "procedure") instanceof LogicalPlan)) {
            requireLooking(Nodes.get(node, "procedure").getClass().getSimpleName());
        } else {
            nameOf(node).ifPresent(name -> requireInlet(name, node));
        }
    }

    private static boolean isDdl(String kind, LogicalPlan node) {
        return !HARMLESS.contains(kind) && Nodes.children(node).stream().limit(1)
                .anyMatch(first -> RESOLVED.contains(first.getClass().getSimpleName()));
    }

    private void requireInlet(String table, LogicalPlan relation) {
        if (known(reads, table)) {
            requireBranch(table, relation);
            return;
        }
        if (known(pinned, table) && isPinned(relation, table)) {
            return;
        }
        if (known(pinned, table)) {
            throw new UndeclaredTableException("the job reads external source " + table + " as it is now, which is "
                    + "another input in every attempt: read it by current_epoch(spark).source(...)");
        }
        throw new UndeclaredTableException("the job reads table " + table + ", which it does not declare. Add inlets=["
                + "..., '" + table + "'] to its barrier.job(...); a table that no job of the topology writes is an "
                + "external source: add inlets=[..., IcebergTable('" + table + "')] and read it by "
                + "current_epoch(spark).source('" + table + "')");
    }

    private void requireOutlet(LogicalPlan relation, LogicalPlan command) {
        nameOf(relation).ifPresent(table -> {
            if (!known(writes, table)) {
                throw new UndeclaredTableException("the job writes to table " + table + ", which it does not declare. "
                        + "Add outlets=[..., '" + table + "'] to its barrier.job(...)");
            }
            requireBranch(table, relation, command);
        });
    }

    /** `nodes`: the table as it stands in the query, and the command that it is in. */
    private void requireBranch(String table, LogicalPlan... nodes) {
        int last = reads.contains(table) ? table.length() : table.lastIndexOf('.');
        String suffix = table.substring(Math.min(last + 1, table.length()));
        if (!AttemptBranch.isMetadata(suffix)) {
            branch.require(table.substring(0, last), suffix, nodes[0], AttemptBranch.optionsOf((Object[]) nodes));
        }
    }

    /** Iceberg sends what a stream writes to main, whatever the session's conf says. */
    private void requireNoStream(Table sink) {
        String prefix = catalog + ".";
        if (sink.name().regionMatches(true, 0, prefix, 0, prefix.length())) {
            throw new UndeclaredTableException("the job writes to table " + sink.name().substring(prefix.length())
                    + " by a stream, which goes to main and not to the attempt's branch, " + branch
                    + ": write it by a batch query");
        }
    }

    private void requireNoDdl(String table, String kind, LogicalPlan node) {
        boolean onlyIfAbsent = CREATING.contains(kind) && Boolean.TRUE.equals(Nodes.get(node, "ignoreIfExists"));
        if (!(onlyIfAbsent && known(reads, table))) {
            throw ddl(table, kind);
        }
    }

    /** Iceberg adds columns to a table that accepts any schema, while it makes ready to write. */
    private void requireNoEvolution(V2WriteCommand write) {
        Map<String, String> options = AttemptBranch.optionsOf(write.table(), write);
        String inSession = SQLConf.get().getConfString("spark.sql.iceberg.merge-schema", "false");
        String merges = options.getOrDefault("merge-schema", options.getOrDefault("mergeSchema", inSession));
        if (Boolean.parseBoolean(merges) && write.table().skipSchemaResolution()) {
            nameOf(write.table()).ifPresent(table -> {
                throw ddl(table, "mergeSchema");
            });
        }
    }

    private void requireNotOurs(List<?> parts, String kind) {
        boolean qualified = catalog.equalsIgnoreCase(parts.get(0).toString());
        // Without a catalog, a name is in the current one, which may be ours.
        if (qualified || parts.size() <= 2) {
            throw ddl(dotted(qualified ? parts.subList(1, parts.size()) : parts), kind);
        }
    }

    private static String dotted(List<?> parts) {
        return parts.stream().map(Object::toString).collect(Collectors.joining("."));
    }

    private static UndeclaredTableException ddl(String table, String kind) {
        return new UndeclaredTableException("the job changes table " + table + " itself (" + kind + "), which is seen "
                + "by everybody at once and cannot be staged: do it outside the job; keep scratch data in temporary "
                + "views or in another catalog");
    }

    /** Also of `db.t.snapshots` and `db.t.branch_b`, where `db.t` is declared. */
    private static boolean known(Set<String> declared, String table) {
        int last = table.lastIndexOf('.');
        return declared.contains(table) || (last > 0 && declared.contains(table.substring(0, last)));
    }

    /** Read as of a snapshot that was named; what Iceberg knows of a table is no input either. */
    private boolean isPinned(LogicalPlan relation, String table) {
        if (!pinned.contains(table)) {
            return true;
        }
        boolean byOption = Nodes.get(relation, "options") instanceof CaseInsensitiveStringMap options
                && Arrays.stream(PINS).anyMatch(options::containsKey);
        return byOption || branch.travels(relation);
    }

    /** `namespace.table`, if the node stands for something in the topology's catalog. */
    private Optional<String> nameOf(Object node) {
        if (!(Nodes.option(node, "catalog") instanceof CatalogPlugin where)
                || !(Nodes.option(node, "identifier") instanceof Identifier identifier)
                || !where.name().equalsIgnoreCase(catalog)) {
            return Optional.empty();
        }
        String namespace = String.join(".", identifier.namespace());
        return Optional.of(namespace.isEmpty() ? identifier.name() : namespace + "." + identifier.name());
    }

    private static LogicalPlan firstLeaf(LogicalPlan node) {
        List<LogicalPlan> children = Nodes.children(node);
        return children.isEmpty() ? node : firstLeaf(children.get(0));
    }
}
