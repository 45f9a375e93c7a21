package tabular

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// RejectFile collects rejects as JSON Lines: file, line or row, column, reason and
// the record itself.
type RejectFile struct {
	name  string
	f     *os.File
	w     *bufio.Writer
	bytes int64
	count int64
}

// RejectMark is how far a reject file reaches, for checkpoints.
type RejectMark struct {
	Bytes int64 `json:"bytes"`
	Count int64 `json:"count"`
}

// CreateRejects makes a reject file; it must not exist, so that nobody's earlier
// rejects are lost.
func CreateRejects(name string) (*RejectFile, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("reject file %s exists: move it away or name another one", name)
	}
	if err != nil {
		return nil, err
	}
	return &RejectFile{name: name, f: f, w: bufio.NewWriter(f)}, nil
}

// ResumeRejects opens a reject file again and cuts off what a checkpoint does not
// know: those records will be rejected once more.
func ResumeRejects(name string, m RejectMark) (*RejectFile, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() < m.Bytes {
		err = fmt.Errorf("reject file %s has %d bytes, the checkpoint knows of %d: restore it", name, info.Size(), m.Bytes)
	}
	if err == nil {
		err = f.Truncate(m.Bytes)
	}
	if err == nil {
		_, err = f.Seek(m.Bytes, 0)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &RejectFile{name: name, f: f, w: bufio.NewWriter(f), bytes: m.Bytes, count: m.Count}, nil
}

type rejectLine struct {
	File     string `json:"file"`
	Line     int64  `json:"line,omitempty"`
	RowGroup int64  `json:"row_group,omitempty"`
	Row      int64  `json:"row,omitempty"`
	Column   string `json:"column,omitempty"`
	Reason   string `json:"reason"`
	Record   string `json:"record"`
}

// Write appends a reject.
func (r *RejectFile) Write(x Reject) error {
	b, err := json.Marshal(rejectLine{File: x.File, Line: x.Line, RowGroup: x.Group, Row: x.Row,
		Column: x.Column, Reason: x.Err.Error(), Record: x.Record})
	if err != nil {
		return err
	}
	b = append(b, '\n')
	r.bytes += int64(len(b))
	r.count++
	_, err = r.w.Write(b)
	return err
}

// Count is the number of rejects.
func (r *RejectFile) Count() int64 { return r.count }

// Name is the file's name.
func (r *RejectFile) Name() string { return r.name }

// Sync makes the rejects durable and says how far they reach.
func (r *RejectFile) Sync() (RejectMark, error) {
	if err := errors.Join(r.w.Flush(), r.f.Sync()); err != nil {
		return RejectMark{}, fmt.Errorf("reject file: %w", err)
	}
	return RejectMark{Bytes: r.bytes, Count: r.count}, nil
}

// Close writes out what is left. A reject file without rejects is removed.
func (r *RejectFile) Close() error {
	err := errors.Join(r.w.Flush(), r.f.Close())
	if err == nil && r.count == 0 {
		return os.Remove(r.name)
	}
	return err
}
