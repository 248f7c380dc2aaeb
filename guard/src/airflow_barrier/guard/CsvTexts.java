package airflow_barrier.guard;

import java.util.List;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * SQL's `airflow_barrier_csv_texts(line, delimiter, quote, count)`: so many texts of a line of CSV without a quote. What is
 * empty is NULL. Delimiter and quote are one ASCII character each; where nothing is quoted, the quote is empty.
 */
final class CsvTexts implements Texts.Way {
    static final String NAME = "airflow_barrier_csv_texts";
    private static final long serialVersionUID = 1;

    private final byte delimiter;
    private final byte quote;
    private final int count;

    CsvTexts(List<String> constants) {
        delimiter = (byte) constants.get(0).charAt(0);
        quote = constants.get(1).isEmpty() ? 0 : (byte) constants.get(1).charAt(0);
        count = Integer.parseInt(constants.get(2));
    }

    @Override
    public Object[] of(byte[] line) {
        Object[] texts = new Object[count];
        int found = 0;
        int begin = 0;
        for (int at = 0; at <= line.length; at++) {
            if (at == line.length || line[at] == delimiter) {
                if (found == count) {
                    return null;
                }
                texts[found++] = at == begin ? null : UTF8String.fromBytes(line, begin, at - begin);
                begin = at + 1;
            } else if (line[at] == quote || line[at] == 0) {
                return null;
            }
        }
        return found == count ? texts : null;
    }
}
