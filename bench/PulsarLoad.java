import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TypedMessageBuilder;

/**
 * Pulsar's official client under load, for any broker: one line of words in, one line of numbers out.
 *
 * <p>{@code KIND URL TOPIC SIZE NUMBER MILLISECONDS}, where NUMBER is how many threads send ({@code send}), how many
 * sends are under way, of single messages ({@code async}), of single messages with 1,000 keys ({@code keys}), or in
 * batches as the client makes them ({@code batch}), or how many messages are to be consumed ({@code Exclusive},
 * {@code Shared} and {@code Key_Shared} with four consumers); the last take no notice of the time. The answer: messages,
 * seconds, failures, and the 99th of a hundred latencies of a send in microseconds.
 */
public class PulsarLoad {
    private static final int LARGEST_RUN = 1 << 20;
    private static final int KEYS = 1000;
    private static final Map<String, PulsarClient> CLIENTS = new HashMap<>();
    private static final Map<String, Producer<byte[]>> PRODUCERS = new HashMap<>();
    private static final AtomicLong FAILURES = new AtomicLong();
    private static int subscriptions = 0;

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);  // where the client's log goes
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in));
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            String[] words = line.split(" ");
            int size = Integer.parseInt(words[3]);
            int number = Integer.parseInt(words[4]);
            long nanoseconds = Long.parseLong(words[5]) * 1_000_000;
            FAILURES.set(0);
            Run run = switch (words[0]) {
                case "send" -> send(producer(words[1], words[2], false), size, number, nanoseconds);
                case "async", "keys", "batch" -> sendAsync(
                    producer(words[1], words[2], words[0].equals("batch")), words[0].equals("keys"), size, number, nanoseconds);
                default -> consume(client(words[1]), words[2], SubscriptionType.valueOf(words[0]), number);
            };
            answers.println(run.messages + " " + run.seconds + " " + FAILURES.get() + " " + run.worstOfHundred());
        }
        Runtime.getRuntime().halt(0);
    }

    /** What one run did, and how long each send took, in nanoseconds. */
    private record Run(long messages, double seconds, long[] latencies) {
        long worstOfHundred() {
            Arrays.sort(latencies);
            return latencies.length == 0 ? 0 : latencies[(int) (latencies.length * 0.99)] / 1000;
        }
    }

    private static PulsarClient client(String url) throws Exception {
        PulsarClient client = CLIENTS.get(url);
        if (client == null) {
            client = PulsarClient.builder().serviceUrl(url).build();
            CLIENTS.put(url, client);
        }
        return client;
    }

    private static Producer<byte[]> producer(String url, String topic, boolean isBatching) throws Exception {
        String key = url + topic + isBatching;
        Producer<byte[]> producer = PRODUCERS.get(key);
        if (producer == null) {
            producer = client(url).newProducer(Schema.BYTES).topic(topic).enableBatching(isBatching)
                .maxPendingMessages(0).create();
            PRODUCERS.put(key, producer);
        }
        return producer;
    }

    private static Run send(Producer<byte[]> producer, int size, int threads, long nanoseconds) throws Exception {
        byte[] body = body(size);
        long[][] latencies = new long[threads][];
        List<Thread> all = new ArrayList<>();
        long first = System.nanoTime();
        for (int i = 0; i < threads; i++) {
            final int number = i;
            Thread thread = new Thread(() -> latencies[number] = sendOn(producer, body, first + nanoseconds));
            all.add(thread);
            thread.start();
        }
        for (Thread thread : all) {
            thread.join();
        }
        long took = System.nanoTime() - first;
        long[] together = Arrays.stream(latencies).flatMapToLong(Arrays::stream).toArray();
        return new Run(together.length, took / 1e9, together);
    }

    private static long[] sendOn(Producer<byte[]> producer, byte[] body, long deadline) {
        long[] latencies = new long[1024];
        int count = 0;
        for (long start = System.nanoTime(); start < deadline; ) {
            try {
                producer.send(body);
            } catch (Exception exception) {
                FAILURES.incrementAndGet();
            }
            if (count == latencies.length) {
                latencies = Arrays.copyOf(latencies, 2 * count);
            }
            long end = System.nanoTime();
            latencies[count++] = end - start;
            start = end;
        }
        return Arrays.copyOf(latencies, count);
    }

    private static Run sendAsync(
        Producer<byte[]> producer, boolean hasKeys, int size, int underWay, long nanoseconds) throws Exception {
        byte[] body = body(size);
        Semaphore places = new Semaphore(underWay);
        long[] latencies = new long[LARGEST_RUN];
        int count = 0;
        long first = System.nanoTime();
        for (long now = first; now < first + nanoseconds && count < LARGEST_RUN; now = System.nanoTime()) {
            places.acquire();
            final int place = count++;
            final long sent = System.nanoTime();
            TypedMessageBuilder<byte[]> message = producer.newMessage().value(body);
            if (hasKeys) {
                message.key("key-" + place % KEYS);
            }
            message.sendAsync().whenComplete((id, fault) -> {
                latencies[place] = System.nanoTime() - sent;
                if (fault != null) {
                    FAILURES.incrementAndGet();
                }
                places.release();
            });
        }
        producer.flush();
        places.acquire(underWay);
        return new Run(count, (System.nanoTime() - first) / 1e9, Arrays.copyOf(latencies, count));
    }

    /** Have a new subscription consume a topic from its beginning; the time runs from the first message on. */
    private static Run consume(PulsarClient client, String topic, SubscriptionType type, int count) throws Exception {
        AtomicLong begin = new AtomicLong();
        AtomicLong end = new AtomicLong();
        AtomicLong consumed = new AtomicLong();
        List<Consumer<byte[]>> consumers = new ArrayList<>();
        String subscription = "bench-" + ++subscriptions;
        for (int i = 0; i < (type == SubscriptionType.Exclusive ? 1 : 4); i++) {
            consumers.add(client.newConsumer(Schema.BYTES).topic(topic).subscriptionName(subscription)
                .subscriptionType(type).subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .messageListener((consumer, message) -> {
                    begin.compareAndSet(0, System.nanoTime());
                    consumer.acknowledgeAsync(message).exceptionally(fault -> {
                        FAILURES.incrementAndGet();
                        return null;
                    });
                    if (consumed.incrementAndGet() == count) {
                        end.set(System.nanoTime());
                    }
                }).subscribe());
        }
        while (end.get() == 0) {
            Thread.sleep(5);
        }
        for (Consumer<byte[]> consumer : consumers) {
            consumer.pause();
        }
        Thread.sleep(200);  // until acknowledgements have left
        consumers.get(0).unsubscribe(true);
        for (Consumer<byte[]> consumer : consumers) {
            consumer.closeAsync();
        }
        return new Run(count, (end.get() - begin.get()) / 1e9, new long[0]);
    }

    private static byte[] body(int size) {
        byte[] body = new byte[size];
        Arrays.fill(body, (byte) 'x');
        return body;
    }
}
