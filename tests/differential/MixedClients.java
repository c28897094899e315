// Official clients of RocketMQ and of Apache Pulsar on the same topics of one broker.
//
// Arguments: name server, URL of Pulsar. A line for each scenario when it has ended, with tabs between: its name, "ok" or
// what was wrong, and how long it took. Each has topics and groups of its own name; several run at a time. (The names of the scenarios are those of
// the methods; what each holds is in their assertions.)

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.HashingScheme;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageRoutingMode;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

public class MixedClients {
    private static final int SECONDS = 60;
    private static String nameServer;
    private static PulsarClient pulsar;
    private static DefaultMQProducer rocket;
    private static final Queue<AutoCloseable> CLOSING = new ConcurrentLinkedQueue<>();

    interface Scenario {
        void run(String name) throws Exception;
    }

    interface Given {
        boolean take(MessageExt message);
    }

    public static void main(String[] args) {
        boolean isWell = false;
        try {
            isWell = run(args);
        } catch (Throwable failure) { // threads of the clients would go on without this one
            failure.printStackTrace();
        }
        System.exit(isWell ? 0 : 1);
    }

    private static boolean run(String[] args) throws Exception {
        nameServer = args[0];
        pulsar = PulsarClient.builder().serviceUrl(args[1]).build();
        rocket = new DefaultMQProducer("mixed-producers");
        rocket.setNamesrvAddr(nameServer);
        rocket.start();
        Map<String, Scenario> scenarios = new TreeMap<>();
        scenarios.put("exclusive-gets-rocketmq-messages-with-all-they-have", MixedClients::exclusive);
        scenarios.put("failover-goes-on-with-rocketmq-messages", MixedClients::failover);
        scenarios.put("shared-shares-out-rocketmq-messages-and-gets-them-again", MixedClients::shared);
        scenarios.put("key-shared-keeps-sharding-keys-together", MixedClients::keyShared);
        scenarios.put("push-consumer-gets-each-message-of-compressed-batches", MixedClients::batches);
        scenarios.put("orderly-consumer-gets-keys-of-partitions-in-order", MixedClients::orderly);
        scenarios.put("filters-of-both-worlds-take-the-same", MixedClients::filters);
        scenarios.put("all-groups-of-both-worlds-get-everything", MixedClients::everything);
        scenarios.put("rocketmq-retries-what-pulsar-sent-and-gives-it-up", MixedClients::rocketRetries);
        scenarios.put("pulsar-retries-what-rocketmq-sent-and-gives-it-up", MixedClients::pulsarDeadLetters);
        scenarios.put("pulsar-retry-topic-of-rocketmq-messages", MixedClients::pulsarRetryTopic);
        scenarios.put("a-group-is-of-one-world-at-a-time-and-goes-on", MixedClients::oneGroup);
        scenarios.put("transactions-come-to-pulsar-when-they-are-committed", MixedClients::transactions);
        scenarios.put("delayed-messages-of-rocketmq-come-to-pulsar-in-time", MixedClients::delayed);
        scenarios.put("a-reader-seeks-in-messages-of-both", MixedClients::reader);
        scenarios.put("large-and-batched-rocketmq-messages-come-whole", MixedClients::large);
        ExecutorService threads = Executors.newFixedThreadPool(8);
        AtomicInteger failures = new AtomicInteger();
        List<Future<?>> running = new ArrayList<>();
        scenarios.forEach((name, scenario) -> running.add(threads.submit(() -> {
            String outcome = "ok";
            long started = System.currentTimeMillis();
            try {
                scenario.run(name);
            } catch (Throwable failure) {
                failures.incrementAndGet();
                outcome = String.valueOf(failure).replaceAll("\\s+", " ");
                failure.printStackTrace();
            }
            synchronized (System.out) {
                System.out.println(name + "\t" + outcome + "\t" + (System.currentTimeMillis() - started) + " ms");
                System.out.flush();
            }
        })));
        for (Future<?> one : running) {
            one.get();
        }
        for (AutoCloseable one : CLOSING) {
            one.close();
        }
        rocket.shutdown();
        pulsar.close();
        return failures.get() == 0;
    }

