import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.InputStreamReader;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.message.StreamsGroupHeartbeatRequestData;
import org.apache.kafka.common.message.StreamsGroupHeartbeatRequestData.Subtopology;
import org.apache.kafka.common.message.StreamsGroupHeartbeatRequestData.Topology;
import org.apache.kafka.common.message.StreamsGroupHeartbeatResponseData;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.requests.RequestHeader;
import org.apache.kafka.common.requests.StreamsGroupHeartbeatRequest;

/**
 * An operator with Kafka's own admin client: `Operator BOOTSTRAP`, a command as a line of JSON on standard input, its
 * answer as one on standard output, as tests/history/scenarios/operator_client.py writes and reads them.
 */
public class Operator {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", arguments[0]));
                BufferedReader lines = new BufferedReader(new InputStreamReader(System.in))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                ObjectNode answer = JSON.createObjectNode();
                try {
                    answer.set("answer", obey(admin, JSON.readTree(line)));
                } catch (Exception error) {
                    Throwable cause = error.getCause() == null ? error : error.getCause();
                    answer.put("error", cause.getClass().getSimpleName() + ": " + cause.getMessage());
                }
                System.out.println(answer);
                System.out.flush();
            }
        }
    }

    private static JsonNode obey(Admin admin, JsonNode command) throws Exception {
        String group = command.path("group").asText();
        String topic = command.path("topic").asText();
        int partition = command.path("partition").asInt();
        switch (command.get("do").asText()) {
            case "describe" -> {
                if (command.path("type").asText().isEmpty()) {
                    return described(admin.describeConsumerGroups(List.of(group)).describedGroups().get(group).get());
                }
                var other = admin.describeClassicGroups(List.of(group)).describedGroups().get(group).get();
                ObjectNode told = JSON.createObjectNode().put("state", other.state().toString());
                ArrayNode members = told.putArray("members");
                for (MemberDescription member : other.members()) {
                    members.addObject().put("member_id", member.consumerId()).put("client_id", member.clientId())
                            .putArray("partitions");
                }
                return told;
            }
            case "create" -> {
                NewTopic wanted = new NewTopic(topic, Optional.of(command.get("partitions").asInt()), Optional.empty());
                Uuid id = admin.createTopics(List.of(wanted)).topicId(topic).get();
                byte[] bytes = ByteBuffer.allocate(16).putLong(id.getMostSignificantBits())
                        .putLong(id.getLeastSignificantBits()).array();
                return JSON.createObjectNode().put("topic_id", HexFormat.of().formatHex(bytes));
            }
            case "streams_heartbeat" -> {
                return streamsHeartbeat(command);
            }
            case "streams_members" -> {
                var streams = admin.describeStreamsGroups(List.of(group)).describedGroups().get(group).get();
                return JSON.createObjectNode().put("members", streams.members().size());
            }
            case "delete_topic" -> admin.deleteTopics(List.of(topic)).all().get();
            case "add_partitions" -> admin.createPartitions(
                    Map.of(topic, NewPartitions.increaseTo(command.get("partitions").asInt()))).all().get();
            case "ends" -> {
                return ends(admin, topic);
            }
            case "remove_members" -> {
                List<MemberToRemove> removed = new ArrayList<>();
                command.get("instances").forEach(each -> removed.add(new MemberToRemove(each.asText())));
                RemoveMembersFromConsumerGroupOptions options = removed.isEmpty()
                        ? new RemoveMembersFromConsumerGroupOptions() : new RemoveMembersFromConsumerGroupOptions(removed);
                options.reason(command.get("reason").asText());
                admin.removeMembersFromConsumerGroup(group, options).all().get();
            }
            case "set_offset" -> {
                OffsetAndMetadata offset = new OffsetAndMetadata(command.get("offset").asLong());
                admin.alterConsumerGroupOffsets(group, Map.of(new TopicPartition(topic, partition), offset)).all().get();
            }
            case "delete_offset" -> admin.deleteConsumerGroupOffsets(
                    group, Set.of(new TopicPartition(topic, partition))).all().get();
            case "group_config" -> {
                ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
                ConfigEntry entry = new ConfigEntry(command.get("name").asText(), command.get("value").asText());
                AlterConfigOp set = new AlterConfigOp(entry, AlterConfigOp.OpType.SET);
                admin.incrementalAlterConfigs(Map.of(resource, List.of(set))).all().get();
            }
            case "delete_group" -> admin.deleteConsumerGroups(List.of(group)).all().get();
            case "leader" -> {
                TopicPartitionInfo info = described(admin, topic).get(partition);
                return JSON.createObjectNode().put("leader", info.leader().id()).put("in_sync", info.isr().size());
            }
            case "lead" -> lead(admin, new TopicPartition(topic, partition), command.get("node").asInt());
            default -> throw new IllegalArgumentException(command.toString());
        }
        return JSON.createObjectNode();
    }

    /** What an application of Kafka Streams with one subtopology says to the coordinator: epoch 0 joins, -1 leaves. */
    private static JsonNode streamsHeartbeat(JsonNode command) throws Exception {
        int epoch = command.get("epoch").asInt();
        StreamsGroupHeartbeatRequestData data = new StreamsGroupHeartbeatRequestData()
                .setGroupId(command.get("group").asText()).setMemberId(command.get("member").asText())
                .setMemberEpoch(epoch);
        if (epoch == 0) {
            Subtopology subtopology = new Subtopology().setSubtopologyId("0")
                    .setSourceTopics(List.of(command.get("topic").asText()));
            data.setRebalanceTimeoutMs(10_000).setProcessId("p").setTopology(
                    new Topology().setEpoch(0).setSubtopologies(List.of(subtopology)));
            data.setActiveTasks(List.of()).setStandbyTasks(List.of()).setWarmupTasks(List.of());
        }
        RequestHeader header = new RequestHeader(ApiKeys.STREAMS_GROUP_HEARTBEAT, (short) 0, "streams", 1);
        ByteBuffer request = new StreamsGroupHeartbeatRequest.Builder(data).build((short) 0).serializeWithHeader(header);
        try (Socket socket = new Socket("127.0.0.1", command.get("port").asInt())) {
            DataOutputStream sink = new DataOutputStream(socket.getOutputStream());
            sink.writeInt(request.remaining());
            sink.write(request.array(), request.arrayOffset() + request.position(), request.remaining());
            DataInputStream source = new DataInputStream(socket.getInputStream());
            ByteBuffer answer = ByteBuffer.wrap(source.readNBytes(source.readInt()));
            answer.position(5);  // the correlation id, and no tags
            StreamsGroupHeartbeatResponseData told =
                    new StreamsGroupHeartbeatResponseData(new ByteBufferAccessor(answer), (short) 0);
            if (told.errorCode() != 0) {
                throw new IllegalStateException(told.errorCode() + " " + told.errorMessage());
            }
            return JSON.createObjectNode().put("epoch", told.memberEpoch());
        }
    }

    private static JsonNode described(ConsumerGroupDescription group) {
        ObjectNode told = JSON.createObjectNode();
        told.put("state", group.groupState().toString()).put("assignor", group.partitionAssignor());
        ArrayNode members = told.putArray("members");
        for (MemberDescription member : group.members()) {
            ObjectNode each = members.addObject();
            each.put("member_id", member.consumerId()).put("client_id", member.clientId());
            each.put("instance_id", member.groupInstanceId().orElse(null));
            ArrayNode partitions = each.putArray("partitions");
            for (TopicPartition owned : member.assignment().topicPartitions()) {
                partitions.addArray().add(owned.topic()).add(owned.partition());
            }
        }
        return told;
    }

    private static List<TopicPartitionInfo> described(Admin admin, String topic) throws Exception {
        return admin.describeTopics(List.of(topic)).topicNameValues().get(topic).get().partitions();
    }

    private static JsonNode ends(Admin admin, String topic) throws Exception {
        Map<TopicPartition, OffsetSpec> first = new HashMap<>();
        Map<TopicPartition, OffsetSpec> last = new HashMap<>();
        int count = described(admin, topic).size();
        for (int at = 0; at < count; at++) {
            first.put(new TopicPartition(topic, at), OffsetSpec.earliest());
            last.put(new TopicPartition(topic, at), OffsetSpec.latest());
        }
        var starts = admin.listOffsets(first).all().get();
        var ends = admin.listOffsets(last).all().get();
        ArrayNode told = JSON.createArrayNode();
        for (int at = 0; at < count; at++) {
            TopicPartition partition = new TopicPartition(topic, at);
            told.addArray().add(starts.get(partition).offset()).add(ends.get(partition).offset());
        }
        return told;
    }

    /** Have a node lead a partition: it becomes the first of the replicas, and then the preferred one is elected. */
    private static void lead(Admin admin, TopicPartition partition, int node) throws Exception {
        List<Integer> replicas = new ArrayList<>();
        replicas.add(node);
        described(admin, partition.topic()).get(partition.partition()).replicas().forEach(each -> {
            if (each.id() != node) {
                replicas.add(each.id());
            }
        });
        admin.alterPartitionReassignments(
                Map.of(partition, Optional.of(new NewPartitionReassignment(replicas)))).all().get();
        while (!admin.listPartitionReassignments(Set.of(partition)).reassignments().get().isEmpty()) {
            Thread.sleep(50);
        }
        if (described(admin, partition.topic()).get(partition.partition()).leader().id() != node) {
            admin.electLeaders(ElectionType.PREFERRED, Set.of(partition)).partitions().get();
        }
    }
}
