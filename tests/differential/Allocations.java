// Shares queues among consumers by RocketMQ's own strategies: one JSON line a case. Arguments: seed, cases.

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

public class Allocations {
    static final String[] ROOMS = {"", "r1@", "r2@", "r3@"};

    public static void main(String[] args) {
        Random random = new Random(Long.parseLong(args[0]));
        for (int left = Integer.parseInt(args[1]); left > 0; left--) {
            System.out.println(RemotingSerializable.toJson(draw(random), false));
        }
    }

    static Map<String, Object> draw(Random random) {
        String topic = "T" + Integer.toString(random.nextInt(1 << 30), 36);
        Map<String, Integer> brokers = new LinkedHashMap<>();
        for (int left = random.nextInt(5); left > 0; left--) {
            brokers.put(room(random) + "b" + Integer.toString(random.nextInt(99)), 1 + random.nextInt(12));
        }
        List<MessageQueue> queues = new ArrayList<>();
        brokers.forEach((broker, count) -> {
            for (int id = 0; id < count; id++) {
                queues.add(new MessageQueue(topic, broker, id));
            }
        });
        Collections.sort(queues);
        Set<String> drawn = new TreeSet<>();
        for (int left = 1 + random.nextInt(8); left > 0; left--) {
            drawn.add(room(random) + "10.0." + random.nextInt(9) + "." + random.nextInt(256) + "#" + random.nextInt(9999));
        }
        List<String> members = new ArrayList<>(drawn);
        String own = random.nextInt(20) == 0 ? "stranger" : members.get(random.nextInt(members.size()));

        AllocateMachineRoomNearby.MachineRoomResolver resolver = new AllocateMachineRoomNearby.MachineRoomResolver() {
            public String brokerDeployIn(MessageQueue queue) {
                return roomOf(queue.getBrokerName());
            }

            public String consumerDeployIn(String clientId) {
                return roomOf(clientId);
            }
        };
        Set<String> rooms = new HashSet<>();
        for (int one = 1; one < ROOMS.length; one++) {
            if (random.nextBoolean()) {
                rooms.add(ROOMS[one].substring(0, 2));
            }
        }
        AllocateMessageQueueByMachineRoom byRoom = new AllocateMessageQueueByMachineRoom();
        byRoom.setConsumeridcs(rooms);
        AllocateMessageQueueByConfig byConfig = new AllocateMessageQueueByConfig();
        byConfig.setMessageQueueList(new ArrayList<>(queues.subList(0, queues.size() / 2)));
        int nodes = 1 + random.nextInt(20);

        Map<String, Object> found = new LinkedHashMap<>();
        found.put("AVG", ask(new AllocateMessageQueueAveragely(), queues, members, own));
        found.put("AVG_BY_CIRCLE", ask(new AllocateMessageQueueAveragelyByCircle(), queues, members, own));
        found.put("CONFIG", ask(byConfig, queues, members, own));
        found.put("MACHINE_ROOM", ask(byRoom, queues, members, own));
        found.put("CONSISTENT_HASH", ask(new AllocateMessageQueueConsistentHash(nodes), queues, members, own));
        found.put("MACHINE_ROOM_NEARBY-AVG",
            ask(new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(), resolver), queues, members, own));
        found.put("MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE",
            ask(new AllocateMachineRoomNearby(new AllocateMessageQueueAveragelyByCircle(), resolver), queues, members, own));

        Map<String, Object> line = new LinkedHashMap<>();
        line.put("topic", topic);
        line.put("brokers", brokers);
        line.put("members", members);
        line.put("own", own);
        line.put("rooms", new TreeSet<>(rooms));
        line.put("nodes", nodes);
        line.put("found", found);
        return line;
    }

    static String room(Random random) {
        return ROOMS[random.nextInt(ROOMS.length)];
    }

    static String roomOf(String name) {
        int at = name.indexOf('@');
        return at < 0 ? "none" : name.substring(0, at);
    }

    // The places of the queues in the sorted list, or what was thrown.
    static Object ask(AllocateMessageQueueStrategy strategy, List<MessageQueue> queues, List<String> members, String own) {
        try {
            List<Integer> places = new ArrayList<>();
            for (MessageQueue queue : strategy.allocate("G", own, queues, members)) {
                places.add(queues.indexOf(queue));
            }
            return places;
        } catch (RuntimeException error) {
            return error.toString();
        }
    }
}
