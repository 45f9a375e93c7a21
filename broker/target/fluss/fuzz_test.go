package fluss

import (
	"bytes"
	"testing"

	"github.com/fluss-sluice/sluice/broker/target/document"
	"github.com/fluss-sluice/sluice/session"
)

// FuzzRecords reads what anybody who may write to the remote directory or to ZooKeeper
// can put there: it is refused, or says the same when it is written again.
func FuzzRecords(f *testing.F) {
	for _, seed := range []string{
		`{"version":1,"epoch":2,"session_id":"s","state":"BEGUN","expires":"2026-12-01T00:00:00Z","snapshot_ids":[0,1],"rules":{"withdrawn":[{"ResourceName":"a.b"}],"added":[]}}`,
		`{"version":1,"session_id":"s","epoch":2,"bucket":0,"step":"stopping"}`,
		`{"version":1,"expiration_time":1,"tables":[{"table_id":0,"lease_metadata_path":"file:/x/y"}]}`,
		`{}`, `null`, `[`, "\x00",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, err := decodeFence(b); err == nil {
			again := document.Encode(got)
			if twice, err := decodeFence(again); err != nil || !bytes.Equal(document.Encode(twice), again) {
				t.Errorf("%s: %v", again, err)
			}
		}
		if got, err := decodeJournal("j", b, session.Session{ID: "s"}, 0); err == nil {
			again := document.Encode(got)
			if twice, err := decodeJournal("j", again, session.Session{ID: "s"}, 0); err != nil || !bytes.Equal(document.Encode(twice), again) {
				t.Errorf("%s: %v", again, err)
			}
		}
		if uri, err := decodeLease(b); err == nil && uri == "" {
			t.Error("a lease without a file")
		}
	})
}
