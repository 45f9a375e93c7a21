package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/fluss-sluice/sluice/fluss/key"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// Table reads and writes the rows of one primary-key table, as rows of the schema that
// was the newest when it was opened. It routes each row to its partition and bucket,
// and reads rows written under any schema, matching columns by id. It is safe for
// concurrent use.
type Table struct {
	c    *Client
	info *TableInfo

	mu         sync.Mutex // of all below
	keys       *key.Encoder
	partitions *key.Partitioner
	rows       *row.Encoder
	format     row.Format
	readers    map[int16]*reader
	physical   map[string]Physical // by partition
}

// reader reads rows of one schema as rows of the table's.
type reader struct {
	decoder *row.Decoder
	columns int
	from    []int // column of the row for each of the table's, -1 for none
}

// OpenTable describes a table and prepares to read and write its rows.
func (c *Client) OpenTable(ctx context.Context, path TablePath) (*Table, error) {
	info, err := c.TableInfo(ctx, path)
	if err != nil {
		return nil, err
	}
	if len(info.Table.Schema.PrimaryKey) == 0 {
		return nil, fmt.Errorf("table %s: %w", path, ErrLogTable)
	}
	t := &Table{c: c, info: info, partitions: key.NewPartitioner(info.Table), readers: map[int16]*reader{}, physical: map[string]Physical{}}
	if t.keys, err = key.New(info.Table); err != nil {
		return nil, fmt.Errorf("table %s: %w", path, err)
	}
	if t.format, err = row.ParseFormat(info.Table.KVFormat()); err != nil {
		return nil, fmt.Errorf("table %s: %w", path, err)
	}
	if t.rows, err = row.ForSchema(info.Table.Schema, t.format); err != nil {
		return nil, fmt.Errorf("table %s: %w", path, err)
	}
	return t, nil
}

// Info describes the table as it was when it was opened.
func (t *Table) Info() *TableInfo { return t.info }

// place is where a row belongs.
type place struct {
	partition string
	bucket    int32
	key       []byte
}

