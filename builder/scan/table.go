package scan

import (
	"context"
	"errors"
	"fmt"
	"sync"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/fluss/key"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// Table reads the rows of a primary-key table, or of one partition, as they are now. It
// is safe for concurrent use. Rows that were written under a newer schema than the one
// it was opened with are read all the same, with the columns that Schema has.
type Table struct {
	r      *Reader
	target v1.Target
	schema *schema.Schema

	mu         sync.Mutex // of all below
	table      *schema.Table
	keys       *key.Encoder
	partitions *key.Partitioner
	remap      *remapper
}

// OpenTable prepares to read the rows of a table, or of the one partition that t names.
// columns are those of its rows; none means all.
func (r *Reader) OpenTable(ctx context.Context, t v1.Target, columns ...string) (*Table, error) {
	out, err := r.openTable(ctx, t, columns)
	if err != nil {
		return nil, fmt.Errorf("table %s: %w", t, err)
	}
	return out, nil
}

func (r *Reader) openTable(ctx context.Context, t v1.Target, columns []string) (*Table, error) {
	table, err := r.Service.Table(ctx, t.Database, t.Table)
	if err != nil {
		return nil, err
	}
	src, err := sourceOf(table, nil)
	if err != nil {
		return nil, err
	}
	if len(src.Table.Schema.PrimaryKey) == 0 {
		return nil, badRequest("it has no primary key")
	}
	if t.Partition != "" && len(src.Table.PartitionKey) == 0 {
		return nil, badRequest("it is not partitioned")
	}
	out := &Table{r: r, target: t, table: src.Table, partitions: key.NewPartitioner(src.Table)}
	if out.keys, err = key.New(src.Table); err != nil {
		return nil, err
	}
	if out.remap, err = newRemapper(src, columns); err != nil {
		return nil, err
	}
	out.schema = out.remap.result
	return out, nil
}

// Schema describes the rows: the selected columns.
func (t *Table) Schema() *schema.Schema { return t.schema }

// Key describes the values of a key: the columns of the primary key, in its order.
func (t *Table) Key() []schema.Column {
	cols := make([]schema.Column, 0, len(t.table.Schema.PrimaryKey))
	for _, name := range t.table.Schema.PrimaryKey {
		cols = append(cols, t.table.Schema.Columns[t.table.Schema.Index(name)])
	}
	return cols
}

// Buckets is the number of buckets of the table or of each partition.
func (t *Table) Buckets() int { return t.table.BucketCount }

// keyPlace is where a key belongs.
type keyPlace struct {
	partition string
	bucket    int
}

// place finds where a key belongs, and encodes it.
func (t *Table) place(k []row.Value) (keyPlace, []byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.table.Schema
	if len(k) != len(s.PrimaryKey) {
		return keyPlace{}, nil, badRequest("a key of %d values: the primary key is %v", len(k), s.PrimaryKey)
	}
	whole := make([]row.Value, len(s.Columns))
	for i, name := range s.PrimaryKey {
		whole[s.Index(name)] = k[i]
	}
	at := keyPlace{partition: t.target.Partition}
	if len(t.table.PartitionKey) > 0 {
		name, err := t.partitions.Name(whole)
		if err != nil {
			return at, nil, badRequest("%v", err)
		}
		if t.target.Partition != "" && t.target.Partition != name {
			return at, nil, badRequest("a key of partition %s, and partition %s is read", name, t.target.Partition)
		}
		at.partition = name
	}
	var err error
	if at.bucket, err = t.keys.Bucket(whole); err != nil {
		return at, nil, badRequest("%v", err)
	}
	encoded, err := t.keys.AppendKey(nil, whole)
	if err != nil {
		return at, nil, badRequest("%v", err)
	}
	return at, encoded, nil
}

// Lookup reads rows by their keys, each the values of the primary key in its order. The
// result has the keys' order; nil is a key that is not there, nor its partition.
func (t *Table) Lookup(ctx context.Context, keys ...[]row.Value) ([][]row.Value, error) {
	out, err := t.lookup(ctx, keys)
	if err != nil {
		return nil, fmt.Errorf("look up in %s: %w", t.target, err)
	}
	return out, nil
}

// group is the keys of one place.
type group struct {
	keys [][]byte
	at   []int // their positions
}

func (t *Table) lookup(ctx context.Context, keys [][]row.Value) ([][]row.Value, error) {
	groups := map[keyPlace]*group{}
	for i, k := range keys {
		at, encoded, err := t.place(k)
		if err != nil {
			return nil, fmt.Errorf("key %d: %w", i, err)
		}
		g := groups[at]
		if g == nil {
			g = &group{}
			groups[at] = g
		}
		g.keys, g.at = append(g.keys, encoded), append(g.at, i)
	}
	out := make([][]row.Value, len(keys))
	for at, g := range groups {
		for len(g.keys) > 0 {
			n := min(len(g.keys), v1.MaxRows)
			if err := t.lookupAt(ctx, at, g.keys[:n], g.at[:n], out); err != nil {
				return nil, err
			}
			g.keys, g.at = g.keys[n:], g.at[n:]
		}
	}
	return out, nil
}

func (t *Table) lookupAt(ctx context.Context, at keyPlace, keys [][]byte, positions []int, out [][]row.Value) error {
	target := t.target
	target.Partition = at.partition
	got, err := t.r.Service.Lookup(ctx, target, v1.LookupRequest{BucketID: at.bucket, Keys: keys})
	if codeOf(err) == v1.CodeNotFound && t.target.Partition == "" && at.partition != "" {
		return nil // what has no partition has no row
	}
	if err != nil {
		return err
	}
	if len(got.Values) != len(keys) {
		return fmt.Errorf("bucket %d answered with %d values for %d keys", at.bucket, len(got.Values), len(keys))
	}
	for i, v := range got.Values {
		if v == nil {
			continue
		}
		if out[positions[i]], err = t.decode(ctx, v); err != nil {
			return err
		}
	}
	return nil
}

// LimitScan reads up to limit rows, at most v1.MaxRows of each bucket, bucket by bucket
// in the order of their keys. No bucket named means all. A partitioned table must have
// been opened with a partition.
func (t *Table) LimitScan(ctx context.Context, limit int, buckets ...int) ([][]row.Value, error) {
	rows, err := t.limitScan(ctx, limit, buckets)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", t.target, err)
	}
	return rows, nil
}

