package fluss

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fluss-sluice/sluice/broker/target/document"
	"github.com/fluss-sluice/sluice/broker/target/fluss/zk"
	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/schema"
	"github.com/fluss-sluice/sluice/fluss/znode"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/session"
)

// template is what a table that comes into being is made of, at births/{session id}. It
// is written once, before anything of the table exists.
//
//	{"version":1,"session_id":uuid,"table_id":n,
//	 "registration":{the node of a table like it},"schemas":{"1":{its node}…},
//	 "schema_id":n,"table":{its descriptor, as the cluster tells it}}
//
// Nodes are copied, of the table that is replaced or of one that the coordinator made
// from the load's descriptor and that was dropped again: so its checks, limits and
// defaults are the cluster's own.
type template struct {
	Version      int                        `json:"version"`
	SessionID    string                     `json:"session_id"`
	TableID      int64                      `json:"table_id"`
	Registration json.RawMessage            `json:"registration"`
	Schemas      map[string]json.RawMessage `json:"schemas"`
	SchemaID     int32                      `json:"schema_id"`
	Table        json.RawMessage            `json:"table"`
}

const tableCounter = "/metadata/table_seqid"

func templateKey(s session.Session) string { return ownDir + "/births/" + s.ID }

// scratchPath is the table that is made for its nodes only.
func scratchPath(s session.Session) client.TablePath {
	return client.TablePath{Database: s.Target.Database, Table: "sluice_template_" + strings.ReplaceAll(s.ID, "-", "")}
}

// newborn gives what comes into being with the load its ids, and a table its template.
// Other places are returned as they are.
func (d *Driver) newborn(ctx context.Context, k string, s session.Session, p *place, f *fence) (*place, error) {
	fresh := *p
	switch {
	case f.Births, f.Replaces != nil && !p.partitioned():
		t, err := d.conceive(ctx, k, s, p, f)
		if err != nil {
			return nil, err
		}
		info, err := t.info(p)
		if err != nil {
			return nil, err
		}
		fresh = place{info: info, missing: true, noTable: true, physical: client.Physical{Path: info.Path, TableID: t.TableID}}
	case f.Replaces != nil, p.missing:
		id, err := d.partitionID(ctx, k, s)
		if err != nil {
			return nil, err
		}
		fresh.missing, fresh.physical.PartitionID = true, id
	}
	return &fresh, nil
}

func (t *template) info(p *place) (*client.TableInfo, error) {
	info := *p.info
	table, err := schema.ParseTable(t.Table)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	info.ID, info.SchemaID, info.JSON, info.Table, info.Created, info.Modified = t.TableID, t.SchemaID, t.Table, table, now, now
	return &info, nil
}

func (d *Driver) template(ctx context.Context, s session.Session) (*template, error) {
	k := templateKey(s)
	b, _, err := d.read(ctx, k)
	if err != nil || b == nil {
		return nil, err
	}
	var t template
	if err := document.Decode(b, &t, &t.Version, recordVersion); err != nil {
		return nil, fmt.Errorf("%s: %w", k, err)
	}
	if t.SessionID != s.ID || len(t.Schemas) == 0 {
		return nil, fmt.Errorf("%s: %d schemas, of session %q", k, len(t.Schemas), t.SessionID)
	}
	return &t, nil
}

// conceive writes a table's template and draws its id, once for a session.
func (d *Driver) conceive(ctx context.Context, k string, s session.Session, p *place, f *fence) (*template, error) {
	t, err := d.template(ctx, s)
	if err != nil {
		return nil, err
	}
	if t == nil {
		if f.Births {
			t, err = d.tryOut(ctx, s, p)
		} else {
			t, err = d.copied(ctx, p.info)
		}
		if err != nil {
			return nil, err
		}
		t.Version, t.SessionID = recordVersion, s.ID
		if t.TableID, err = d.draw(ctx, tableCounter); err != nil {
			return nil, fmt.Errorf("draw a table id: %w", err)
		}
		err = d.swap(ctx, templateKey(s), func(old []byte) ([]byte, error) {
			if old != nil {
				return nil, document.ErrKeep
			}
			return document.Encode(t), nil
		})
		if err != nil {
			return nil, err
		}
		if t, err = d.template(ctx, s); err != nil {
			return nil, err
		}
	}
	if f.Births { // also the one of a Begin that died behind its template
		if err := d.c.Client.DropTable(ctx, scratchPath(s), client.Ignore); err != nil {
			return nil, fmt.Errorf("drop the template of %s: %w", s.Target, err)
		}
	}
	_, err = d.ownFence(ctx, k, s, func(next *fence) error {
		if next.TableID != nil {
			return document.ErrKeep
		}
		next.TableID = &t.TableID
		return nil
	})
	return t, err
}

