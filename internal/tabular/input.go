package tabular

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/klauspost/compress/zstd"
)

// Format is a file format.
type Format string

// The formats. Auto goes by the file's name.
const (
	Auto    Format = "auto"
	CSV     Format = "csv"
	JSON    Format = "json" // JSON Lines
	Parquet Format = "parquet"
	Arrow   Format = "arrow" // Arrow IPC, file or stream
	Table   Format = "table" // aligned text, writing only
)

// ParseFormat reads a format's name.
func ParseFormat(s string) (Format, error) {
	switch f := Format(strings.ToLower(s)); f {
	case Auto, CSV, JSON, Parquet, Arrow, Table:
		return f, nil
	case "jsonl", "ndjson":
		return JSON, nil
	case "":
		return Auto, nil
	}
	return "", fmt.Errorf("unknown format %q: want csv, json, parquet, arrow or table", s)
}

// Stdin is the name of the standard input among inputs.
const Stdin = "-"

// formatOf goes by a file's name, compression suffix left out.
func formatOf(name string) (Format, error) {
	base := strings.ToLower(filepath.Base(name))
	for _, suffix := range []string{".gz", ".gzip", ".zst", ".zstd"} {
		base = strings.TrimSuffix(base, suffix)
	}
	switch filepath.Ext(base) {
	case ".csv", ".tsv", ".txt":
		return CSV, nil
	case ".json", ".jsonl", ".ndjson":
		return JSON, nil
	case ".parquet", ".pq":
		return Parquet, nil
	case ".arrow", ".arrows", ".feather", ".ipc":
		return Arrow, nil
	}
	if name == Stdin {
		return "", errors.New("the standard input has no name to tell its format by: say which it is")
	}
	return "", errors.New("the name does not tell the format: say which it is")
}

// isTSV reports whether a name asks for tabs.
func isTSV(name string) bool { return strings.Contains(strings.ToLower(filepath.Base(name)), ".tsv") }

// InputID names one input and the version of it that was read.
type InputID struct {
	Name    string    `json:"name"`
	Size    int64     `json:"size"` // bytes, -1 for the standard input
	ModTime time.Time `json:"mod_time"`
}

// Expand lists the files that names and patterns stand for, each pattern's in
// lexical order. A pattern (*, ?, [a-z], {a,b}, **) must match something; a name
// that exists as it is written is never a pattern.
func Expand(patterns []string) ([]InputID, error) {
	if len(patterns) == 0 {
		return nil, errors.New("no input: name files, patterns, or - for the standard input")
	}
	var out []InputID
	stdin := false
	for _, p := range patterns {
		if p == Stdin {
			if stdin {
				return nil, errors.New("the standard input (-) can be read only once")
			}
			stdin = true
			out = append(out, InputID{Name: Stdin, Size: -1})
			continue
		}
		found, err := expandOne(p)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return out, nil
}

func expandOne(pattern string) ([]InputID, error) {
	id, err := identify(pattern)
	if err == nil {
		return []InputID{id}, nil
	}
	if !errors.Is(err, fs.ErrNotExist) || !strings.ContainsAny(pattern, "*?[{") {
		return nil, err
	}
	names, err := doublestar.FilepathGlob(pattern, doublestar.WithFilesOnly(), doublestar.WithFailOnIOErrors())
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", pattern, err)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("pattern %q matches no file", pattern)
	}
	var out []InputID
	for _, name := range names {
		id, err := identify(name)
		if err != nil {
			return nil, err
		}
		out = append(out, id)
	}
	return out, nil
}

func identify(name string) (InputID, error) {
	info, err := os.Stat(name)
	if err != nil {
		return InputID{}, err
	}
	if info.IsDir() {
		return InputID{}, fmt.Errorf("%s is a directory: name its files, for example %s", name, filepath.Join(name, "*.csv"))
	}
	size := info.Size()
	if !info.Mode().IsRegular() {
		size = -1
	}
	return InputID{Name: name, Size: size, ModTime: info.ModTime()}, nil
}

