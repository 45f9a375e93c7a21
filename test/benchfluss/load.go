package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/test/flussoracle"
)

// figures of one load.
type figures struct {
	loaded, kept time.Duration // until the last row is acknowledged, and until a snapshot holds all
	cpu          time.Duration // of clients and servers, until kept
}

func (b *bench) loads(ctx context.Context) error {
	ways := []struct {
		name string
		run  func(ctx context.Context) (figures, error)
	}{
		{"UpsertWriter, FULL", func(ctx context.Context) (figures, error) { return b.online(ctx, "FULL") }},
		{"UpsertWriter, WAL", func(ctx context.Context) (figures, error) { return b.online(ctx, "WAL") }},
		{"Sluice", func(ctx context.Context) (figures, error) { return b.sluice(ctx, builder.Snappy) }},
		{"Sluice, no compression", func(ctx context.Context) (figures, error) { return b.sluice(ctx, builder.None) }},
		{"Sluice, Parquet", b.sluiceParquet},
	}
	results := map[string]figures{}
	for _, w := range ways {
		f, err := w.run(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		fmt.Printf("%-22s rows in %6.2f s, in a snapshot after %6.2f s, %6.2f CPU s\n", w.name, f.loaded.Seconds(), f.kept.Seconds(), f.cpu.Seconds())
		results[w.name] = f
	}
	for _, ours := range ways[2:] {
		for _, peer := range ways[:2] {
			o, p := results[ours.name], results[peer.name]
			fmt.Printf("%s against %s: %.1f x faster to the last row, %.1f x to a snapshot, %.1f x less CPU\n", ours.name, peer.name,
				p.loaded.Seconds()/o.loaded.Seconds(), p.kept.Seconds()/o.kept.Seconds(), p.cpu.Seconds()/o.cpu.Seconds())
		}
	}
	return nil
}

// online is the Java client's way.
func (b *bench) online(ctx context.Context, image string) (figures, error) {
	table, err := b.table(ctx, "online_"+strings.ToLower(image), image, buckets)
	if err != nil {
		return figures{}, err
	}
	if err := b.settle(ctx); err != nil {
		return figures{}, err
	}
	before, start := b.servers(), time.Now()
	r, err := b.java.Load(ctx, table, b.rows, threads)
	if err == nil && r.Acknowledged != b.rows {
		err = fmt.Errorf("%d of %d rows were acknowledged", r.Acknowledged, b.rows)
	}
	if err != nil {
		return figures{}, err
	}
	if err := b.java.WaitSnapshots(ctx, table, 5*time.Minute); err != nil {
		return figures{}, err
	}
	f := figures{loaded: r.Wall, kept: time.Since(start), cpu: b.servers() - before + r.CPU}
	return f, b.java.DropTable(ctx, table)
}

// sluice is ours: begin, build with a token, commit. The commit answers when the
// cluster serves the rows from the snapshot that holds them.
func (b *bench) sluice(ctx context.Context, c builder.Compression) (figures, error) {
	return b.measure(ctx, "sluice_"+c.String(), func(table flussoracle.Table) error {
		_, err := b.load(ctx, table, b.rows, buckets, c)
		return err
	})
}

// sluiceParquet is the same by the command line from a file, which is written before the
// clock starts.
func (b *bench) sluiceParquet(ctx context.Context) (figures, error) {
	file := filepath.Join(b.dir, "rows.parquet")
	if err := writeParquet(file, b.rows); err != nil {
		return figures{}, err
	}
	defer os.Remove(file)
	return b.measure(ctx, "sluice_parquet", func(table flussoracle.Table) error {
		_, err := b.broker.CLI(ctx, "bench", "load", table.Database+"."+table.Table, file,
			"--work-dir", filepath.Join(b.dir, table.Table))
		return err
	})
}

func (b *bench) measure(ctx context.Context, name string, load func(flussoracle.Table) error) (figures, error) {
	table, err := b.table(ctx, name, "FULL", buckets)
	if err != nil {
		return figures{}, err
	}
	if err := b.settle(ctx); err != nil {
		return figures{}, err
	}
	before, start := b.servers()+self(), time.Now()
	if err := load(table); err != nil {
		return figures{}, err
	}
	took := time.Since(start)
	f := figures{loaded: took, kept: took, cpu: b.servers() + self() - before}
	if n, err := b.java.RowCount(ctx, table); err != nil || n != b.rows {
		return figures{}, fmt.Errorf("the cluster counts %d rows, %w", n, err)
	}
	return f, b.java.DropTable(ctx, table)
}

// load loads rows into a table of so many buckets.
func (b *bench) load(ctx context.Context, table flussoracle.Table, rows int64, buckets int, c builder.Compression) (*v1.Session, error) {
	bc, err := b.client.Begin(ctx, builder.BeginRequest{Target: targetOf(table), SubmissionID: "bench"})
	if err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp(b.dir, "work-")
	if err != nil {
		return nil, err
	}
	all := make([]int, buckets)
	for i := range all {
		all[i] = i
	}
	s, err := b.client.Open(ctx, bc, builder.OpenOptions{Buckets: all, WorkDir: work, Compression: c})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	for i := range rows {
		id, text, d := flussoracle.BenchRow(i)
		if err := s.Write([]row.Value{row.Int32(id), row.String(string(text[:])), row.Float64(d)}); err != nil {
			return nil, err
		}
	}
	files, err := s.Finish(ctx)
	if err != nil {
		return nil, err
	}
	return b.client.Commit(ctx, bc, files)
}

// writeParquet writes the rows of BenchRow.
func writeParquet(path string, rows int64) (err error) {
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "id", Type: arrow.PrimitiveTypes.Int32}, {Name: "s", Type: arrow.BinaryTypes.String}, {Name: "d", Type: arrow.PrimitiveTypes.Float64},
	}, nil)
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w, err := pqarrow.NewFileWriter(schema, f, parquet.NewWriterProperties(parquet.WithCompression(compress.Codecs.Snappy)), pqarrow.DefaultWriterProps())
	if err != nil {
		f.Close()
		return err
	}
	const batch = 1 << 17
	for from := int64(0); from < rows && err == nil; from += batch {
		r := array.NewRecordBuilder(memory.DefaultAllocator, schema)
		for i := from; i < min(from+batch, rows); i++ {
			id, text, d := flussoracle.BenchRow(i)
			r.Field(0).(*array.Int32Builder).Append(id)
			r.Field(1).(*array.StringBuilder).Append(string(text[:]))
			r.Field(2).(*array.Float64Builder).Append(d)
		}
		rec := r.NewRecordBatch()
		err = w.Write(rec)
		rec.Release()
		r.Release()
	}
	if closed := w.Close(); err == nil { // closes f, too
		err = closed
	}
	syscall.Sync() // or the load waits for the disk to write this file before its own
	return err
}
