package airflow_barrier.guard;

import java.util.function.BiConsumer;
import java.util.function.Function;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.SparkSessionExtensionsProvider;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.internal.SQLConf;
import scala.Function1;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/**
 * Spark 4 finds it by itself (META-INF/services) where this jar is on the class path. For pyspark 3.5 it is named in
 * spark.sql.extensions.
 */
public class Guard extends AbstractFunction1<SparkSessionExtensions, BoxedUnit>
        implements SparkSessionExtensionsProvider {

    @Override
    public BoxedUnit apply(SparkSessionExtensions extensions) {
        injectFirst(extensions, function(session -> new Rule<LogicalPlan>() {
            @Override
            public LogicalPlan apply(LogicalPlan plan) {
                look(plan, Declared::checkProcedure);
                look(plan, Declared::checkEvolution);
                return plan;
            }
        }));
        extensions.injectCheckRule(function(session -> function(plan -> {
            look(plan, Declared::check);
            SnapshotProperties.handOver(SQLConf.get());
            return BoxedUnit.UNIT;
        })));
        Texts.inject(extensions, JsonTexts.NAME, JsonTexts::new);
        Texts.inject(extensions, CsvTexts.NAME, CsvTexts::new);
        return BoxedUnit.UNIT;
    }

    /** Spark 4 calls procedures and alters tables while it analyses, after these rules. Spark 3.5 has none, and does neither. */
    private static void injectFirst(SparkSessionExtensions extensions, Function1<SparkSession, Rule<LogicalPlan>> rule) {
        try {
            extensions.getClass().getMethod("injectHintResolutionRule", Function1.class).invoke(extensions, rule);
        } catch (NoSuchMethodException absent) {
            return;
        } catch (ReflectiveOperationException failed) {
            throw new IllegalStateException(failed);
        }
    }

    private static void look(LogicalPlan plan, BiConsumer<Declared, LogicalPlan> check) {
        Declared declared = Declared.inSession();
        if (declared != null) {
            Nodes.visit(plan, node -> check.accept(declared, node));
        }
    }

    static <A, B> Function1<A, B> function(Function<A, B> body) {
        return new AbstractFunction1<A, B>() {
            @Override
            public B apply(A argument) {
                return body.apply(argument);
            }
        };
    }
}
