import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.zip.CRC32;
import org.rocksdb.*;

/**
 * The judge of internal/rocks: the RocksDB with which Fluss opens its snapshots, driven from the command line.
 *
 * <p>Rows travel in record files: key length (2 bytes, little endian), value length (4), key, value. Every result is one
 * line of JSON on standard output; a failed check or a RocksDB error is a stack trace and exit status 1.
 *
 * <pre>
 *   open DIR               open as Fluss does, read-only and then read-write on a copy: count, checksum, point gets,
 *                          writes, flush, checkpoint, reopen, compaction, verification
 *   dump DIR OUT           write all live rows to a record file
 *   make DIR OUT k=v ...   make a database of the given features (see Features), write its live rows to OUT
 *   churn DIR OUT k=v ...  the same from random operations: rows=, seed=, ops=
 *   put DIR FILE CODEC     timed: unsorted record file to a checkpoint the way a Fluss tablet server writes
 *   putc DIR FILE CODEC    the same with a full compaction
 *   sst DIR FILE CODEC     timed: sort in memory, SstFileWriter, ingest, checkpoint
 *   scan DIR               timed: full scans, with byte arrays and with direct buffers
 *   sum FILE               rows, bytes and checksum that a database made from FILE has
 *   batch FILE             run the commands of a file, one a line, words separated by single spaces
 * </pre>
 */
public final class Oracle {
  public static void main(String[] a) throws Exception {
    RocksDB.loadLibrary();
    if (a.length < 2) {
      System.err.println("usage: Oracle open|dump|make|churn|put|putc|sst|scan|sum|batch ARGUMENTS, see Oracle.java");
      System.exit(2);
    }
    if (a[0].equals("batch")) {
      for (String line : Files.readAllLines(Path.of(a[1]))) {
        run(line.split(" "));
      }
      return;
    }
    run(a);
  }

  static void run(String[] a) throws Exception {
    switch (a[0]) {
      case "open" -> open(a[1]);
      case "dump" -> dump(a[1], a[2]);
      case "make" -> new Features(Arrays.copyOfRange(a, 3, a.length)).make(a[1], a[2]);
      case "churn" -> new Features(Arrays.copyOfRange(a, 3, a.length)).churn(a[1], a[2]);
      case "put" -> buildByPuts(a[1], a[2], a[3], false);
      case "putc" -> buildByPuts(a[1], a[2], a[3], true);
      case "sst" -> buildByIngest(a[1], a[2], a[3]);
      case "scan" -> scan(a[1]);
      case "sum" -> sum(a[1]);
      default -> throw new IllegalArgumentException("unknown command " + a[0]);
    }
  }

  // ---- Options as Fluss sets them (RocksDBResourceContainer, kv.rocksdb.* defaults)

  static CompressionType codec(String name) {
    return switch (name) {
      case "none" -> CompressionType.NO_COMPRESSION;
      case "snappy" -> CompressionType.SNAPPY_COMPRESSION;
      case "zlib" -> CompressionType.ZLIB_COMPRESSION;
      case "bzip2" -> CompressionType.BZLIB2_COMPRESSION;
      case "lz4" -> CompressionType.LZ4_COMPRESSION;
      case "lz4hc" -> CompressionType.LZ4HC_COMPRESSION;
      case "zstd" -> CompressionType.ZSTD_COMPRESSION;
      default -> throw new IllegalArgumentException("codec " + name);
    };
  }

  static DBOptions flussDb() {
    return new DBOptions()
        .setCreateIfMissing(true)
        .setUseFsync(false)
        .setStatsDumpPeriodSec(0)
        .setMaxOpenFiles(-1)
        .setMaxBackgroundJobs(2)
        .setAvoidFlushDuringShutdown(true);
  }

  static BlockBasedTableConfig flussTable() {
    return new BlockBasedTableConfig()
        .setBlockSize(4096)
        .setMetadataBlockSize(4096)
        .setBlockCache(new LRUCache(8 << 20))
        .setFilterPolicy(new BloomFilter(10.0, false));
  }

