// What Java's transactional producer and its read_committed consumer see: one line for each step.
// Arguments: bootstrap servers, a prefix for topics, groups and transactional ids.

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Callable;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class TransactionStory {
    /** Longer than a busy machine takes from a transaction's begin until its record is written. */
    private static final int SLOW_MS = 5_000;
    private static String bootstrap;
    private static String prefix;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        prefix = arguments[1];
        String in = prefix + "-in";
        String out = prefix + "-out";
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin.createTopics(List.of(new NewTopic(in, 2, (short) 1), new NewTopic(out, 1, (short) 1))).all().get();
        }
        try (KafkaProducer<String, String> first = producer(60_000); KafkaConsumer<String, String> consumer = consumer()) {
            first.initTransactions();
            for (int i = 0; i < 6; i++) {
                first.beginTransaction();
                for (int j = 0; j < 4; j++) {
                    first.send(new ProducerRecord<>(in, j % 2, "k", (i % 2 == 0 ? "committed " : "aborted ") + i + j));
                }
                first.flush();
                end(first, i % 2 == 0);
            }
            first.beginTransaction();
            end(first, true);
            first.beginTransaction();
            end(first, false);
            System.out.println("read: " + read(consumer, in, 12));
            offsets(first, consumer, out, true, 0);
            offsets(first, consumer, out, false, 1);
            offsets(first, consumer, out, true, 1);
            fencing(first, in, consumer);
            timeout(in, consumer);
        }
    }

    private static void end(KafkaProducer<String, String> producer, boolean commit) {
        if (commit) {
            producer.commitTransaction();
        } else {
            producer.abortTransaction();
        }
    }

    private static void offsets(
        KafkaProducer<String, String> producer, KafkaConsumer<String, String> consumer, String out, boolean commit, int back
    ) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (TopicPartition each : consumer.assignment()) {
            offsets.put(each, new OffsetAndMetadata(consumer.position(each) - back));
        }
        producer.beginTransaction();
        producer.send(new ProducerRecord<>(out, "x"));
        producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
        end(producer, commit);
        List<String> committed = new ArrayList<>();
        consumer.committed(consumer.assignment()).forEach(
            (where, found) -> committed.add(where.partition() + ": " + (found == null ? null : found.offset())));
        committed.sort(null);
        System.out.println("committed offsets: " + committed);
    }

    private static void fencing(
        KafkaProducer<String, String> first, String in, KafkaConsumer<String, String> consumer
    ) throws Exception {
        try (KafkaProducer<String, String> second = producer(60_000)) {
            first.beginTransaction();
            first.send(new ProducerRecord<>(in, 0, "k", "of a zombie")).get();
            second.initTransactions();
            System.out.println("a zombie sends: " + told(() -> first.send(new ProducerRecord<>(in, 0, "k", "z")).get()));
            System.out.println("a zombie commits: " + told(() -> {
                first.commitTransaction();
                return null;
            }));
            second.beginTransaction();
            second.send(new ProducerRecord<>(in, 0, "k", "of its successor"));
            second.commitTransaction();
            System.out.println("read: " + read(consumer, in, 1));
            for (int i = 0; i < 50; i++) {
                second.beginTransaction();
                second.send(new ProducerRecord<>(in, i % 2, "k", "quick"));
                second.commitTransaction();
            }
            System.out.println("read: " + read(consumer, in, 50).size());
        }
    }

    private static void timeout(String in, KafkaConsumer<String, String> consumer) throws Exception {
        try (KafkaProducer<String, String> slow = producer(SLOW_MS)) {
            slow.initTransactions();
            slow.beginTransaction();
            slow.send(new ProducerRecord<>(in, 0, "k", "too slow")).get();
            try (KafkaProducer<String, String> other = plain()) {
                other.send(new ProducerRecord<>(in, 0, "k", "behind it")).get();
            }
            System.out.println("read after the timeout: " + read(consumer, in, 1));
            System.out.println("the slow one commits: " + told(() -> {
                slow.commitTransaction();
                return null;
            }));
        }
    }

    private static String told(Callable<Object> call) {
        try {
            call.call();
            return "nothing";
        } catch (Exception error) {
            Throwable cause = error.getCause() == null ? error : error.getCause();
            return cause.getClass().getSimpleName();
        }
    }

    private static List<String> read(KafkaConsumer<String, String> consumer, String topic, int count) {
        consumer.subscribe(List.of(topic));
        List<String> found = new ArrayList<>();
        long until = System.currentTimeMillis() + 240_000;
        while (found.size() < count && System.currentTimeMillis() < until) {
            for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(200))) {
                found.add(each.value());
            }
        }
        found.sort(null);
        return found;
    }

    private static KafkaProducer<String, String> producer(int timeoutMs) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", prefix + (timeoutMs == SLOW_MS ? "-slow" : ""));
        settings.put("transaction.timeout.ms", timeoutMs);
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    private static KafkaProducer<String, String> plain() {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap);
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    private static KafkaConsumer<String, String> consumer() {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", bootstrap,
            "group.id", prefix,
            "auto.offset.reset", "earliest",
            "isolation.level", "read_committed",
            "enable.auto.commit", "false");
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }
}
