package client

import (
	"slices"
	"strings"
	"testing"
)

// TestTheTableOfCodesIsTheProtocols compares with what the exceptions' classes of main
// of August 2026 say; earlier releases have a prefix of it.
func TestTheTableOfCodesIsTheProtocols(t *testing.T) {
	const last = 73
	retriable := []Code{1, 3, 9, 10, 11, 12, 14, 21, 25, 26, 28, 29, 44, 51, 70, 72, 73}
	for code := Code(-1); code <= last; code++ {
		if _, ok := codes[code]; !ok {
			t.Errorf("code %d is missing", code)
		}
		if got, want := code.Retriable(), slices.Contains(retriable, code); got != want {
			t.Errorf("%v is retriable: %v, want %v", code, got, want)
		}
	}
	if len(codes) != last+2 {
		t.Errorf("%d codes", len(codes))
	}
	if c := Code(4711); c.Retriable() || !strings.Contains(c.String(), "4711") {
		t.Errorf("an unknown code: %v", c)
	}
}

func TestAnErrorShowsTheFirstLineOfWhatTheServerSaid(t *testing.T) {
	err := &Error{Code: CodeTableNotExist, Message: "gone\n\tat org.apache.fluss.Server.java:1", API: 1007, Server: "a:1", Bucket: "x"}
	if got, want := err.Error(), "GetTableInfo of x at a:1: table does not exist (7): gone"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
