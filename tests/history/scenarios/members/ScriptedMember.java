import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.UUID;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * A member of a group that does what it is told: one argument, a JSON object {"kind": "consumer"|"share",
 * "commit": "auto"|"manual"|"manual:MS"|"transactions:MS"|"none", "config": {...}}; commands are lines of JSON on standard input, as
 * tests/history/scenarios/stage.py writes them. The end of the input ends the process without a word to the broker.
 */
public class ScriptedMember {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final LinkedBlockingQueue<JsonNode> COMMANDS = new LinkedBlockingQueue<>();
    private static final Map<TopicPartition, OffsetAndMetadata> HANDLED = new HashMap<>();
    private static long paceMs;
    private static String commit;
    private static long everyMs;
    private static long committedAt = System.nanoTime();

    public static void main(String[] arguments) throws Exception {
        JsonNode spec = JSON.readTree(arguments[0]);
        Properties config = new Properties();
        spec.get("config").fields().forEachRemaining(entry -> config.put(entry.getKey(), entry.getValue().asText()));
        config.put("key.deserializer", ByteArrayDeserializer.class.getName());
        config.put("value.deserializer", ByteArrayDeserializer.class.getName());
        Thread reader = new Thread(ScriptedMember::read);
        reader.setDaemon(true);
        reader.start();
        if (spec.get("kind").asText().equals("share")) {
            share(config);
        } else {
            String[] policy = spec.get("commit").asText().split(":");
            commit = policy[0];
            everyMs = policy.length > 1 ? Long.parseLong(policy[1]) : 0;
            consume(config);
        }
    }

    private static void read() {
        try (BufferedReader lines = new BufferedReader(new InputStreamReader(System.in))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                COMMANDS.add(JSON.readTree(line));
            }
        } catch (Exception error) {
            tell("error", error.toString());
        }
        Runtime.getRuntime().halt(4);
    }

    private static synchronized void tell(String event, Object detail) {
        System.out.println(JSON.createObjectNode().put("event", event).put("detail", String.valueOf(detail)));
        System.out.flush();
    }

    private static List<String> strings(JsonNode list) {
        List<String> found = new ArrayList<>();
        list.forEach(each -> found.add(each.asText()));
        return found;
    }

    private static void consume(Properties config) throws Exception {
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(config);
        KafkaProducer<byte[], byte[]> producer = commit.equals("transactions") ? producer(config) : null;
        tell("ready", "");
        boolean polling = false;
        while (true) {
            JsonNode command = polling ? COMMANDS.poll() : COMMANDS.take();
            if (command != null) {
                if (command.get("do").asText().equals("close")) {
                    consumer.close(closing(command.get("how").asText(), command.path("timeout_ms").asLong(30_000)));
                    tell("closed", "");
                    Runtime.getRuntime().halt(0);
                }
                polling |= obey(consumer, command);
                polling &= !command.get("do").asText().equals("unsubscribe");
                continue;
            }
            try {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(100));
                Thread.sleep(paceMs * records.count());
                records.forEach(each -> HANDLED.put(new TopicPartition(each.topic(), each.partition()),
                        new OffsetAndMetadata(each.offset() + 1)));
                if (!records.isEmpty() && due()) {
                    commit(consumer, producer);
                }
            } catch (FencedInstanceIdException error) {
                tell("fenced", error.getMessage());
                Runtime.getRuntime().halt(3);
            } catch (CommitFailedException | RetriableException error) {
                tell("error", error.toString());
            }
        }
    }

    private static boolean due() {
        if (commit.equals("auto") || commit.equals("none") || System.nanoTime() - committedAt < everyMs * 1_000_000) {
            return false;
        }
        committedAt = System.nanoTime();
        return true;
    }

    private static void commit(KafkaConsumer<byte[], byte[]> consumer, KafkaProducer<byte[], byte[]> producer) {
        if (producer == null) {
            consumer.commitSync();
            return;
        }
        HANDLED.keySet().retainAll(consumer.assignment());
        producer.beginTransaction();
        try {
            producer.sendOffsetsToTransaction(HANDLED, consumer.groupMetadata());
            producer.commitTransaction();
        } catch (CommitFailedException error) {
            producer.abortTransaction();
            throw error;
        }
    }

    private static KafkaProducer<byte[], byte[]> producer(Properties config) {
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(Map.of(
                "bootstrap.servers", config.get("bootstrap.servers"),
                "transactional.id", config.get("group.id") + "-" + UUID.randomUUID(),
                "key.serializer", ByteArraySerializer.class.getName(),
                "value.serializer", ByteArraySerializer.class.getName()));
        producer.initTransactions();
        return producer;
    }

    private static boolean obey(KafkaConsumer<byte[], byte[]> consumer, JsonNode command) throws Exception {
        switch (command.get("do").asText()) {
            case "subscribe" -> {
                if (command.has("regex")) {
                    consumer.subscribe(new SubscriptionPattern(command.get("regex").asText()), new Listener());
                } else if (command.has("pattern")) {
                    consumer.subscribe(Pattern.compile(command.get("pattern").asText()), new Listener());
                } else {
                    consumer.subscribe(strings(command.get("topics")), new Listener());
                }
                return true;
            }
            case "assign" -> {
                List<TopicPartition> partitions = new ArrayList<>();
                for (JsonNode each : command.get("partitions")) {
                    partitions.add(new TopicPartition(each.get(0).asText(), each.get(1).asInt()));
                }
                consumer.assign(partitions);
                return true;
            }
            case "unsubscribe" -> consumer.unsubscribe();
            case "pause" -> consumer.pause(consumer.assignment().stream().limit(1).toList());
            case "pace" -> paceMs = command.get("ms").asLong();
            case "sleep" -> Thread.sleep(command.get("ms").asLong());
            case "rejoin" -> {
                if (command.get("reason").isNull()) {
                    consumer.enforceRebalance();
                } else {
                    consumer.enforceRebalance(command.get("reason").asText());
                }
            }
            default -> throw new IllegalArgumentException(command.toString());
        }
        return false;
    }

    private static CloseOptions closing(String how, long timeoutMs) {
        CloseOptions.GroupMembershipOperation operation = switch (how) {
            case "leave" -> CloseOptions.GroupMembershipOperation.LEAVE_GROUP;
            case "stay" -> CloseOptions.GroupMembershipOperation.REMAIN_IN_GROUP;
            default -> CloseOptions.GroupMembershipOperation.DEFAULT;
        };
        return CloseOptions.timeout(Duration.ofMillis(timeoutMs)).withGroupMembershipOperation(operation);
    }

    private static void share(Properties config) throws Exception {
        KafkaShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(config);
        tell("ready", "");
        boolean polling = false;
        while (true) {
            JsonNode command = polling ? COMMANDS.poll() : COMMANDS.take();
            if (command == null) {
                consumer.poll(Duration.ofMillis(100));
            } else if (command.get("do").asText().equals("close")) {
                consumer.close();
                tell("closed", "");
                Runtime.getRuntime().halt(0);
            } else if (command.get("do").asText().equals("subscribe")) {
                consumer.subscribe(strings(command.get("topics")));
                polling = true;
            }
        }
    }

    private static class Listener implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            tell("assigned", partitions);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            tell("revoked", partitions);
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            tell("lost", partitions);
        }
    }
}
