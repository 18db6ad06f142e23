import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

/**
 * Answers questions about Kafka's own consumer protocol: one JSON object a line in, one a line out.
 * Where Kafka's assignor itself fails the answer is null: 4.2's sticky does on some mixed subscriptions
 * in which a partition was claimed in an older generation (NullPointerException in performReassignments).
 */
@SuppressWarnings({"deprecation", "removal"})
public class AssignorOracle {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Node[] NODES = {new Node(1, "localhost", 1)};

    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode question = JSON.readTree(line);
            System.out.println(JSON.writeValueAsString(switch (question.get("ask").asText()) {
                case "assign" -> assign(question);
                case "subscription" -> hex(ConsumerProtocol.serializeSubscription(
                    subscription(question), (short) question.get("version").asInt()));
                case "assignment" -> hex(ConsumerProtocol.serializeAssignment(
                    new Assignment(partitions(question.get("owned")), bytes(question)),
                    (short) question.get("version").asInt()));
                case "user data" -> userData(question);
                default -> throw new IllegalArgumentException(line);
            }));
        }
    }

    private static ConsumerPartitionAssignor assignor(String name) {
        return switch (name) {
            case "range" -> new RangeAssignor();
            case "roundrobin" -> new RoundRobinAssignor();
            case "sticky" -> new StickyAssignor();
            case "cooperative-sticky" -> new CooperativeStickyAssignor();
            default -> throw new IllegalArgumentException(name);
        };
    }

    private static JsonNode assign(JsonNode question) {
        List<PartitionInfo> infos = new ArrayList<>();
        question.get("topics").fields().forEachRemaining(topic -> {
            for (int p = 0; p < topic.getValue().asInt(); p++) {
                Node[] replicas = replicas(question.path("racks").path(topic.getKey()).path(p));
                infos.add(new PartitionInfo(topic.getKey(), p, replicas[0], replicas, replicas));
            }
        });
        Map<String, Subscription> members = new HashMap<>();
        question.get("members").fields().forEachRemaining(
            member -> members.put(member.getKey(), subscription(member.getValue())));
        ObjectNode answer = JSON.createObjectNode();
        Cluster cluster = new Cluster("c", List.of(NODES), infos, Set.of(), Set.of());
        ConsumerPartitionAssignor assignor = assignor(question.get("assignor").asText());
        Map<String, Assignment> assignment;
        try {
            assignment = assignor.assign(cluster, new GroupSubscription(members)).groupAssignment();
        } catch (NullPointerException e) {
            return JSON.nullNode();
        }
        assignment.forEach((member, assigned) -> {
            ObjectNode topics = answer.putObject(member);
            for (TopicPartition p : assigned.partitions()) {
                if (!topics.has(p.topic()))
                    topics.putArray(p.topic());
                topics.withArray(p.topic()).add(p.partition());
            }
        });
        return answer;
    }

    private static Node[] replicas(JsonNode racks) {
        if (racks.isMissingNode() || racks.isEmpty())
            return NODES;
        Node[] replicas = new Node[racks.size()];
        for (int i = 0; i < replicas.length; i++)
            replicas[i] = new Node(i + 1, "localhost", 1, racks.get(i).asText());
        return replicas;
    }

    private static JsonNode userData(JsonNode question) {
        ConsumerPartitionAssignor assignor = assignor(question.get("assignor").asText());
        assignor.onAssignment(new Assignment(partitions(question.get("owned"))),
            new ConsumerGroupMetadata("g", question.get("generation").asInt(), "m", Optional.empty()));
        return hex(assignor.subscriptionUserData(new HashSet<>()));
    }

    private static Subscription subscription(JsonNode member) {
        List<String> topics = new ArrayList<>();
        member.get("topics").forEach(topic -> topics.add(topic.asText()));
        Optional<String> rack = Optional.ofNullable(member.get("rack")).map(JsonNode::asText);
        Subscription subscription = new Subscription(
            topics, bytes(member), partitions(member.get("owned")), member.path("generation").asInt(-1), rack);
        subscription.setGroupInstanceId(Optional.ofNullable(member.get("instance")).map(JsonNode::asText));
        return subscription;
    }

    private static List<TopicPartition> partitions(JsonNode pairs) {
        List<TopicPartition> partitions = new ArrayList<>();
        if (pairs != null)
            pairs.forEach(pair -> partitions.add(new TopicPartition(pair.get(0).asText(), pair.get(1).asInt())));
        return partitions;
    }

    private static ByteBuffer bytes(JsonNode node) {
        return node.has("user_data") ? ByteBuffer.wrap(HexFormat.of().parseHex(node.get("user_data").asText())) : null;
    }

    private static JsonNode hex(ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return JSON.getNodeFactory().textNode(HexFormat.of().formatHex(bytes));
    }
}
