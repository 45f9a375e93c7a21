package conformance

import (
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
)

func TestEveryProviderHasAnAnswerAndItsSource(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range Providers() {
		if p.Name == "" || seen[p.Name] {
			t.Errorf("name %q", p.Name)
		}
		seen[p.Name] = true
		for _, answer := range []string{p.Warehouse, p.Sign, p.STS} {
			if answer != Yes && answer != No && answer != Unknown {
				t.Errorf("%s: answer %q", p.Name, answer)
			}
		}
		if p.Known != Measured && p.Known != Read || (p.Known == Measured) != (p.Version != "") {
			t.Errorf("%s: known %q, version %q", p.Name, p.Known, p.Version)
		}
		if len(p.Notes) == 0 || len(p.Sources) == 0 || slices.Contains(p.Sources, "") {
			t.Errorf("%s: no note, or no source", p.Name)
		}
	}
	for _, name := range []string{"AWS S3", "Ceph RGW", "SeaweedFS", "MinIO", "Cloudflare R2", "Aliyun OSS", "Azure Blob Storage", "versitygw", "RustFS", "Wasabi", "Backblaze B2", "Garage"} {
		if !seen[name] {
			t.Errorf("%s is not in the table", name)
		}
	}
}

func TestEveryCheckHasOneNamePerModeAndSaysWhatItDoes(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Checks() {
		name := string(c.Mode) + ": " + c.Name
		if seen[name] {
			t.Errorf("twice: %s", name)
		}
		seen[name] = true
		if c.Name == "" || c.Attempts == "" || c.Must == "" {
			t.Errorf("%s: %+v", name, c)
		}
	}
	quick := map[Mode]bool{}
	for _, c := range Checks() {
		quick[c.Mode] = quick[c.Mode] || c.Quick
	}
	if !quick[Warehouse] || !quick[Sign] || !quick[STS] {
		t.Error("a mode without quick checks would be trusted for nothing")
	}
}

func TestJudgement(t *testing.T) {
	for _, row := range []struct {
		name    string
		results []Result
		trusted bool
		advice  int
	}{
		{"all passed", []Result{{Mode: STS, Verdict: Pass}}, true, 0},
		{"one failed", []Result{{Mode: STS, Verdict: Pass}, {Mode: STS, Verdict: Fail}}, false, 0},
		{"a lax one failed", []Result{{Mode: STS, Verdict: Pass}, {Mode: STS, Verdict: Fail, Lax: true, Consequence: "set x"}}, true, 1},
		{"the same advice twice", []Result{{Mode: STS, Verdict: Pass}, {Mode: STS, Verdict: Fail, Lax: true, Consequence: "set x"}, {Mode: STS, Verdict: Fail, Lax: true, Consequence: "set x"}}, true, 1},
		{"everything skipped", []Result{{Mode: STS, Verdict: Skipped}}, false, 0},
		{"another mode failed", []Result{{Mode: STS, Verdict: Pass}, {Mode: Sign, Verdict: Fail}}, true, 0},
		{"nothing tried", nil, false, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := judge([]Mode{STS}, row.results)[0]
			if got.Trusted != row.trusted || len(got.Advice) != row.advice || got.Trusted == (len(got.Reasons) > 0) {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestJudgementOfAnAnswer(t *testing.T) {
	for _, row := range []struct {
		name string
		row  attempt
		got  answer
		want Verdict
	}{
		{"denied", attempt{}, answer{status: 403}, Pass},
		{"done", attempt{}, answer{status: 200}, Fail},
		{"not there is an oracle", attempt{}, answer{status: 404}, Fail},
		{"a broken server proves nothing", attempt{}, answer{status: 500}, Fail},
		{"a redirect proves nothing", attempt{}, answer{status: 301}, Fail},
		{"not implemented", attempt{}, answer{status: 501}, NotSupported},
		{"stored literally", attempt{want: harmless}, answer{status: 200}, Pass},
		{"stored with a header it must not have", attempt{want: harmless, lax: "x"}, answer{status: 200}, Fail},
		{"a malformed name", attempt{want: harmless}, answer{status: 400}, Pass},
		{"a batch that deleted one", attempt{batch: true}, answer{status: 200, body: []byte("<Deleted/><Error><Code>AccessDenied</Code></Error>")}, Fail},
		{"a batch that deleted none", attempt{batch: true}, answer{status: 200, body: []byte("<Error><Code>AccessDenied</Code></Error>")}, Pass},
		{"a batch that says nothing", attempt{batch: true}, answer{status: 200}, Fail},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := judgeAnswer(row.row, row.got); got.verdict != row.want {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestACallStandsOnTheWireAsItIs(t *testing.T) {
	p := place{"https", "s3.example", true}
	for _, row := range []struct {
		c    call
		want string
	}{
		{call{key: "a/b"}, "https://s3.example/lake/a/b"},
		{call{key: "a b%é"}, "https://s3.example/lake/a%20b%25%C3%A9"},
		{call{raw: "a/../b//c"}, "https://s3.example/lake/a/../b//c"},
		{call{raw: "a%2e%2e%2fb"}, "https://s3.example/lake/a%2e%2e%2fb"},
		{call{raw: "a/%252e"}, "https://s3.example/lake/a/%252e"},
		{call{query: "uploads="}, "https://s3.example/lake?uploads="},
		{call{bucket: "other", key: "x"}, "https://s3.example/other/x"},
	} {
		if got := p.url("lake", row.c).String(); got != row.want {
			t.Errorf("%s, want %s", got, row.want)
		}
	}
	p.pathStyle = false
	if got := p.url("lake", call{key: "a"}).String(); got != "https://lake.s3.example/a" {
		t.Error(got)
	}
}

func TestWhatCannotBeExaminedIsRefused(t *testing.T) {
	good := Config{Bucket: "lake", Region: "r", Admin: aws.AnonymousCredentials{}}
	for _, row := range []struct {
		name string
		edit func(*Config)
		want string
	}{
		{"no bucket", func(c *Config) { c.Bucket = "" }, "bucket"},
		{"no region", func(c *Config) { c.Region = "" }, "region"},
		{"no keys", func(c *Config) { c.Admin = nil }, "keys"},
		{"the other bucket is the same", func(c *Config) { c.OtherBucket = "lake" }, "other bucket"},
		{"slashes around the prefix", func(c *Config) { c.Prefix = "a/" }, "slash"},
		{"a prefix that climbs", func(c *Config) { c.Prefix = "a/../b" }, "prefix"},
		{"sts without a vendor", func(c *Config) { c.Modes = []Mode{STS} }, "vendor"},
		{"an unknown mode", func(c *Config) { c.Modes = []Mode{"x"} }, "mode"},
		{"an endpoint with a password", func(c *Config) { c.Endpoint = "http://u:hunter2@h" }, "endpoint"},
		{"an endpoint with a path", func(c *Config) { c.Endpoint = "http://h/p" }, "endpoint"},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := good
			row.edit(&c)
			_, err := Run(t.Context(), c)
			if err == nil || !strings.Contains(err.Error(), row.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%v, want something about %q", err, row.want)
			}
		})
	}
}