func (t *Table) limitScan(ctx context.Context, limit int, buckets []int) (rows [][]row.Value, err error) {
	if limit <= 0 {
		return nil, badRequest("limit %d is none", limit)
	}
	if len(buckets) == 0 {
		for b := range t.table.BucketCount {
			buckets = append(buckets, b)
		}
	}
	for _, b := range buckets {
		if b < 0 || b >= t.table.BucketCount {
			return nil, badRequest("there is no bucket %d: the table has buckets 0 to %d", b, t.table.BucketCount-1)
		}
		left := limit - len(rows)
		if left == 0 {
			break
		}
		got, err := t.r.Service.LimitScan(ctx, t.target, b, min(left, v1.MaxRows))
		if err != nil {
			return nil, fmt.Errorf("bucket %d: %w", b, err)
		}
		for _, v := range got.Values {
			r, err := t.decode(ctx, v)
			if err != nil {
				return nil, fmt.Errorf("bucket %d: %w", b, err)
			}
			rows = append(rows, r)
		}
	}
	return rows, nil
}

// decode reads a stored value. A schema that is not known yet is asked for.
func (t *Table) decode(ctx context.Context, value []byte) ([]row.Value, error) {
	r, err := t.remapped(value)
	if !errors.Is(err, errUnknownSchema) {
		return r, err
	}
	table, err := t.r.Service.Table(ctx, t.target.Database, t.target.Table)
	if err != nil {
		return nil, err
	}
	src, err := sourceOf(table, nil)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	for id, s := range src.Schemas {
		t.remap.schemas[id] = s
	}
	t.mu.Unlock()
	return t.remapped(value)
}

func (t *Table) remapped(value []byte) ([]row.Value, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, err := t.remap.row(value)
	return row.CloneAll(r), err
}
