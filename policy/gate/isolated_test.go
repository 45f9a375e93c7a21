package gate

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/policy"
)

// TestMain lets the test binary be the child of Isolated.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "gate-child" {
		if err := Serve(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(memory int64, timeout time.Duration) Child {
	return Child{Command: []string{os.Args[0], "gate-child"}, Memory: memory, Timeout: timeout}
}

func bundle(t *testing.T, dir string) *policy.Bundle {
	t.Helper()
	b, err := policy.BundleOf(dir)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestIsolatedSaysWhatRunSays(t *testing.T) {
	for _, dir := range []string{"", "../../examples/policy-demo", policyDir(t, map[string]string{"authz.rego": head + "x := := 1\n"})} {
		b := bundle(t, dir)
		want, err := Run(t.Context(), b, Options{Coverage: 50})
		if err != nil {
			t.Fatal(err)
		}
		got, err := Isolated(t.Context(), b, Options{Coverage: 50}, child(0, 0))
		if err != nil || got.Passed != want.Passed || got.Revision != want.Revision || got.Requests != want.Requests || len(got.Problems) != len(want.Problems) {
			t.Errorf("%s: %+v, %v; in this process %+v", dir, got, err, want)
		}
	}
	if _, err := Isolated(t.Context(), bundle(t, ""), Options{}, Child{Command: []string{"/nowhere/at/all"}}); err == nil {
		t.Error("a program that is not there: no error")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Isolated(ended, bundle(t, ""), Options{}, child(0, 0)); err == nil {
		t.Error("a context that ended: no error")
	}
}

// TestIsolatedOutlivesItsChild: each of these ends or would hang a process that
// compiles or evaluates it. This one goes on and has a report.
func TestIsolatedOutlivesItsChild(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the memory of a child is enforced on Linux only")
	}
	var types strings.Builder
	for i := range 60 {
		fmt.Fprintf(&types, "\nx%d := [x%d, x%d]\n", i+1, i, i)
	}
	twice := "\nf(x) := object.get({\"k\": [x, x]}, \"k\", 0)\n"
	nest := strings.Repeat("f(", 40) + "input.time" + strings.Repeat(")", 40)
	for _, tt := range []struct{ name, rego, want string }{
		{"a type that doubles sixty times", known + "\nx0 := input.time\n" + types.String(), ""},
		{"values of shared parts that are unified", head + "decision := {\"allow\": true} if {\n\tx := " + nest + "\n\ty := " + nest + "\n\tx == y\n}\n" + twice, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := Isolated(t.Context(), bundle(t, policyDir(t, map[string]string{"authz.rego": tt.rego})), Options{}, child(512<<20, 5*time.Second))
			if err != nil || r.Passed || r.Err() == nil {
				t.Fatalf("%+v, %v", r, err)
			}
			t.Log(r.Problems[0])
			if p := r.Problems[0]; p.Code != CodeLimits || p.Severity != policy.SeverityError {
				t.Errorf("%+v", p)
			}
		})
	}
}
