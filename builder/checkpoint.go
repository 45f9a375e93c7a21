package builder

import (
	"encoding/json"

	"github.com/fluss-sluice/sluice/internal/extsort"
)

// Checkpoint says where a session stands. It is JSON, may be stored anywhere, and
// holds no credential.
type Checkpoint struct {
	Version    int                `json:"version"` // 1
	BulkLoadID string             `json:"bulk_load_id"`
	Target     Target             `json:"target"`
	Epoch      int64              `json:"epoch"`
	Buckets    []BucketCheckpoint `json:"buckets"`
	// Position is the caller's: every row before it is in the runs.
	Position json.RawMessage `json:"position,omitempty"`
}

// BucketCheckpoint is one bucket of a checkpoint.
type BucketCheckpoint struct {
	BucketID int           `json:"bucket_id"`
	Dir      string        `json:"dir,omitempty"` // child of the work directory
	Rows     int64         `json:"rows"`          // rows added
	Runs     []extsort.Run `json:"runs,omitempty"`
	Uploaded []Uploaded    `json:"uploaded,omitempty"`
	Files    *BucketFiles  `json:"files,omitempty"` // set when the bucket is finished
}

// Uploaded is one object that is stored already.
type Uploaded struct {
	LocalPath string `json:"local_path"`
	Path      string `json:"path"`
	Size      int64  `json:"size"`
	SHA256    string `json:"sha256"`
}
