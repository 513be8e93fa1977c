import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.common.TopicPartition;

/**
 * Times Kafka's sticky assignment: each line of the standard input makes one fresh assignment, and one after a member
 * has left; prints both in nanoseconds, and the number of partitions that stayed with their owner.
 * Arguments: members, partitions.
 */
public class StickyAssignments {
    public static void main(String[] arguments) throws Exception {
        int members = Integer.parseInt(arguments[0]);
        int partitions = Integer.parseInt(arguments[1]);
        Map<String, Integer> counts = Collections.singletonMap("load", partitions);
        List<String> topics = Collections.singletonList("load");
        var lines = new java.io.BufferedReader(new java.io.InputStreamReader(System.in));
        while (lines.readLine() != null) {
            Map<String, Subscription> fresh = new HashMap<>();
            for (int number = 0; number < members; number++) {
                fresh.put(String.format("member-%05d", number), new Subscription(topics));
            }
            CooperativeStickyAssignor assignor = new CooperativeStickyAssignor();
            long began = System.nanoTime();
            Map<String, List<TopicPartition>> first = assignor.assign(counts, fresh);
            long freshNs = System.nanoTime() - began;

            Map<String, Subscription> rest = new HashMap<>();
            for (Map.Entry<String, List<TopicPartition>> entry : first.entrySet()) {
                if (!entry.getKey().equals("member-00000")) {
                    rest.put(entry.getKey(), new Subscription(topics, generation(1), entry.getValue(), 1, Optional.empty()));
                }
            }
            began = System.nanoTime();
            Map<String, List<TopicPartition>> second = new CooperativeStickyAssignor().assign(counts, rest);
            long againNs = System.nanoTime() - began;
            int kept = 0;
            for (Map.Entry<String, List<TopicPartition>> entry : second.entrySet()) {
                List<TopicPartition> before = new ArrayList<>(entry.getValue());
                before.retainAll(new java.util.HashSet<>(first.get(entry.getKey())));
                kept += before.size();
            }
            System.out.println(freshNs + " " + againNs + " " + kept);
        }
    }

    private static ByteBuffer generation(int number) {
        ByteBuffer data = ByteBuffer.allocate(4);
        data.putInt(number);
        data.flip();
        return data;
    }
}