    // What RocketMQ's producers send

    private static void exclusive(String name) throws Exception {
        Consumer<byte[]> consumer = subscribe(name, "s", SubscriptionType.Exclusive).subscribe();
        long before = System.currentTimeMillis();
        for (int i = 0; i < 10; i++) {
            Message message = message(name, "TagA", "order-" + i + " all", "m" + i);
            message.putUserProperty("color", "red" + i);
            rocket.send(message);
        }
        for (int i = 0; i < 10; i++) {
            org.apache.pulsar.client.api.Message<byte[]> got = receive(consumer);
            equal("m" + i, text(got), "body");
            equal("order-" + i, got.getKey(), "key");
            equal("red" + i, got.getProperty("color"), "property");
            equal("TagA", got.getProperty("TAGS"), "tag");
            check(got.hasProperty("UNIQ_KEY"), "it has its unique key");
            check(got.getPublishTime() >= before - 2000, "publish time %d", got.getPublishTime());
            consumer.acknowledge(got);
        }
    }

    private static void failover(String name) throws Exception {
        Consumer<byte[]> first = subscribe(name, "s", SubscriptionType.Failover).consumerName("a").priorityLevel(0).subscribe();
        Consumer<byte[]> second = subscribe(name, "s", SubscriptionType.Failover).consumerName("b").priorityLevel(1).subscribe();
        send(name, "m", 0, 10);
        List<org.apache.pulsar.client.api.Message<byte[]>> got = receive(first, 10);
        first.acknowledgeCumulative(got.get(5));
        first.acknowledge(got.get(8));
        first.close();
        equal(List.of("m6", "m7", "m9"), texts(receive(second, 3)), "what the second goes on with");
        nothing(second);
    }

    private static void shared(String name) throws Exception {
        Consumer<byte[]> first = subscribe(name, "s", SubscriptionType.Shared).negativeAckRedeliveryDelay(200, TimeUnit.MILLISECONDS).subscribe();
        Consumer<byte[]> second = subscribe(name, "s", SubscriptionType.Shared).negativeAckRedeliveryDelay(200, TimeUnit.MILLISECONDS).subscribe();
        send(name, "m", 0, 40);
        Set<String> all = new TreeSet<>();
        int[] counts = new int[2];
        for (int i = 0; i < 40; ) {
            int which = i;
            for (Consumer<byte[]> consumer : List.of(first, second)) {
                org.apache.pulsar.client.api.Message<byte[]> got = consumer.receive(100, TimeUnit.MILLISECONDS);
                if (got != null) {
                    i++;
                    counts[consumer == first ? 0 : 1]++;
                    check(all.add(text(got)), "%s came twice", text(got));
                    if (text(got).equals("m7")) {
                        consumer.negativeAcknowledge(got);
                    } else {
                        consumer.acknowledge(got);
                    }
                }
            }
        }
        check(counts[0] > 0 && counts[1] > 0, "shared out as %s", Arrays.toString(counts));
        org.apache.pulsar.client.api.Message<byte[]> again = null;
        for (long end = System.currentTimeMillis() + SECONDS * 1000L; again == null && System.currentTimeMillis() < end; ) {
            again = first.receive(100, TimeUnit.MILLISECONDS);
            again = again == null ? second.receive(100, TimeUnit.MILLISECONDS) : again;
        }
        equal("m7", text(again), "what comes again");
        equal(1, again.getRedeliveryCount(), "how often it was asked for");
    }

