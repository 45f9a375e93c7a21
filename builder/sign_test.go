package builder_test

import (
	"strings"
	"testing"

	"github.com/fluss-sluice/sluice/builder"
)

func TestAWayToTheStoreThatIsNotThereIsTold(t *testing.T) {
	if _, err := builder.Connect(builder.Config{URL: "http://127.0.0.1:1", Credentials: "ssh"}); err == nil || !strings.Contains(err.Error(), "gateway") {
		t.Errorf("an unknown way: %v", err)
	}
	f := newFake(t, fakeTable(t, 1, nil), "")
	c := f.connect(func(c *builder.Config) { c.Credentials = builder.Sign })
	bc := f.begin(c)
	if _, err := c.Open(t.Context(), bc, builder.OpenOptions{WorkDir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "signs no requests") {
		t.Errorf("a server that signs nothing: %v", err)
	}
}
