// An admin's day by Kafka's own Admin client: what each step brings, a line each. Arguments: bootstrap, a prefix of names.

import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.*;

public class AdminStory {
    static void tell(String label, Callable<Object> step) throws Exception {
        try {
            System.out.println(label + ": " + step.call());
        } catch (ExecutionException error) {
            System.out.println(label + ": " + error.getCause().getClass().getSimpleName() + ", " + error.getCause().getMessage());
        }
    }

    static String entry(ConfigEntry entry) {
        return entry.name() + "=" + entry.value() + " of " + entry.source();
    }

    static Object alter(Admin admin, ConfigResource resource, boolean only, AlterConfigOp... ops) throws Exception {
        Map<ConfigResource, Collection<AlterConfigOp>> changes = Map.of(resource, List.of(ops));
        return admin.incrementalAlterConfigs(changes, new AlterConfigsOptions().validateOnly(only)).all().get();
    }

    static AlterConfigOp op(String name, String value, AlterConfigOp.OpType type) {
        return new AlterConfigOp(new ConfigEntry(name, value), type);
    }

    static long earliest(Admin admin, TopicPartition partition) throws Exception {
        return admin.listOffsets(Map.of(partition, OffsetSpec.earliest())).partitionResult(partition).get().offset();
    }

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0], topic = arguments[1] + "-t", group = arguments[1] + "-g";
        Map<String, Object> where = Map.of("bootstrap.servers", bootstrap);
        TopicPartition first = new TopicPartition(topic, 0);
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        try (Admin admin = Admin.create(where)) {
            tell("create", () -> admin.createTopics(List.of(new NewTopic(topic, 2, (short) 1))).numPartitions(topic).get());
            tell("grow", () -> admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all().get());
            tell("shrink", () -> admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get());
            tell("partitions", () -> {
                int found = 0;
                while (found != 4) {
                    try {
                        found = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size();
                    } catch (ExecutionException unknown) {
                        // The controller has created it, and this broker has not heard of that.
                    }
                }
                for (int i = 0; i < 4; i++) earliest(admin, new TopicPartition(topic, i)); // which waits for its leader
                return found;
            });
            try (Producer<byte[], byte[]> producer =
                    new KafkaProducer<>(where, new ByteArraySerializer(), new ByteArraySerializer())) {
                for (int i = 0; i < 5; i++) producer.send(new ProducerRecord<>(topic, 0, null, new byte[10])).get();
            }
            tell("producers", () -> {
                StringBuilder found = new StringBuilder();
                for (ProducerState one : admin.describeProducers(List.of(first)).partitionResult(first).get().activeProducers())
                    found.append(one.producerEpoch() + " " + one.lastSequence() + " " + one.currentTransactionStartOffset());
                return found;
            });
            tell("delete records", () -> admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(3))).lowWatermarks()
                .get(first).get().lowWatermark());
            tell("delete too many", () -> admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(9))).all().get());
            tell("earliest", () -> earliest(admin, first));
            tell("log dirs", () -> {
                Map<Integer, Boolean> sizes = new TreeMap<>();
                for (LogDirDescription dir : admin.describeLogDirs(List.of(1)).allDescriptions().get().get(1).values())
                    dir.replicaInfos().forEach((partition, info) -> {
                        if (partition.topic().equals(topic)) sizes.put(partition.partition(), info.size() > 0);
                    });
                return sizes;
            });
            tell("alter", () -> alter(admin, resource, false, op("retention.ms", "77777777", AlterConfigOp.OpType.SET),
                op("cleanup.policy", "compact", AlterConfigOp.OpType.APPEND)));
            tell("alter only to see", () -> alter(admin, resource, true, op("retention.ms", "78787878", AlterConfigOp.OpType.SET)));
            tell("alter wrongly", () -> alter(admin, resource, false, op("retention.ms", "x", AlterConfigOp.OpType.SET)));
            tell("alter what is not", () -> alter(admin, resource, false, op("no.such", "x", AlterConfigOp.OpType.SET)));
            tell("settings", () -> {
                Config found = admin.describeConfigs(List.of(resource)).all().get().get(resource);
                while (!found.get("retention.ms").value().equals("77777777"))
                    found = admin.describeConfigs(List.of(resource)).all().get().get(resource);
                return entry(found.get("retention.ms")) + ", " + entry(found.get("cleanup.policy")) + ", "
                    + entry(found.get("segment.ms"));
            });
            tell("resources", () -> admin.listConfigResources(Set.of(ConfigResource.Type.TOPIC), new ListConfigResourcesOptions())
                .all().get().contains(resource));
            Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "group.id", group, "group.instance.id", "one",
                "auto.offset.reset", "earliest", "group.protocol", "classic");
            Consumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
            consumer.subscribe(List.of(topic));
            int records = 0;
            while (records < 2) records += consumer.poll(Duration.ofMillis(100)).count();
            consumer.commitSync();
            tell("read", () -> consumer.position(first));
            tell("delete offsets that are read", () -> admin.deleteConsumerGroupOffsets(group, Set.of(first)).all().get());
            tell("members", () -> admin.describeConsumerGroups(List.of(group)).all().get().get(group).members().size());
            tell("remove another", () -> admin.removeMembersFromConsumerGroup(group,
                new RemoveMembersFromConsumerGroupOptions(Set.of(new MemberToRemove("two")))).memberResult(new MemberToRemove("two")).get());
            tell("remove one", () -> admin.removeMembersFromConsumerGroup(group,
                new RemoveMembersFromConsumerGroupOptions(Set.of(new MemberToRemove("one")))).all().get());
            tell("members then", () -> admin.describeConsumerGroups(List.of(group)).all().get().get(group).members().size());
            while (admin.describeConsumerGroups(List.of(group)).all().get().get(group).members().isEmpty()) {
                try {
                    consumer.poll(Duration.ofMillis(100));
                } catch (RuntimeException fenced) {
                    System.out.println("the consumer: " + fenced.getClass().getSimpleName());
                    break;
                }
            }
            consumer.close(CloseOptions.timeout(Duration.ofSeconds(5)));
            tell("remove all", () -> admin.removeMembersFromConsumerGroup(group, new RemoveMembersFromConsumerGroupOptions()).all().get());
            tell("delete offsets", () -> admin.deleteConsumerGroupOffsets(group, Set.of(first)).all().get());
            tell("offsets left", () -> new TreeMap<>(Map.of("offset", String.valueOf(
                admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(first)))));
            tell("offsets of no group", () -> admin.deleteConsumerGroupOffsets(group + "-none", Set.of(first)).all().get());
        }
    }
}
