package fluss

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/internal/objstore/local"
	"github.com/fluss-sluice/sluice/session"
)

// hiding is a store whose _METADATA of one bucket the servers cannot read, while the
// broker still can: Fluss answers success then and starts the bucket empty. It is hidden
// when the bucket's journal says that the leader is told next, and shown again when the
// broker has asked for it a number of times since, so that it was told again.
type hiding struct {
	objstore.Store
	journal, metadata, path string
	asks                    int // until it is shown

	mu     sync.Mutex
	kept   []byte
	hidden bool
}

func (s *hiding) Put(ctx context.Context, k string, body io.Reader, o objstore.PutOptions) (objstore.Info, error) {
	b, err := io.ReadAll(body)
	if err != nil {
		return objstore.Info{}, err
	}
	info, err := s.Store.Put(ctx, k, bytes.NewReader(b), o)
	if err == nil && k == s.journal && strings.Contains(string(b), `"step":"`+stepNotifying+`"`) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.kept, err = os.ReadFile(s.path); err == nil {
			s.hidden, err = true, os.Remove(s.path)
		}
	}
	return info, err
}

// asked answers from memory while the object is hidden.
func (s *hiding) asked(k string) ([]byte, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k != s.metadata || !s.hidden {
		return nil, false, nil
	}
	if s.asks--; s.asks == 0 {
		s.hidden = false
		return s.kept, true, os.WriteFile(s.path, s.kept, 0o644)
	}
	return s.kept, true, nil
}

func (s *hiding) Get(ctx context.Context, k string, off, n int64) (io.ReadCloser, objstore.Info, error) {
	if b, hidden, err := s.asked(k); hidden || err != nil {
		return io.NopCloser(bytes.NewReader(b)), objstore.Info{Key: k, Size: int64(len(b))}, err
	}
	return s.Store.Get(ctx, k, off, n)
}

func (s *hiding) Head(ctx context.Context, k string) (objstore.Info, error) {
	if b, hidden, err := s.asked(k); hidden || err != nil {
		return objstore.Info{Key: k, Size: int64(len(b))}, err
	}
	return s.Store.Head(ctx, k)
}

// TestLiveMetadataThatTheServersCannotRead: the bucket comes up empty, which is noticed;
// it is told again, and either serves the rows or is named in an error.
func TestLiveMetadataThatTheServersCannotRead(t *testing.T) {
	for name, asks := range map[string]int{"for a moment": 2, "for long": 1 << 30} {
		t.Run(name, func(t *testing.T) {
			l := openLive(t, nil)
			tg := l.table(t, newTable(t, 2, false, nil))
			s, err := begin(t.Context(), l.driver, newSession(tg, 1))
			if err != nil {
				t.Fatal(err)
			}
			build(t, l.config.Objects, l.driver, s, 100)
			if err := l.driver.Decide(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			k, err := l.driver.Key(fmt.Sprintf("%s/1/snap-%d/_METADATA", s.Plan.FinalRoot, s.SnapshotIDs[1]))
			if err != nil {
				t.Fatal(err)
			}
			c := l.config
			c.Objects = &hiding{Store: c.Objects, journal: journalKey(s, 1), metadata: k, path: filepath.Join(l.cluster.RemotePath(), k), asks: asks}
			d, err := Open(c)
			if err != nil {
				t.Fatal(err)
			}
			err = d.Publish(t.Context(), s)
			t.Log(err)
			if asks > 100 {
				if !errors.Is(err, ErrNotAdopted) || !strings.Contains(err.Error(), "bucket 1") {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			sameRows(t, l.client, pathOf(tg), "", 100)
			l.later(t, tg, 100)
		})
	}
}

// TestLiveNamesOfTheRemoteDirectoryMustBeTheClusters: a broker that looks elsewhere, or
// calls the same place by another name, begins nothing.
func TestLiveNamesOfTheRemoteDirectoryMustBeTheClusters(t *testing.T) {
	l := openLive(t, nil)
	tg := l.table(t, newTable(t, 1, false, nil))
	elsewhere, err := local.Open(t.TempDir(), local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	link := filepath.Join(t.TempDir(), "mounted-elsewhere")
	if err := os.Symlink(l.cluster.RemotePath(), link); err != nil {
		t.Fatal(err)
	}
	epoch := int64(0)
	for name, change := range map[string]func(*Config){
		"another directory under the cluster's name": func(c *Config) { c.Objects = elsewhere },
		"the directory under another name":           func(c *Config) { c.RootURI = "file://" + link },
		"another store under another name":           func(c *Config) { c.Objects, c.RootURI = elsewhere, "s3://lake/fluss" },
	} {
		c := l.config
		change(&c)
		d, err := Open(c)
		if err != nil {
			t.Fatal(err)
		}
		epoch++
		s := newSession(tg, epoch)
		_, err = begin(t.Context(), d, s)
		t.Log(name, err)
		if !errors.Is(err, session.ErrTargetRefused) || !strings.Contains(err.Error(), "remote.data.dir") {
			t.Errorf("%s: %v", name, err)
		}
		if err := d.Abort(t.Context(), s); err != nil {
			t.Errorf("%s: abort: %v", name, err)
		}
	}
	if _, err := begin(t.Context(), l.driver, newSession(tg, epoch+1)); err != nil {
		t.Errorf("the right directory: %v", err)
	}
}
