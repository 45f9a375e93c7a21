package extsort

import (
	"context"
	"errors"
)

var errNotBuilt = errors.New("not built yet")

// Config says where and how to sort.
type Config struct {
	Dir         string // existing directory for runs
	Memory      int64  // bytes, index included
	Parallelism int    // background goroutines
	Progress    func(Progress)
}

// Progress is a snapshot of a sorter's counters.
type Progress struct {
	Phase   Phase
	Added   int64 // records added
	Runs    int   // runs on disk
	Spilled int64 // bytes written to runs
	Merged  int64 // records emitted by Merge
}

// Phase says what a sorter is doing.
type Phase string

// The phases.
const (
	PhaseAdd   Phase = "add"
	PhaseMerge Phase = "merge"
)

// Run names a sealed run.
type Run struct {
	Name    string `json:"name"`
	Size    int64  `json:"size"`
	Records int64  `json:"records"`
}

// Stats sums up a merge.
type Stats struct {
	Added   int64
	Emitted int64
	Runs    int
	Spilled int64
}

// Sorter is the sorter.
type Sorter struct{}

// New starts an empty sorter.
func New(c Config) (*Sorter, error) { return nil, errNotBuilt }

// Resume starts a sorter that holds sealed runs.
func Resume(c Config, runs []Run) (*Sorter, error) { return nil, errNotBuilt }

// Add copies a pair; the last Add of a key wins.
func (s *Sorter) Add(key, value []byte) error { return errNotBuilt }

// Seal makes everything added durable and lists the runs that hold it.
func (s *Sorter) Seal(ctx context.Context) ([]Run, error) { return nil, errNotBuilt }

// Merge emits every key once in ascending order.
func (s *Sorter) Merge(ctx context.Context, emit func(key, value []byte) error) (Stats, error) {
	return Stats{}, errNotBuilt
}

// Close removes unsealed files and gives memory back.
func (s *Sorter) Close() error { return nil }

// Discard is Close that removes sealed runs too.
func (s *Sorter) Discard() error { return nil }
