import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A test of a Java consumer on a broker of `muster test-broker`: the answer to its first commit is lost.
 *
 * java -cp "libs/*" LostCommit.java muster     (the last word is the command to run muster with)
 */
public class LostCommit {
    static final HttpClient HTTP = HttpClient.newHttpClient();
    static String control;
    static String token;

    /** A command to the control port: its answer, or an error with what is wrong or missing. */
    static String ask(String method, String path, String json) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create("http://" + control + path))
                .header("Authorization", "Bearer " + token)
                .method(method, HttpRequest.BodyPublishers.ofString(json))
                .build();
        HttpResponse<String> answer = HTTP.send(request, HttpResponse.BodyHandlers.ofString());
        if (answer.statusCode() != 200) throw new AssertionError(path + ": " + answer.body());
        return answer.body();
    }

    static Matcher line(BufferedReader lines, String pattern) throws Exception {
        Matcher found = Pattern.compile(pattern).matcher(lines.readLine());
        if (!found.find()) throw new IllegalStateException("the broker did not start");
        return found;
    }

    public static void main(String[] arguments) throws Exception {
        var folder = Files.createTempDirectory("lost-commit");
        var command = new java.util.ArrayList<>(List.of(arguments));
        command.addAll(List.of("test-broker", "--port", "0", "--stop-at-eof", "--data-dir", folder.toString(),
                "-o", "group.initial.rebalance.delay.ms=0"));
        Process broker = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.DISCARD).start();
        try {
            var lines = new BufferedReader(new InputStreamReader(broker.getInputStream()));
            String bootstrap = line(lines, "ready on (\\S+)").group(1);
            Matcher port = line(lines, "control on (\\S+), token (\\S+)");
            control = port.group(1);
            token = port.group(2);
            test(bootstrap);
        } finally {
            broker.getOutputStream().close();  // it ends with its standard input, so also with this program
            broker.waitFor();
        }
        System.out.println("passed");
    }

    static void test(String bootstrap) throws Exception {
        Map<String, Object> client = Map.of("bootstrap.servers", bootstrap);
        try (var producer = new KafkaProducer<>(client, new StringSerializer(), new StringSerializer())) {
            for (int i = 0; i < 3; i++) producer.send(new ProducerRecord<>("orders", "order " + i)).get();
        }
        ask("POST", "/faults", "{\"name\": \"lost\", \"do\": \"lose_answer\", \"apis\": [\"OffsetCommit\"]}");
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "group.id", "billing",
                "auto.offset.reset", "earliest", "enable.auto.commit", false);
        Set<String> billed = new HashSet<>();
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of("orders"));
            while (billed.size() < 3) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) billed.add(record.value());
            }
            consumer.commitSync();
            ask("POST", "/wait", "{\"until\": \"lag_zero\", \"group\": \"billing\", \"timeout_ms\": 10000}");
        }
        if (!ask("GET", "/faults/lost", "").contains("\"struck\": 1")) throw new AssertionError("no commit was lost");
    }
}
