package airflow_barrier.guard;

import java.io.Serializable;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.function.Function;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.ExpressionInfo;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.V2ExpressionUtils;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Function1;
import scala.Tuple3;
import scala.collection.Seq;

/**
 * A function of SQL: the texts in a line, or NULL unless every byte of it has been understood. So NULL says nothing about
 * the line: whoever asks has to read it in another way (airflow_barrier/sources/text), which also words what is wrong.
 */
public final class Texts implements ScalarFunction<ArrayData> {
    private static final long serialVersionUID = 1;
    /** Spark's parser of JSON refuses texts of many megabytes. */
    private static final int LONGEST = 1 << 20;

    /** What Java reads for bytes that are no character. */
    private static final char REPLACEMENT = '\uFFFD';

    private final String name;
    private final Way way;

    private Texts(String name, Way way) {
        this.name = name;
        this.way = way;
    }

    /** How a kind of line is read. It looks at all bytes, but not whether those of a character are UTF-8. */
    interface Way extends Serializable {
        /** Null for a line that is not understood. */
        Object[] of(byte[] line);
    }

    /** `way` makes it of the arguments after the line, which are constants. */
    @SuppressWarnings({"rawtypes", "unchecked"}) // its list of arguments is another class in each version of Scala
    static void inject(SparkSessionExtensions extensions, String name, Function<List<String>, Way> way) {
        Function1 called = Guard.function((Seq<?> arguments) -> {
            List<String> constants = Nodes.list(arguments).stream().skip(1)
                    .map(each -> ((Literal) each).value().toString()).toList();
            return resolved(new Texts(name, way.apply(constants)), (Seq<?>) arguments.take(1));
        });
        ExpressionInfo info = new ExpressionInfo(Texts.class.getName(), name);
        extensions.injectFunction(new Tuple3<>(new FunctionIdentifier(name), info, called));
    }

    private static Expression resolved(Texts texts, Seq<?> arguments) {
        try {
            Method way = Arrays.stream(V2ExpressionUtils.class.getMethods())
                    .filter(each -> each.getName().equals("resolveScalarFunction")).findFirst().orElseThrow();
            return (Expression) way.invoke(null, texts, arguments);
        } catch (ReflectiveOperationException failed) {
            throw new IllegalStateException(failed);
        }
    }

    /** Called by Spark, by its name. */
    public ArrayData invoke(UTF8String line) {
        if (line == null || line.numBytes() > LONGEST) {
            return null;
        }
        byte[] bytes = line.getBytes();
        Object[] texts = way.of(bytes);
        return texts == null || !isText(bytes) ? null : new GenericArrayData(texts);
    }

    /** Without U+FFC0 to U+FFFF, too: the last one is no character, and has a meaning in the other way. */
    private static boolean isText(byte[] bytes) {
        boolean ascii = true;
        for (int i = 0; i < bytes.length; i++) {
            if (bytes[i] < 0) {
                ascii = false;
                if (bytes[i] == (byte) 0xEF && i + 1 < bytes.length && bytes[i + 1] == (byte) 0xBF) {
                    return false;
                }
            }
        }
        return ascii || new String(bytes, StandardCharsets.UTF_8).indexOf(REPLACEMENT) < 0;
    }

    @Override
    public DataType[] inputTypes() {
        return new DataType[] {DataTypes.StringType};
    }

    @Override
    public DataType resultType() {
        return DataTypes.createArrayType(DataTypes.StringType);
    }

    @Override
    public String name() {
        return name;
    }
}
