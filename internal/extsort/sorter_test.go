package extsort

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
)

func open(t testing.TB, c Config, runs ...Run) *Sorter {
	t.Helper()
	if c.Dir == "" {
		c.Dir = t.TempDir()
	}
	s, err := Resume(c, runs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Discard(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// model is what a sorter must do.
type model map[string]string

func (m model) add(t testing.TB, s *Sorter, key, value string) {
	t.Helper()
	if err := s.Add([]byte(key), []byte(value)); err != nil {
		t.Fatal(err)
	}
	m[key] = value
}

func (m model) check(t testing.TB, s *Sorter) Stats {
	t.Helper()
	keys := slices.Sorted(maps.Keys(m))
	i := 0
	st, err := s.Merge(context.Background(), func(k, v []byte) error {
		if i == len(keys) {
			return fmt.Errorf("emitted %q after the last key", k)
		}
		if string(k) != keys[i] || string(v) != m[keys[i]] {
			return fmt.Errorf("pair %d is (%q, %q), want (%q, %q)", i, k, v, keys[i], m[keys[i]])
		}
		i++
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if i != len(keys) || st.Emitted != int64(len(keys)) {
		t.Fatalf("emitted %d, stats say %d, want %d", i, st.Emitted, len(keys))
	}
	return st
}

var keyKinds = map[string]func(r *rand.Rand, i int) string{
	"random sixteen bytes": func(r *rand.Rand, i int) string {
		return string(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, r.Uint64()), uint64(i)))
	},
	"few keys, many versions":           func(r *rand.Rand, i int) string { return fmt.Sprintf("k%03d", r.IntN(700)) },
	"one key":                           func(*rand.Rand, int) string { return "same" },
	"the empty key among others":        func(r *rand.Rand, i int) string { return "ab"[:r.IntN(3)] },
	"long shared prefix":                func(r *rand.Rand, i int) string { return fmt.Sprintf("warehouse/orders/customer-%012d", r.IntN(40000)) },
	"zero bytes that look like padding": func(r *rand.Rand, i int) string { return string(make([]byte, r.IntN(40))) + "xyz"[:r.IntN(2)] },
	"two prefixes, then random": func(r *rand.Rand, i int) string {
		return fmt.Sprintf("%s-%d", []string{"aaaaaaaaaaaaaaaa", "bbbbbbbbb"}[i%2], r.IntN(30000))
	},
	"ascending":              func(r *rand.Rand, i int) string { return fmt.Sprintf("%09d", i) },
	"descending":             func(r *rand.Rand, i int) string { return fmt.Sprintf("%09d", 1<<20-i) },
	"ascending with repeats": func(r *rand.Rand, i int) string { return fmt.Sprintf("%09d", i/3) },
	"a prefix of the other":  func(r *rand.Rand, i int) string { return "abcdefghijklmnopqrstuvwxyz0123456789"[:r.IntN(37)] },
}

func TestMergeYieldsTheLastValueOfEveryKeyInOrder(t *testing.T) {
	for name, key := range keyKinds {
		for _, memory := range []int64{MinMemory, 64 << 20} {
			t.Run(fmt.Sprintf("%s in %d KiB", name, memory>>10), func(t *testing.T) {
				r := rand.New(rand.NewPCG(1, 2))
				s, m := open(t, Config{Memory: memory}), model{}
				for i := range 30000 {
					m.add(t, s, key(r, i), fmt.Sprintf("value %d %s", i, make([]byte, r.IntN(30))))
				}
				st := m.check(t, s)
				if spilled := st.Runs > 0; spilled != (memory == MinMemory) {
					t.Errorf("runs: %d", st.Runs)
				}
				if st.Added != 30000 {
					t.Errorf("added: %d", st.Added)
				}
			})
		}
	}
}

func TestMergeOfNothingEmitsNothing(t *testing.T) {
	model{}.check(t, open(t, Config{}))
}

func TestMergeMayBeRepeatedAndAddedToAfterwards(t *testing.T) {
	for _, n := range []int{100, 20000} {
		s, m := open(t, Config{Memory: MinMemory}), model{}
		for i := range n {
			m.add(t, s, fmt.Sprint(i%7919), fmt.Sprint(i))
		}
		m.check(t, s)
		m.check(t, s)
		for i := range n {
			m.add(t, s, fmt.Sprint(i%5003), fmt.Sprint(-i))
		}
		m.check(t, s)
	}
}

func TestWhatFitsIsNeverWritten(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Config{Dir: dir, Memory: 4 << 20})
	for i := range 4 << 20 * 90 / 100 / recordSize(8, 100) {
		if err := s.Add(binary.LittleEndian.AppendUint64(nil, uint64(i)*0x9e3779b97f4a7c15), make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
	}
	st, err := s.Merge(context.Background(), func(k, v []byte) error { return nil })
	if err != nil || st.Runs != 0 || st.Spilled != 0 {
		t.Fatalf("%+v, %v", st, err)
	}
	if names := listRuns(t, dir); len(names) > 0 {
		t.Fatalf("files: %v", names)
	}
}

func TestMoreRunsThanFitAreMergedByNeighbours(t *testing.T) {
	s, m := open(t, Config{Memory: MinMemory}), model{}
	for i := range 200000 {
		m.add(t, s, fmt.Sprint(i*7919%60000), fmt.Sprint(i))
	}
	s.mu.Lock()
	before := s.stats.Runs
	s.mu.Unlock()
	st := m.check(t, s)
	if before <= st.Runs || st.Runs > s.fanIn() {
		t.Fatalf("%d runs before, %d at the end, %d can be read at once", before, st.Runs, s.fanIn())
	}
}

func TestValuesNearTheLimitPassAndLargerOnesAreRefused(t *testing.T) {
	s, m := open(t, Config{Memory: 1 << 20}), model{}
	most := s.segmentSize*7/8 - entrySize - recordSize(3, 0) - 2
	for i := range 40 {
		m.add(t, s, fmt.Sprintf("%03d", i*7%31), string(bytes.Repeat([]byte{byte(i)}, most-i)))
	}
	err := s.Add([]byte("big"), make([]byte, most+100))
	if !errors.Is(err, ErrTooLarge) {
		t.Fatalf("error %v", err)
	}
	m.check(t, s)
}

func TestSealedRunsSurviveAndResume(t *testing.T) {
	dir, m := t.TempDir(), model{}
	s := open(t, Config{Dir: dir, Memory: MinMemory})
	for i := range 10000 {
		m.add(t, s, fmt.Sprint(i%3000), fmt.Sprint(i))
	}
	runs, err := s.Seal(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20000 { // lost with the crash
		if err := s.Add([]byte(fmt.Sprint(i)), []byte("lost")); err != nil {
			t.Fatal(err)
		}
	}
	// A crash: nothing is closed, unsealed runs stay behind.
	s.Interrupt()
	s.jobs.Wait()
	if len(listRuns(t, dir)) <= len(runs) {
		t.Fatal("the test needs unsealed runs")
	}

	s2 := open(t, Config{Dir: dir, Memory: MinMemory}, runs...)
	if got := listRuns(t, dir); len(got) != len(runs) {
		t.Fatalf("after resume there are %v, sealed were %v", got, runs)
	}
	for i := range 10000 {
		m.add(t, s2, fmt.Sprint(i%4000), fmt.Sprint("second ", i))
	}
	again, err := s2.Seal(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(again[:len(runs)], runs) {
		t.Fatal("sealing again changed the runs sealed before")
	}
	m.check(t, s2)
	if err := s2.Close(); err != nil {
		t.Fatal(err)
	}
	m.check(t, open(t, Config{Dir: dir, Memory: MinMemory}, again...))
}

func TestCloseLeavesOnlySealedRuns(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Config{Dir: dir, Memory: MinMemory})
	fill := func() {
		for i := range 20000 {
			if err := s.Add([]byte(fmt.Sprint(i)), []byte("v")); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill()
	runs, err := s.Seal(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	fill()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := listRuns(t, dir); len(got) != len(runs) {
		t.Fatalf("left: %v, sealed: %v", got, runs)
	}
	s = open(t, Config{Dir: dir, Memory: MinMemory}, runs...)
	if err := s.Discard(); err != nil {
		t.Fatal(err)
	}
	if got := listRuns(t, dir); len(got) != 0 {
		t.Fatalf("left after Discard: %v", got)
	}
}

// TestMergedSealedRunsStay proves that a checkpoint taken earlier stays good when
// a merge of many runs replaced the runs it names.
func TestMergedSealedRunsStay(t *testing.T) {
	dir, m := t.TempDir(), model{}
	s := open(t, Config{Dir: dir, Memory: MinMemory})
	var runs []Run
	for i := range 300 {
		m.add(t, s, fmt.Sprint(i%50), fmt.Sprint(i))
		var err error
		if runs, err = s.Seal(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if len(runs) != 300 {
		t.Fatalf("%d runs", len(runs))
	}
	if st := m.check(t, s); st.Runs >= 300 {
		t.Fatalf("no runs were merged: %d", st.Runs)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	m.check(t, open(t, Config{Dir: dir, Memory: MinMemory}, runs...))
}

func TestResumeRefusesDamagedRuns(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Config{Dir: dir, Memory: MinMemory})
	for i := range 3000 {
		if err := s.Add([]byte(fmt.Sprint(i)), []byte("some value")); err != nil {
			t.Fatal(err)
		}
	}
	runs, err := s.Seal(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	path := filepath.Join(dir, runs[0].Name)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	mergeAll := func() error {
		s, err := Resume(Config{Dir: dir, Memory: MinMemory}, runs)
		if err != nil {
			return err
		}
		defer s.Close()
		_, err = s.Merge(context.Background(), func(k, v []byte) error { return nil })
		return err
	}
	if err := mergeAll(); err != nil {
		t.Fatal(err)
	}
	refused := func(what string, b []byte) {
		t.Helper()
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := mergeAll(); err == nil {
			t.Errorf("%s was not noticed", what)
		}
	}
	for i := range good {
		if i >= 2*runHeaderSize && i < len(good)-100 && i%97 != 0 {
			continue
		}
		b := slices.Clone(good)
		b[i] ^= 0x40
		refused(fmt.Sprintf("a flipped bit in byte %d of %d", i, len(good)), b)
	}
	for _, n := range []int{0, 1, runHeaderSize, len(good) / 2, len(good) - 1} {
		refused(fmt.Sprintf("a cut to %d bytes", n), good[:n])
	}
	refused("an added byte", append(slices.Clone(good), 0))
	os.Remove(path)
	if err := mergeAll(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing run: %v", err)
	}
	for _, name := range []string{"", "../run-00000001.slx", "run-x.slx", "/etc/passwd", "run-00000001.slx/."} {
		if _, err := Resume(Config{Dir: dir}, []Run{{Name: name}}); err == nil {
			t.Errorf("a run named %q was taken", name)
		}
	}
}

// fullDisk is a disk that is full until it is given room.
type fullDisk struct {
	mu   sync.Mutex
	room int
}

func (d *fullDisk) give(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.room = n
}

type limitedFile struct {
	*os.File
	d *fullDisk
}

func (f limitedFile) Write(b []byte) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if len(b) > f.d.room {
		n, _ := f.File.Write(b[:f.d.room])
		f.d.room = 0
		return n, &fs.PathError{Op: "write", Path: f.Name(), Err: syscall.ENOSPC}
	}
	f.d.room -= len(b)
	return f.File.Write(b)
}

func TestAFullDiskLosesNothing(t *testing.T) {
	dir, m, disk := t.TempDir(), model{}, &fullDisk{room: 100 << 10}
	s := open(t, Config{Dir: dir, Memory: MinMemory})
	s.create = func(path string) (outFile, error) {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		return limitedFile{f, disk}, err
	}
	failures := 0
	for i := range 60000 {
		key, value := fmt.Sprint(i*7919%20000), fmt.Sprint("value ", i)
		for {
			err := s.Add([]byte(key), []byte(value))
			if err == nil {
				m[key] = value
				break
			}
			if !errors.Is(err, ErrNoSpace) || !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
			failures++
			disk.give(150 << 10 * failures)
		}
	}
	if failures == 0 {
		t.Fatal("the disk was never full")
	}
	disk.give(10)
	if _, err := s.Seal(context.Background()); !errors.Is(err, ErrNoSpace) {
		t.Fatalf("Seal on a full disk: %v", err)
	}
	_, err := s.Merge(context.Background(), func(k, v []byte) error { return nil })
	if !errors.Is(err, ErrNoSpace) {
		t.Fatalf("Merge on a full disk: %v", err)
	}
	disk.give(1 << 30)
	if _, err := s.Seal(context.Background()); err != nil {
		t.Fatal(err)
	}
	m.check(t, s)
	if got := listRuns(t, dir); len(got) != len(s.runs) {
		t.Errorf("failed runs were left behind: %d files, %d runs", len(got), len(s.runs))
	}
}

func TestMergeStops(t *testing.T) {
	s := open(t, Config{Memory: MinMemory})
	for i := range 50000 {
		if err := s.Add([]byte(fmt.Sprint(i)), nil); err != nil {
			t.Fatal(err)
		}
	}
	stop := errors.New("enough")
	if _, err := s.Merge(context.Background(), func(k, v []byte) error { return stop }); err != stop {
		t.Errorf("emit's error came back as %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	n := 0
	_, err := s.Merge(ctx, func(k, v []byte) error {
		n++
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) || n > checkEvery {
		t.Errorf("cancelled: %v after %d records", err, n)
	}
	if _, err := s.Seal(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Seal with a dead context: %v", err)
	}
	n = 0
	_, err = s.Merge(context.Background(), func(k, v []byte) error {
		n++
		s.Interrupt()
		return nil
	})
	if !errors.Is(err, ErrInterrupted) || n > checkEvery {
		t.Errorf("interrupted: %v after %d records", err, n)
	}
}

// TestInterruptWakesAdd has Add wait for a spill that cannot end.
func TestInterruptWakesAdd(t *testing.T) {
	s := open(t, Config{Memory: MinMemory})
	stuck, letGo := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s.create = func(path string) (outFile, error) {
		once.Do(func() { close(stuck) })
		<-letGo
		return nil, errors.New("never")
	}
	go func() {
		<-stuck
		s.Interrupt()
	}()
	var err error
	for i := 0; err == nil; i++ {
		err = s.Add([]byte(fmt.Sprint(i)), make([]byte, 100))
	}
	close(letGo)
	if !errors.Is(err, ErrInterrupted) {
		t.Fatal(err)
	}
}

func TestProgressGrowsAndEndsAtTheTotal(t *testing.T) {
	var seen []Progress
	s := open(t, Config{Memory: MinMemory, Progress: func(p Progress) { seen = append(seen, p) }})
	for i := range 30000 {
		if err := s.Add([]byte(fmt.Sprint(i)), []byte("value")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Merge(context.Background(), func(k, v []byte) error { return nil }); err != nil {
		t.Fatal(err)
	}
	s.progressMu.Lock()
	defer s.progressMu.Unlock()
	last := seen[len(seen)-1]
	if last.Added != 30000 || last.Merged != 30000 || last.Spilled == 0 {
		t.Errorf("last: %+v", last)
	}
	for i := 1; i < len(seen); i++ {
		if seen[i].Added < seen[i-1].Added || seen[i].Merged < seen[i-1].Merged {
			t.Errorf("%+v after %+v", seen[i], seen[i-1])
		}
	}
}

func TestNewRefusesBadSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	os.WriteFile(file, nil, 0o600)
	for name, c := range map[string]Config{
		"no directory":      {},
		"missing directory": {Dir: filepath.Join(t.TempDir(), "nowhere")},
		"a file":            {Dir: file},
		"too little memory": {Dir: t.TempDir(), Memory: MinMemory - 1},
		"negative memory":   {Dir: t.TempDir(), Memory: -5},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

func listRuns(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func FuzzSorterAgreesWithAMap(f *testing.F) {
	f.Add([]byte("a\x00bb\x00a"), uint8(3))
	f.Fuzz(func(t *testing.T, data []byte, sealEvery uint8) {
		s, m := open(t, Config{Memory: MinMemory}), model{}
		for i, k := range bytes.Split(data, []byte{0xff}) {
			m.add(t, s, string(k), fmt.Sprint(i))
			if sealEvery > 0 && i%int(sealEvery) == int(sealEvery)-1 && i < 50 {
				if _, err := s.Seal(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
		}
		m.check(t, s)
	})
}

// FuzzOpenRun feeds foreign bytes to the reader of runs.
func FuzzOpenRun(f *testing.F) {
	dir := f.TempDir()
	s := open(f, Config{Dir: dir, Memory: MinMemory})
	for i := range 10 {
		s.Add([]byte(fmt.Sprint(i)), []byte("value"))
	}
	runs, err := s.Seal(context.Background())
	if err != nil {
		f.Fatal(err)
	}
	good, err := os.ReadFile(filepath.Join(dir, runs[0].Name))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good, runs[0].Records, runs[0].Checksum)
	f.Fuzz(func(t *testing.T, b []byte, records int64, sum uint32) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "run-00000001.slx"), b, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Resume(Config{Dir: dir, Memory: MinMemory}, []Run{{"run-00000001.slx", int64(len(b)), records, sum}})
		if err != nil {
			return
		}
		defer s.Close()
		s.Merge(context.Background(), func(k, v []byte) error { return nil })
	})
}