  /** "fluss" is its default: LZ4 for levels 0 to 4, Zstandard below. */
  static ColumnFamilyOptions flussFamily(String name) {
    List<CompressionType> perLevel = new ArrayList<>();
    for (int level = 0; level < 7; level++) {
      perLevel.add(codec(name.equals("fluss") ? (level < 5 ? "lz4" : "zstd") : name));
    }
    return new ColumnFamilyOptions()
        .setCompactionStyle(CompactionStyle.LEVEL)
        .setLevelCompactionDynamicLevelBytes(false)
        .setTargetFileSizeBase(64L << 20)
        .setMaxBytesForLevelBase(256L << 20)
        .setWriteBufferSize(64L << 20)
        .setMaxWriteBufferNumber(2)
        .setMinWriteBufferNumberToMerge(1)
        .setCompressionPerLevel(perLevel)
        .setTableFormatConfig(flussTable());
  }

  /** An open database with its default column family. */
  static final class Db implements AutoCloseable {
    final DBOptions options;
    final ColumnFamilyOptions family;
    final RocksDB db;
    final ColumnFamilyHandle cf;

    Db(String dir, boolean readOnly, DBOptions options, ColumnFamilyOptions family) throws RocksDBException {
      this.options = options;
      this.family = family;
      List<ColumnFamilyHandle> handles = new ArrayList<>();
      List<ColumnFamilyDescriptor> families =
          List.of(new ColumnFamilyDescriptor(RocksDB.DEFAULT_COLUMN_FAMILY, family));
      db = readOnly ? RocksDB.openReadOnly(options, dir, families, handles) : RocksDB.open(options, dir, families, handles);
      cf = handles.get(0);
    }

    /** As Fluss's snapshot reader: all defaults. */
    static Db reading(String dir) throws RocksDBException {
      return new Db(dir, true, new DBOptions(), new ColumnFamilyOptions());
    }

    static Db writing(String dir, String codec) throws RocksDBException {
      return new Db(dir, false, flussDb(), flussFamily(codec));
    }

    void flush() throws RocksDBException {
      try (FlushOptions f = new FlushOptions().setWaitForFlush(true)) {
        db.flush(f, cf);
      }
    }

    void checkpoint(String dir) throws RocksDBException {
      try (Checkpoint c = Checkpoint.create(db)) {
        c.createCheckpoint(dir);
      }
    }

    /** Passes all rows in order to sink, with block checksums verified. */
    void each(Sink sink) throws Exception {
      try (ReadOptions ro = new ReadOptions().setVerifyChecksums(true); RocksIterator it = db.newIterator(cf, ro)) {
        byte[] last = null;
        for (it.seekToFirst(); it.isValid(); it.next()) {
          byte[] k = it.key();
          check(last == null || Arrays.compareUnsigned(last, k) < 0, "keys are out of order");
          last = k;
          sink.row(k, it.value());
        }
        it.status();
      }
    }

    String total() throws Exception {
      Total t = new Total();
      each(t::add);
      return t.toString();
    }

    @Override
    public void close() {
      cf.close();
      db.close();
      family.close();
      options.close();
    }
  }

  interface Sink {
    void row(byte[] key, byte[] value) throws Exception;
  }

  static void check(boolean ok, String what) {
    if (!ok) {
      throw new IllegalStateException(what);
    }
  }

  // ---- Record files

  static byte[] record(byte[] k, byte[] v) {
    byte[] b = new byte[6 + k.length + v.length];
    b[0] = (byte) k.length;
    b[1] = (byte) (k.length >> 8);
    for (int i = 0; i < 4; i++) {
      b[2 + i] = (byte) (v.length >> 8 * i);
    }
    System.arraycopy(k, 0, b, 6, k.length);
    System.arraycopy(v, 0, b, 6 + k.length, v.length);
    return b;
  }

