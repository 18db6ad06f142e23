// Prints each of Kafka's error codes, and of which of these classes its exception is: retriable, stale metadata.

import org.apache.kafka.common.errors.InvalidMetadataException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.protocol.Errors;

public class ErrorClasses {
    public static void main(String[] arguments) {
        for (Errors error : Errors.values()) {
            System.out.println(error.code() + " " + error.name()
                + " " + (error.exception() instanceof RetriableException)
                + " " + (error.exception() instanceof InvalidMetadataException));
        }
    }
}
