package builder

import (
	"errors"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/fluss-sluice/sluice/fluss/flussarrow"
	"github.com/fluss-sluice/sluice/fluss/row"
)

// batchEncoder makes key and value bytes of the rows of batches with one schema.
type batchEncoder struct {
	schema     *arrow.Schema
	enc        *flussarrow.Encoder
	key, value []byte
	partition  partitionCheck
	row        []row.Value // for partition, nil when the table has none
}

// batchEncoder returns an encoder for batches of that schema.
func (s *Session) batchEncoder(as *arrow.Schema) (*batchEncoder, error) {
	if e, _ := s.batches.Get().(*batchEncoder); e != nil && (e.schema == as || e.schema.Equal(as)) {
		return e, nil
	}
	enc, err := flussarrow.NewEncoder(s.load.table, s.load.schemaID, as)
	if err != nil {
		return nil, fmt.Errorf("batches do not fit table %s: %w", s.load.bc.Handle.Target, err)
	}
	e := &batchEncoder{schema: as, enc: enc, partition: newPartitionCheck(s.load)}
	if len(e.partition.columns) > 0 {
		e.row = make([]row.Value, len(s.load.table.Schema.Columns))
	}
	return e, nil
}

// WriteRecord adds every row of a batch to its bucket. A batch with a bad value is
// refused whole; at a row of another bucket or partition the rows before it have
// been added.
func (s *Session) WriteRecord(rec arrow.RecordBatch) error {
	return s.writeRecord(rec, func(bucket int) (*BucketWriter, error) {
		if w := s.writers[bucket]; w != nil {
			return w, nil
		}
		return nil, s.foreign(bucket)
	})
}

// writeRecord adds rows to the writers that route names; a nil one skips the row.
func (s *Session) writeRecord(rec arrow.RecordBatch, route func(bucket int) (*BucketWriter, error)) error {
	e, err := s.batchEncoder(rec.Schema())
	if err != nil {
		return err
	}
	defer s.batches.Put(e)
	if err := e.enc.Bind(rec); err != nil {
		return err
	}
	defer e.enc.Release()
	for i := range int(rec.NumRows()) {
		w, err := e.route(i, route)
		if err == nil && w != nil {
			if e.value, err = e.enc.AppendValue(e.value[:0], i); err == nil {
				err = w.add(e.key, e.value)
			}
		}
		if _, said := errors.AsType[*flussarrow.RowError](err); err != nil && !said {
			err = fmt.Errorf("row %d of the batch: %w", i, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// route fills key and finds the writer of row i.
func (e *batchEncoder) route(i int, route func(bucket int) (*BucketWriter, error)) (*BucketWriter, error) {
	if e.row != nil {
		if err := e.enc.Row(i, e.row); err != nil {
			return nil, err
		}
		if err := e.partition.check(e.row); err != nil {
			return nil, err
		}
	}
	var bucket int
	var err error
	if e.key, bucket, err = e.enc.AppendKeyBucket(e.key[:0], i); err != nil {
		return nil, err
	}
	return route(bucket)
}
