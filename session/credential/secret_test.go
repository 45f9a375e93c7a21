package credential

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

const canary = "canary-5f0c2b9e7d41"

// The shapes in which a secret can hide: fmt cannot call methods on the
// unexported ones.
type (
	exported   struct{ S Secret }
	unexported struct{ s Secret }
	pointer    struct{ s *Secret }
	nested     struct{ in unexported }
)

func holders(s Secret) map[string]any {
	return map[string]any{
		"alone":                           s,
		"pointer":                         &s,
		"exported field":                  exported{s},
		"unexported field":                unexported{s},
		"pointer to a struct":             &unexported{s},
		"pointer in an unexported field":  pointer{&s},
		"nested unexported field":         nested{unexported{s}},
		"slice":                           []Secret{s},
		"slice of structs":                []unexported{{s}},
		"map value":                       map[string]Secret{"k": s},
		"map of structs with the secret":  map[string]unexported{"k": {s}},
		"map key":                         map[Secret]int{s: 1},
		"interface":                       []any{s},
		"error that wraps a printed one":  fmt.Errorf("token %v refused: %w", s, errors.New("expired")),
		"error that wraps a printed hold": fmt.Errorf("caller %+v", unexported{s}),
	}
}

// leaks reports whether out holds the canary in any spelling that printing yields.
func leaks(out string) bool {
	for _, form := range []string{
		canary,
		fmt.Sprintf("%x", canary), fmt.Sprintf("%X", canary), fmt.Sprintf("% x", canary),
		strings.Trim(fmt.Sprint([]byte(canary)), "[]"),
		strings.Trim(mustJSON([]byte(canary)), `"=`),
	} {
		if strings.Contains(out, form) {
			return true
		}
	}
	return false
}

func mustJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func TestTheSearchFindsLeaks(t *testing.T) {
	// A plain string in the same places must be found, or the tests below prove
	// nothing.
	type plain struct{ s string }
	type plainBytes struct{ s []byte }
	for _, out := range []string{
		fmt.Sprintf("%v", plain{canary}), fmt.Sprintf("%x", canary), fmt.Sprintf("%d", plainBytes{[]byte(canary)}),
		mustJSON([]byte(canary)), mustJSON(map[string]string{"k": canary}),
	} {
		if !leaks(out) {
			t.Errorf("%q counts as no leak", out)
		}
	}
}

func TestFmtShowsNoSecret(t *testing.T) {
	verbs := []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "% x", "%d", "%c", "%U", "%t", "%p", "%T", "%e", "%10s", "%-3.2v", "%!"}
	for name, h := range holders(New(canary)) {
		t.Run(name, func(t *testing.T) {
			for _, verb := range verbs {
				if out := fmt.Sprintf(verb, h); leaks(out) {
					t.Errorf("%s leaks: %s", verb, out)
				}
			}
			if out := fmt.Sprint(h) + fmt.Sprintln(h); leaks(out) {
				t.Errorf("Sprint leaks: %s", out)
			}
		})
	}
}

func TestFmtSaysThatSomethingIsHidden(t *testing.T) {
	s := New(canary)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		if out := fmt.Sprintf(verb, s); out != Redacted {
			t.Errorf("%s prints %s", verb, out)
		}
	}
	if s.String() != Redacted || s.GoString() != Redacted {
		t.Error("String and GoString do not redact")
	}
}

func TestJSONShowsNoSecret(t *testing.T) {
	for name, h := range holders(New(canary)) {
		t.Run(name, func(t *testing.T) {
			out, err := json.Marshal(h)
			if err != nil {
				t.Fatal(err)
			}
			if leaks(string(out)) {
				t.Errorf("leaks: %s", out)
			}
		})
	}
	if out := mustJSON(exported{New(canary)}); out != `{"S":"[redacted]"}` {
		t.Errorf("a field marshals as %s", out)
	}
}

func TestSlogShowsNoSecret(t *testing.T) {
	var buf bytes.Buffer
	handlers := map[string]slog.Handler{
		"text": slog.NewTextHandler(&buf, nil),
		"json": slog.NewJSONHandler(&buf, nil),
	}
	for kind, handler := range handlers {
		for name, h := range holders(New(canary)) {
			t.Run(kind+" "+name, func(t *testing.T) {
				buf.Reset()
				log := slog.New(handler)
				log.Info("message", "attr", h)
				log.With("attr", h).WithGroup("g").Info("message", slog.Group("inner", slog.Any("attr", h)))
				if leaks(buf.String()) {
					t.Errorf("leaks: %s", buf.String())
				}
			})
		}
	}
}

func TestUnmarshalLoadsASecretButNotItsRedaction(t *testing.T) {
	var cfg exported
	if err := json.Unmarshal([]byte(`{"S":"`+canary+`"}`), &cfg); err != nil || cfg.S.Reveal() != canary {
		t.Fatalf("loaded %q, %v", cfg.S.Reveal(), err)
	}
	if err := json.Unmarshal([]byte(mustJSON(cfg)), &cfg); !errors.Is(err, errRedacted) {
		t.Fatalf("a redacted document loads: %v", err)
	}
	if cfg.S.Reveal() != canary {
		t.Error("a refused text replaced the secret")
	}
}

func TestEqualComparesContent(t *testing.T) {
	for _, row := range []struct {
		name string
		a, b Secret
		want bool
	}{
		{"same content behind two pointers", New("a"), New("a"), true},
		{"different content", New("a"), New("b"), false},
		{"prefix", New("a"), New("ab"), false},
		{"two empty ones", Secret{}, New(""), true},
		{"empty and not", Secret{}, New("a"), false},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := row.a.Equal(row.b); got != row.want {
				t.Errorf("Equal = %v", got)
			}
		})
	}
}

func TestFingerprintIsTheSHA256(t *testing.T) {
	const ofABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" // FIPS 180-2, appendix B.1
	if got := New("abc").Fingerprint(); got != ofABC {
		t.Errorf("fingerprint %s", got)
	}
	if got := (Secret{}).Fingerprint(); got != "" {
		t.Errorf("the empty secret has fingerprint %q", got)
	}
	if !(Secret{}).IsZero() || New("a").IsZero() {
		t.Error("IsZero is wrong")
	}
}
