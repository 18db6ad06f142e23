import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
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
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

/**
 * The Kafka side of benchmarks/assignors.py.
 * Arguments: assignor, members, partitions, topics, "equal" or "mixed", seconds.
 * Prints the medians of a fresh assignment and of one after the first member left, in milliseconds; the first half of
 * the rounds warms the JVM and is not counted.
 */
@SuppressWarnings({"deprecation", "removal"})
public class AssignorBench {
    public static void main(String[] args) {
        int members = Integer.parseInt(args[1]);
        int perTopic = Integer.parseInt(args[2]) / Integer.parseInt(args[3]);
        boolean mixed = args[4].equals("mixed");
        long end = System.nanoTime() + Long.parseLong(args[5]) * 1_000_000_000L;
        Node[] nodes = {new Node(1, "localhost", 1)};
        List<String> topics = new ArrayList<>();
        List<PartitionInfo> infos = new ArrayList<>();
        for (int t = 0; t < Integer.parseInt(args[3]); t++) {
            topics.add(String.format("topic-%06d", t));
            for (int p = 0; p < perTopic; p++)
                infos.add(new PartitionInfo(topics.get(t), p, nodes[0], nodes, nodes));
        }
        Cluster cluster = new Cluster("c", List.of(nodes), infos, Set.of(), Set.of());
        List<Double> fresh = new ArrayList<>();
        List<Double> left = new ArrayList<>();
        do {
            Map<String, Subscription> group = new HashMap<>();
            for (int m = 0; m < members; m++)
                group.put(id(m), new Subscription(wanted(topics, m, mixed)));
            Map<String, Assignment> assigned = timed(assignor(args[0]), cluster, group, fresh);
            group = new HashMap<>();
            for (int m = 1; m < members; m++) {
                ConsumerPartitionAssignor member = assignor(args[0]);
                member.onAssignment(assigned.get(id(m)), new ConsumerGroupMetadata("g", 1, "m", Optional.empty()));
                List<String> wants = wanted(topics, m, mixed);
                ByteBuffer userData = member.subscriptionUserData(new HashSet<>(wants));
                List<TopicPartition> owned = args[0].startsWith("cooperative") ? assigned.get(id(m)).partitions() : List.of();
                group.put(id(m), new Subscription(wants, userData, owned, 1, Optional.empty()));
            }
            timed(assignor(args[0]), cluster, group, left);
        } while (System.nanoTime() < end || fresh.size() < 2);
        System.out.println(median(fresh) + " " + median(left));
    }

    private static Map<String, Assignment> timed(
        ConsumerPartitionAssignor assignor, Cluster cluster, Map<String, Subscription> group, List<Double> times) {
        GroupSubscription subscription = new GroupSubscription(group);
        long start = System.nanoTime();
        Map<String, Assignment> assigned = assignor.assign(cluster, subscription).groupAssignment();
        times.add((System.nanoTime() - start) / 1e6);
        return assigned;
    }

    private static ConsumerPartitionAssignor assignor(String name) {
        return switch (name) {
            case "range" -> new RangeAssignor();
            case "roundrobin" -> new RoundRobinAssignor();
            case "sticky" -> new StickyAssignor();
            default -> new CooperativeStickyAssignor();
        };
    }

    private static String id(int member) {
        return String.format("member-%06d", member);
    }

    private static List<String> wanted(List<String> topics, int member, boolean mixed) {
        return mixed && member % 2 == 1 ? topics.subList(0, topics.size() * 9 / 10) : topics;
    }

    private static double median(List<Double> times) {
        List<Double> warm = new ArrayList<>(times.subList(times.size() / 2, times.size()));
        Collections.sort(warm);
        return warm.get(warm.size() / 2);
    }
}
