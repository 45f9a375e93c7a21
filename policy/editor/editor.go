// Package editor makes the files by which editors and the stock opa know what Sluice's
// rules may read and call. They are published from the same texts that the gate
// compiles against.
//
//	schemas/input.json     JSON Schemas, for rules annotated with Annotation and for
//	schemas/decision.json  opa check --schema schemas
//	schemas/data.json      of the data of the shipped rules
//	capabilities.json      the functions that rules may call: opa check --capabilities
//	input.json             one input that has every field: OPA's language server
//	                       (Regal) completes input. from the nearest file of that name,
//	                       and evaluates with it
//	.regal/config.yaml     makes the language server use capabilities.json
//	.vscode/settings.json  makes the OPA extension use schemas/ and check strictly
package editor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fluss-sluice/sluice/policy"
)

// Annotation stands at the top of a rule file, so that opa check --schema and the
// language server know the type of input. Sluice itself needs none: it compiles all
// rules against the schema.
const Annotation = `# METADATA
# scope: package
# schemas:
#   - input: schema.input
`

// File is one file to write.
type File struct {
	Name string // slash-separated
	Text []byte
}

// Files makes all files.
func Files() ([]File, error) {
	data, err := dataSchema()
	if err != nil {
		return nil, err
	}
	capabilities, err := json.MarshalIndent(policy.Capabilities(), "", "  ")
	if err != nil {
		return nil, err
	}
	input, err := json.MarshalIndent(sample(), "", "  ")
	if err != nil {
		return nil, err
	}
	return []File{
		{"schemas/input.json", []byte(policy.InputSchema)},
		{"schemas/decision.json", []byte(policy.DecisionSchema)},
		{"schemas/data.json", data},
		{"capabilities.json", append(capabilities, '\n')},
		{"input.json", append(input, '\n')},
		{".regal/config.yaml", []byte("capabilities:\n  from:\n    file: capabilities.json\n")},
		{".vscode/settings.json", []byte("{\n  \"opa.schema\": \"${workspaceFolder}/schemas\",\n  \"opa.strictMode\": true\n}\n")},
	}, nil
}

func dataSchema() ([]byte, error) {
	d, err := policy.Show(context.Background(), "")
	if err != nil {
		return nil, err
	}
	for _, f := range d.Files {
		if f.Kind == policy.KindSchema {
			return f.Source, nil
		}
	}
	return nil, errors.New("the shipped policy has no schema of its data")
}

// sample is an input with every field; no one request has all of them.
func sample() policy.Input {
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	s := &policy.Session{ID: "01890000-0000-7000-8000-000000000001", Epoch: 1, State: "BEGUN", Buckets: 16, BuildDeadline: at.Add(24 * time.Hour)}
	s.Creator.Issuer, s.Creator.Subject = "https://login.example.com", "build-team"
	return policy.Input{
		Version: policy.Version, Action: policy.ActionObject, Time: at, Session: s,
		Principal: policy.Principal{
			Issuer: "https://login.example.com", Subject: "worker-a", Groups: []string{"builders"},
			Claims: map[string]string{"team": "orders"}, Via: policy.ViaToken,
		},
		Target: &policy.Target{Database: "shop", Table: "orders", Partition: "2026"},
		Request: policy.Request{
			Scope: []string{"bucket:0-1:write"}, Ops: []string{"write"}, Buckets: []int{0, 1}, TTL: 600,
			Path: "warehouse/shop/orders", Method: "PUT", Epoch: 1,
			HandOver: "copy", Publication: "conditional-write", Visibility: "atomic", Missing: "create", ReplaceEmpty: true,
			Policy: &policy.PolicyRevision{ID: "3f8a", Author: "https://login.example.com alice", Approvals: []string{"https://login.example.com bob"}},
		},
		Client: policy.Client{Address: "192.0.2.1", UserAgent: "sluice", RequestID: "r-1"},
	}
}

// Written is what became of one file.
type Written struct {
	File string `json:"file"`
	Kept bool   `json:"kept,omitempty"` // it was there, with another content, and stays
}

// Write writes the files below dir. What is published (schemas, capabilities and the
// sample) replaces an older one; settings that exist are left as they are.
func Write(dir string) ([]Written, error) {
	files, err := Files()
	if err != nil {
		return nil, err
	}
	var out []Written
	for _, f := range files {
		name := filepath.Join(dir, filepath.FromSlash(f.Name))
		w := Written{File: f.Name}
		if f.Name[0] == '.' {
			old, err := os.ReadFile(name)
			if err == nil {
				w.Kept = string(old) != string(f.Text)
				out = append(out, w)
				continue
			}
			if !errors.Is(err, fs.ErrNotExist) {
				return out, err
			}
		}
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return out, err
		}
		if err := os.WriteFile(name, f.Text, 0o644); err != nil {
			return out, fmt.Errorf("editor files: %w", err)
		}
		out = append(out, w)
	}
	return out, nil
}