// tryOut lets the coordinator make a table of the load's descriptor under another name.
func (d *Driver) tryOut(ctx context.Context, s session.Session, p *place) (*template, error) {
	path := scratchPath(s)
	info, err := d.createTable(ctx, s, path, p.info.Table)
	if err != nil {
		return nil, err
	}
	made := &place{info: info, physical: client.Physical{Path: path, TableID: info.ID}}
	if err := d.probeRoot(ctx, s, made); err != nil {
		return nil, err
	}
	return d.copied(ctx, info)
}

// copied reads the nodes of a table.
func (d *Driver) copied(ctx context.Context, info *client.TableInfo) (*template, error) {
	node := tableNode(info.Path)
	registration, _, err := d.c.ZooKeeper.Get(ctx, node)
	if err != nil {
		return nil, err
	}
	if _, err := znode.ParseTableRegistration(registration); err != nil {
		return nil, fmt.Errorf("%s: %w", node, err)
	}
	ids, err := d.c.ZooKeeper.Children(ctx, node+"/schemas")
	if err != nil {
		return nil, err
	}
	t := &template{Registration: registration, Schemas: map[string]json.RawMessage{}, SchemaID: info.SchemaID, Table: info.JSON}
	for _, id := range ids {
		b, _, err := d.c.ZooKeeper.Get(ctx, node+"/schemas/"+id)
		if err != nil {
			return nil, err
		}
		if !json.Valid(b) {
			return nil, fmt.Errorf("%s/schemas/%s is not JSON", node, id)
		}
		t.Schemas[id] = b
	}
	if t.Schemas[strconv.Itoa(int(info.SchemaID))] == nil {
		return nil, fmt.Errorf("%w: %s was altered just now", session.ErrTargetRefused, info.Path)
	}
	return t, nil
}

// forgetTemplate removes what was made of a table that will not be.
func (d *Driver) forgetTemplate(ctx context.Context, s session.Session) error {
	if err := d.c.Client.DropTable(ctx, scratchPath(s), client.Ignore); err != nil && client.CodeOf(err) != client.CodeDatabaseNotExist {
		return fmt.Errorf("drop the template of %s: %w", s.Target, err)
	}
	if err := d.c.Objects.Delete(ctx, templateKey(s)); err != nil && !errors.Is(err, objstore.ErrNotFound) {
		return err
	}
	return nil
}

// registration is the node of the table that comes into being.
func (t *template) registration(now time.Time) ([]byte, *znode.TableRegistration, error) {
	r, err := znode.ParseTableRegistration(t.Registration)
	if err != nil {
		return nil, nil, err
	}
	r.TableID, r.CreatedTime, r.ModifiedTime = t.TableID, now.UnixMilli(), now.UnixMilli()
	return r.AppendJSON(nil), r, nil
}

// nodes lists what makes a table without its registration: that is the commit point.
// The coordinator takes a table for new when its node changes from empty, and only
// then, so an empty one comes first. As long as it is empty no coordinator can start.
func (t *template) nodes(path string) []zk.Op {
	ops := []zk.Op{zk.Create(path, nil), zk.Create(path+"/schemas", nil)}
	for _, id := range slices.Sorted(maps.Keys(t.Schemas)) {
		ops = append(ops, zk.Create(path+"/schemas/"+id, t.Schemas[id]))
	}
	return ops
}
