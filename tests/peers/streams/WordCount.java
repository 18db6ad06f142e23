import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.Stores;

/**
 * Counts words with Kafka Streams: `WordCount FROM TO key=value …`, settings by Kafka's names. A record's value is a word.
 * Each record makes one of the output, with the word as its key and the count so far: there is no cache. Words go through
 * a topic of their own first. The end of the input closes it.
 */
public class WordCount {
    public static void main(String[] arguments) throws Exception {
        Properties config = new Properties();
        config.put("default.key.serde", Serdes.StringSerde.class.getName());
        config.put("default.value.serde", Serdes.StringSerde.class.getName());
        for (int at = 2; at < arguments.length; at++) {
            String[] setting = arguments[at].split("=", 2);
            config.put(setting[0], setting[1]);
        }
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(arguments[0])
                .selectKey((key, word) -> word)
                .groupByKey()
                .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts")).withCachingDisabled())
                .toStream()
                .mapValues(count -> Long.toString(count))
                .to(arguments[1]);
        KafkaStreams streams = new KafkaStreams(builder.build(), config);
        streams.setUncaughtExceptionHandler(error -> StreamThreadExceptionResponse.REPLACE_THREAD);
        streams.start();
        while (System.in.read() >= 0) {
            // nothing is said to it
        }
        streams.close();
        Runtime.getRuntime().halt(0);
    }
}
