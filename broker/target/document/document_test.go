package document

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/fluss-sluice/sluice/internal/objstore/local"
)

type counter struct {
	Version int `json:"version"`
	N       int `json:"n"`
}

func open(t *testing.T) *local.Store {
	t.Helper()
	s, err := local.Open(t.TempDir(), local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestChangersOfOneDocumentLoseNothing(t *testing.T) {
	s := open(t)
	add := func(old []byte) ([]byte, error) {
		c := counter{Version: 1}
		if old != nil {
			if err := Decode(old, &c, &c.Version, 1); err != nil {
				return nil, err
			}
		}
		c.N++
		return Encode(c), nil
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 5 {
				if err := Swap(context.Background(), s, "a/b", add); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	b, etag, err := Read(t.Context(), s, "a/b")
	if err != nil || string(b) != `{"version":1,"n":40}` || etag == "" {
		t.Errorf("%s, %q, %v", b, etag, err)
	}
}

func TestAChangeMayKeepOrRefuse(t *testing.T) {
	s := open(t)
	if err := Swap(t.Context(), s, "k", func([]byte) ([]byte, error) { return nil, ErrKeep }); err != nil {
		t.Error(err)
	}
	no := errors.New("no")
	if err := Swap(t.Context(), s, "k", func([]byte) ([]byte, error) { return nil, no }); !errors.Is(err, no) {
		t.Error(err)
	}
	if b, etag, err := Read(t.Context(), s, "k"); b != nil || etag != "" || err != nil {
		t.Errorf("%s, %q, %v: nothing was to be written", b, etag, err)
	}
}

func TestDecodeIsStrict(t *testing.T) {
	for name, text := range map[string]string{
		"another version":  `{"version":2,"n":1}`,
		"no version":       `{"n":1}`,
		"an unknown key":   `{"version":1,"n":1,"m":2}`,
		"trailing content": `{"version":1} {}`,
		"no JSON":          strings.Repeat("x", 9),
		"nothing":          "",
	} {
		var c counter
		if err := Decode([]byte(text), &c, &c.Version, 1); err == nil {
			t.Errorf("%s was taken: %s", name, strconv.Quote(text))
		}
	}
}
