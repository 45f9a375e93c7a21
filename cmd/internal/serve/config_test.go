package serve

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
)

func writeFile(t *testing.T, text string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "sluiced.yaml")
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// minimal is the least a production configuration needs.
const minimal = `data_dir: /srv/sluice
issuer:
  url: https://sluice.example
identity:
  issuers:
    - issuer: https://id.example
      audience: [sluice]
      jwks_url: https://id.example/jwks
`

func TestMistakesAreShownWithTheirLine(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		says []string
	}{
		"an unknown key":          {minimal + "lsten: x\n", []string{"lsten", "[9:1]"}},
		"an unknown nested key":   {"issuer:\n  url: x\n  audiense: y\n", []string{"audiense", "[3:3]"}},
		"a doubled key":           {"listen: a\nlisten: b\n", []string{"listen", "[2:1]"}},
		"a duration without unit": {"policy:\n  timeout: 5\n", []string{"timeout", "[2:12]"}},
		"a text for a number":     {"max_connections: many\n", []string{"[1:18]"}},
		"a misspelt STS key":      {"credentials:\n  sts:\n    role: x\n", []string{"role", "[3:5]"}},
		"an STS life in seconds":  {"credentials:\n  sts:\n    max_life: 900\n", []string{"max_life", "[3:15]"}},
		"a tag for a list":        {"credentials:\n  sts:\n    tags: sluice-session\n", []string{"[3:11]"}},
		"no YAML":                 {"a: [\n", []string{"["}},
		"an empty section":        {"limits:\n  # active_sessions: 3\nlisten: x\n", []string{"limits has no value"}},
		"an empty key":            {"identity:\n  issuers:\n    - issuer:\n", []string{"identity.issuers[0].issuer"}},
		"a list as a document":    {"- a\n", nil},
		"a second document":       {minimal + "---\nlisten: x\n", []string{"second document"}},
	} {
		_, err := loadConfig(writeFile(t, c.text))
		if err == nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		for _, s := range c.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s: %v does not say %q", name, err, s)
			}
		}
	}
	if _, err := loadConfig(filepath.Join(t.TempDir(), "none.yaml")); err == nil {
		t.Error("a missing file is accepted")
	}
}

func TestAbsentKeysKeepTheirDefaults(t *testing.T) {
	c, err := loadConfig(writeFile(t, minimal+"limits:\n  active_sessions: 3\npolicy:\n  timeout: 250ms\n  watch: false\n"))
	if err != nil {
		t.Fatal(err)
	}
	d := defaults()
	d.DataDir, d.Issuer.URL, d.Limits.ActiveSessions, d.Policy.Timeout, d.Policy.Watch = "/srv/sluice", "https://sluice.example", 3, 250*time.Millisecond, false
	d.Identity.Issuers = []identityIssuer{{Issuer: "https://id.example", Audience: []string{"sluice"}, JWKSURL: "https://id.example/jwks"}}
	if !reflect.DeepEqual(c, d) {
		t.Errorf("got  %+v\nwant %+v", c, d)
	}
	empty, err := loadConfig(writeFile(t, "# nothing\n"))
	if err != nil || !reflect.DeepEqual(empty, defaults()) {
		t.Errorf("an empty file: %v", err)
	}
}

func TestConfigurationsThatCannotWorkAreRefusedByKey(t *testing.T) {
	check := func(change func(*config)) error {
		c, err := loadConfig(writeFile(t, minimal))
		if err != nil {
			t.Fatal(err)
		}
		change(&c)
		c.complete()
		return c.check()
	}
	if err := check(func(*config) {}); err != nil {
		t.Fatalf("the minimal configuration: %v", err)
	}
	for key, change := range map[string]func(*config){
		"audit.on_full":              func(c *config) { c.Audit.OnFull = "shrug" },
		"audit.redact":               func(c *config) { c.Audit.Redact = []string{"principal.subject"} },
		"audit: keep":                func(c *config) { c.Audit.Keep = -1 },
		"audit: segment":             func(c *config) { c.Audit.SegmentBytes = 1 },
		"audit.copy.root":            func(c *config) { c.Audit.Copy.Root = "gs://x" },
		"listen: address":            func(c *config) { c.Listen = "8470" },
		"listen: --dev":              func(c *config) { c.dev, c.Listen = true, "0.0.0.0:8470" },
		`listen: --dev gives`:        func(c *config) { c.dev, c.Listen = true, ":8470" },
		"tls:":                       func(c *config) { c.TLS.CertFile = "x" },
		"data_dir:":                  func(c *config) { c.DataDir = "" },
		"public_url:":                func(c *config) { c.PublicURL = "sluice.example" },
		"issuer.url:":                func(c *config) { c.Issuer.URL = "" },
		"issuer.audience:":           func(c *config) { c.Issuer.Audience = "" },
		"issuer.signing_alg:":        func(c *config) { c.Issuer.SigningAlg = "HS256" },
		"identity.issuers:":          func(c *config) { c.Identity.Issuers = nil },
		"identity.issuers[0]: au":    func(c *config) { c.Identity.Issuers[0].Audience = nil },
		"identity.issuers[0]: is":    func(c *config) { c.Issuer.URL = "https://id.example" },
		"identity.issuers[1]: is":    func(c *config) { c.Identity.Issuers = append(c.Identity.Issuers, c.Identity.Issuers[0]) },
		"policy:":                    func(c *config) { c.Policy.Timeout = 0 },
		"limits: ":                   func(c *config) { c.Limits.BuildTimeout = c.Limits.MaxBuildTimeout + 1 },
		"limits.body_bytes:":         func(c *config) { c.Limits.BodyBytes = 0 },
		"max_connections:":           func(c *config) { c.MaxConnections = -1 },
		"credentials.sign.enabled:":  func(c *config) { c.Credentials.Sign.Enabled = true },
		"credentials.sign.life:":     func(c *config) { c.Credentials.Sign.Life = 16 * time.Minute },
		"credentials.sign.endpoint:": func(c *config) { c.Credentials.Sign.Endpoint = "https://store" },
		"log.level:":                 func(c *config) { c.Log.Level = "loud" },
		"log.format:":                func(c *config) { c.Log.Format = "xml" },
		"shutdown:":                  func(c *config) { c.Shutdown.Timeout = 0 },
	} {
		if err := check(change); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v", key, err)
		}
	}
	err := check(func(c *config) { c.DataDir, c.Log.Level = "", "loud" })
	if err == nil || !strings.Contains(err.Error(), "data_dir") || !strings.Contains(err.Error(), "log.level") {
		t.Errorf("two faults were not told at once: %v", err)
	}
}

