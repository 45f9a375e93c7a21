package tabular

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/fluss-sluice/sluice/fluss/schema"
)

// OnError says what a record that the table cannot take does.
type OnError uint8

// Fail ends the reading, Skip delivers a Reject.
const (
	Fail OnError = iota
	Skip
)

// Options tell how inputs are read. Only Table is required.
type Options struct {
	Table *schema.Table
	// Format of every input; "" is Auto.
	Format Format
	// Delimiter separates CSV cells; 0 means a comma, or a tab in *.tsv files.
	Delimiter byte
	// Null is the CSV text that stands for NULL when it is not in quotes.
	Null string
	// Partition is the one partition whose rows are taken. A row of another one is a
	// fault, or with OtherPartitions Skip passed over and counted.
	Partition       string
	OtherPartitions OnError
	// Columns name the cells of CSV files without a header line.
	Columns []string
	// Ignore names columns of the inputs that are not read.
	Ignore  []string
	OnError OnError
	// BatchRows bounds the rows of a batch of columnar inputs; 0 means 16384.
	BatchRows int
	// Parallelism is the number of parsing goroutines; 0 means GOMAXPROCS.
	Parallelism int
	Stdin       io.Reader
	// Start continues behind a position of an earlier reading of the same inputs.
	Start *Position

	chunk int // bytes of text parsed at a time, for tests
}

// Batch is what a reader delivers: consecutive records of one input.
type Batch struct {
	// Records hold the rows the table can take, in order. The consumer releases them.
	Records []arrow.RecordBatch
	// Rejects are the records left out.
	Rejects []Reject
	// Position is behind the batch.
	Position Position
	// Count is the number of records delivered, rejected and passed over.
	Count int64
	// Others is the number of rows of other partitions that were passed over.
	Others int64
}

// Release releases the batch's records.
func (b *Batch) Release() {
	for _, r := range b.Records {
		r.Release()
	}
	b.Records = nil
}

// Progress counts raw bytes, before decompression.
type Progress struct {
	Read  int64
	Total int64 // -1 when it is not known
}

// Reader reads inputs in order. Its methods are for one goroutine, except Progress.
type Reader struct {
	o      Options
	inputs []InputID
	names  map[string]int // table column by name
	ignore map[string]bool

	read  atomic.Int64
	total int64

	cancel context.CancelFunc
	done   <-chan struct{}
	queue  chan *task // in input order
	work   chan *task
	wg     sync.WaitGroup
	err    error // sticky; owned by Next
}

// task is a piece of input on its way through the pipeline: the producer makes it,
// a worker runs it, Next waits for it.
type task struct {
	run  func(w *worker) (Batch, error)
	done chan struct{} // closed when batch and err are set
	// Position behind the batch.
	position Position
	batch    Batch
	err      error
}

