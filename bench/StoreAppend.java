import java.io.File;
import java.io.PrintStream;
import java.net.InetSocketAddress;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageArrivingListener;
import org.apache.rocketmq.store.PutMessageStatus;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** Appends messages of 1 KiB through the broker's own store, in one thread; prints the messages a second of each round. */
public class StoreAppend {
    public static void main(String[] arguments) throws Exception {
        File root = new File(arguments[0]);
        PrintStream answers = System.out;
        System.setOut(System.err);  // where its log goes
        int rounds = Integer.parseInt(arguments[1]);
        int count = Integer.parseInt(arguments[2]);
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root.getPath());
        config.setStorePathCommitLog(new File(root, "commitlog").getPath());
        config.setHaListenPort(0);
        MessageArrivingListener nobody = (topic, queue, offset, tagsCode, time, bits, texts) -> { };
        DefaultMessageStore store = new DefaultMessageStore(config, new BrokerStatsManager("bench", false), nobody,
            new BrokerConfig(), new ConcurrentHashMap<>());
        store.load();
        store.start();
        InetSocketAddress host = new InetSocketAddress("127.0.0.1", 10911);
        byte[] body = new byte[1024];
        for (int round = 0; round < rounds; round++) {
            long start = System.nanoTime();
            for (int i = 0; i < count; i++) {
                MessageExtBrokerInner message = new MessageExtBrokerInner();
                message.setTopic("bench");
                message.setQueueId(i % 4);
                message.setBody(body);
                message.setBornTimestamp(System.currentTimeMillis());
                message.setBornHost(host);
                message.setStoreHost(host);
                message.setTags("TagA");
                message.setKeys(round + "-" + i);
                message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
                if (store.putMessage(message).getPutMessageStatus() != PutMessageStatus.PUT_OK) {
                    throw new IllegalStateException("not stored");
                }
            }
            while (store.dispatchBehindBytes() > 0) {  // queues and index are part of it
                Thread.sleep(1);
            }
            answers.println(count / ((System.nanoTime() - start) / 1e9));
        }
        Runtime.getRuntime().halt(0);
    }
}
