import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.LinkedBlockingQueue;
import org.apache.kafka.clients.consumer.KafkaConsumer;

/** Group member that obeys commands, with Kafka's client: arguments are topics, then KEY=VALUE settings. */
public final class CausesMember {
    private static final LinkedBlockingQueue<String> COMMANDS = new LinkedBlockingQueue<>();

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        for (int at = 1; at < arguments.length; at++) {
            settings.put(arguments[at].split("=", 2)[0], arguments[at].split("=", 2)[1]);
        }
        String bytes = "org.apache.kafka.common.serialization.ByteArrayDeserializer";
        settings.put("key.deserializer", bytes);
        settings.put("value.deserializer", bytes);
        Thread reader = new Thread(CausesMember::read);
        reader.setDaemon(true);
        reader.start();
        Thread main = Thread.currentThread();
        // SIGTERM closes the consumer, as the examples of Kafka do
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            COMMANDS.add("close");
            try {
                main.join(20_000);
            } catch (InterruptedException ignored) {
                return;
            }
        }));
        run(new KafkaConsumer<byte[], byte[]>(settings), List.of(arguments[0].split(",")));
    }

    private static void run(KafkaConsumer<byte[], byte[]> consumer, List<String> topics) throws Exception {
        consumer.subscribe(topics);
        while (true) {
            try {
                consumer.poll(Duration.ofMillis(100));
            } catch (RuntimeException error) {
                System.err.println(error);
            }
            String[] command = String.valueOf(COMMANDS.poll()).split(" ");
            if (command[0].equals("slow")) {
                Thread.sleep((long) (Double.parseDouble(command[1]) * 1000));
            } else if (command[0].equals("subscribe")) {
                consumer.subscribe(List.of(command[1].split(",")));
            } else if (command[0].equals("rejoin")) {
                consumer.enforceRebalance();
            } else if (command[0].equals("close")) {
                consumer.close();
                return;
            }
        }
    }

    private static void read() {
        try (BufferedReader lines = new BufferedReader(new InputStreamReader(System.in))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                COMMANDS.add(line);
            }
        } catch (java.io.IOException ended) {
            COMMANDS.add("close");
        }
        COMMANDS.add("close");
    }
}
