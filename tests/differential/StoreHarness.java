import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.ConcurrentSkipListMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.MessageArrivingListener;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.StoreCheckpoint;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Lets the real DefaultMessageStore load one store after another, as the requests on standard input say.
 *
 * <p>A request is a line of JSON: {"id": number, "store": folder, "config": {key: value}, "start": bool,
 * "reads": [[topic, queue, offset], ...]}; the answer is a line with the same id, see {@link #judge}. Requests run side
 * by side, since a store mostly waits for its own threads; whoever asks sets the number. One source for 4.9.7 to
 * 5.5.0: what differs between them is reached by reflection. Queues in RocksDB and DLedger logs are not covered.
 */
public class StoreHarness {
    private static final long CATCH_UP_MS = 10_000;
    private static final long LIMIT_MS = 30_000;
    private static final int UNIT_SIZE = 20;
    private static final List<String> CHECKPOINT_FIELDS = List.of("PhysicMsgTimestamp", "LogicsMsgTimestamp",
        "IndexMsgTimestamp", "MasterFlushedOffset", "ConfirmPhyOffset", "LogicsPhysicalOffset");
    private static final List<String> INDEX_FIELDS = List.of("BeginTimestamp", "EndTimestamp", "BeginPhyOffset",
        "EndPhyOffset", "HashSlotCount", "IndexCount");

    public static void main(String[] arguments) throws IOException {
        PrintStream answers = System.out;
        System.setOut(System.err);  // what the broker's classes print is no answer
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JsonObject request = new Gson().fromJson(line, JsonObject.class);
            start(() -> answers.println(answer(request)));  // println locks: lines stay whole
        }
        System.exit(0);  // threads of a store that refused to load may be left
    }

    private static Thread start(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    /** The answer to one request; a broker that never gets ready is left alone after a while: "hangs". */
    private static String answer(JsonObject request) {
        Map<String, Object> verdict = new ConcurrentSkipListMap<>();
        Thread judge = start(() -> judge(request, verdict));
        try {
            judge.join(LIMIT_MS);
        } catch (InterruptedException nobodyDoesThis) {
            throw new IllegalStateException(nobodyDoesThis);
        }
        Map<String, Object> answer = new TreeMap<>(verdict);
        answer.put("id", request.get("id").getAsLong());
        if (judge.isAlive()) {
            answer.put("hangs", true);
        }
        return new Gson().toJson(answer);
    }

    /** Notes what the broker makes of one store. Keys are those of fixtures/README.md, units in full. */
    private static void judge(JsonObject request, Map<String, Object> verdict) {
        File root = new File(request.get("store").getAsString());
        verdict.put("last_exit_ok", !new File(root, "abort").exists());
        DefaultMessageStore store = null;
        try {
            store = open(root, request.getAsJsonObject("config"));
            boolean loaded = store.load();
            verdict.put("load_result", loaded);
            if (loaded) {
                verdict.put("after_load", state(store));
            }
            if (!loaded || !request.get("start").getAsBoolean()) {
                release(store);
                return;
            }
            store.start();
            waitForDispatcher(store);
            verdict.put("behind_bytes", store.dispatchBehindBytes());
            verdict.put("after_start", state(store));
            verdict.put("reads", read(store, request.getAsJsonArray("reads")));
            Thread.currentThread().interrupt();  // a shutdown begins with idle seconds, which this cuts short
            store.shutdown();
            verdict.put("abort_after", new File(root, "abort").exists());
        } catch (Throwable thrown) {
            Throwable cause = thrown instanceof InvocationTargetException ? thrown.getCause() : thrown;
            StackTraceElement[] stack = cause.getStackTrace();
            verdict.put("error", cause.toString());
            verdict.put("error_at", stack.length == 0 ? "" : stack[0].toString());
            release(store);
        }
    }

    /** One at a time: each store that is made fills a map that all of a JVM share, without a lock. */
    private static synchronized DefaultMessageStore open(File root, JsonObject settings) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root.getPath());
        config.setStorePathCommitLog(new File(root, "commitlog").getPath());
        config.setHaListenPort(0);
        Properties properties = new Properties();
        for (Map.Entry<String, JsonElement> setting : settings.entrySet()) {
            properties.setProperty(setting.getKey(), setting.getValue().getAsString());
        }
        MixAll.properties2Object(properties, config);
        MessageArrivingListener nobody = (topic, queue, offset, tagsCode, time, bits, texts) -> { };
        List<Object> arguments = new ArrayList<>(List.of(
            config, new BrokerStatsManager("harness", false), nobody, new BrokerConfig()));
        for (Constructor<?> constructor : DefaultMessageStore.class.getConstructors()) {
            if (constructor.getParameterCount() == 5) {  // 5.x also takes the topics, for the type of their queues
                arguments.add(topics(root));
            }
            if (constructor.getParameterCount() == arguments.size()) {
                return (DefaultMessageStore) constructor.newInstance(arguments.toArray());
            }
        }
        throw new IllegalStateException("no known constructor");
    }

    private static ConcurrentMap<String, TopicConfig> topics(File root) throws IOException {
        Path path = new File(root, "config/topics.json").toPath();
        ConcurrentMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        if (Files.exists(path)) {
            JsonObject table = new Gson().fromJson(Files.readString(path), JsonObject.class)
                .getAsJsonObject("topicConfigTable");
            if (table != null) {  // brokers, too, find no topics in a table of another kind
                table.entrySet().forEach(entry ->
                    topics.put(entry.getKey(), new Gson().fromJson(entry.getValue(), TopicConfig.class)));
            }
        }
        return topics;
    }

    private static void waitForDispatcher(DefaultMessageStore store) throws InterruptedException {
        long end = System.currentTimeMillis() + CATCH_UP_MS;
        while (store.dispatchBehindBytes() > 0 && System.currentTimeMillis() < end) {
            Thread.sleep(5);
        }
        for (Thread thread : Thread.getAllStackTraces().keySet()) {
            if (thread.getName().equals("FlushIndexFileThread")) {  // writes the checkpoint, which a shutdown unmaps
                thread.join(CATCH_UP_MS);
            }
        }
    }

    /** Ends what a store that was not started holds all the same: shutdown() does nothing for it. */
    private static void release(DefaultMessageStore store) {
        for (String name : List.of("allocateMappedFileService", "messageRocksDBStorage")) {
            try {
                call(field(store, name), "shutdown");
            } catch (Exception absent) {
                // Not every version has both of them, nor a store that could not be opened.
            }
        }
    }

    // What a store looks like

    private static Map<String, Object> state(DefaultMessageStore store) throws Exception {
        Map<String, Object> state = new LinkedHashMap<>();
        state.put("max_phy_offset", store.getMaxPhyOffset());
        state.put("min_phy_offset", store.getMinPhyOffset());
        state.put("queues", queues(store));
        state.put("index", index(store));
        state.put("checkpoint", checkpoint(store.getStoreCheckpoint()));
        return state;
    }

    private static Map<String, Map<String, Object>> queues(DefaultMessageStore store) throws Exception {
        Map<String, Map<String, Object>> queues = new TreeMap<>();
        Map<?, ?> table = (Map<?, ?>) call(store, "getConsumeQueueTable");
        for (Map.Entry<?, ?> topic : table.entrySet()) {
            Map<String, Object> byNumber = new TreeMap<>();
            for (Map.Entry<?, ?> queue : ((Map<?, ?>) topic.getValue()).entrySet()) {
                byNumber.put(queue.getKey().toString(), queue(queue.getValue()));
            }
            queues.put(topic.getKey().toString(), byNumber);
        }
        return queues;
    }

    /** One queue. Brokers throw on what some damaged queues are asked; they would only when a consumer comes. */
    private static Map<String, Object> queue(Object queue) throws Exception {
        Map<String, Object> state = new LinkedHashMap<>();
        try {
            long min = (Long) call(queue, "getMinOffsetInQueue");
            long max = (Long) call(queue, "getMaxOffsetInQueue");
            state.put("min", min);
            state.put("max", max);
            state.put("units", has(queue, "getIndexBuffer") ? units(queue, min, max) : cookedUnits(queue, min, max));
        } catch (InvocationTargetException thrown) {
            state.put("error", thrown.getCause().toString());
        }
        return state;
    }

    /** The units of an ordinary queue as they lie in its files: [queue offset, physical offset, size, tags code]. */
    private static List<long[]> units(Object queue, long min, long max) throws Exception {
        List<long[]> units = new ArrayList<>();
        Method read = queue.getClass().getMethod("getIndexBuffer", long.class);
        long at = min;
        while (at < max) {
            SelectMappedBufferResult result = (SelectMappedBufferResult) read.invoke(queue, at);
            if (result == null) {
                break;
            }
            while (result.getByteBuffer().remaining() >= UNIT_SIZE && at < max) {
                units.add(new long[] {at++, result.getByteBuffer().getLong(), result.getByteBuffer().getInt(),
                    result.getByteBuffer().getLong()});
            }
            result.release();
        }
        return units;
    }

    /** The units of queues of other kinds; those of batch queues have the batch's size as a fifth number. */
    private static List<long[]> cookedUnits(Object queue, long min, long max) throws Exception {
        List<long[]> units = new ArrayList<>();
        boolean isBatch = queue.getClass().getSimpleName().startsWith("Batch");
        Method read = queue.getClass().getMethod("iterateFrom", long.class);
        long at = min;
        while (at < max) {
            Object found = read.invoke(queue, at);
            if (found == null) {
                break;
            }
            long before = at;
            for (Iterator<?> iterator = (Iterator<?>) found; iterator.hasNext() && at < max; ) {
                Object unit = iterator.next();
                at = (Long) call(unit, "getQueueOffset");
                long position = (Long) call(unit, "getPos");
                int size = (Integer) call(unit, "getSize");
                long tagsCode = (Long) call(unit, "getTagsCode");
                int batch = ((Number) call(unit, "getBatchNum")).intValue();
                units.add(isBatch ? new long[] {at, position, size, tagsCode, batch}
                    : new long[] {at, position, size, tagsCode});
                at += isBatch ? batch : 1;
            }
            call(found, "release");
            if (at == before) {
                break;
            }
        }
        return units;
    }

    private static List<List<Object>> index(DefaultMessageStore store) throws Exception {
        List<List<Object>> rows = new ArrayList<>();
        for (Object file : (List<?>) field(field(store, "indexService"), "indexFileList")) {
            Object header = field(file, "indexHeader");
            List<Object> row = new ArrayList<>();
            row.add(new File((String) call(file, "getFileName")).getName());
            for (String name : INDEX_FIELDS) {
                // 4.9 counts slots in an object that counts on: take what it is now.
                Object value = call(header, "get" + name);
                row.add(value instanceof Number ? ((Number) value).longValue() : value);
            }
            rows.add(row);
        }
        return rows;
    }

    private static Map<String, Object> checkpoint(StoreCheckpoint checkpoint) throws Exception {
        Map<String, Object> fields = new LinkedHashMap<>();
        for (String name : CHECKPOINT_FIELDS) {
            if (has(checkpoint, "get" + name)) {
                fields.put(Character.toLowerCase(name.charAt(0)) + name.substring(1), call(checkpoint, "get" + name));
            }
        }
        return fields;
    }

    // What a consumer gets

    /** For each [topic, queue, offset] asked for: [status, physical offset, queue offset, SHA-256 of the body]. */
    private static List<List<Object>> read(DefaultMessageStore store, JsonArray wanted) throws Exception {
        List<List<Object>> rows = new ArrayList<>();
        for (JsonElement asked : wanted) {
            String topic = asked.getAsJsonArray().get(0).getAsString();
            int queue = asked.getAsJsonArray().get(1).getAsInt();
            long offset = asked.getAsJsonArray().get(2).getAsLong();
            rows.add(readOne(store.getMessage("harness", topic, queue, offset, 1, null)));
        }
        return rows;
    }

    private static List<Object> readOne(GetMessageResult result) throws NoSuchAlgorithmException {
        List<Object> row = new ArrayList<>();
        row.add(result == null ? "NO_ANSWER" : result.getStatus().name());
        if (result != null && !result.getMessageBufferList().isEmpty()) {
            MessageExt message = MessageDecoder.decode(result.getMessageBufferList().get(0), true, false);
            if (message != null) {  // else a client cannot decode what the store serves: a port above 65535
                byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
                row.add(message.getCommitLogOffset());
                row.add(message.getQueueOffset());
                row.add(hex(MessageDigest.getInstance("SHA-256").digest(body)));
            }
        }
        if (result != null) {
            result.release();
        }
        return row;
    }

    private static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte one : bytes) {
            text.append(String.format("%02x", one));
        }
        return text.toString();
    }

    // Reflection

    private static Object call(Object object, String method) throws Exception {
        Method found = object.getClass().getMethod(method);
        found.setAccessible(true);  // a public method of a private class
        return found.invoke(object);
    }

    private static boolean has(Object object, String method) {
        for (Method candidate : object.getClass().getMethods()) {
            if (candidate.getName().equals(method)) {
                return true;
            }
        }
        return false;
    }

    private static Object field(Object object, String name) throws Exception {
        for (Class<?> kind = object.getClass(); kind != null; kind = kind.getSuperclass()) {
            try {
                Field field = kind.getDeclaredField(name);
                field.setAccessible(true);
                return field.get(object);
            } catch (NoSuchFieldException notHere) {
                // The superclass may have it.
            }
        }
        throw new NoSuchFieldException(name);
    }
}
