// A push consumer that leaves the sharing of queues to the broker, and so pops where the broker says so.
//
// Arguments: name server, group, topic. A message whose body begins with "again" is not consumed the first time. One
// line for each delivery: "got", body, reconsumeTimes and topic with tabs between. A line "send BODY" on standard input
// sends to the topic, "recall SECONDS BODY" sends for later and recalls it at once; each is answered with a line. It
// ends with standard input.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

public class PopClient {
    private static final ConcurrentHashMap<String, Boolean> SEEN = new ConcurrentHashMap<>();

    public static void main(String[] args) {
        try {
            run(args[0], args[1], args[2]);
        } catch (Throwable failure) { // threads of the client would go on without this one
            failure.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    private static void run(String nameServer, String group, String topic) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setClientRebalance(false);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
            messages.stream().allMatch(PopClient::take) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        DefaultMQProducer producer = new DefaultMQProducer(group + "_producer");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(60_000); // of a busy machine
        producer.start();
        consumer.start();
        say("started");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ", 2);
            if (words[0].equals("send")) {
                say(producer.send(new Message(topic, words[1].getBytes(StandardCharsets.UTF_8))).getSendStatus().name());
            } else {
                String[] rest = words[1].split(" ", 2);
                Message message = new Message(topic, rest[1].getBytes(StandardCharsets.UTF_8));
                message.setDelayTimeSec(Long.parseLong(rest[0]));
                SendResult sent = producer.send(message);
                String recalled = producer.recallMessage(topic, sent.getRecallHandle());
                say(recalled.equals(sent.getMsgId()) ? "recalled" : "another: " + recalled);
            }
        }
        consumer.shutdown();
        producer.shutdown();
        say("stopped");
    }

    private static boolean take(MessageExt message) {
        String body = new String(message.getBody(), StandardCharsets.UTF_8);
        say("got\t" + body + "\t" + message.getReconsumeTimes() + "\t" + message.getTopic());
        return !body.startsWith("again") || SEEN.put(body, true) != null;
    }

    private static synchronized void say(String line) {
        System.out.println("> " + line);
        System.out.flush();
    }
}
