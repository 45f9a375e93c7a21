package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/fluss-sluice/sluice/broker/target/fluss"
)

func TestDoctorClusterNeedsACluster(t *testing.T) {
	for name, text := range map[string]string{"no cluster": "target: {directory: {root: file:///srv}}", "no YAML": "target: ["} {
		file := filepath.Join(t.TempDir(), "sluiced.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readCluster(file); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	file := filepath.Join(t.TempDir(), "sluiced.yaml")
	text := "target: {fluss: {bootstrap: [\"a:1\"], zookeeper: [\"b:2\"], zookeeper_root: /x}, directory: {root: file:///srv/remote}}\nlisten: {address: x}"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := readCluster(file)
	if err != nil || c.Target.Fluss.Bootstrap[0] != "a:1" || c.Target.Fluss.ZooKeeperRoot != "/x" || c.store.Target.Directory.Root != "file:///srv/remote" {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestFindingsEndTheCommand(t *testing.T) {
	list := []fluss.Finding{{Check: "a", Verdict: fluss.FindingPass}, {Check: "b", Verdict: fluss.FindingSkipped}}
	b, err := json.Marshal(list)
	if err != nil || len(b) == 0 {
		t.Fatal(err)
	}
	if failed(list) != 0 || failed(append(list, fluss.Finding{Verdict: fluss.FindingFail})) != 1 {
		t.Error("failures are not counted")
	}
}
