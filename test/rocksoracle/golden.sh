#!/bin/sh
# Makes internal/rocks/testdata/golden, the small databases that `make test` reads without any tool. Not run by the
# build: run it by hand when a format is added, and review. usage: golden.sh [OUTDIR]
# Needs build.sh's tools, Debian's rocksdb-tools (7.8) and node with npm (for RocksDB 9.7.4: prebuilt in
# @nxtedition/rocksdb 12.2.12, Apache-2.0 or GPL-2.0 as RocksDB; binding MIT).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/../../internal/rocks/testdata/golden}
oracle=$("$here/build.sh")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
out=$(cd "$out" && pwd)

# Only what a snapshot needs: tables, MANIFEST, CURRENT.
keep() { # from name
  rm -rf "$out/$2"
  mkdir -p "$out/$2"
  cp "$1"/*.sst "$1"/MANIFEST-* "$1"/CURRENT "$out/$2/"
}

# --- FRocksDB 6.20.3. All hold the same rows: the words after "rows" only change how they are stored.
same="rows=300 deletes=1 ingest=1 rangedel=1"
grep -v '^#' >"$work/list" <<'LIST'
fv0-snappy fv=0 codec=snappy levels=2
fv0-zstd fv=0 codec=zstd levels=2
fv1-zlib fv=1 codec=zlib checksum=xxHash levels=2
fv1-lz4 fv=1 codec=lz4 checksum=xxHash64 levels=1
fv2-zlib-partitioned fv=2 codec=zlib checksum=xxHash index=TwoLevelIndexSearch metablock=128 block=512 levels=2
fv3-none-first-key fv=3 codec=none index=BinarySearchWithFirstKey noshortening=1 restart=1 block=512 levels=2
fv4-lz4hc-first-key fv=4 codec=lz4hc checksum=xxHash64 index=BinarySearchWithFirstKey indexrestart=8 block=512 levels=2
fv5-lz4-partitioned fv=5 codec=lz4 index=TwoLevelIndexSearch partitionfilters=1 metablock=128 indexrestart=4 block=512 levels=2
fv5-zstd-trained-dictionary fv=5 codec=zstd dict=2048 train=32768 block=512 levels=2
fv5-zstd-raw-dictionary fv=5 codec=zstd dict=2048 block=512 levels=2
fv5-lz4-dictionary fv=5 codec=lz4 dict=2048 block=512 levels=2
fv5-zlib-dictionary fv=5 codec=zlib dict=2048 block=512 levels=2
fv5-fluss-defaults codec=fluss levels=0
fv5-no-checksum-data-hash fv=5 codec=snappy checksum=NoChecksum datahash=1 levels=2
LIST
while read -r name words; do
  echo "make $work/$name $work/$name.rows $same $words"
done <"$work/list" >"$work/commands"
echo "churn $work/churned $work/churned.rows seed=11 rows=300 ops=900 filesize=2048 levelbase=8192 block=256 auto=1 codec=lz4" >>"$work/commands"
java -cp "$oracle/classes:$oracle/lib/*" Oracle batch "$work/commands" >/dev/null
while read -r name words; do
  keep "$work/$name" "$name"
  cmp "$work/$name.rows" "$work/fv0-snappy.rows"
done <"$work/list"
cp "$work/fv0-snappy.rows" "$out/common.rows"
keep "$work/churned" churned
cp "$work/churned.rows" "$out/churned.rows"

# --- Both newer ones are loaded with those rows over older values of the same keys.
hex() { # file of records, value or empty: ldb's input
  node -e '
    const b = require("fs").readFileSync(process.argv[1])
    for (let p = 0; p < b.length;) {
      const k = b.readUInt16LE(p), v = b.readUInt32LE(p + 2), s = p + 6
      const value = process.argv[2] ? Buffer.from(process.argv[2]) : b.subarray(s + k, s + k + v)
      console.log("0x" + b.subarray(s, s + k).toString("hex") + " ==> 0x" + value.toString("hex"))
      p = s + k + v
    }' "$1" "$2"
}

# --- RocksDB 7.8: XXH3. ldb takes table options from the OPTIONS file.
db=$work/78
ldb --db="$db" --create_if_missing put gone row >/dev/null
sed -i -e 's/^  format_version=.*/  format_version=5/' -e 's/^  checksum=.*/  checksum=kXXH3/' \
  -e 's/^  index_type=.*/  index_type=kTwoLevelIndexSearch/' -e 's/^  metadata_block_size=.*/  metadata_block_size=128/' \
  -e 's/^  block_size=.*/  block_size=512/' -e 's/^  compression=.*/  compression=kLZ4Compression/' "$db"/OPTIONS-*
hex "$out/common.rows" old | ldb --db="$db" --hex load --disable_wal >/dev/null
ldb --db="$db" compact >/dev/null
hex "$out/common.rows" '' | ldb --db="$db" --hex load --disable_wal >/dev/null
ldb --db="$db" deleterange gone gone0 >/dev/null
ldb --db="$db" checkpoint --checkpoint_dir="$work/78c" >/dev/null
keep "$work/78c" fv5-xxh3-by-7.8

# --- RocksDB 9.7.4: format version 6. Reopening flushes.
mkdir "$work/npm"
cd "$work/npm"
npm init -y >/dev/null
npm install --silent @nxtedition/rocksdb@12.2.12 >/dev/null 2>&1
cat >write.js <<'JS'
const fs = require('fs')
const { RocksLevel } = require('@nxtedition/rocksdb')
const [, , dir, file] = process.argv
const o = { keyEncoding: 'buffer', valueEncoding: 'buffer', compression: true, blockSize: 512 }
const rows = []
const b = fs.readFileSync(file)
for (let p = 0; p < b.length;) {
  const k = b.readUInt16LE(p), v = b.readUInt32LE(p + 2), s = p + 6
  rows.push([b.subarray(s, s + k), b.subarray(s + k, s + k + v)])
  p = s + k + v
}
const open = async () => { const db = new RocksLevel(dir, o); await db.open(o); return db }
;(async () => {
  let db = await open()
  for (const [k] of rows) await db.put(k, Buffer.from('old'), o)
  await db.put(Buffer.from('gone'), Buffer.from('row'), o)
  await db.close()
  db = await open()
  for (const [k, v] of rows) await db.put(k, v, o)
  await db.del(Buffer.from('gone'), o)
  await db.close()
  db = await open()
  await db.close()
})()
JS
node write.js "$work/97" "$out/common.rows"
keep "$work/97" fv6-xxh3-by-9.7.4
cp "$work"/97/*.log "$out/fv6-xxh3-by-9.7.4/" # eleven bytes that hold no row

du -sk "$out"
