import java.io.File;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageArrivingListener;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Lets the broker's own store load the store that the argument names, with all that its recovery does, and ends.
 *
 * <p>It ends without a shutdown, which would wait for idle threads: the bytes are not yet synced then.
 */
public class StoreStart {
    public static void main(String[] arguments) throws Exception {
        File root = new File(arguments[0]);
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root.getPath());
        config.setStorePathCommitLog(new File(root, "commitlog").getPath());
        config.setHaListenPort(0);
        MessageArrivingListener nobody = (topic, queue, offset, tagsCode, time, bits, texts) -> { };
        DefaultMessageStore store = new DefaultMessageStore(config, new BrokerStatsManager("bench", false), nobody,
            new BrokerConfig(), new ConcurrentHashMap<>());
        boolean loaded = store.load();
        System.out.println(store.getMaxPhyOffset() + " " + store.getMaxOffsetInQueue("bench-topic-0", 0));
        Runtime.getRuntime().halt(loaded ? 0 : 1);
    }
}