  static void readRecords(String file, Sink sink) throws Exception {
    try (DataInputStream in = new DataInputStream(new BufferedInputStream(new FileInputStream(file), 1 << 20))) {
      byte[] h = new byte[6];
      while (in.readNBytes(h, 0, 6) == 6) {
        int vl = 0;
        for (int i = 3; i >= 0; i--) {
          vl = vl << 8 | h[2 + i] & 255;
        }
        byte[] k = new byte[h[0] & 255 | (h[1] & 255) << 8];
        byte[] v = new byte[vl];
        in.readFully(k);
        in.readFully(v);
        sink.row(k, v);
      }
    }
  }

  /** Rows, bytes and the CRC32 over all records in order. */
  static final class Total {
    private final CRC32 crc = new CRC32();
    private long rows;
    private long bytes;

    void add(byte[] k, byte[] v) {
      crc.update(record(k, v));
      rows++;
      bytes += k.length + v.length;
    }

    @Override
    public String toString() {
      return String.format("\"rows\":%d,\"bytes\":%d,\"crc\":\"%08x\"", rows, bytes, crc.getValue());
    }
  }

  static void sum(String file) throws Exception {
    TreeMap<byte[], byte[]> rows = new TreeMap<>(Arrays::compareUnsigned);
    readRecords(file, rows::put);
    Total t = new Total();
    rows.forEach(t::add);
    System.out.printf("{\"command\":\"sum\",%s}%n", t);
  }

  static void dump(String dir, String out) throws Exception {
    try (Db d = Db.reading(dir)) {
      dump(d, out);
    }
  }

  static void dump(Db d, String out) throws Exception {
    Total t = new Total();
    try (OutputStream o = new BufferedOutputStream(new FileOutputStream(out), 1 << 20)) {
      d.each((k, v) -> {
        t.add(k, v);
        o.write(record(k, v));
      });
    }
    System.out.printf("{\"command\":\"dump\",%s}%n", t);
  }

  // ---- open

  static void open(String dir) throws Exception {
    String want;
    try (Db d = Db.reading(dir)) {
      want = d.total();
      Map<String, TableProperties> tables = d.db.getPropertiesOfAllTables(d.cf);
      long entries = tables.values().stream().mapToLong(TableProperties::getNumEntries).sum();
      System.out.printf(
          "{\"command\":\"open\",\"mode\":\"ro\",%s,\"lastSequence\":%d,\"tables\":%d,\"entries\":%d}%n",
          want, d.db.getLatestSequenceNumber(), tables.size(), entries);
    }
    Path copy = Path.of(dir + ".rw");
    remove(copy);
    copyFiles(Path.of(dir), copy);
    try {
      writeToCopy(copy.toString(), want);
    } finally {
      remove(copy);
    }
  }

  /** What a tablet server does with an adopted snapshot: get, put, delete, flush, checkpoint, restart, compact. */
  static void writeToCopy(String dir, String want) throws Exception {
    String after;
    try (Db d = Db.writing(dir, "fluss")) {
      check(d.total().equals(want), "rows differ between read-only and read-write");
      List<byte[]> keys = new ArrayList<>();
      int[] gets = {0};
      try (RocksIterator it = d.db.newIterator(d.cf)) {
        for (it.seekToFirst(); it.isValid() && gets[0] < 50_000; it.next(), gets[0]++) {
          byte[] k = it.key();
          check(Arrays.equals(d.db.get(d.cf, k), it.value()), "point get differs from scan");
          if (keys.size() < 2) {
            keys.add(k);
          }
        }
      }
      try (WriteOptions wo = new WriteOptions().setDisableWAL(true)) {
        for (int i = 0; i < 10_000; i++) {
          d.db.put(d.cf, wo, text("zzz-new-" + i), text("v" + i));
        }
        if (keys.size() == 2) {
          d.db.put(d.cf, wo, keys.get(0), text("overwritten"));
          d.db.delete(d.cf, wo, keys.get(1));
        }
      }
      d.flush();
      if (keys.size() == 2) {
        check(Arrays.equals(d.db.get(d.cf, keys.get(0)), text("overwritten")), "overwrite is lost");
        check(d.db.get(d.cf, keys.get(1)) == null, "delete is lost");
      }
      after = d.total();
      d.checkpoint(dir + ".checkpoint");
    }
    remove(Path.of(dir + ".checkpoint"));
    try (Db d = Db.writing(dir, "fluss")) {
      check(d.total().equals(after), "rows differ after reopening");
      d.db.compactRange(d.cf);
      check(d.total().equals(after), "rows differ after compaction");
      d.db.verifyChecksum();
    }
    System.out.printf("{\"command\":\"open\",\"mode\":\"rw\",%s}%n", after);
  }

