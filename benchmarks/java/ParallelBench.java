import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.CommitMode;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Handles records with Confluent's parallel consumer, ordered by key, each by sleeping:
 * BOOTSTRAP GROUP TOPIC CONCURRENCY MILLISECONDS WARM_UP RECORDS.
 *
 * Prints the seconds from the end of the record after which it is warm to the end of the last one, and the CPU of the
 * process for these, as JSON.
 */
public class ParallelBench {
    public static void main(String[] words) throws Exception {
        int concurrency = Integer.parseInt(words[3]);
        long sleep = Long.parseLong(words[4]);
        int warmUp = Integer.parseInt(words[5]);
        int records = Integer.parseInt(words[6]);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", words[0]);
        settings.put("group.id", words[1]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        ParallelConsumerOptions<byte[], byte[]> options = ParallelConsumerOptions.<byte[], byte[]>builder()
                .ordering(ProcessingOrder.KEY)
                .maxConcurrency(concurrency)
                .commitMode(CommitMode.PERIODIC_CONSUMER_ASYNCHRONOUS)
                .commitInterval(Duration.ofSeconds(1))
                .consumer(consumer)
                .build();
        ParallelStreamProcessor<byte[], byte[]> processor = ParallelStreamProcessor.createEosStreamProcessor(options);
        processor.subscribe(List.of(words[2]));
        AtomicInteger done = new AtomicInteger();
        AtomicLong begun = new AtomicLong();
        AtomicLong cpu = new AtomicLong();
        CountDownLatch over = new CountDownLatch(1);
        var system = (com.sun.management.OperatingSystemMXBean)
                java.lang.management.ManagementFactory.getOperatingSystemMXBean();
        processor.poll(context -> {
            try {
                Thread.sleep(sleep);
            } catch (InterruptedException error) {
                throw new RuntimeException(error);
            }
            int count = done.incrementAndGet();
            if (count == warmUp) {
                cpu.set(system.getProcessCpuTime());
                begun.set(System.nanoTime());
            }
            if (count == records) {
                over.countDown();
            }
        });
        over.await();
        double seconds = (System.nanoTime() - begun.get()) / 1e9;
        double used = (system.getProcessCpuTime() - cpu.get()) / 1e9;
        System.out.printf("{\"seconds\": %.4f, \"cpu_s\": %.4f}%n", seconds, used);
        Runtime.getRuntime().halt(0);
    }
}