// stream is an opened text input, decompressed.
type stream struct {
	io.Reader
	closers []func() error
}

func (s *stream) Close() error {
	var errs []error
	for i := len(s.closers) - 1; i >= 0; i-- {
		errs = append(errs, s.closers[i]())
	}
	return errors.Join(errs...)
}

// meter counts the raw bytes of an input that were read.
type meter struct {
	r io.Reader
	n *atomic.Int64
}

func (m meter) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	m.n.Add(int64(n))
	return n, err
}

const readBuffer = 256 << 10

// abortable is a pipe whose reading ends with done. A system call that waits for
// the other end cannot be interrupted: its goroutine, alone of all here, is not
// waited for and ends with the pipe or the process.
type abortable struct {
	r    io.Reader
	done <-chan struct{}
	buf  []byte // owned by the goroutine between the start of a read and its answer
	rest []byte // of buf, not handed out yet
	err  error  // behind rest
}

type readAnswer struct {
	n   int
	err error
}

func (a *abortable) Read(p []byte) (int, error) {
	if len(a.rest) == 0 {
		if a.err != nil {
			return 0, a.err
		}
		if a.buf == nil {
			a.buf = make([]byte, readBuffer)
		}
		buf, answer := a.buf, make(chan readAnswer, 1)
		go func() {
			n, err := a.r.Read(buf)
			answer <- readAnswer{n, err}
		}()
		select {
		case <-a.done:
			a.buf, a.err = nil, errStopped
			return 0, errStopped
		case got := <-answer:
			a.rest, a.err = buf[:got.n], got.err
		}
	}
	n := copy(p, a.rest)
	if a.rest = a.rest[n:]; n == 0 {
		return 0, a.err
	}
	return n, nil
}

// openStream opens an input and undoes its compression, which its first bytes tell.
// done, when it closes, ends a read of a pipe that waits.
func openStream(id InputID, stdin io.Reader, done <-chan struct{}, read *atomic.Int64) (*stream, error) {
	s := &stream{}
	raw := stdin
	if id.Name != Stdin {
		f, err := os.Open(id.Name)
		if err != nil {
			return nil, err
		}
		s.closers = append(s.closers, f.Close)
		raw = f
	}
	if raw == nil {
		return nil, errors.New("there is no standard input")
	}
	if id.Size < 0 {
		raw = &abortable{r: raw, done: done}
	}
	b := bufio.NewReaderSize(meter{raw, read}, readBuffer)
	head, err := b.Peek(4)
	if err != nil && err != io.EOF {
		return nil, errors.Join(err, s.Close())
	}
	s.Reader = b
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("gzip: %w", err), s.Close())
		}
		s.Reader = compressed{z, "gzip"}
		s.closers = append(s.closers, z.Close)
	case bytes.Equal(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("zstd: %w", err), s.Close())
		}
		s.Reader = compressed{z, "zstd"}
		s.closers = append(s.closers, func() error { z.Close(); return nil })
	case bytes.HasPrefix(head, []byte("PAR1")):
		return nil, errors.Join(errors.New("this is a Parquet file"), s.Close())
	case bytes.HasPrefix(head, []byte{0xff, 0xfe}), bytes.HasPrefix(head, []byte{0xfe, 0xff}):
		return nil, errors.Join(errors.New("the text is UTF-16: convert it to UTF-8"), s.Close())
	}
	return s, nil
}

// compressed names the compression in errors: a file cut short fails here.
type compressed struct {
	r    io.Reader
	what string
}

func (c compressed) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if err != nil && err != io.EOF {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("%s: the file ends too early: was its copy interrupted?", c.what)
		} else {
			err = fmt.Errorf("%s: %w", c.what, err)
		}
	}
	return n, err
}

// skipBOM drops a UTF-8 byte order mark and returns its length.
func skipBOM(b []byte) int {
	if bytes.HasPrefix(b, []byte{0xef, 0xbb, 0xbf}) {
		return 3
	}
	return 0
}