    private static void keyShared(String name) throws Exception {
        List<Consumer<byte[]>> consumers = new ArrayList<>();
        for (String consumer : List.of("c1", "c2", "c3")) {
            consumers.add(subscribe(name, "s", SubscriptionType.Key_Shared).consumerName(consumer).subscribe());
        }
        for (int i = 0; i < 60; i++) {
            Message message = message(name, "", "k" + i % 10, "k" + i % 10 + " " + i);
            rocket.send(message);
        }
        Map<String, Consumer<byte[]>> owners = new TreeMap<>();
        Map<String, List<Integer>> numbers = new TreeMap<>();
        int count = 0;
        for (long end = System.currentTimeMillis() + SECONDS * 1000L; count < 60 && System.currentTimeMillis() < end; ) {
            for (Consumer<byte[]> consumer : consumers) {
                org.apache.pulsar.client.api.Message<byte[]> got = consumer.receive(50, TimeUnit.MILLISECONDS);
                if (got != null) {
                    String[] words = text(got).split(" ");
                    check(owners.computeIfAbsent(words[0], key -> consumer) == consumer, "%s is with two", words[0]);
                    numbers.computeIfAbsent(words[0], key -> new ArrayList<>()).add(Integer.parseInt(words[1]));
                    consumer.acknowledge(got);
                    count++;
                }
            }
        }
        equal(60, count, "messages");
        for (List<Integer> ofKey : numbers.values()) {
            equal(ofKey.stream().sorted().collect(Collectors.toList()), ofKey, "order of a key");
        }
        check(Set.copyOf(owners.values()).size() > 1, "keys are shared out");
    }

