package flussdirect_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/fluss-sluice/sluice/builder/flussdirect"
	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
	"github.com/fluss-sluice/sluice/fluss/client/flusstest"
	"github.com/fluss-sluice/sluice/fluss/schema"
)

// TestScansReadWhatJavaReadsOfThreeSchemas: one snapshot holds rows of the table as it
// was made and as two added columns left it.
func TestScansReadWhatJavaReadsOfThreeSchemas(t *testing.T) {
	cluster := flusstest.Start(t, flusstest.Options{})
	c := dial(t, cluster.Bootstrap()...)
	ctx, dir, from := t.Context(), t.TempDir(), filepath.Join(fixtures, "evolved")
	var described struct {
		Table json.RawMessage `json:"table_json"`
	}
	readJSON(t, filepath.Join(from, "table.json"), &described)
	table, err := schema.ParseTable(described.Table)
	must(t, err)
	path := client.TablePath{Database: "lab", Table: "evolved"}
	must(t, c.CreateDatabase(ctx, path.Database, client.Ignore))
	must(t, c.CreateTable(ctx, path, table, client.Refuse))
	info, err := c.TableInfo(ctx, path)
	must(t, err)
	// The history of the real table: its second schema has two columns more.
	cluster.Handle(flusspb.APIGetTableSchema, func(r *flusstest.Request) (proto.Message, error) {
		m := r.Message.(*flusspb.GetTableSchemaRequest)
		id := int32(3)
		if m.SchemaId != nil {
			id = m.GetSchemaId()
		}
		b, err := os.ReadFile(filepath.Join(from, fmt.Sprintf("schema-%d.json", id)))
		return &flusspb.GetTableSchemaResponse{SchemaId: &id, SchemaJson: b}, err
	})
	cluster.Handle(flusspb.APIGetTableInfo, func(*flusstest.Request) (proto.Message, error) {
		id, at := int32(3), int64(1)
		return &flusspb.GetTableInfoResponse{TableId: &info.ID, SchemaId: &id, TableJson: described.Table, CreatedTime: &at, ModifiedTime: &at}, nil
	})
	to := fmt.Sprintf("kv/lab/evolved-%d", info.ID)
	must(t, os.CopyFS(filepath.Join(dir, to), os.DirFS(filepath.Join(from, "remote"))))
	must(t, filepath.WalkDir(filepath.Join(dir, to), func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "_METADATA" {
			return err
		}
		return commit(t, c, p, info.ID, named+"/"+to)
	}))
	s, err := direct(t, c, dir).SnapshotScan(ctx, flussdirect.ScanRequest{Target: flussdirect.Target{Database: path.Database, Table: path.Table}})
	must(t, err)
	defer s.Close()
	sameRows(t, s, fixtureRows(t, "evolved"))
}