// Open expands the inputs and starts reading. The reader must be closed.
func Open(inputs []string, o Options) (*Reader, error) {
	ids, err := Expand(inputs)
	if err != nil {
		return nil, err
	}
	if o.Start != nil {
		if err := o.Start.matches(ids); err != nil {
			return nil, fmt.Errorf("resume: %w", err)
		}
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	r := &Reader{o: o, inputs: ids, names: map[string]int{}, ignore: map[string]bool{}}
	for i, c := range o.Table.Schema.Columns {
		r.names[c.Name] = i
	}
	for _, name := range o.Ignore {
		if i, ok := r.names[name]; ok && !o.Table.Schema.Columns[i].Type.Nullable {
			return nil, fmt.Errorf("column %q is NOT NULL and cannot be ignored", name)
		}
		r.ignore[name] = true
	}
	for _, id := range ids {
		if id.Size < 0 || r.total < 0 {
			r.total = -1
		} else {
			r.total += id.Size
		}
	}
	if err := r.start(); err != nil {
		return nil, err
	}
	return r, nil
}

func (o *Options) complete() error {
	if o.Table == nil {
		return errors.New("tabular: Options.Table is missing")
	}
	if o.BatchRows <= 0 {
		o.BatchRows = 16384
	}
	if o.Parallelism <= 0 {
		o.Parallelism = runtime.GOMAXPROCS(0)
	}
	if o.chunk <= 0 {
		o.chunk = chunkSize
	}
	return CheckDialect(o.Delimiter, o.Null)
}

func (r *Reader) start() error {
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel, r.done = cancel, ctx.Done()
	r.queue = make(chan *task, r.o.Parallelism+1)
	r.work = make(chan *task, r.o.Parallelism)
	workers := make([]*worker, r.o.Parallelism)
	for i := range workers {
		w, err := newWorker(r)
		if err != nil {
			cancel()
			return err
		}
		workers[i] = w
	}
	for _, w := range workers {
		r.wg.Go(func() {
			defer w.close()
			for t := range r.work {
				t.batch, t.err = t.run(w)
				close(t.done)
			}
		})
	}
	r.wg.Go(func() {
		defer close(r.queue)
		defer close(r.work)
		if err := r.produce(ctx); err != nil && ctx.Err() == nil {
			t := &task{err: err, done: make(chan struct{})}
			close(t.done)
			r.push(r.queue, t)
		}
	})
	return nil
}

// errStopped unwinds the producer after Close.
var errStopped = errors.New("reader closed")

func (r *Reader) push(ch chan *task, t *task) error {
	select {
	case ch <- t:
		return nil
	case <-r.done:
		return errStopped
	}
}

// submit hands a piece of input to the workers.
func (r *Reader) submit(p Position, run func(w *worker) (Batch, error)) error {
	t := &task{run: run, position: p, done: make(chan struct{})}
	if err := r.push(r.work, t); err != nil {
		return err
	}
	return r.push(r.queue, t)
}

// Next returns the next batch, or io.EOF. Faults of the inputs are *InputError.
// ctx bounds the wait.
func (r *Reader) Next(ctx context.Context) (*Batch, error) {
	if r.err != nil {
		return nil, r.err
	}
	b, err := r.next(ctx)
	if err != nil && ctx.Err() == nil {
		r.err = err
	}
	return b, err
}

func (r *Reader) next(ctx context.Context) (*Batch, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var t *task
	var ok bool
	select {
	case t, ok = <-r.queue:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if !ok {
		return nil, io.EOF
	}
	<-t.done // pieces are small: a worker is on it, or about to be
	if t.err != nil {
		return nil, t.err
	}
	t.batch.Position = t.position
	return &t.batch, nil
}

// Inputs are the files that patterns stood for.
func (r *Reader) Inputs() []InputID { return slices.Clone(r.inputs) }

// Progress may be called from any goroutine.
func (r *Reader) Progress() Progress { return Progress{Read: r.read.Load(), Total: r.total} }

// Close ends the reading and waits for its goroutines, except for one that waits for
// the other end of a pipe.
func (r *Reader) Close() error {
	r.cancel()
	for t := range r.queue {
		<-t.done
		t.batch.Release()
	}
	r.wg.Wait()
	if r.err == nil {
		r.err = errStopped
	}
	return nil
}

// produce reads the inputs one after the other.
func (r *Reader) produce(ctx context.Context) error {
	p := Position{Inputs: r.inputs}
	if s := r.o.Start; s != nil {
		p.File, p.Records, p.Offset, p.Line = s.File, s.Records, s.Offset, s.Line
		for _, id := range r.inputs[:p.File] {
			r.read.Add(max(id.Size, 0))
		}
	}
	for ; p.File < len(r.inputs); p = (Position{Inputs: r.inputs, File: p.File + 1}) {
		id := r.inputs[p.File]
		err := r.readInput(ctx, id, p)
		if err == nil {
			continue
		}
		var in *InputError
		var at *lineError
		var path *fs.PathError
		switch {
		case errors.Is(err, errStopped), errors.As(err, &in):
			return err
		case errors.As(err, &at):
			return &InputError{File: id.Name, Line: at.line, Err: at.err}
		case errors.As(err, &path) && path.Path == id.Name:
			err = path.Err
		}
		return &InputError{File: id.Name, Err: err}
	}
	return nil
}

func (r *Reader) readInput(ctx context.Context, id InputID, p Position) error {
	format := r.o.Format
	if format == "" || format == Auto {
		var err error
		if format, err = formatOf(id.Name); err != nil {
			return err
		}
	}
	switch format {
	case CSV:
		return r.readCSV(id, p)
	case JSON:
		return r.readJSON(id, p)
	case Parquet:
		return r.readParquet(ctx, id, p)
	case Arrow:
		return r.readArrow(id, p)
	}
	return fmt.Errorf("format %s cannot be read", format)
}
