import java.io.File;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** An HDFS of one name node and one data node; it tells its port, and ends with its standard input. */
public class MiniHdfs {
    public static void main(String[] folder) throws Exception {
        Configuration settings = new Configuration();
        settings.set("dfs.permissions.enabled", "false");
        MiniDFSCluster cluster = new MiniDFSCluster.Builder(settings, new File(folder[0])).numDataNodes(1).build();
        cluster.waitActive();
        System.out.println(cluster.getNameNodePort());
        System.in.read();
        cluster.shutdown();
        System.exit(0);
    }
}
