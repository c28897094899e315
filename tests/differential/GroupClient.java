// Push consumers, each a member of a group beside members in other languages.
//
// Arguments: name server, then for each consumer its group, which is that of its topic, and "orderly" or "concurrently".
// One line for each delivery: "got", topic, broker, queue, queue offset and body with tabs between. A line "queues TOPIC"
// on standard input is answered with the queues of the topic that the consumer has, as BROKER:QUEUE. It ends with
// standard input.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

public class GroupClient {
    public static void main(String[] args) {
        try {
            run(args);
        } catch (Throwable failure) { // threads of the client would go on without this one
            failure.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    private static void run(String[] args) throws Exception {
        TreeMap<String, DefaultMQPushConsumer> consumers = new TreeMap<>();
        for (int at = 1; at < args.length; at += 2) {
            consumers.put(args[at], consumer(args[0], args[at], args[at + 1].equals("orderly")));
        }
        say("started");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String topic = line.split(" ")[1];
            say(consumers.get(topic).getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()
                .stream().filter(queue -> queue.getTopic().equals(topic))
                .map(queue -> queue.getBrokerName() + ":" + queue.getQueueId()).sorted()
                .collect(Collectors.joining(" ")));
        }
        consumers.values().forEach(DefaultMQPushConsumer::shutdown);
        say("stopped");
    }

    private static DefaultMQPushConsumer consumer(String nameServer, String name, boolean orderly) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(name);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(name);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(name, "*");
        if (orderly) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                take(messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                take(messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        return consumer;
    }

    private static void take(List<MessageExt> messages) {
        for (MessageExt message : messages) {
            String body = new String(message.getBody(), StandardCharsets.UTF_8);
            say("got\t" + message.getTopic() + "\t" + message.getBrokerName() + "\t" + message.getQueueId() + "\t"
                + message.getQueueOffset() + "\t" + body);
        }
    }

    private static synchronized void say(String line) {
        System.out.println("> " + line);
        System.out.flush();
    }
}