    private static void transactions(String name) throws Exception {
        Consumer<byte[]> consumer = subscribe(name, "s", SubscriptionType.Shared).subscribe();
        TransactionMQProducer producer = new TransactionMQProducer(name);
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName(name);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return (LocalTransactionState) argument;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.UNKNOW;
            }
        });
        producer.start();
        CLOSING.add(producer::shutdown);
        producer.sendMessageInTransaction(message(name, "", "", "open"), LocalTransactionState.UNKNOW);
        producer.sendMessageInTransaction(message(name, "", "", "rolled back"), LocalTransactionState.ROLLBACK_MESSAGE);
        producer.sendMessageInTransaction(message(name, "", "", "committed"), LocalTransactionState.COMMIT_MESSAGE);
        equal("committed", text(receive(consumer)), "what comes of three transactions");
        nothing(consumer);
    }

    private static void delayed(String name) throws Exception {
        Consumer<byte[]> consumer = subscribe(name, "s", SubscriptionType.Exclusive).subscribe();
        Message later = message(name, "", "", "later");
        later.setDelayTimeLevel(1);
        long sent = System.currentTimeMillis();
        rocket.send(later);
        rocket.send(message(name, "", "", "at once"));
        equal("at once", text(receive(consumer)), "the first");
        equal("later", text(receive(consumer)), "the second");
        check(System.currentTimeMillis() >= sent + 900, "not before its time");
    }

    private static void large(String name) throws Exception {
        Consumer<byte[]> consumer = subscribe(name, "s", SubscriptionType.Shared).subscribe();
        String body = IntStream.range(0, 20_000).mapToObj(i -> "line " + i % 97).collect(Collectors.joining(" "));
        rocket.send(message(name, "", "", body)); // the client compresses it
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 5; i++) {
            batch.add(message(name, "TagB", "k" + i, "b" + i));
        }
        rocket.send(batch);
        equal(body, text(receive(consumer)), "a compressed body");
        List<org.apache.pulsar.client.api.Message<byte[]>> got = receive(consumer, 5);
        equal(List.of("b0", "b1", "b2", "b3", "b4"), texts(got), "bodies of a batch");
        equal(List.of("k0", "k1", "k2", "k3", "k4"), got.stream().map(one -> one.getKey()).collect(Collectors.toList()), "keys");
    }

    // What Pulsar's producers send

    private static void batches(String name) throws Exception {
        subscribe(name, "first", SubscriptionType.Shared).subscribe().close();
        for (CompressionType compression : CompressionType.values()) {
            try (org.apache.pulsar.client.api.Producer<byte[]> producer = pulsar.newProducer().topic(name)
                    .compressionType(compression).batchingMaxPublishDelay(50, TimeUnit.MILLISECONDS).create()) {
                for (int i = 0; i < 20; i++) {
                    producer.newMessage().key("k" + i).property("TAGS", "TagC").property("kind", compression.name())
                        .value(body(compression.name() + i)).sendAsync();
                }
                producer.flush();
            }
        }
        Map<String, MessageExt> all = new ConcurrentHashMap<>();
        push(name, name, "*", message -> all.put(new String(message.getBody(), StandardCharsets.UTF_8), message) == null);
        await("all messages", () -> all.size() == 20 * CompressionType.values().length);
        for (CompressionType compression : CompressionType.values()) {
            MessageExt got = all.get(compression.name() + 7);
            equal("TagC", got.getTags(), "tag");
            equal("k7", got.getKeys(), "keys");
            equal(compression.name(), got.getUserProperty("kind"), "property");
        }
    }

    private static void orderly(String name) throws Exception {
        rocket.createTopic("TBW102", name, 4, Collections.emptyMap());
        await("the partitions", () -> partitions(name) == 4);
        try (org.apache.pulsar.client.api.Producer<byte[]> producer = pulsar.newProducer().topic(name).hashingScheme(HashingScheme.Murmur3_32Hash)
                .batcherBuilder(BatcherBuilder.KEY_BASED).messageRoutingMode(MessageRoutingMode.SinglePartition).create()) {
            for (int i = 0; i < 80; i++) {
                producer.newMessage().key("k" + i % 8).value(body("k" + i % 8 + " " + i)).sendAsync();
            }
            producer.flush();
        }
        Map<String, List<Integer>> numbers = new ConcurrentHashMap<>();
        Map<String, Integer> queues = new ConcurrentHashMap<>();
        AtomicInteger count = new AtomicInteger();
        DefaultMQPushConsumer consumer = consumer(name, name, MessageSelector.byTag("*"));
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                String[] words = new String(message.getBody(), StandardCharsets.UTF_8).split(" ");
                numbers.computeIfAbsent(words[0], key -> Collections.synchronizedList(new ArrayList<>())).add(Integer.parseInt(words[1]));
                queues.merge(words[0], message.getQueueId(), (one, other) -> one.equals(other) ? one : -1);
                count.incrementAndGet();
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        await("80 messages", () -> count.get() >= 80);
        check(!queues.containsValue(-1), "a key is in one queue");
        check(Set.copyOf(queues.values()).size() > 1, "keys are in several queues");
        for (List<Integer> ofKey : numbers.values()) {
            equal(ofKey.stream().sorted().collect(Collectors.toList()), ofKey, "order of a key");
            equal(10, ofKey.size(), "messages of a key");
        }
    }

    private static void rocketRetries(String name) throws Exception {
        Consumer<byte[]> witness = subscribe(name, "witness", SubscriptionType.Exclusive).subscribe();
        Map<String, Integer> times = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = consumer(name, name, MessageSelector.byTag("*"));
        consumer.setMaxReconsumeTimes(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            context.setDelayLevelWhenNextConsume(1);
            times.merge(new String(messages.get(0).getBody(), StandardCharsets.UTF_8), 1, Integer::sum);
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        try (org.apache.pulsar.client.api.Producer<byte[]> producer = pulsar.newProducer().topic(name).create()) {
            producer.newMessage().key("k").value(body("bad")).send();
        }
        Map<String, String> dead = new ConcurrentHashMap<>();
        DefaultMQPushConsumer letters = consumer(name + "-letters", "%DLQ%" + name, MessageSelector.byTag("*"));
        letters.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(one -> dead.put(new String(one.getBody(), StandardCharsets.UTF_8), one.getKeys()));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        await("it was consumed twice", () -> times.getOrDefault("bad", 0) == 2);
        letters.start();
        await("the dead letter", () -> "k".equals(dead.get("bad")));
        equal("bad", text(receive(witness)), "what Pulsar's consumers get of it");
        nothing(witness);
    }

    // Both

    private static void filters(String name) throws Exception {
        Consumer<byte[]> tags = subscribe(name, "tags", SubscriptionType.Shared).subscriptionProperties(Map.of("mqtool.tags", "TagA || TagC")).subscribe();
        Consumer<byte[]> sql = subscribe(name, "sql", SubscriptionType.Exclusive).subscriptionProperties(Map.of("mqtool.sql", "price > 5")).subscribe();
        Set<String> byTag = ConcurrentHashMap.newKeySet();
        Set<String> bySql = ConcurrentHashMap.newKeySet();
        try (org.apache.pulsar.client.api.Producer<byte[]> producer = pulsar.newProducer().topic(name)
                .batchingMaxPublishDelay(50, TimeUnit.MILLISECONDS).create()) {
            for (int i = 0; i < 9; i++) {
                producer.newMessage().property("TAGS", "Tag" + "ABC".charAt(i % 3)).property("price", "" + i).value(body("p" + i)).sendAsync();
                Message message = message(name, "Tag" + "ABC".charAt(i % 3), "", "r" + i);
                message.putUserProperty("price", "" + i);
                rocket.send(message);
            }
            producer.flush();
        }
        push(name + "-tags", name, "TagA || TagC", message -> byTag.add(new String(message.getBody(), StandardCharsets.UTF_8)));
        DefaultMQPushConsumer consumer = consumer(name + "-sql", name, MessageSelector.bySql("price > 5"));
        listen(consumer, message -> bySql.add(new String(message.getBody(), StandardCharsets.UTF_8)));
        consumer.start();
        Set<String> wantedByTag = new TreeSet<>();
        Set<String> wantedBySql = new TreeSet<>();
        for (int i = 0; i < 9; i++) {
            for (String who : List.of("p", "r")) {
                if (i % 3 != 1) {
                    wantedByTag.add(who + i);
                }
                if (i > 5) {
                    wantedBySql.add(who + i);
                }
            }
        }
        equal(wantedByTag, new TreeSet<>(texts(receive(tags, wantedByTag.size()))), "by tag, Pulsar");
        equal(wantedBySql, new TreeSet<>(texts(receive(sql, wantedBySql.size()))), "by SQL, Pulsar");
        await("by tag, RocketMQ", () -> byTag.equals(wantedByTag));
        await("by SQL, RocketMQ", () -> bySql.equals(wantedBySql));
        nothing(tags);
        nothing(sql);
    }

    private static void everything(String name) throws Exception {
        List<Consumer<byte[]>> consumers = new ArrayList<>();
        for (SubscriptionType type : SubscriptionType.values()) {
            consumers.add(subscribe(name, "s-" + type, type).subscribe());
        }
        List<Set<String>> pushed = List.of(ConcurrentHashMap.newKeySet(), ConcurrentHashMap.newKeySet());
        for (int i = 0; i < 2; i++) {
            Set<String> bodies = pushed.get(i);
            push(name + "-" + i, name, "*", message -> bodies.add(new String(message.getBody(), StandardCharsets.UTF_8)));
        }
        Set<String> wanted = new TreeSet<>();
        try (org.apache.pulsar.client.api.Producer<byte[]> producer = pulsar.newProducer().topic(name)
                .batchingMaxPublishDelay(5, TimeUnit.MILLISECONDS).create()) {
            for (int i = 0; i < 50; i++) {
                producer.newMessage().key("k" + i % 5).value(body("p" + i)).sendAsync();
                rocket.send(message(name, "", "k" + i % 5, "r" + i));
                wanted.addAll(List.of("p" + i, "r" + i));
            }
            producer.flush();
        }
        for (Consumer<byte[]> consumer : consumers) {
            List<org.apache.pulsar.client.api.Message<byte[]>> got = receive(consumer, 100);
            equal(wanted, new TreeSet<>(texts(got)), "of " + consumer.getSubscription());
            for (org.apache.pulsar.client.api.Message<byte[]> one : got) {
                consumer.acknowledge(one);
            }
            nothing(consumer);
        }
        for (Set<String> bodies : pushed) {
            await("all by RocketMQ", () -> bodies.equals(wanted));
        }
    }

    private static void pulsarDeadLetters(String name) throws Exception {
        Consumer<byte[]> consumer = subscribe(name, "s", SubscriptionType.Shared).negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS)
            .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2).deadLetterTopic(name + "-dead").initialSubscriptionName("all").build()).subscribe();
        rocket.send(message(name, "TagD", "k", "bad"));
        for (int i = 0; i < 3; i++) {
            org.apache.pulsar.client.api.Message<byte[]> got = receive(consumer);
            equal(i, got.getRedeliveryCount(), "how often it was asked for");
            consumer.negativeAcknowledge(got);
        }
        Map<String, MessageExt> dead = new ConcurrentHashMap<>();
        await("the topic of dead letters", () -> partitions(name + "-dead") == 0 && hasRoute(name + "-dead"));
        push(name, name + "-dead", "*", message -> dead.put(new String(message.getBody(), StandardCharsets.UTF_8), message) == null);
        await("the dead letter", () -> dead.containsKey("bad"));
        MessageExt letter = dead.get("bad");
        equal("k", letter.getKeys(), "keys of the dead letter");
        equal("TagD", letter.getTags(), "its tag");
        String realTopic = receive(subscribe(name + "-dead", "all", SubscriptionType.Exclusive).subscribe()).getProperty("REAL_TOPIC");
        check(realTopic.endsWith("/" + name), "REAL_TOPIC %s", realTopic); // which is a name of RocketMQ's own, so its consumers do not see it
        nothing(consumer);
    }

    private static void pulsarRetryTopic(String name) throws Exception {
        Consumer<byte[]> consumer = subscribe(name, "s", SubscriptionType.Shared).enableRetry(true)
            .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(3).retryLetterTopic(name + "-retry").build()).subscribe();
        rocket.send(message(name, "", "k", "later"));
        org.apache.pulsar.client.api.Message<byte[]> got = receive(consumer);
        consumer.reconsumeLater(got, 500, TimeUnit.MILLISECONDS);
        got = receive(consumer);
        equal("later", text(got), "what comes again");
        equal("1", got.getProperty("RECONSUMETIMES"), "how often");
        equal("k", got.getKey(), "its key");
        consumer.acknowledge(got);
        nothing(consumer);
    }

    private static void oneGroup(String name) throws Exception {
        subscribe(name, name, SubscriptionType.Shared).subscribe().close();
        send(name, "m", 0, 10);
        Set<String> bodies = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = consumer(name, name, MessageSelector.byTag("*"));
        listen(consumer, message -> bodies.add(new String(message.getBody(), StandardCharsets.UTF_8)));
        consumer.start();
        await("ten messages", () -> bodies.size() == 10);
        try {
            subscribe(name, name, SubscriptionType.Shared).subscribe();
            throw new AssertionError("a subscription of the group's name beside its consumers");
        } catch (PulsarClientException.ConsumerBusyException expected) {
            check(expected.getMessage().contains("RocketMQ"), "%s", expected);
        }
        consumer.shutdown(); // which commits its offsets
        send(name, "m", 10, 13);
        Consumer<byte[]> pulsars = null;
        for (long end = System.currentTimeMillis() + SECONDS * 1000L; pulsars == null; ) {
            try {
                pulsars = subscribe(name, name, SubscriptionType.Shared).subscribe();
            } catch (PulsarClientException.ConsumerBusyException busy) {
                check(System.currentTimeMillis() < end, "%s", busy);
                TimeUnit.MILLISECONDS.sleep(200);
            }
        }
        equal(List.of("m10", "m11", "m12"), texts(receive(pulsars, 3)), "what Pulsar's consumer goes on with");
        nothing(pulsars);
    }

    private static void reader(String name) throws Exception {
        subscribe(name, "first", SubscriptionType.Shared).subscribe().close();
        try (org.apache.pulsar.client.api.Producer<byte[]> producer = pulsar.newProducer().topic(name).enableBatching(false).create()) {
            for (int i = 0; i < 5; i++) {
                producer.send(body("p" + i));
                rocket.send(message(name, "", "", "r" + i));
            }
        }
        List<String> wanted = IntStream.range(0, 5).boxed().flatMap(i -> List.of("p" + i, "r" + i).stream()).collect(Collectors.toList());
        try (Reader<byte[]> reader = pulsar.newReader().topic(name).startMessageId(MessageId.earliest).create()) {
            List<org.apache.pulsar.client.api.Message<byte[]>> all = new ArrayList<>();
            while (reader.hasMessageAvailable()) {
                all.add(reader.readNext(SECONDS, TimeUnit.SECONDS));
            }
            equal(wanted, texts(all), "from the first on");
            reader.seek(all.get(5).getMessageId()); // a message of RocketMQ
            equal("p3", text(reader.readNext(SECONDS, TimeUnit.SECONDS)), "after the message that was sought");
            reader.seek(all.get(0).getPublishTime() - 60_000);
            equal("p0", text(reader.readNext(SECONDS, TimeUnit.SECONDS)), "from a time on");
        }
    }

    // Helpers

    private static ConsumerBuilder<byte[]> subscribe(String topic, String subscription, SubscriptionType type) {
        return pulsar.newConsumer().topic(topic).subscriptionName(subscription).subscriptionType(type)
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
    }

    private static Message message(String topic, String tags, String keys, String body) {
        return new Message(topic, tags, keys, body(body));
    }

    private static void send(String topic, String what, int from, int to) throws Exception {
        for (int i = from; i < to; i++) {
            rocket.send(message(topic, "", "", what + i));
        }
    }

    private static DefaultMQPushConsumer consumer(String group, String topic, MessageSelector selector) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(group);
        consumer.setPollNameServerInterval(1000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, selector);
        CLOSING.add(consumer::shutdown);
        return consumer;
    }

    private static void listen(DefaultMQPushConsumer consumer, Given given) {
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(given::take);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
    }

    private static void push(String group, String topic, String tags, Given given) throws Exception {
        DefaultMQPushConsumer consumer = consumer(group, topic, MessageSelector.byTag(tags));
        listen(consumer, given);
        consumer.start();
    }

    private static org.apache.pulsar.client.api.Message<byte[]> receive(Consumer<byte[]> consumer) throws Exception {
        org.apache.pulsar.client.api.Message<byte[]> got = consumer.receive(SECONDS, TimeUnit.SECONDS);
        check(got != null, "nothing comes to %s", consumer.getSubscription());
        return got;
    }

    private static List<org.apache.pulsar.client.api.Message<byte[]>> receive(Consumer<byte[]> consumer, int count) throws Exception {
        List<org.apache.pulsar.client.api.Message<byte[]>> all = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            all.add(receive(consumer));
        }
        return all;
    }

    private static void nothing(Consumer<byte[]> consumer) throws Exception {
        org.apache.pulsar.client.api.Message<byte[]> got = consumer.receive(500, TimeUnit.MILLISECONDS);
        check(got == null, "%s came beyond what was sent", got == null ? "" : text(got));
    }

    private static int partitions(String topic) {
        try {
            List<String> names = pulsar.getPartitionsForTopic(topic).get(SECONDS, TimeUnit.SECONDS);
            return names.get(0).contains("-partition-") ? names.size() : 0;
        } catch (Exception error) {
            throw new AssertionError(error);
        }
    }

    private static boolean hasRoute(String topic) {
        try {
            return !rocket.fetchPublishMessageQueues(topic).isEmpty();
        } catch (Exception error) {
            return false;
        }
    }

    private static void await(String what, BooleanSupplier isSo) throws Exception {
        for (long end = System.currentTimeMillis() + SECONDS * 1000L; !isSo.getAsBoolean(); TimeUnit.MILLISECONDS.sleep(20)) {
            check(System.currentTimeMillis() < end, "not in time: %s", what);
        }
    }

    private static byte[] body(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(org.apache.pulsar.client.api.Message<byte[]> message) {
        return new String(message.getData(), StandardCharsets.UTF_8);
    }

    private static List<String> texts(List<org.apache.pulsar.client.api.Message<byte[]>> messages) {
        return messages.stream().map(MixedClients::text).collect(Collectors.toList());
    }

    private static void equal(Object expected, Object actual, String what) {
        check(expected.equals(actual), "%s: %s, not %s", what, actual, expected);
    }

    private static void check(boolean isSo, String text, Object... values) {
        if (!isSo) {
            throw new AssertionError(String.format(text, values));
        }
    }
}
