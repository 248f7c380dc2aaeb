package airflow_barrier.guard;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * SQL's `airflow_barrier_json_texts(line, names...)`: the texts of a flat JSON object's values in the order of the names. It
 * has known names, each once, numbers as JSON has them, no escapes, and nothing behind.
 */
final class JsonTexts implements Texts.Way {
    static final String NAME = "airflow_barrier_json_texts";
    private static final long serialVersionUID = 1;
    private static final int END = -1;
    private static final byte[] TRUE = "true".getBytes(StandardCharsets.US_ASCII);
    private static final byte[] FALSE = "false".getBytes(StandardCharsets.US_ASCII);
    private static final byte[] NULL = "null".getBytes(StandardCharsets.US_ASCII);

    private final byte[][] names;

    JsonTexts(List<String> constants) {
        names = constants.stream().map(each -> each.getBytes(StandardCharsets.UTF_8)).toArray(byte[][]::new);
    }

    @Override
    public Object[] of(byte[] line) {
        Object[] texts = new Object[names.length];
        return new Scan(line).object(names, texts) ? texts : null;
    }

    private static final class Scan {
        private final byte[] bytes;
        private int at;

        Scan(byte[] bytes) {
            this.bytes = bytes;
        }

        boolean object(byte[][] names, Object[] texts) {
            if (!passed('{')) {
                return false;
            }
            if (passed('}')) {
                return next() == END;
            }
            boolean[] seen = new boolean[names.length];
            int name = -1;
            do {
                int start = next() == '"' ? at + 1 : END;
                if (start == END || !string()) {
                    return false;
                }
                name = find(names, name + 1, start, at - 1);
                if (name == END || seen[name] || !passed(':')) {
                    return false;
                }
                seen[name] = true;
                int first = next();
                int begin = at;
                if (first == '"') {
                    if (!string()) {
                        return false;
                    }
                    texts[name] = UTF8String.fromBytes(bytes, begin + 1, at - begin - 2);
                } else if (first != 'n') {
                    if (!(first == 't' ? word(TRUE) : first == 'f' ? word(FALSE) : number())) {
                        return false;
                    }
                    texts[name] = UTF8String.fromBytes(bytes, begin, at - begin);
                } else if (!word(NULL)) {
                    return false;
                }
            } while (passed(','));
            return passed('}') && next() == END;
        }

        /** Objects mostly have their names in one order. */
        private int find(byte[][] names, int likely, int from, int to) {
            for (int i = 0; i < names.length; i++) {
                int name = (likely + i) % names.length;
                if (Arrays.equals(names[name], 0, names[name].length, bytes, from, to)) {
                    return name;
                }
            }
            return END;
        }

        /** Goes over a string without escapes. */
        private boolean string() {
            for (at++; at < bytes.length; at++) {
                int each = bytes[at];
                if (each == '"') {
                    at++;
                    return true;
                }
                if (each == '\\' || each >= 0 && each < ' ') {
                    return false;
                }
            }
            return false;
        }

        private boolean word(byte[] word) {
            int end = at + word.length;
            if (end > bytes.length || !Arrays.equals(word, 0, word.length, bytes, at, end)) {
                return false;
            }
            at = end;
            return true;
        }

        private boolean number() {
            if (here() == '-') {
                at++;
            }
            if (here() == '0') {
                at++;
            } else if (!digits()) {
                return false;
            }
            if (here() == '.') {
                at++;
                if (!digits()) {
                    return false;
                }
            }
            if (here() == 'e' || here() == 'E') {
                at++;
                if (here() == '-' || here() == '+') {
                    at++;
                }
                return digits();
            }
            return true;
        }

        private boolean digits() {
            int begin = at;
            while (here() >= '0' && here() <= '9') {
                at++;
            }
            return at > begin;
        }

        private boolean passed(char sign) {
            boolean there = next() == sign;
            if (there) {
                at++;
            }
            return there;
        }

        /** What comes after white space. */
        private int next() {
            while (here() == ' ' || here() == '\t' || here() == '\n' || here() == '\r') {
                at++;
            }
            return here();
        }

        private int here() {
            return at < bytes.length ? bytes[at] & 0xFF : END;
        }
    }
}
