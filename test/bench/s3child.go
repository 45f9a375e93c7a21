package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager"
	"github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager/types"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/fluss/flussarrow"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/fluss/snapshot"
	"github.com/fluss-sluice/sluice/internal/extsort"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/internal/objstore/s3"
	"github.com/fluss-sluice/sluice/internal/rocks"
)

// Keys of what is read and scanned.
const (
	readKey     = "read/object"
	metadataKey = "snap/_METADATA"
	snapshotDir = "snap/"
)

// objects is a store that is closed.
type objects interface {
	objstore.Store
	io.Closer
}

// storeChild runs a contender that moves objects.
func storeChild(name string, args []string) error {
	var p place
	if err := json.Unmarshal([]byte(os.Getenv(storeEnv)), &p); err != nil {
		return fmt.Errorf("%s: %w", storeEnv, err)
	}
	ctx := context.Background()
	switch {
	case name == "child-put" && len(args) == 1:
		return p.put(ctx, name, args[0])
	case name == "child-put-sdk" && len(args) == 2:
		return p.putSDK(ctx, name, args[0], args[1])
	case name == "child-fill" && len(args) == 1:
		return p.fill(args[0])
	case name == "child-get":
		return p.get(ctx, name)
	case name == "child-get-sdk":
		return p.getSDK(ctx, name)
	case name == "child-scan-kv":
		return p.scan(ctx, name)
	}
	return fmt.Errorf("unknown contender %s %v", name, args)
}

func (p place) keys() aws.CredentialsProvider {
	return credentials.NewStaticCredentialsProvider(p.AccessKey, p.SecretKey, "")
}

func (p place) s3() (*s3.Store, error) {
	return s3.Open(s3.Config{Bucket: p.Bucket, Region: p.Region, Endpoint: p.Endpoint, PathStyle: true, Credentials: p.keys(), Unordered: true})
}

// sdk is the SDK's client as it comes.
func (p place) sdk() *awss3.Client {
	return awss3.New(awss3.Options{Region: p.Region, BaseEndpoint: &p.Endpoint, UsePathStyle: true, Credentials: p.keys()})
}

// upload measures moving a file to a new object, which is deleted afterwards.
func (p place) upload(ctx context.Context, name, input string, move func(key string, f *os.File) error) error {
	f, err := os.Open(input)
	if err != nil {
		return err
	}
	defer f.Close()
	key := "put/" + rand.Text()
	if err := timed(name, func() (int64, error) { return uploadSize, move(key, f) }); err != nil {
		return err
	}
	_, err = p.sdk().DeleteObject(ctx, &awss3.DeleteObjectInput{Bucket: &p.Bucket, Key: &key})
	return err
}

func (p place) put(ctx context.Context, name, input string) error {
	store, err := p.s3()
	if err != nil {
		return err
	}
	defer store.Close()
	return p.upload(ctx, name, input, func(key string, f *os.File) error { return putPart(ctx, store, key, f, uploadSize) })
}

// putSDK uploads as a user of the SDK would; parts, their number at once and, when
// empty, the checksum are its own choice.
func (p place) putSDK(ctx context.Context, name, input, checksum string) error {
	manager := transfermanager.New(p.sdk(), func(o *transfermanager.Options) { o.ChecksumAlgorithm = types.ChecksumAlgorithm(checksum) })
	return p.upload(ctx, name, input, func(key string, f *os.File) error {
		_, err := manager.UploadObject(ctx, &transfermanager.UploadObjectInput{Bucket: &p.Bucket, Key: &key, Body: f})
		return err
	})
}

func putPart(ctx context.Context, store objstore.Writer, key string, body io.Reader, size int64) error {
	_, err := store.Put(ctx, key, io.LimitReader(body, size), objstore.PutOptions{Size: size, HasSize: true})
	return err
}

