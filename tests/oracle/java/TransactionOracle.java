// Reads and writes records of __transaction_state with the classes of Kafka's transaction coordinator.
// One line in, "KEY VALUE" in hexadecimal digits ("-": null): one JSON object out, with what the coordinator's own
// reader makes of them when it loads a partition, all fields, and the bytes of a record made anew from those.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import kafka.coordinator.transaction.TransactionLog;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.transaction.TransactionCoordinatorRecordSerde;
import org.apache.kafka.coordinator.transaction.TransactionMetadata;
import org.apache.kafka.coordinator.transaction.generated.CoordinatorRecordJsonConverters;
import org.apache.kafka.server.common.ApiMessageAndVersion;

public class TransactionOracle {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final HexFormat HEX = HexFormat.of();
    private static final TransactionCoordinatorRecordSerde SERDE = new TransactionCoordinatorRecordSerde();

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ", -1);
            byte[] value = words[1].equals("-") ? null : HEX.parseHex(words[1]);
            out.println(JSON.writeValueAsString(answer(HEX.parseHex(words[0]), value)));
        }
    }

    private static ObjectNode answer(byte[] key, byte[] value) {
        ObjectNode said = JSON.createObjectNode();
        try {
            ByteBuffer buffer = value == null ? null : ByteBuffer.wrap(value);
            CoordinatorRecord read = SERDE.deserialize(ByteBuffer.wrap(key), buffer);
            JsonNode keyFields = CoordinatorRecordJsonConverters.writeRecordKeyAsJson(read.key());
            said.set("key", keyFields);
            CoordinatorRecord again =
                CoordinatorRecord.tombstone(CoordinatorRecordJsonConverters.readRecordKeyFromJson(keyFields, (short) 0));
            if (read.value() != null) {
                short version = read.value().version();
                JsonNode fields = CoordinatorRecordJsonConverters.writeRecordValueAsJson(read.value().message(), version);
                said.set("value", fields);
                again = CoordinatorRecord.record(again.key(), new ApiMessageAndVersion(
                    CoordinatorRecordJsonConverters.readRecordValueFromJson(fields, (short) 0, version), version));
                said.put("valueBytes", HEX.formatHex(SERDE.serializeValue(again)));
            }
            said.put("keyBytes", HEX.formatHex(SERDE.serializeKey(again)));
            if (value != null) {
                said.set("loaded", loaded(keyFields.get("transactionalId").asText(), value));
            }
        } catch (Exception | Error error) {
            said.put("error", error.toString());
        }
        return said;
    }

    private static ObjectNode loaded(String transactionalId, byte[] value) {
        TransactionMetadata found = TransactionLog.readTxnRecordValue(transactionalId, ByteBuffer.wrap(value)).get();
        return JSON.createObjectNode()
            .put("state", found.state().stateName())
            .put("pid", found.producerId())
            .put("previous", found.prevProducerId())
            .put("epoch", found.producerEpoch())
            .put("timeout", found.txnTimeoutMs())
            .put("start", found.txnStartTimestamp())
            .put("update", found.txnLastUpdateTimestamp())
            .put("client", found.clientTransactionVersion().featureLevel())
            .put("partitions", found.topicPartitions().size());
    }
}
