import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * The official client under load, for any broker: one line of words in, one line of numbers out.
 *
 * <p>{@code KIND NAME_SERVER TOPIC SIZE NUMBER MILLISECONDS}, where NUMBER is how many threads send ({@code send}), how many
 * sends are under way ({@code async}), how many messages a batch has ({@code batch}), or how many messages are to be
 * consumed ({@code push}, {@code pull}); the last two take no notice of the time. The answer: messages, seconds, failures,
 * and the 99th of a hundred latencies in microseconds (of a send, or a pull; 0 for a push).
 */
public class BrokerLoad {
    private static final int LARGEST_RUN = 1 << 19;
    private static final Map<String, DefaultMQProducer> PRODUCERS = new HashMap<>();
    private static final AtomicLong FAILURES = new AtomicLong();
    private static int groups = 0;

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);  // where the client's log goes
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in));
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            String[] words = line.split(" ");
            int size = Integer.parseInt(words[3]);
            int count = Integer.parseInt(words[4]);
            long nanoseconds = Long.parseLong(words[5]) * 1_000_000;
            FAILURES.set(0);
            Run run;
            if (words[0].equals("push")) {
                run = push(words[1], words[2], count);
            } else if (words[0].equals("pull")) {
                run = pull(words[1], words[2], count);
            } else if (words[0].equals("async")) {
                run = sendAsync(producer(words[1]), words[2], size, count, nanoseconds);
            } else {
                boolean isBatch = words[0].equals("batch");
                run = send(producer(words[1]), words[2], size, isBatch ? 1 : count, isBatch ? count : 1, nanoseconds);
            }
            answers.println(run.messages + " " + run.seconds + " " + FAILURES.get() + " " + run.worstOfHundred());
        }
        Runtime.getRuntime().halt(0);
    }

    /** What one run did, and how long each call took, in nanoseconds. */
    private static class Run {
        final long messages;
        final double seconds;
        final long[] latencies;

        Run(long messages, long nanoseconds, long[] latencies) {
            this.messages = messages;
            this.seconds = nanoseconds / 1e9;
            this.latencies = latencies;
        }

        long worstOfHundred() {
            Arrays.sort(latencies);
            return latencies.length == 0 ? 0 : latencies[(int) (latencies.length * 0.99)] / 1000;
        }
    }

    /** One producer a name server, which stays. */
    private static DefaultMQProducer producer(String nameServer) throws Exception {
        DefaultMQProducer producer = PRODUCERS.get(nameServer);
        if (producer == null) {
            producer = new DefaultMQProducer("bench");
            producer.setNamesrvAddr(nameServer);
            producer.setInstanceName(nameServer);
            producer.setSendMsgTimeout(10_000);
            producer.start();
            PRODUCERS.put(nameServer, producer);
        }
        return producer;
    }

    private static Run send(DefaultMQProducer producer, String topic, int size, int threads, int batch, long nanoseconds)
        throws Exception {
        byte[] body = body(size);
        long start = System.nanoTime();
        long[][] latencies = new long[threads][];
        inThreads(threads, number -> latencies[number] = sendOn(producer, topic, body, batch, start + nanoseconds));
        long took = System.nanoTime() - start;
        long[] all = Arrays.stream(latencies).flatMapToLong(Arrays::stream).toArray();
        return new Run((long) all.length * batch, took, all);
    }

    private static long[] sendOn(DefaultMQProducer producer, String topic, byte[] body, int batch, long deadline) {
        long[] latencies = new long[1024];
        int count = 0;
        for (long start = System.nanoTime(); start < deadline; ) {
            try {
                SendResult result;
                if (batch == 1) {
                    result = producer.send(new Message(topic, "TagA", body));
                } else {
                    Collection<Message> messages = new ArrayList<>(batch);
                    for (int i = 0; i < batch; i++) {
                        messages.add(new Message(topic, "TagA", body));
                    }
                    result = producer.send(messages);
                }
                note(result);
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

    private static Run sendAsync(DefaultMQProducer producer, String topic, int size, int underWay, long nanoseconds)
        throws Exception {
        byte[] body = body(size);
        Semaphore places = new Semaphore(underWay);
        long[] latencies = new long[LARGEST_RUN];
        int count = 0;
        long first = System.nanoTime();
        for (long start = first; start < first + nanoseconds && count < LARGEST_RUN; start = System.nanoTime()) {
            places.acquire();
            final int place = count++;
            final long sent = System.nanoTime();
            producer.send(new Message(topic, "TagA", body), new SendCallback() {
                @Override public void onSuccess(SendResult result) {
                    latencies[place] = System.nanoTime() - sent;
                    note(result);
                    places.release();
                }

                @Override public void onException(Throwable exception) {
                    latencies[place] = System.nanoTime() - sent;
                    FAILURES.incrementAndGet();
                    places.release();
                }
            });
        }
        places.acquire(underWay);
        return new Run(count, System.nanoTime() - first, Arrays.copyOf(latencies, count));
    }

    /** Have a new group consume a topic from its beginning; the time runs from the first message on. */
    private static Run push(String nameServer, String topic, int count) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench-" + ++groups);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(nameServer + groups);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(topic, "*");
        AtomicLong begin = new AtomicLong();
        AtomicLong end = new AtomicLong();
        AtomicLong consumed = new AtomicLong();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            begin.compareAndSet(0, System.nanoTime());
            if (consumed.addAndGet(messages.size()) >= count) {
                end.compareAndSet(0, System.nanoTime());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        while (end.get() == 0) {
            Thread.sleep(5);
        }
        consumer.shutdown();
        return new Run(count, end.get() - begin.get(), new long[0]);
    }

    /** Pull 32 messages at a time, each queue in a thread of its own. */
    private static Run pull(String nameServer, String topic, int count) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("bench-" + ++groups);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(nameServer + groups);
        consumer.start();
        List<MessageQueue> queues = new ArrayList<>(consumer.fetchSubscribeMessageQueues(topic));
        long[][] latencies = new long[queues.size()][];
        AtomicLong left = new AtomicLong(count);
        long start = System.nanoTime();
        inThreads(queues.size(), number -> latencies[number] = pullOn(consumer, queues.get(number), left));
        long took = System.nanoTime() - start;
        consumer.shutdown();
        return new Run(count - left.get(), took, Arrays.stream(latencies).flatMapToLong(Arrays::stream).toArray());
    }

    private static long[] pullOn(DefaultMQPullConsumer consumer, MessageQueue queue, AtomicLong left) throws Exception {
        List<Long> latencies = new ArrayList<>();
        long offset = 0;
        while (left.get() > 0) {
            long start = System.nanoTime();
            PullResult result = consumer.pull(queue, "*", offset, 32);
            latencies.add(System.nanoTime() - start);
            if (result.getPullStatus() != PullStatus.FOUND) {
                break;
            }
            for (MessageExt message : result.getMsgFoundList()) {
                if (message.getQueueOffset() != offset++) {
                    FAILURES.incrementAndGet();
                }
            }
            left.addAndGet(-result.getMsgFoundList().size());
        }
        return latencies.stream().mapToLong(Long::longValue).toArray();
    }

    private interface Part {
        void run(int number) throws Exception;
    }

    private static void inThreads(int count, Part part) throws Exception {
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            final int number = i;
            Thread thread = new Thread(() -> {
                try {
                    part.run(number);
                } catch (Exception exception) {
                    throw new IllegalStateException(exception);
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private static void note(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            FAILURES.incrementAndGet();
        }
    }

    private static byte[] body(int size) {
        byte[] body = new byte[size];
        Arrays.fill(body, (byte) 'x');
        return body;
    }
}