  // ---- Databases to read

  /** A database described by key=value words. Words not given take Fluss's defaults. */
  static final class Features {
    private final Map<String, String> words = new HashMap<>();

    Features(String[] args) {
      for (String a : args) {
        int eq = a.indexOf('=');
        words.put(a.substring(0, eq), a.substring(eq + 1));
      }
    }

    private String word(String name, String fallback) {
      return words.getOrDefault(name, fallback);
    }

    private int number(String name, int fallback) {
      return Integer.parseInt(word(name, Integer.toString(fallback)));
    }

    private boolean flag(String name) {
      return number(name, 0) != 0;
    }

    private BlockBasedTableConfig table() {
      BlockBasedTableConfig t = flussTable()
          .setFormatVersion(number("fv", 5))
          .setBlockSize(number("block", 4096))
          .setBlockRestartInterval(number("restart", 16))
          .setIndexBlockRestartInterval(number("indexrestart", 1))
          .setMetadataBlockSize(number("metablock", 4096))
          .setEnableIndexCompression(number("indexcompression", 1) != 0)
          .setPartitionFilters(flag("partitionfilters"))
          .setChecksumType(ChecksumType.valueOf("k" + word("checksum", "CRC32c")))
          .setIndexType(IndexType.valueOf("k" + word("index", "BinarySearch")));
      if (flag("datahash")) {
        t.setDataBlockIndexType(DataBlockIndexType.kDataBlockBinaryAndHash);
      }
      if (flag("noshortening")) {
        t.setIndexShortening(IndexShorteningMode.kNoShortening);
      }
      if (flag("nofilter")) {
        t.setFilterPolicy(null);
      }
      return t;
    }

    private ColumnFamilyOptions family() {
      CompressionOptions dict = new CompressionOptions()
          .setMaxDictBytes(number("dict", 0))
          .setZStdMaxTrainBytes(number("train", 0));
      dict.setEnabled(true);
      CompressionOptions bottom = new CompressionOptions()
          .setMaxDictBytes(number("dict", 0))
          .setZStdMaxTrainBytes(number("train", 0));
      bottom.setEnabled(true);
      ColumnFamilyOptions o = flussFamily(word("codec", "fluss"))
          .setTargetFileSizeBase(number("filesize", 64 << 20))
          .setMaxBytesForLevelBase(number("levelbase", 256 << 20))
          .setDisableAutoCompactions(number("auto", 0) == 0)
          .setCompressionOptions(dict)
          .setBottommostCompressionOptions(bottom)
          .setTableFormatConfig(table());
      if (flag("merge")) {
        o.setMergeOperatorName("stringappend");
      }
      if (word("index", "").equals("HashSearch")) {
        o.useFixedLengthPrefixExtractor(4);
      }
      return o;
    }

    private Db open(String dir) throws RocksDBException {
      return new Db(dir, false, flussDb(), family());
    }

    private void finish(Db d, String dir, String out) throws Exception {
      d.flush();
      dump(d, out);
      d.checkpoint(dir);
    }

