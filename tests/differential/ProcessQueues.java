// Drives RocketMQ's ProcessQueue with random operations: one JSON line a queue. Arguments: seed, queues.

import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import org.apache.rocketmq.client.impl.consumer.ProcessQueue;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

public class ProcessQueues {
    public static void main(String[] args) {
        Random random = new Random(Long.parseLong(args[0]));
        for (int left = Integer.parseInt(args[1]); left > 0; left--) {
            System.out.println(RemotingSerializable.toJson(drive(random, random.nextBoolean()), false));
        }
    }

    static List<Map<String, Object>> drive(Random random, boolean orderly) {
        ProcessQueue queue = new ProcessQueue();
        TreeMap<Long, MessageExt> known = new TreeMap<>();
        List<MessageExt> taken = new ArrayList<>();
        List<Map<String, Object>> steps = new ArrayList<>();
        long next = random.nextInt(100);
        for (int left = 10 + random.nextInt(40); left > 0; left--) {
            Map<String, Object> step = new LinkedHashMap<>();
            List<MessageExt> some = new ArrayList<>();
            int choice = random.nextInt(orderly ? 7 : 4);
            if (choice < 2) {
                if (random.nextInt(8) == 0) {
                    next = Math.max(0, next - random.nextInt(6)); // pulled once more
                }
                for (int count = random.nextInt(6); count > 0; count--) {
                    MessageExt message = new MessageExt();
                    message.setQueueOffset(next);
                    message.setBody(new byte[known.containsKey(next) ? known.get(next).getBody().length : random.nextInt(50)]);
                    known.putIfAbsent(next, message);
                    some.add(message);
                    next += random.nextInt(5) == 0 ? 3 : 1;
                }
                step.put("do", "put");
                step.put("result", queue.putMessage(some));
            } else if (!orderly) {
                for (MessageExt message : known.values()) {
                    if (random.nextInt(3) == 0) {
                        some.add(message);
                    }
                }
                step.put("do", "remove");
                step.put("result", queue.removeMessage(some));
            } else if (choice < 4) {
                int most = 1 + random.nextInt(4);
                List<MessageExt> more = queue.takeMessages(most);
                step.put("do", "take");
                step.put("most", most);
                List<Long> offsets = new ArrayList<>();
                more.forEach(message -> offsets.add(message.getQueueOffset()));
                taken.addAll(more);
                step.put("result", offsets);
            } else if (taken.isEmpty()) { // nothing to commit or to put back: Java throws, or does nothing
                continue;
            } else if (choice == 4) {
                step.put("do", "commit");
                step.put("result", queue.commit());
                taken = new ArrayList<>();
            } else if (choice == 5) {
                step.put("do", "rollback");
                queue.rollback();
                taken = new ArrayList<>();
            } else {
                some.addAll(taken);
                step.put("do", "again");
                queue.makeMessageToConsumeAgain(some);
                taken = new ArrayList<>();
            }
            List<List<Long>> messages = new ArrayList<>();
            some.forEach(message -> messages.add(Arrays.asList(message.getQueueOffset(), (long) message.getBody().length)));
            step.put("messages", messages);
            step.put("count", queue.getMsgCount().get());
            step.put("size", queue.getMsgSize().get());
            step.put("span", queue.getMaxSpan());
            step.put("holds", queue.hasTempMessage());
            steps.add(step);
        }
        return steps;
    }
}
