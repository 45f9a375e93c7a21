package znode

import (
	"reflect"
	"strings"
	"testing"
)

type document interface{ AppendJSON([]byte) []byte }

// parsers and samples: every kind of document, as Fluss writes it.
var parsers = map[string]func([]byte) (document, error){
	"table":     func(b []byte) (document, error) { return ParseTableRegistration(b) },
	"partition": func(b []byte) (document, error) { return ParsePartitionRegistration(b) },
	"leader":    func(b []byte) (document, error) { return ParseLeaderAndISR(b) },
	"snapshot":  func(b []byte) (document, error) { return ParseBucketSnapshot(b) },
	"lake":      func(b []byte) (document, error) { return ParseLakeTable(b) },
	"offsets":   func(b []byte) (document, error) { return ParseBucketOffsets(b) },
}

var samples = []struct{ kind, doc string }{
	{"table", `{"version":1,"table_id":7,"partition_key":[],"bucket_key":["id"],"bucket_count":3,"properties":{"a":"1","b":"2"},"custom_properties":{},"created_time":1,"modified_time":2}`},
	{"table", `{"version":1,"table_id":7,"comment":"c","partition_key":["dt"],"properties":{},"custom_properties":{},"remote_data_dir":"s3://b","created_time":1,"modified_time":2}`},
	{"partition", `{"version":1,"table_id":7,"partition_id":11}`},
	{"partition", `{"version":1,"table_id":7,"partition_id":11,"remote_data_dir":"s3://b"}`},
	{"leader", `{"version":1,"leader":1,"leader_epoch":2,"isr":[1,2],"coordinator_epoch":3,"bucket_epoch":4}`},
	{"leader", `{"version":2,"leader":-1,"leader_epoch":2,"isr":[],"coordinator_epoch":3,"bucket_epoch":4,"standby_replicas":[]}`},
	{"snapshot", `{"version":1,"snapshot_id":-2,"log_offset":5,"metadata_path":"s3://b/_METADATA"}`},
	{"lake", `{"version":2,"lake_snapshots":[]}`},
	{"lake", `{"version":2,"lake_snapshots":[{"snapshot_id":3,"tiered_offsets":"a"},{"snapshot_id":4,"tiered_offsets":"b","readable_offsets":"c"}]}`},
	{"offsets", `{"version":1,"table_id":7,"bucket_offsets":[]}`},
	{"offsets", `{"version":1,"table_id":7,"partition_offsets":[{"partition_id":11,"bucket_offsets":[10,-1]}]}`},
}

func TestDocumentsComeBack(t *testing.T) {
	for _, s := range samples {
		d, err := parsers[s.kind]([]byte(s.doc))
		if err != nil {
			t.Errorf("%s: %v", s.doc, err)
			continue
		}
		if got := string(d.AppendJSON(nil)); got != s.doc {
			t.Errorf("%s prints as\n%s", s.doc, got)
		}
	}
}

func TestDocumentsThatAreRefused(t *testing.T) {
	for _, s := range samples {
		version := s.doc[:len(`{"version":1`)]
		for name, changed := range map[string]string{
			"an unknown key":   strings.TrimSuffix(s.doc, "}") + `,"x":1}`,
			"a duplicate key":  strings.Replace(s.doc, "{", version+",", 1),
			"no version":       strings.Replace(s.doc, version+",", "{", 1),
			"a newer version":  strings.Replace(s.doc, version, `{"version":3`, 1),
			"an older version": strings.Replace(s.doc, version, `{"version":0`, 1),
			"an array":         "[" + s.doc + "]",
			"only its version": version + "}",
			"trailing content": s.doc + "x",
		} {
			if d, err := parsers[s.kind]([]byte(changed)); err == nil {
				t.Errorf("%s: %s is %+v", name, changed, d)
			}
		}
	}
	for kind, doc := range map[string]string{
		"lake":      `{"version":1,"table_id":7,"snapshot_id":3,"buckets":[]}`,
		"offsets":   `{"version":1,"table_id":7,"bucket_offsets":[],"partition_offsets":[]}`,
		"leader":    `{"version":1,"leader":"1","leader_epoch":2,"isr":[1,2],"coordinator_epoch":3,"bucket_epoch":4}`,
		"table":     `{"version":1,"table_id":7,"properties":{"a":1},"custom_properties":{},"created_time":1,"modified_time":2}`,
		"partition": `{"version":1,"table_id":7,"partition_id":11,"partition_id":12}`,
	} {
		if d, err := parsers[kind]([]byte(doc)); err == nil {
			t.Errorf("%s is %+v", doc, d)
		}
	}
}

func FuzzParse(f *testing.F) {
	kinds := []string{"table", "partition", "leader", "snapshot", "lake", "offsets"}
	for i, kind := range kinds {
		for _, s := range samples {
			if s.kind == kind {
				f.Add(uint8(i), []byte(s.doc))
			}
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, b []byte) {
		parse := parsers[kinds[int(which)%len(kinds)]]
		d, err := parse(b)
		if err != nil {
			return
		}
		printed := d.AppendJSON(nil)
		again, err := parse(printed)
		if err != nil || !reflect.DeepEqual(again.AppendJSON(nil), printed) {
			t.Fatalf("%q prints as %s: %v", b, printed, err)
		}
	})
}
