// Runs one mqadmin command a line, arguments separated by tabs, and ends each with a line of its own: a JVM for all.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

public class MqAdmin {
    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            MQAdminStartup.main0(line.split("\t"), null);
            System.out.println();
            System.out.println("--- done");
            System.out.flush();
        }
        System.exit(0);
    }
}
