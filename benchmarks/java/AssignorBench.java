import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;
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
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.GroupAssignment;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

/**
 * The Kafka side of benchmarks/assignors.py.
 * Arguments: members, partitions, topics, "equal" or "mixed". Each line of the input is the name of an assignor and for
 * how many seconds to run it; the answer is a line of the milliseconds that fresh assignments took, and a line of those
 * after the first member left. Only the assignor's own method is timed. "uniform" is the broker's of KIP-848, which is
 * given the topics by id and the present assignment as sets of numbers, and gives sets of numbers back.
 */
@SuppressWarnings({"deprecation", "removal"})
public class AssignorBench {
    private static final List<String> topics = new ArrayList<>();
    private static int members;
    private static int perTopic;
    private static boolean mixed;
    private static Cluster cluster;
    private static final List<Double> fresh = new ArrayList<>();
    private static final List<Double> left = new ArrayList<>();

    public static void main(String[] args) throws Exception {
        members = Integer.parseInt(args[0]);
        perTopic = Integer.parseInt(args[1]) / Integer.parseInt(args[2]);
        mixed = args[3].equals("mixed");
        Node[] nodes = {new Node(1, "localhost", 1)};
        List<PartitionInfo> infos = new ArrayList<>();
        for (int t = 0; t < Integer.parseInt(args[2]); t++) {
            topics.add(String.format("topic-%06d", t));
            for (int p = 0; p < perTopic; p++)
                infos.add(new PartitionInfo(topics.get(t), p, nodes[0], nodes, nodes));
        }
        cluster = new Cluster("c", List.of(nodes), infos, Set.of(), Set.of());
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            fresh.clear();
            left.clear();
            long end = System.nanoTime() + (long) (Double.parseDouble(words[1]) * 1e9);
            do {
                if (words[0].equals("uniform")) uniform();
                else client(words[0]);
            } while (System.nanoTime() < end);
            System.out.println(joined(fresh));
            System.out.println(joined(left));
            System.out.flush();
        }
    }

    private static void client(String name) {
        Map<String, Subscription> group = new HashMap<>();
        for (int m = 0; m < members; m++)
            group.put(id(m), new Subscription(wanted(topics, m)));
        Map<String, Assignment> assigned = timed(assignor(name), group, fresh);
        group = new HashMap<>();
        for (int m = 1; m < members; m++) {
            ConsumerPartitionAssignor member = assignor(name);
            member.onAssignment(assigned.get(id(m)), new ConsumerGroupMetadata("g", 1, "m", Optional.empty()));
            List<String> wants = wanted(topics, m);
            ByteBuffer userData = member.subscriptionUserData(new HashSet<>(wants));
            List<TopicPartition> owned = name.startsWith("cooperative") ? assigned.get(id(m)).partitions() : List.of();
            group.put(id(m), new Subscription(wants, userData, owned, 1, Optional.empty()));
        }
        timed(assignor(name), group, left);
    }

    private static Map<String, Assignment> timed(
        ConsumerPartitionAssignor assignor, Map<String, Subscription> group, List<Double> times) {
        GroupSubscription subscription = new GroupSubscription(group);
        long start = System.nanoTime();
        Map<String, Assignment> assigned = assignor.assign(cluster, subscription).groupAssignment();
        times.add((System.nanoTime() - start) / 1e6);
        return assigned;
    }

    private static void uniform() {
        List<Uuid> ids = new ArrayList<>();
        for (int t = 0; t < topics.size(); t++)
            ids.add(new Uuid(1, t + 1));
        Map<String, MemberSubscriptionAndAssignmentImpl> group = new HashMap<>();
        for (int m = 0; m < members; m++)
            group.put(id(m), member(ids, m, org.apache.kafka.coordinator.group.modern.Assignment.EMPTY));
        GroupAssignment assigned = timed(group, Map.of(), fresh);
        group = new HashMap<>();
        Map<Uuid, Map<Integer, String>> owners = new HashMap<>();
        for (int m = 1; m < members; m++) {
            Map<Uuid, Set<Integer>> owned = assigned.members().get(id(m)).partitions();
            group.put(id(m), member(ids, m, new org.apache.kafka.coordinator.group.modern.Assignment(owned)));
            for (Map.Entry<Uuid, Set<Integer>> topic : owned.entrySet())
                for (int partition : topic.getValue())
                    owners.computeIfAbsent(topic.getKey(), key -> new HashMap<>()).put(partition, id(m));
        }
        timed(group, owners, left);
    }

    private static GroupAssignment timed(
        Map<String, MemberSubscriptionAndAssignmentImpl> group,
        Map<Uuid, Map<Integer, String>> owners,
        List<Double> times) {
        SubscriptionType type = mixed ? SubscriptionType.HETEROGENEOUS : SubscriptionType.HOMOGENEOUS;
        GroupSpecImpl spec = new GroupSpecImpl(group, type, owners);
        SubscribedTopicDescriber described = new SubscribedTopicDescriber() {
            @Override
            public int numPartitions(Uuid topic) {
                return perTopic;
            }

            @Override
            public Set<String> racksForPartition(Uuid topic, int partition) {
                return Set.of();
            }
        };
        UniformAssignor assignor = new UniformAssignor();
        long start = System.nanoTime();
        GroupAssignment assigned = assignor.assign(spec, described);
        times.add((System.nanoTime() - start) / 1e6);
        return assigned;
    }

    private static MemberSubscriptionAndAssignmentImpl member(
        List<Uuid> ids, int m, org.apache.kafka.coordinator.group.modern.Assignment owned) {
        Set<Uuid> wants = new HashSet<>(wanted(ids, m));
        return new MemberSubscriptionAndAssignmentImpl(Optional.empty(), Optional.empty(), wants, owned);
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

    private static <T> List<T> wanted(List<T> topics, int member) {
        return mixed && member % 2 == 1 ? topics.subList(0, topics.size() * 9 / 10) : topics;
    }

    private static String joined(List<Double> times) {
        return times.stream().map(String::valueOf).collect(Collectors.joining(" "));
    }
}
