package audit

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"sync"
)

// disk is a directory in memory that can fill up, fail at a step, and lose what was not
// synced when its power is cut.
type disk struct {
	mu    sync.Mutex
	names map[string]*data // what a process sees
	kept  map[string]*data // names that are durable
	steps int              // changes so far
	// fail, when not nil, is asked before every change: an error fails it, and done says
	// whether it is carried out all the same.
	fail func(step string, n int) (err error, done bool)
	room int64 // bytes that can still be written; negative = without end
}

type data struct {
	now    []byte
	synced []byte
}

func newDisk() *disk { return &disk{names: map[string]*data{}, kept: map[string]*data{}, room: -1} }

// cut is the disk as it is found after its power was cut: of what was written behind the
// last sync some bytes arrived.
func (d *disk) cut(some int) *disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	after := newDisk()
	for name, f := range d.kept {
		b := slices.Clone(f.synced)
		if n := min(len(f.now), len(b)+some); n > len(b) && bytes.HasPrefix(f.now, b) {
			b = append(b, f.now[len(b):n]...)
		}
		g := &data{now: b, synced: slices.Clone(b)}
		after.names[name], after.kept[name] = g, g
	}
	return after
}

// do carries out one change, or fails it.
func (d *disk) do(step string, change func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.steps++
	if d.fail != nil {
		if err, done := d.fail(step, d.steps); err != nil {
			if done {
				err = errors.Join(err, change())
			}
			return err
		}
	}
	return change()
}

func (d *disk) list() ([]entry, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []entry
	for name, f := range d.names {
		out = append(out, entry{name, int64(len(f.now))})
	}
	return out, nil
}

func (d *disk) open(name string) (io.ReadCloser, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.names[name]
	if f == nil {
		return nil, os.ErrNotExist
	}
	return io.NopCloser(bytes.NewReader(slices.Clone(f.now))), nil
}

func (d *disk) create(name string) (file, error) {
	h := &handle{d: d}
	return h, d.do("create", func() error {
		if h.f = d.names[name]; h.f == nil {
			h.f = &data{}
			d.names[name] = h.f
		}
		h.f.now = nil
		return nil
	})
}

func (d *disk) modify(name string) (file, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names[name] == nil {
		return nil, os.ErrNotExist
	}
	return &handle{d, d.names[name]}, nil
}

func (d *disk) remove(name string) error {
	return d.do("remove", func() error { delete(d.names, name); return nil })
}

func (d *disk) syncDir() error {
	return d.do("sync directory", func() error { d.kept = maps.Clone(d.names); return nil })
}

func (d *disk) replace(name string, b []byte) error {
	return d.do("replace", func() error {
		f := &data{now: slices.Clone(b), synced: slices.Clone(b)}
		d.names[name], d.kept[name] = f, f
		return nil
	})
}

type handle struct {
	d *disk
	f *data
}

func (h *handle) WriteAt(b []byte, off int64) (n int, err error) {
	err = h.d.do("write", func() error {
		var full error
		if h.d.room >= 0 && int64(len(b)) > h.d.room {
			b, full = b[:h.d.room], errNoSpace
		}
		if h.d.room >= 0 {
			h.d.room -= int64(len(b))
		}
		if end := off + int64(len(b)); int64(len(h.f.now)) < end {
			h.f.now = append(h.f.now, make([]byte, end-int64(len(h.f.now)))...)
		}
		n = copy(h.f.now[off:], b)
		return full
	})
	return n, err
}

func (h *handle) Truncate(size int64) error {
	return h.d.do("truncate", func() error {
		if h.d.room >= 0 {
			h.d.room += int64(len(h.f.now)) - size
		}
		h.f.now = h.f.now[:size:size]
		return nil
	})
}

func (h *handle) Sync() error {
	return h.d.do("sync", func() error { h.f.synced = slices.Clone(h.f.now); return nil })
}

func (h *handle) Close() error { return nil }