    /**
     * Three generations: rows, an ingested table, then overwrites and deletes of three kinds. levels=0 leaves all in
     * level 0; 1 compacts the first generation; 2 compacts all but the last flush.
     */
    void make(String dir, String out) throws Exception {
      String work = dir + ".work";
      remove(Path.of(dir));
      remove(Path.of(work));
      int rows = number("rows", 20_000);
      Random random = new Random(number("seed", 1));
      try (Db d = open(work); WriteOptions wo = new WriteOptions().setDisableWAL(true)) {
        for (int i = 0; i < rows; i++) {
          d.db.put(d.cf, wo, key(i), value(random, i));
          if (i == rows / 2) {
            d.flush();
          }
        }
        d.flush();
        if (number("levels", 1) > 0) {
          d.db.compactRange(d.cf);
        }
        if (flag("ingest")) {
          ingest(d, work + ".sst", random, rows);
        }
        if (number("deletes", 1) != 0) {
          for (int i = 0; i < rows; i += 7) {
            d.db.put(d.cf, wo, key(i), value(random, -i));
          }
          d.flush();
          for (int i = 3; i < rows; i += 11) {
            d.db.delete(d.cf, wo, key(i));
          }
          for (int i = 1; i < rows; i += 49) {
            if (i % 7 != 0) {
              d.db.singleDelete(d.cf, wo, key(i));
            }
          }
          if (number("levels", 1) > 1) {
            d.flush();
            d.db.compactRange(d.cf);
          }
          if (flag("rangedel")) {
            for (int i = 0; i + 40 < rows; i += 500) {
              d.db.deleteRange(d.cf, wo, key(i + 10), key(i + 40));
              d.db.put(d.cf, wo, key(i + 20), value(random, i));
            }
          }
        }
        if (flag("merge")) {
          d.db.merge(d.cf, wo, key(5), text("merged"));
        }
        finish(d, dir, out);
      } finally {
        remove(Path.of(work));
      }
      if (flag("keeplog")) {
        writeWithLog(dir);
      }
    }

    private void ingest(Db d, String file, Random random, int rows) throws Exception {
      try (Options o = new Options(flussDb(), family()); EnvOptions e = new EnvOptions();
          SstFileWriter w = new SstFileWriter(e, o);
          IngestExternalFileOptions io = new IngestExternalFileOptions().setMoveFiles(true).setWriteGlobalSeqno(false)) {
        w.open(file);
        // The keys of "key(i)" ascend with i.
        for (int i = 0; i < rows; i += 5) {
          w.put(key(i), value(random, 2 * i));
        }
        w.finish();
        d.db.ingestExternalFile(d.cf, List.of(file), io);
      }
    }

    /** Leaves rows in a write-ahead log, as a copy of a running database has. */
    private void writeWithLog(String dir) throws Exception {
      try (Db d = open(dir)) {
        d.db.put(d.cf, text("only-in-the-log"), text("v"));
        d.db.syncWal();
      }
    }

    /**
     * Random puts, deletes and range deletes with flushes, partial compactions, ingested tables, held snapshots and
     * reopenings in between: tombstones spread over small files of many levels, several versions of a key in one file,
     * zeroed sequence numbers next to old range deletes.
     */
    void churn(String dir, String out) throws Exception {
      String work = dir + ".work";
      remove(Path.of(dir));
      remove(Path.of(work));
      Random random = new Random(number("seed", 1));
      int rows = number("rows", 3000);
      int ops = number("ops", 2_500);
      Db d = open(work);
      List<Snapshot> held = new ArrayList<>();
      try (WriteOptions wo = new WriteOptions().setDisableWAL(true)) {
        for (int i = 0; i < ops; i++) {
          int at = random.nextInt(rows);
          int dice = random.nextInt(1000);
          if (dice < 780) {
            d.db.put(d.cf, wo, key(at), value(random, i));
          } else if (dice < 900) {
            d.db.delete(d.cf, wo, key(at));
          } else if (dice < 915) {
            int span = random.nextInt(20) == 0 ? rows / 3 : rows / 60;
            d.db.deleteRange(d.cf, wo, key(at), key(at + 1 + random.nextInt(1 + span)));
          } else if (dice < 950) {
            d.flush();
          } else if (dice < 970) {
            d.flush();
            d.db.compactRange(d.cf, key(at), key(at + random.nextInt(1 + rows / 4)));
          } else if (dice < 980) {
            held.add(d.db.getSnapshot());
          } else if (dice < 990) {
            if (!held.isEmpty()) {
              d.db.releaseSnapshot(held.remove(random.nextInt(held.size())));
            }
          } else if (dice < 996) {
            ingest(d, work + i + ".sst", random, rows);
          } else if (random.nextInt(10) == 0) {
            for (Snapshot s : held) {
              d.db.releaseSnapshot(s);
            }
            held.clear();
            d.flush();
            d.close();
            d = open(work);
          }
        }
        finish(d, dir, out);
      } finally {
        held.forEach(d.db::releaseSnapshot);
        d.close();
        remove(Path.of(work));
      }
    }

