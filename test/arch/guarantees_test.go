package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTheGuaranteesNameTestsThatExist looks for every test that docs/guarantees.md
// names, and for all 27 behaviours.
func TestTheGuaranteesNameTestsThatExist(t *testing.T) {
	page, err := os.ReadFile("../../docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^\| \d+ \|.*$`).FindAllString(string(page), -1)
	if len(rows) != 27 {
		t.Errorf("%d behaviours, want 27", len(rows))
	}
	name := regexp.MustCompile("`([a-z0-9/]+)\\.(Test[A-Za-z0-9]+)`")
	for _, row := range rows {
		tests := name.FindAllStringSubmatch(row, -1)
		if len(tests) == 0 {
			t.Errorf("no test is named: %s", row)
		}
		for _, test := range tests {
			if !hasTest(t, filepath.Join("../..", test[1]), test[2]) {
				t.Errorf("%s has no %s", test[1], test[2])
			}
		}
	}
}

func hasTest(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), "\nfunc "+name+"(t *testing.T) {") {
			return true
		}
	}
	return false
}
