import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * The official client of a broker that is killed again and again: {@code NAME_SERVER TOPIC LANES QUEUES}.
 *
 * <p>Each lane is a thread that sends its messages one after the other to one queue, each until it is acknowledged. On
 * {@code stop} every lane ends with the message that it is at, and a line {@code LANE NUMBER QUEUE OFFSET ATTEMPTS} comes
 * for each message. On {@code pull TOPIC} a line {@code QUEUE OFFSET BODY} comes for each message of a topic. Both answers end
 * with {@code done}.
 */
public class KillClient {
    private static volatile boolean stopping;

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        System.setOut(System.err);  // where the client's log goes
        DefaultMQProducer producer = new DefaultMQProducer("kills");
        producer.setNamesrvAddr(arguments[0]);
        producer.setSendMsgTimeout(5000);
        producer.start();
        int queues = Integer.parseInt(arguments[3]);
        List<Lane> lanes = new ArrayList<>();
        for (int number = 0; number < Integer.parseInt(arguments[2]); number++) {
            Lane lane = new Lane(producer, arguments[1], number, number % queues);
            lanes.add(lane);
            lane.start();
        }
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in));
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            if (line.equals("stop")) {
                stopping = true;
                for (Lane lane : lanes) {
                    lane.join();
                    lane.told.forEach(out::println);
                }
            } else {
                pull(arguments[0], line.split(" ")[1], out);
            }
            out.println("done");
            out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static class Lane extends Thread {
        final DefaultMQProducer producer;
        final String topic;
        final int number;
        final int queue;
        final List<String> told = new ArrayList<>();

        Lane(DefaultMQProducer producer, String topic, int number, int queue) {
            this.producer = producer;
            this.topic = topic;
            this.number = number;
            this.queue = queue;
        }

        @Override public void run() {
            MessageQueue target = new MessageQueue(topic, "broker-a", queue);
            for (int count = 0; !stopping; count++) {
                String body = number + " " + count;
                Message message = new Message(topic, body.getBytes(StandardCharsets.UTF_8));
                long offset = -1;
                int attempts = 0;
                while (offset < 0) {
                    attempts++;
                    try {
                        SendResult result = producer.send(message, target);
                        if (result.getSendStatus() == SendStatus.SEND_OK) {
                            offset = result.getQueueOffset();
                        }
                    } catch (Exception exception) {
                        pause();  // it is being started again
                    }
                }
                told.add(number + " " + count + " " + queue + " " + offset + " " + attempts);
            }
        }

        private static void pause() {
            try {
                Thread.sleep(20);
            } catch (InterruptedException exception) {
                throw new IllegalStateException(exception);
            }
        }
    }

    private static void pull(String nameServer, String topic, PrintStream out) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("kills-" + topic);
        consumer.setNamesrvAddr(nameServer);
        consumer.start();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            long offset = 0;
            while (true) {
                PullResult result = consumer.pull(queue, "*", offset, 32);
                if (result.getPullStatus() != PullStatus.FOUND) {
                    break;
                }
                for (MessageExt message : result.getMsgFoundList()) {
                    String body = new String(message.getBody(), StandardCharsets.UTF_8);
                    out.println(queue.getQueueId() + " " + message.getQueueOffset() + " " + body);
                }
                offset = result.getNextBeginOffset();
            }
        }
        consumer.shutdown();
    }
}