// TestEveryKeyIsDocumented compares the keys of the configuration with
// docs/configuration.md, both ways.
func TestEveryKeyIsDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for line := range strings.Lines(string(doc)) {
		if cell, ok := strings.CutPrefix(line, "| `"); ok {
			key, _, _ := strings.Cut(cell, "`")
			if handOver := key == "copy" || key == "wait" || key == "verify" || key == "same"; !handOver {
				documented[key] = true
			}
		}
	}
	keys := map[string]bool{}
	collect(reflect.TypeFor[config](), "", keys)
	for k := range keys {
		if !documented[k] {
			t.Errorf("%s is not documented", k)
		}
	}
	for k := range documented {
		if !keys[k] && !strings.HasPrefix(k, "-") {
			t.Errorf("%s is documented and does not exist", k)
		}
	}
	if len(keys) < 40 {
		t.Errorf("only %d keys found", len(keys))
	}
}

func collect(t reflect.Type, prefix string, into map[string]bool) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if name == "" {
			continue
		}
		switch {
		case f.Type.Kind() == reflect.Struct:
			collect(f.Type, prefix+name+".", into)
		case f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct:
			collect(f.Type.Elem(), prefix+name+"[].", into)
		default:
			into[prefix+name] = true
		}
	}
}

func TestTheDocumentsExampleIsGood(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(doc), "```yaml\n")
	example, _, ok2 := strings.Cut(rest, "```")
	if !ok || !ok2 {
		t.Fatal("no example")
	}
	c, err := loadConfig(writeFile(t, example))
	if err != nil {
		t.Fatal(err)
	}
	c.complete()
	if err := c.check(); err != nil {
		t.Error(err)
	}
}

func TestConfigPrintCanBeReadBack(t *testing.T) {
	var out, errs bytes.Buffer
	if code := Main([]string{"config", "print", "--config", writeFile(t, minimal)}, "", &out, &errs); code != exitOK {
		t.Fatalf("%d: %s", code, errs.String())
	}
	var c config
	if err := yaml.UnmarshalWithOptions(out.Bytes(), &c, yaml.Strict()); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	again, err := yaml.Marshal(c)
	if err != nil || !bytes.Equal(again, out.Bytes()) {
		t.Errorf("read back and printed again:\n%s\nwas\n%s", again, out.String())
	}
	want, _ := loadConfig(writeFile(t, minimal))
	want.complete()
	if !reflect.DeepEqual(c.Target, want.Target) || c.Limits != want.Limits || !reflect.DeepEqual(c.Policy, want.Policy) || c.Issuer != want.Issuer {
		t.Errorf("printed %+v, want %+v", c, want)
	}
}

func TestUsage(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		code int
		out  string
		errs string
	}{
		"nothing":                 {nil, exitBadUsage, "", "--config"},
		"an unknown flag":         {[]string{"--nope"}, exitBadUsage, "", "nope"},
		"an argument":             {[]string{"--dev", "x"}, exitBadUsage, "", "x"},
		"the version":             {[]string{"--version"}, exitOK, "sluiced ", ""},
		"help":                    {[]string{"--help"}, exitOK, "--ready-file", ""},
		"dev off loopback":        {[]string{"--dev", "--listen", "0.0.0.0:0"}, exitBadUsage, "", "loopback"},
		"a good configuration":    {[]string{"config", "check", "--config", writeFile(t, minimal)}, exitOK, "good", ""},
		"a bad configuration":     {[]string{"config", "check", "--config", writeFile(t, "x: 1\n")}, exitBadUsage, "", "[1:1]"},
		"flags over the file":     {[]string{"config", "print", "--config", writeFile(t, minimal), "--listen", "127.0.0.1:9", "--data", "/d"}, exitOK, "root: /d/warehouse", ""},
		"flags are checked too":   {[]string{"config", "check", "--config", writeFile(t, minimal), "--tls-cert", "x"}, exitBadUsage, "", "key_file"},
		"dev needs no file":       {[]string{"config", "check", "--dev"}, exitOK, "good", ""},
		"dev shows what it means": {[]string{"config", "print", "--dev", "--data", "/d"}, exitOK, "uri: file:///d/warehouse", ""},
	} {
		var out, errs bytes.Buffer
		code := Main(c.args, "", &out, &errs)
		if code != c.code || !strings.Contains(out.String(), c.out) || !strings.Contains(errs.String(), c.errs) {
			t.Errorf("%s: exit %d\n%s\n%s", name, code, out.String(), errs.String())
		}
	}
}