// passes measures reading the object, three times.
func passes(name string, open func() (io.Reader, func() error, error)) error {
	for range 3 {
		err := timed(name, func() (int64, error) {
			body, done, err := open()
			if err != nil {
				return 0, err
			}
			n, err := io.Copy(io.Discard, struct{ io.Reader }{body}) // no sendfile, no splice
			if err == nil && n != readSize {
				err = fmt.Errorf("%d bytes", n)
			}
			return n, errors.Join(err, done())
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (p place) get(ctx context.Context, name string) error {
	store, err := p.open()
	if err != nil {
		return err
	}
	defer store.Close()
	return passes(name, func() (io.Reader, func() error, error) {
		body, _, err := store.Get(ctx, readKey, 0, -1)
		if err != nil {
			return nil, nil, err
		}
		return body, body.Close, nil
	})
}

func (p place) getSDK(ctx context.Context, name string) error {
	manager := transfermanager.New(p.sdk(), func(o *transfermanager.Options) { o.GetObjectType = types.GetObjectRanges })
	return passes(name, func() (io.Reader, func() error, error) {
		out, err := manager.GetObject(ctx, &transfermanager.GetObjectInput{Bucket: &p.Bucket, Key: aws.String(readKey)})
		if err != nil {
			return nil, nil, err
		}
		return out.Body, func() error { return nil }, nil
	})
}

// kvTable has 16-byte keys and payloads of 80 bytes.
func kvTable() (*schema.Table, error) {
	key := func(name string) schema.Column {
		return schema.Column{Name: name, Type: schema.Type{Kind: schema.BigInt}}
	}
	s, err := schema.New([]schema.Column{key("a"), key("b"), {Name: "payload", Type: schema.Type{Kind: schema.Bytes, Nullable: true}}}, []string{"a", "b"})
	return &schema.Table{Schema: s, BucketCount: 1}, err
}

// putSnapshot builds a KV snapshot and puts its files and their list into a store.
func putSnapshot(ctx context.Context, store objstore.Writer, work string, rows int) error {
	dir, err := os.MkdirTemp(work, "kv-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	files, err := buildSnapshot(ctx, dir, rows)
	if err != nil {
		return err
	}
	m := &snapshot.Metadata{Location: "bench:/snap"}
	for _, file := range files {
		f, err := os.Open(filepath.Join(dir, file.Name))
		if err != nil {
			return err
		}
		err = putPart(ctx, store, snapshotDir+file.Name, f, file.Size)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		m.Private = append(m.Private, snapshot.File{Path: snapshotDir + file.Name, Size: file.Size, LocalPath: file.Name})
	}
	list, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_, err = store.Put(ctx, metadataKey, bytes.NewReader(list), objstore.PutOptions{})
	return err
}

func buildSnapshot(ctx context.Context, dir string, rows int) ([]rocks.File, error) {
	table, err := kvTable()
	if err != nil {
		return nil, err
	}
	runs, err := extsort.New(extsort.Config{Dir: filepath.Dir(dir)})
	if err != nil {
		return nil, err
	}
	defer runs.Discard()
	const batch = 1 << 14
	for i := 0; i < rows; i += batch {
		if err := addRows(table, i, min(i+batch, rows), runs.Add); err != nil {
			return nil, err
		}
	}
	w, err := rocks.NewWriter(dir, rocks.WriterOptions{})
	if err != nil {
		return nil, err
	}
	if _, err := runs.Merge(ctx, w.Add); err != nil {
		return nil, errors.Join(err, w.Abort())
	}
	res, err := w.Finish()
	return res.Files, err
}

// addRows encodes rows from..to-1.
func addRows(table *schema.Table, from, to int, add func(k, v []byte) error) error {
	as, err := flussarrow.ArrowSchema(table.Schema)
	if err != nil {
		return err
	}
	enc, err := flussarrow.NewEncoder(table, 1, as)
	if err != nil {
		return err
	}
	r := batchOf(as, uint64(from), uint64(to))
	defer r.Release()
	if err := enc.Bind(r); err != nil {
		return err
	}
	defer enc.Release()
	for i := range int(r.NumRows()) {
		k, _, err := enc.AppendKeyBucket(nil, i)
		if err != nil {
			return err
		}
		v, err := enc.AppendValue(nil, i)
		if err != nil {
			return err
		}
		if err := add(k, v); err != nil {
			return err
		}
	}
	return nil
}

func batchOf(as *arrow.Schema, from, to uint64) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, as)
	defer b.Release()
	payload := make([]byte, 80)
	for i := from; i < to; i++ {
		b.Field(0).(*array.Int64Builder).Append(int64(mix(i)))
		b.Field(1).(*array.Int64Builder).Append(int64(i))
		for x, j := i*31, 0; j < 40; j += 8 { // half noise, half zeros
			x = mix(x)
			binary.LittleEndian.PutUint64(payload[j:], x)
		}
		b.Field(2).(*array.BinaryBuilder).Append(payload)
	}
	return b.NewRecordBatch()
}

// scan reads all rows of the snapshot, three times.
func (p place) scan(ctx context.Context, name string) error {
	store, err := p.open()
	if err != nil {
		return err
	}
	defer store.Close()
	src, err := scanSource(ctx, store)
	if err != nil {
		return err
	}
	for range 3 {
		err := timed(name, func() (rows int64, err error) {
			scan, err := builder.NewScan(ctx, src, builder.ScanOptions{})
			if err != nil {
				return 0, err
			}
			defer scan.Close()
			for _, err := range scan.Rows() {
				if err != nil {
					return rows, err
				}
				rows++
			}
			return rows, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func scanSource(ctx context.Context, store objstore.Reader) (builder.ScanSource, error) {
	body, _, err := store.Get(ctx, metadataKey, 0, -1)
	if err != nil {
		return builder.ScanSource{}, err
	}
	defer body.Close()
	m := &snapshot.Metadata{}
	if err := json.NewDecoder(body).Decode(m); err != nil {
		return builder.ScanSource{}, err
	}
	table, err := kvTable()
	return builder.ScanSource{
		Objects: store, Key: func(uri string) (string, error) { return uri, nil },
		Table: table, SchemaID: 1, Schemas: map[int32]*schema.Schema{1: table.Schema}, Buckets: []*snapshot.Metadata{m},
	}, err
}

// writeNoise writes a file that does not compress.
func writeNoise(path string, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriterSize(f, 1<<20)
	var b [8]byte
	for i := range uint64(size / 8) {
		binary.LittleEndian.PutUint64(b[:], mix(i))
		if _, err := w.Write(b[:]); err != nil {
			return err
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Close()
}
