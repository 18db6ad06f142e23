import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;

/**
 * An application of Kafka Streams that copies one topic to another: `StreamsApp FROM TO key=value …`, settings by Kafka's
 * names. The end of the input closes it.
 */
public class StreamsApp {
    public static void main(String[] arguments) throws Exception {
        Properties config = new Properties();
        config.put("default.key.serde", Serdes.ByteArraySerde.class.getName());
        config.put("default.value.serde", Serdes.ByteArraySerde.class.getName());
        for (int at = 2; at < arguments.length; at++) {
            String[] setting = arguments[at].split("=", 2);
            config.put(setting[0], setting[1]);
        }
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(arguments[0]).to(arguments[1]);
        KafkaStreams streams = new KafkaStreams(builder.build(), config);
        streams.start();
        while (System.in.read() >= 0) {
            // nothing is said to it
        }
        streams.close();
        Runtime.getRuntime().halt(0);
    }
}