    /** Keys of varying length with long common prefixes; some are prefixes of others. */
    private static byte[] key(int i) {
      String s = String.format("key-%08d", i);
      return text(i % 10 == 0 ? s + "/a-longer-tail-that-shares" : s);
    }

    /** Values from empty to several hundred bytes, some of which compress. */
    private static byte[] value(Random random, int i) {
      byte[] b = new byte[i % 97 == 0 ? 0 : 8 + random.nextInt(i % 50 == 0 ? 900 : 60)];
      random.nextBytes(b);
      for (int j = b.length / 3; j < b.length; j++) {
        b[j] = (byte) ('a' + j % 7);
      }
      return b;
    }
  }

  // ---- Timed builds and scans

  static double cpu() {
    return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime() / 1e9;
  }

  static void report(String command, String codec, long rows, long bytes, double seconds, double cpu, String more) {
    System.out.printf(
        "{\"command\":\"%s\",\"codec\":\"%s\",\"rows\":%d,\"bytes\":%d,\"seconds\":%.3f,\"rowsPerSecond\":%.0f,\"cpuSeconds\":%.2f%s}%n",
        command, codec, rows, bytes, seconds, rows / seconds, cpu, more);
  }

  static void buildByPuts(String dir, String file, String codec, boolean compact) throws Exception {
    String work = dir + ".work";
    remove(Path.of(dir));
    remove(Path.of(work));
    double cpu = cpu();
    long start = System.nanoTime();
    long[] n = new long[2];
    try (Db d = Db.writing(work, codec); WriteOptions wo = new WriteOptions().setDisableWAL(true);
        WriteBatch batch = new WriteBatch()) {
      readRecords(file, (k, v) -> {
        batch.put(d.cf, k, v);
        n[0]++;
        n[1] += k.length + v.length;
        if (batch.count() >= 500) { // as Fluss batches
          d.db.write(wo, batch);
          batch.clear();
        }
      });
      d.db.write(wo, batch);
      d.flush();
      if (compact) {
        d.db.compactRange(d.cf);
      }
      d.checkpoint(dir);
      report(compact ? "putc" : "put", codec, n[0], n[1], (System.nanoTime() - start) / 1e9, cpu() - cpu, "");
    }
    remove(Path.of(work));
  }

  static void buildByIngest(String dir, String file, String codec) throws Exception {
    String work = dir + ".work";
    String stage = dir + ".stage";
    for (String s : List.of(dir, work, stage)) {
      remove(Path.of(s));
    }
    Files.createDirectories(Path.of(stage));
    double cpu = cpu();
    long start = System.nanoTime();
    ArrayList<byte[][]> rows = new ArrayList<>(1 << 20);
    long[] bytes = {0};
    readRecords(file, (k, v) -> {
      rows.add(new byte[][] {k, v});
      bytes[0] += k.length + v.length;
    });
    rows.sort((x, y) -> Arrays.compareUnsigned(x[0], y[0]));
    double sorted = (System.nanoTime() - start) / 1e9;
    List<String> files = writeTables(stage, rows, codec);
    double written = (System.nanoTime() - start) / 1e9;
    try (Db d = Db.writing(work, codec);
        IngestExternalFileOptions io = new IngestExternalFileOptions().setMoveFiles(true)) {
      d.db.ingestExternalFile(d.cf, files, io);
      d.checkpoint(dir);
      report("sst", codec, rows.size(), bytes[0], (System.nanoTime() - start) / 1e9, cpu() - cpu,
          String.format(",\"sortedAt\":%.3f,\"writtenAt\":%.3f", sorted, written));
    }
    remove(Path.of(work));
    remove(Path.of(stage));
  }

