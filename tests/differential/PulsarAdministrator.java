import java.util.List;
import java.util.Map;
import org.apache.pulsar.client.admin.ListTopicsOptions;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.admin.Topics;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.common.naming.TopicDomain;

/** Does with the official client for administrators what pulsar-admin does with it; a line for each question. */
public final class PulsarAdministrator {
    public static void main(String[] args) throws Exception {
        try (PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(args[0]).build()) {
            Topics topics = admin.topics();
            String plain = "persistent://public/default/t";
            String wide = "persistent://public/default/wide";
            topics.createPartitionedTopic(wide, 2);
            topics.createSubscription(wide, "s", MessageId.latest);
            topics.updatePartitionedTopic(wide, 3);
            say("partitions", topics.getPartitionedTopicMetadata(wide).partitions);
            say("list", topics.getList("public/default").stream().sorted().toList());
            say("partitioned", topics.getPartitionedTopicList("public/default"));
            say("partitioned stats", topics.getPartitionedStats(wide, true).getPartitions().size());
            say("lookup", admin.lookups().lookupTopic(plain).startsWith("pulsar://"));
            say("subscriptions", topics.getSubscriptions(plain));
            say("messages in", topics.getStats(plain).getMsgInCounter());
            say("asked for all", topics.getStats(plain, true, true, true).getMsgInCounter());
            ListTopicsOptions all = ListTopicsOptions.builder().includeSystemTopic(true).build();
            say("persistent", topics.getList("public/default", TopicDomain.persistent, all).stream().sorted().toList());
            String labelled = "persistent://public/default/labelled";
            topics.createPartitionedTopic(labelled, 2, Map.of("owner", "us"));
            say("with properties", topics.getPartitionedTopicMetadata(labelled).partitions);
            topics.deletePartitionedTopic(labelled);
            say("backlog", backlog(topics, plain));
            topics.skipMessages(plain, "s", 3);
            say("skipped", backlog(topics, plain));
            topics.resetCursor(plain, "s", System.currentTimeMillis() - 3_600_000);
            say("reset to a time", backlog(topics, plain));
            topics.resetCursor(plain, "s", topics.getLastMessageId(plain));
            say("reset to the last", backlog(topics, plain));
            topics.resetCursor(plain, "s", topics.getLastMessageId(plain), true);
            say("reset behind the last", backlog(topics, plain));
            topics.resetCursor(plain, "s", MessageId.earliest);
            say("reset to the first", backlog(topics, plain));
            topics.skipAllMessages(plain, "s");
            say("skipped all", backlog(topics, plain));
            topics.deleteSubscription(plain, "s", true);
            say("unsubscribed", topics.getSubscriptions(plain));
            topics.deletePartitionedTopic(wide, true);
            topics.createNonPartitionedTopic("persistent://public/default/made");
            topics.delete("persistent://public/default/made");
            say("left", topics.getList("public/default"));
            try {
                topics.getStats("persistent://public/default/none");
            } catch (PulsarAdminException.NotFoundException e) {
                say("unknown", e.getMessage());
            }
            say("namespaces", admin.namespaces().getNamespaces("public"));
            say("tenants", admin.tenants().getTenants());
        }
    }

    private static long backlog(Topics topics, String topic) throws PulsarAdminException {
        return topics.getStats(topic).getSubscriptions().get("s").getMsgBacklog();
    }

    private static void say(String what, Object answer) {
        System.out.println(what + ": " + answer);
    }
}
