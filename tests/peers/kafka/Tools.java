import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's own programs one after another, for tests/support/kafka_tools.py: a JVM for each takes two seconds.
 * Reads the class, the number of its arguments and these, each on a line; writes the exit code and the sizes of what the
 * program wrote to its two outputs, on one line, and then both.
 */
public class Tools {
    private static final class Ended extends Error {}

    /** The code with which the program has ended; some take their own end for an error, and end again. */
    private static Integer ended;

    /** What the program writes until it ends; not what threads of earlier ones do, whose clients nobody has closed. */
    private static final class Captured extends ByteArrayOutputStream {
        private final Thread program = Thread.currentThread();

        @Override
        public void write(byte[] data, int at, int length) {
            if (Thread.currentThread() == program && ended == null) {
                super.write(data, at, length);
            }
        }
    }

    public static void main(String[] none) throws Exception {
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream answers = System.out;
        Captured out = new Captured();
        Captured err = new Captured();
        // Set once: Scala's programs keep the streams that were there first.
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure((code, message) -> {
            ended = ended == null ? (Integer) code : ended;
            throw new Ended();
        });
        for (String name = asked.readLine(); name != null; name = asked.readLine()) {
            String[] arguments = new String[Integer.parseInt(asked.readLine())];
            for (int place = 0; place < arguments.length; place++) {
                arguments[place] = asked.readLine();
            }
            ended = null;
            int code = run(name, arguments);
            answers.printf("%d %d %d%n", code, out.size(), err.size());
            out.writeTo(answers);
            err.writeTo(answers);
            answers.flush();
            out.reset();
            err.reset();
        }
        System.exit(0);
    }

    private static int run(String name, String[] arguments) throws Exception {
        try {
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return ended == null ? 0 : ended;
        } catch (InvocationTargetException thrown) {
            if (ended != null) {
                return ended;
            }
            thrown.getCause().printStackTrace();
            return 1;
        }
    }
}
