// Reads and writes records of __consumer_offsets with the classes of Kafka's group coordinator.
// One line in, "KEY VALUE" in hexadecimal digits ("-": null): one JSON object out, with what the coordinator's own
// deserializer makes of them, and with the bytes of a record that is made anew from that.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde;
import org.apache.kafka.coordinator.group.generated.CoordinatorRecordJsonConverters;
import org.apache.kafka.coordinator.group.generated.CoordinatorRecordType;
import org.apache.kafka.server.common.ApiMessageAndVersion;

public class RecordOracle {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final HexFormat HEX = HexFormat.of();
    private static final GroupCoordinatorRecordSerde SERDE = new GroupCoordinatorRecordSerde();

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ", -1);
            out.println(JSON.writeValueAsString(answer(HEX.parseHex(words[0]), bytes(words[1]))));
        }
    }

    private static byte[] bytes(String word) {
        return word.equals("-") ? null : HEX.parseHex(word);
    }

    private static ObjectNode answer(byte[] key, byte[] value) {
        ObjectNode said = JSON.createObjectNode();
        try {
            CoordinatorRecord read = SERDE.deserialize(ByteBuffer.wrap(key), value == null ? null : ByteBuffer.wrap(value));
            short kind = read.key().apiKey();
            said.put("type", CoordinatorRecordType.fromId(kind).toString());
            JsonNode keyFields = CoordinatorRecordJsonConverters.writeRecordKeyAsJson(read.key());
            said.set("key", keyFields);
            ApiMessage keyAgain = CoordinatorRecordJsonConverters.readRecordKeyFromJson(keyFields, kind);
            CoordinatorRecord again = CoordinatorRecord.tombstone(keyAgain);
            if (read.value() != null) {
                short version = read.value().version();
                JsonNode fields = CoordinatorRecordJsonConverters.writeRecordValueAsJson(read.value().message(), version);
                said.set("value", fields);
                ApiMessage valueAgain = CoordinatorRecordJsonConverters.readRecordValueFromJson(fields, kind, version);
                again = CoordinatorRecord.record(keyAgain, new ApiMessageAndVersion(valueAgain, version));
                said.put("valueBytes", HEX.formatHex(SERDE.serializeValue(again)));
            }
            said.put("keyBytes", HEX.formatHex(SERDE.serializeKey(again)));
        } catch (Exception | Error error) {
            said.put("error", error.toString());
        }
        return said;
    }
}
