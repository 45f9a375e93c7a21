package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fluss-sluice/sluice/internal/extsort"
	"github.com/fluss-sluice/sluice/internal/rocks"
)

// child runs one contender and prints its figure.
func child(name string, args []string) error {
	switch {
	case name == "child-build" && len(args) == 2:
		return timed(name, func() (int64, error) { return build(args[0], args[1]) })
	case name == "child-copy" && len(args) == 1:
		return timed(name, func() (int64, error) { return copyRows(args[0]) })
	case name == "child-scan" && len(args) == 1:
		return scan(name, args[0], false)
	case name == "child-prefetch" && len(args) == 1:
		return scan(name, args[0], true)
	}
	return fmt.Errorf("unknown contender %s %v", name, args)
}

func timed(name string, run func() (int64, error)) error {
	start, cpu := time.Now(), cpuSeconds()
	rows, err := run()
	if err != nil {
		return err
	}
	s := time.Since(start).Seconds()
	return json.NewEncoder(os.Stdout).Encode(figure{Command: name, Rows: rows, Seconds: s, Rate: float64(rows) / s, CPU: cpuSeconds() - cpu})
}

// cpuSeconds is the processor time of this process so far.
func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// build sorts the rows of a file and writes them as a RocksDB directory, as the
// builder does.
func build(dir, input string) (int64, error) {
	runs, err := os.MkdirTemp(filepath.Dir(input), "runs-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(runs)
	s, err := extsort.New(extsort.Config{Dir: runs})
	if err != nil {
		return 0, err
	}
	defer s.Discard()
	if _, err := eachRow(input, s.Add); err != nil {
		return 0, err
	}
	w, err := rocks.NewWriter(dir, rocks.WriterOptions{})
	if err != nil {
		return 0, err
	}
	if _, err := s.Merge(context.Background(), w.Add); err != nil {
		return 0, errors.Join(err, w.Abort())
	}
	res, err := w.Finish()
	return res.Rows, err
}

func copyRows(input string) (int64, error) {
	buf := make([]byte, 0, 64<<20)
	return eachRow(input, func(k, v []byte) error {
		if len(buf)+len(k)+len(v) > cap(buf) {
			buf = buf[:0]
		}
		buf = append(append(buf, k...), v...)
		return nil
	})
}

func scan(name, dir string, prefetch bool) error {
	for range 3 {
		err := timed(name, func() (rows int64, err error) {
			db, err := rocks.Open(context.Background(), rocks.Dir(dir), rocks.Options{})
			if err != nil {
				return 0, err
			}
			defer db.Close()
			it, err := db.NewIterator(rocks.IterOptions{Prefetch: prefetch})
			if err != nil {
				return 0, err
			}
			defer it.Close()
			for ok := it.First(); ok; ok = it.Next() {
				rows++
			}
			return rows, it.Err()
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// A record file holds, per row: key length (2 bytes, little endian), value length
// (4), key, value.

// writeRows writes n rows whose 16-byte keys are in random order and whose values
// are half noise, half text.
func writeRows(path string, n int) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriterSize(f, 1<<20)
	var b []byte
	for i := range uint64(n) {
		b = binary.LittleEndian.AppendUint16(b[:0], 16)
		b = binary.LittleEndian.AppendUint32(b, 100)
		b = binary.BigEndian.AppendUint64(b, mix(i))
		b = binary.BigEndian.AppendUint64(b, i)
		x := i * 31
		for range 6 {
			x = mix(x)
			b = binary.LittleEndian.AppendUint64(b, x)
		}
		for j := range 52 {
			b = append(b, "abcdefgh"[j%8])
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Close()
}

// mix is the finalizer of SplitMix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func eachRow(path string, add func(k, v []byte) error) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 1<<20)
	var rows int64
	for {
		h, err := r.Peek(6)
		if err == io.EOF && len(h) == 0 {
			return rows, nil
		}
		if err != nil {
			return rows, err
		}
		kl, vl := int(binary.LittleEndian.Uint16(h)), int(binary.LittleEndian.Uint32(h[2:]))
		row, err := r.Peek(6 + kl + vl)
		if err != nil {
			return rows, err
		}
		if err := add(row[6:6+kl], row[6+kl:]); err != nil {
			return rows, err
		}
		if _, err := r.Discard(len(row)); err != nil {
			return rows, err
		}
		rows++
	}
}