func (t *Table) place(r []row.Value) (place, error) {
	if len(r) != len(t.info.Table.Schema.Columns) {
		return place{}, fmt.Errorf("table %s: a row of %d columns, and the schema has %d", t.info.Path, len(r), len(t.info.Table.Schema.Columns))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	partition, err := t.partitions.Name(r)
	if err != nil {
		return place{}, err
	}
	bucket, err := t.keys.Bucket(r)
	if err != nil {
		return place{}, err
	}
	k, err := t.keys.AppendKey(nil, r)
	return place{partition, int32(bucket), k}, err
}

// Partition resolves a partition of the table, "" for an unpartitioned one, and
// remembers it: rows of a partition that is dropped and made anew are refused with
// CodePartitionNotExist until the table is opened again.
func (t *Table) Partition(ctx context.Context, name string) (Physical, error) {
	t.mu.Lock()
	p, ok := t.physical[name]
	t.mu.Unlock()
	if ok {
		return p, nil
	}
	p, err := t.c.Resolve(ctx, t.info.Path, name)
	if err != nil {
		return Physical{}, err
	}
	if p.TableID != t.info.ID {
		return Physical{}, missing(CodeTableNotExist, fmt.Sprintf("%s (id %d)", t.info.Path, t.info.ID))
	}
	t.mu.Lock()
	t.physical[name] = p
	t.mu.Unlock()
	return p, nil
}

// Get reads the row with the primary key of k, a whole row of which only the columns
// of the primary and partition key are looked at. It returns nil when there is none.
func (t *Table) Get(ctx context.Context, k []row.Value) ([]row.Value, error) {
	at, err := t.place(k)
	if err != nil {
		return nil, err
	}
	p, err := t.Partition(ctx, at.partition)
	if err != nil {
		return nil, err
	}
	values, err := t.c.Lookup(ctx, p, at.bucket, [][]byte{at.key})
	if err != nil || values[0] == nil {
		return nil, err
	}
	return t.Decode(ctx, values[0])
}

// Upsert writes whole rows and waits until every replica in sync has them. Rows of
// different buckets may be written although an error is returned; see PutKV.
func (t *Table) Upsert(ctx context.Context, rows ...[]row.Value) error {
	return t.write(ctx, rows, func(r []row.Value) ([]byte, error) { return t.rows.Append(nil, r) })
}

// Delete removes the rows with the primary keys of some rows; see the warning at
// PutKV.
func (t *Table) Delete(ctx context.Context, rows ...[]row.Value) error {
	return t.write(ctx, rows, func([]row.Value) ([]byte, error) { return nil, nil })
}

type target struct {
	partition string
	bucket    int32
}

func (t *Table) write(ctx context.Context, rows [][]row.Value, encode func([]row.Value) ([]byte, error)) error {
	batches := map[target][]Put{}
	var order []target
	for i, r := range rows {
		at, err := t.place(r)
		if err != nil {
			return fmt.Errorf("row %d: %w", i, err)
		}
		body, err := encode(r)
		if err != nil {
			return fmt.Errorf("row %d: %w", i, err)
		}
		to := target{at.partition, at.bucket}
		if batches[to] == nil {
			order = append(order, to)
		}
		batches[to] = append(batches[to], Put{Key: at.key, Row: body})
	}
	for _, to := range order {
		p, err := t.Partition(ctx, to.partition)
		if err != nil {
			return err
		}
		if err := t.c.PutKV(ctx, p, to.bucket, t.info.SchemaID, batches[to]); err != nil {
			return err
		}
	}
	return nil
}

// Scan reads up to limit rows of one bucket, in the order of their keys.
func (t *Table) Scan(ctx context.Context, partition string, bucket, limit int32) ([][]row.Value, error) {
	p, err := t.Partition(ctx, partition)
	if err != nil {
		return nil, err
	}
	values, err := t.c.LimitScan(ctx, p, bucket, limit)
	if err != nil {
		return nil, err
	}
	rows := make([][]row.Value, len(values))
	for i, v := range values {
		if rows[i], err = t.Decode(ctx, v); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// Decode reads a stored value as a row of the table's schema. Columns that the value's
// own schema lacks are NULL; those that only it has are left out. The row aliases
// value.
func (t *Table) Decode(ctx context.Context, value []byte) ([]row.Value, error) {
	id, body, err := row.SplitKV(value)
	if err != nil {
		return nil, err
	}
	r, err := t.reader(ctx, id)
	if err != nil {
		return nil, err
	}
	in := make([]row.Value, r.columns)
	if err := r.decoder.Decode(body, in); err != nil {
		return nil, fmt.Errorf("row of schema %d of %s: %w", id, t.info.Path, err)
	}
	out := make([]row.Value, len(r.from))
	for i, from := range r.from {
		if from >= 0 {
			out[i] = in[from]
		}
	}
	return out, nil
}

func (t *Table) reader(ctx context.Context, id int16) (*reader, error) {
	t.mu.Lock()
	r := t.readers[id]
	t.mu.Unlock()
	if r != nil {
		return r, nil
	}
	written := t.info.Table.Schema
	if int32(id) != t.info.SchemaID {
		var err error
		if _, written, err = t.c.Schema(ctx, t.info.Path, int32(id)); err != nil {
			return nil, err
		}
	}
	r, err := newReader(written, t.info.Table.Schema, t.format)
	if err != nil {
		return nil, fmt.Errorf("schema %d of %s: %w", id, t.info.Path, err)
	}
	t.mu.Lock()
	t.readers[id] = r
	t.mu.Unlock()
	return r, nil
}

var errType = errors.New("the column's type has changed")

func newReader(written, wanted *schema.Schema, format row.Format) (*reader, error) {
	decoder, err := row.DecoderForSchema(written, format)
	if err != nil {
		return nil, err
	}
	r := &reader{decoder: decoder, columns: len(written.Columns)}
	for _, want := range wanted.Columns {
		from := slices.IndexFunc(written.Columns, func(c schema.Column) bool { return c.ID == want.ID })
		if from >= 0 && !schema.Compatible(written.Columns[from].Type, want.Type) {
			return nil, fmt.Errorf("column %q: %w: written as %s, read as %s", want.Name, errType, written.Columns[from].Type, want.Type)
		}
		r.from = append(r.from, from)
	}
	return r, nil
}
