package api

import (
	"net/http"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/broker"
	"github.com/fluss-sluice/sluice/session"
)

func (s *Server) createTable(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	var req v1.CreateTableRequest
	if err := decodeJSON(r, &req); err != nil {
		return err
	}
	eventOf(r.Context()).target = clip(req.Database + "." + req.Table)
	t, err := s.broker.CreateTable(r.Context(), c, req.Database, req.Table, req.TableJSON)
	if err != nil {
		return err
	}
	writeJSON(w, r, http.StatusCreated, wireTable(t))
	return nil
}

func (s *Server) listTables(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	q, err := queryOf(r, "database")
	if err != nil {
		return err
	}
	found, err := s.broker.ListTables(r.Context(), c, q.Get("database"))
	if err != nil {
		return err
	}
	list := v1.TableList{Tables: make([]v1.Table, 0, len(found))}
	for _, t := range found {
		list.Tables = append(list.Tables, wireTable(t))
	}
	writeJSON(w, r, http.StatusOK, list)
	return nil
}

// table reads the two path parameters every table endpoint has.
func (s *Server) table(r *http.Request) (db, table string, err error) {
	p, err := params(r, "db", "table")
	if err != nil {
		return "", "", err
	}
	eventOf(r.Context()).target = clip(p[0] + "." + p[1])
	return p[0], p[1], nil
}

func (s *Server) getTable(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	db, table, err := s.table(r)
	if err != nil {
		return err
	}
	d, err := s.broker.GetTable(r.Context(), c, db, table)
	if err != nil {
		return err
	}
	out := wireTable(d.Table)
	out.Partitions = wirePartitions(d.Partitions)
	for _, v := range d.Schemas {
		out.Schemas = append(out.Schemas, v1.SchemaVersion{SchemaID: v.ID, SchemaJSON: v.JSON})
	}
	if s.signer != nil {
		out.SignedURL = s.signer.BaseURL()
	}
	writeJSON(w, r, http.StatusOK, out)
	return nil
}

func (s *Server) dropTable(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	db, table, err := s.table(r)
	if err != nil {
		return err
	}
	if err := s.broker.DropTable(r.Context(), c, db, table); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) createPartition(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	db, table, err := s.table(r)
	if err != nil {
		return err
	}
	var req v1.CreatePartitionRequest
	if err := decodeJSON(r, &req); err != nil {
		return err
	}
	p, err := s.broker.CreatePartition(r.Context(), c, db, table, req.Partition)
	if err != nil {
		return err
	}
	writeJSON(w, r, http.StatusCreated, v1.Partition{Name: p.Name, ID: p.ID})
	return nil
}

func (s *Server) listPartitions(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	db, table, err := s.table(r)
	if err != nil {
		return err
	}
	found, err := s.broker.ListPartitions(r.Context(), c, db, table)
	if err != nil {
		return err
	}
	writeJSON(w, r, http.StatusOK, v1.PartitionList{Partitions: wirePartitions(found)})
	return nil
}

func (s *Server) dropPartition(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	db, table, err := s.table(r)
	if err != nil {
		return err
	}
	partition, err := param(r, "partition")
	if err != nil {
		return err
	}
	if err := s.broker.DropPartition(r.Context(), c, db, table, partition); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// snapshotTarget is a table of the path with the partition of the query.
func (s *Server) snapshotTarget(r *http.Request) (session.Target, error) {
	db, table, err := s.table(r)
	if err != nil {
		return session.Target{}, err
	}
	q, err := queryOf(r, "partition")
	if err != nil {
		return session.Target{}, err
	}
	t := session.Target{Database: db, Table: table, Partition: q.Get("partition")}
	eventOf(r.Context()).target = clip(t.String())
	return t, nil
}

func (s *Server) latestKVSnapshots(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	t, err := s.snapshotTarget(r)
	if err != nil {
		return err
	}
	got, err := s.broker.LatestKVSnapshots(r.Context(), c, t)
	if err != nil {
		return err
	}
	writeJSON(w, r, http.StatusOK, wireKVSnapshots(got))
	return nil
}

func (s *Server) kvSnapshotMetadata(w http.ResponseWriter, r *http.Request, c broker.Caller) error {
	t, err := s.snapshotTarget(r)
	if err != nil {
		return err
	}
	p, err := params(r, "bucket", "snapshot")
	if err != nil {
		return err
	}
	bucket, err := number("bucket", p[0], 0)
	if err != nil {
		return err
	}
	if bucket > maxBucket {
		return invalid("bucket %d is not below %d", bucket, maxBucket)
	}
	var id *int64
	if p[1] != v1.SnapshotLatest {
		n, err := number("snapshot", p[1], 0)
		if err != nil {
			return err
		}
		id = &n
	}
	got, err := s.broker.KVSnapshotMetadata(r.Context(), c, t, int(bucket), id)
	if err != nil {
		return err
	}
	writeJSON(w, r, http.StatusOK, wireKVSnapshotMetadata(got))
	return nil
}

const maxBucket = 1 << 20
