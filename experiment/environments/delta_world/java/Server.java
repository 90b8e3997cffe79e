package world;

import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.lang.management.MemoryPoolMXBean;
import java.lang.management.MemoryType;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.hadoop.fs.FileSystem;
import org.apache.spark.deploy.SparkHadoopUtil;
import org.apache.spark.sql.connect.service.SparkConnectServer;
import org.apache.spark.sql.connect.service.SparkConnectService$;

/** Starts Spark Connect, prints {@code PORT number} when it listens, and ends when standard input ends. */
public final class Server {
  /** Seconds that an orderly end may take. */
  private static final long PATIENCE_S = Long.getLong("world.patience", 5);

  private static final long POLL_MS = 20;
  private static final long WATCH_MS = 500;

  /** Part of the memory for what lasts that may be in use after a collection. */
  private static final double FULL = 0.75;

  /** Made when more than that is in use: work goes on, slower and slower, so that a new server is better. */
  private static final String OUTGROWN = System.getProperty("world.outgrown", "");

  private Server() {}

  public static void main(String[] arguments) {
    start("owner", Server::endWithOwner);
    start("port", Server::announcePort);
    start("memory", Server::watchMemory);
    SparkConnectServer.main(arguments);
  }

  private static void start(String name, Runnable work) {
    Thread thread = new Thread(work, name);
    thread.setDaemon(true);
    thread.start();
  }

  /** The owner holds the other end; when it dies, however it dies, the pipe ends. */
  private static void endWithOwner() {
    try {
      while (System.in.read() >= 0) {
        continue;
      }
    } catch (IOException error) {
      // A broken pipe says the same as a closed one.
    }
    start("impatience", Server::haltAfterPatience);
    System.exit(0);
  }

  private static void haltAfterPatience() {
    sleep(PATIENCE_S * 1_000);
    Runtime.getRuntime().halt(0);
  }

  private static void watchMemory() {
    for (MemoryPoolMXBean pool : ManagementFactory.getMemoryPoolMXBeans()) {
      if (pool.getType() == MemoryType.HEAP && pool.isUsageThresholdSupported()) {
        pool.setCollectionUsageThreshold((long) (FULL * pool.getUsage().getMax()));
        while (!pool.isCollectionUsageThresholdExceeded()) {
          sleep(WATCH_MS);
        }
      }
    }
    try {
      Files.createFile(Path.of(OUTGROWN));
    } catch (IOException error) {
      // Without the file the server is used on, as slow as it is.
    }
  }

  private static void announcePort() {
    while (!SparkConnectService$.MODULE$.started() || !canReadFiles()) {
      sleep(POLL_MS);
    }
    System.out.println("PORT " + SparkConnectService$.MODULE$.localPort());
    System.out.flush();
  }

  /**
   * Loads what Hadoop needs to open a folder, by one thread alone: where several sessions are the first to do so, now
   * and then one of them finds a file of settings closed by another.
   */
  private static boolean canReadFiles() {
    try {
      FileSystem.get(URI.create("file:///"), SparkHadoopUtil.get().conf());
      return true;
    } catch (IOException error) {
      return false;
    }
  }

  private static void sleep(long milliseconds) {
    try {
      Thread.sleep(milliseconds);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    }
  }
}