  static List<String> writeTables(String stage, List<byte[][]> rows, String codec) throws Exception {
    List<String> files = new ArrayList<>();
    try (Options o = new Options().setCompressionType(codec(codec)).setTableFormatConfig(flussTable());
        EnvOptions e = new EnvOptions()) {
      SstFileWriter w = null;
      long raw = 0;
      for (byte[][] r : rows) {
        if (w == null) {
          w = new SstFileWriter(e, o);
          files.add(stage + "/" + files.size() + ".sst");
          w.open(files.get(files.size() - 1));
          raw = 0;
        }
        w.put(r[0], r[1]);
        raw += r[0].length + r[1].length;
        if (raw > 96 << 20) {
          w.finish();
          w.close();
          w = null;
        }
      }
      if (w != null) {
        w.finish();
        w.close();
      }
    }
    return files;
  }

  static void scan(String dir) throws Exception {
    try (Db d = Db.reading(dir); ReadOptions ro = new ReadOptions().setVerifyChecksums(true)) {
      for (int pass = 0; pass < 4; pass++) { // later passes run compiled code
        scanArrays(d, ro, pass);
        scanBuffers(d, ro, pass);
      }
    }
  }

  static void scanArrays(Db d, ReadOptions ro, int pass) throws Exception {
    double cpu = cpu();
    long start = System.nanoTime();
    long n = 0;
    long bytes = 0;
    try (RocksIterator it = d.db.newIterator(d.cf, ro)) {
      for (it.seekToFirst(); it.isValid(); it.next()) {
        bytes += it.key().length + it.value().length;
        n++;
      }
      it.status();
    }
    report("scan-arrays", "", n, bytes, (System.nanoTime() - start) / 1e9, cpu() - cpu, ",\"pass\":" + pass);
  }

  static void scanBuffers(Db d, ReadOptions ro, int pass) throws Exception {
    double cpu = cpu();
    long start = System.nanoTime();
    long n = 0;
    long bytes = 0;
    ByteBuffer k = ByteBuffer.allocateDirect(64 << 10);
    ByteBuffer v = ByteBuffer.allocateDirect(1 << 20);
    try (RocksIterator it = d.db.newIterator(d.cf, ro)) {
      for (it.seekToFirst(); it.isValid(); it.next()) {
        k.clear();
        v.clear();
        bytes += it.key(k) + it.value(v);
        n++;
      }
      it.status();
    }
    report("scan-buffers", "", n, bytes, (System.nanoTime() - start) / 1e9, cpu() - cpu, ",\"pass\":" + pass);
  }

  // ---- Small things

  static byte[] text(String s) {
    return s.getBytes(StandardCharsets.UTF_8);
  }

  static void copyFiles(Path from, Path to) throws IOException {
    Files.createDirectories(to);
    try (var files = Files.list(from)) {
      for (Path p : (Iterable<Path>) files::iterator) {
        if (Files.isRegularFile(p)) {
          Files.copy(p, to.resolve(p.getFileName()), StandardCopyOption.REPLACE_EXISTING);
        }
      }
    }
  }

  static void remove(Path dir) throws IOException {
    if (!Files.exists(dir)) {
      return;
    }
    try (var all = Files.walk(dir)) {
      for (Path p : all.sorted(Comparator.reverseOrder()).toList()) {
        Files.delete(p);
      }
    }
  }
}
