// Runs one mqadmin command a line, arguments separated by tabs, and ends each with a line of its own: a JVM for all.
//
// "clients TOPIC GROUP -n ADDRESS" starts a producer and a consumer that stay, sends two messages to each queue, and says
// once they are consumed what commands may ask for: the id of the consumer, and of a message both its ids. With a property
// "secret" they have the accounts "producer" and "consumer", both with that secret.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;

public class MqAdmin {
    private static final long PATIENCE_MS = 15_000; // some commands go on for ever

    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        long patience = 10 * PATIENCE_MS; // the first loads what all need
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t");
            Thread command = new Thread(() -> run(words));
            command.start();
            command.join(words[0].equals("clients") ? 10 * PATIENCE_MS : patience); // they end by themselves
            patience = PATIENCE_MS;
            if (command.isAlive()) {
                System.out.println("--- goes on");
                command.interrupt();
                command.join(PATIENCE_MS); // what it says to that is not the next one's
            }
            System.out.println();
            System.out.println("--- done");
            System.out.flush();
        }
        Runtime.getRuntime().halt(0); // commands that go on would hold an exit up
    }

    private static void run(String[] words) {
        try {
            if (words[0].equals("clients")) {
                start(words[1], words[2], words[4]);
            } else {
                MQAdminStartup.main0(words, null);
            }
        } catch (Throwable fault) {
            System.out.println(fault);
        }
    }

    private static void start(String topic, String group, String nameServer) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group + "Producer", account("producer"));
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName("producer" + nameServer);
        producer.start();
        SendResult sent = null;
        int count = 0;
        for (MessageQueue queue : producer.fetchPublishMessageQueues(topic)) {
            for (int i = 0; i < 2; i++, count++) {
                sent = producer.send(new Message(topic, "Tag", "key" + count, ("body" + count).getBytes()), queue);
            }
        }
        CountDownLatch left = new CountDownLatch(count);
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(group, account("consumer"), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName("consumer" + nameServer);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> left.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        left.await();
        commit(consumer, topic, group);
        System.out.println("\nids " + consumer.buildMQClientId() + " " + sent.getOffsetMsgId() + " " + sent.getMsgId());
    }

    /** Returns when a broker has all offsets of a consumer that has consumed all; by itself it commits after 10 s. */
    private static void commit(DefaultMQPushConsumer consumer, String topic, String group) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(account("administrator"));
        admin.setNamesrvAddr(consumer.getNamesrvAddr());
        admin.setInstanceName("commits" + consumer.getNamesrvAddr());
        admin.start();
        do {
            consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
            Thread.sleep(100);
        } while (admin.examineConsumeStats(group, topic).computeTotalDiff() > 0);
        admin.shutdown();
    }

    private static RPCHook account(String key) {
        String secret = System.getProperty("secret");
        return secret == null ? null : new AclClientRPCHook(new SessionCredentials(key, secret));
    }
}
