package policy

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/open-policy-agent/opa/v1/bundle"

	"github.com/fluss-sluice/sluice/session/credential"
)

const ownRules = `package sluice.authz

default decision := {"allow": false}

decision := {"allow": true, "rule": "friend"} if input.principal.subject == data.friend
`

func ownBundle(t testing.TB) *Bundle {
	t.Helper()
	b, err := NewBundle("test", []BundleFile{
		{Name: "a/authz.rego", Text: []byte(ownRules)},
		{Name: "a/authz_test.rego", Text: []byte("package sluice.authz_test\n\ntest_x if true\n")},
		{Name: "data.json", Text: []byte(`{ "friend": "bob", "<&>": 1.50 }`)},
		{Name: "b/c/data.yaml", Text: []byte("x: [1, 2]\n")},
		{Name: "data.schema.json", Text: []byte(`{"type":"object"}`)},
		{Name: "README.md", Text: []byte(`left alone`)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func packed(t testing.TB, b *Bundle) []byte {
	t.Helper()
	var out bytes.Buffer
	n, err := b.WriteTo(&out)
	if err != nil || n != int64(out.Len()) {
		t.Fatalf("%d bytes, %v", n, err)
	}
	return out.Bytes()
}

// TestBundlesComeBack: a bundle that was written and read is the same policy, and
// equal policies are equal bytes.
func TestBundlesComeBack(t *testing.T) {
	shipped, err := ShippedBundle(benchData(10))
	if err != nil {
		t.Fatal(err)
	}
	patched, err := shipped.Patch(DataDelta{Ops: []DataOp{set(`{"grants":{}}`, "roles", "new")}})
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]*Bundle{"own rules": ownBundle(t), "the shipped rules": shipped, "edited data": patched} {
		first := packed(t, b)
		again, err := ReadBundle(bytes.NewReader(first), Verify{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if again.Revision() != b.Revision() || again.TestsDigest() != b.TestsDigest() || again.Shipped() != b.Shipped() || again.Signer() != "" {
			t.Errorf("%s: it comes back as %+v", name, again.Revision())
		}
		if !bytes.Equal(packed(t, again), first) {
			t.Errorf("%s: it is written otherwise the second time", name)
		}
		if _, err := Prepare(t.Context(), again, PrepareOptions{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// keyPair is a private and a public key in PEM.
func keyPair(t testing.TB, private crypto.Signer) (string, string) {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	pub, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})), string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: pub}))
}

// signers is one per algorithm.
func signers(t testing.TB) map[string]crypto.Signer {
	t.Helper()
	rsaKey, err1 := rsa.GenerateKey(rand.Reader, 2048)
	ecKey, err2 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	_, edKey, err3 := ed25519.GenerateKey(rand.Reader)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	return map[string]crypto.Signer{"RS256": rsaKey, "PS256": rsaKey, "ES256": ecKey, "EdDSA": edKey}
}

// TestSignedBundles are trusted by Sluice and by OPA, for the key that signed them and
// no other.
func TestSignedBundles(t *testing.T) {
	b := ownBundle(t)
	_, strange := keyPair(t, signers(t)["ES256"])
	for alg, signer := range signers(t) {
		private, public := keyPair(t, signer)
		var out bytes.Buffer
		if _, err := b.WriteSigned(&out, Signer{KeyID: "release", Algorithm: alg, Key: credential.New(private)}); err != nil {
			t.Fatalf("%s: %v", alg, err)
		}
		keys := map[string]VerifyKey{"old": {"ES256", credential.New(strange)}, "release": {alg, credential.New(public)}}
		got, err := ReadBundle(bytes.NewReader(out.Bytes()), Verify{Keys: keys})
		if err != nil || got.Revision() != b.Revision() || got.Signer() != "release" {
			t.Errorf("%s: %v, signed by %q", alg, err, got.Signer())
		}
		delete(keys, "release")
		if _, err := ReadBundle(bytes.NewReader(out.Bytes()), Verify{Keys: keys}); !errors.Is(err, ErrSignature) {
			t.Errorf("%s: under another key: %v", alg, err)
		}
		if _, err := ReadBundle(bytes.NewReader(out.Bytes()), Verify{Keys: map[string]VerifyKey{"release": {alg, credential.New(public)}}, Scope: "write"}); !errors.Is(err, ErrSignature) {
			t.Errorf("%s: without the scope: %v", alg, err)
		}
		opaKeys := map[string]*bundle.KeyConfig{"release": {Key: public, Algorithm: alg}}
		theirs, err := bundle.NewReader(bytes.NewReader(out.Bytes())).WithBundleVerificationConfig(bundle.NewVerificationConfig(opaKeys, "", "", nil)).Read()
		if err != nil || theirs.Manifest.Revision != b.Revision().ID {
			t.Errorf("%s: OPA says %v", alg, err)
		}
		// An attacker who knows the public key uses it as a shared one.
		if alg == "RS256" {
			forged := resign(t, out.Bytes(), func(files []BundleFile) []byte {
				infos := []bundle.FileInfo{}
				for _, f := range files {
					sum, err := signedHash(f)
					if err != nil {
						t.Fatal(err)
					}
					infos = append(infos, bundle.NewFile(f.Name, sum, hashName))
				}
				token, err := bundle.GenerateSignedToken(infos, bundle.NewSigningConfig(public, "HS256", ""), "release")
				if err != nil {
					t.Fatal(err)
				}
				return []byte(`{"signatures":["` + token + `"]}`)
			})
			if _, err := ReadBundle(bytes.NewReader(forged), Verify{Keys: map[string]VerifyKey{"release": {alg, credential.New(public)}}}); !errors.Is(err, ErrSignature) {
				t.Errorf("signed with the public key: %v", err)
			}
		}
	}
}

// resign replaces the signatures of a bundle.
func resign(t testing.TB, b []byte, sign func([]BundleFile) []byte) []byte {
	return rewrite(t, b, func(files []BundleFile) []BundleFile {
		files = slices.DeleteFunc(files, func(f BundleFile) bool { return f.Name == bundleSignaturesName })
		return append(files, BundleFile{Name: bundleSignaturesName, Text: sign(files)})
	})
}

// rewrite changes the files of a bundle.
func rewrite(t testing.TB, b []byte, change func([]BundleFile) []BundleFile) []byte {
	t.Helper()
	files, err := readTar(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := writeTar(&out, change(files)); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestTamperedBundles are refused whatever was done to them; untouched they are not.
func TestTamperedBundles(t *testing.T) {
	private, public := keyPair(t, signers(t)["ES256"])
	var out bytes.Buffer
	if _, err := ownBundle(t).WriteSigned(&out, Signer{KeyID: "k", Algorithm: "ES256", Key: credential.New(private)}); err != nil {
		t.Fatal(err)
	}
	v := Verify{Keys: map[string]VerifyKey{"k": {"ES256", credential.New(public)}}}
	edit := func(name, old, new string) func([]BundleFile) []BundleFile {
		return func(files []BundleFile) []BundleFile {
			for i, f := range files {
				if f.Name == name {
					if !bytes.Contains(f.Text, []byte(old)) {
						t.Fatalf("%s holds no %q", name, old)
					}
					files[i].Text = bytes.Replace(f.Text, []byte(old), []byte(new), 1)
				}
			}
			return files
		}
	}
	for name, tt := range map[string]struct {
		change func([]BundleFile) []BundleFile
		kind   error
	}{
		"untouched":                {func(f []BundleFile) []BundleFile { return f }, nil},
		"in another order":         {func(f []BundleFile) []BundleFile { slices.Reverse(f); return f }, nil},
		"another form of the data": {edit("data.json", `{`, `{ `), nil},
		"another rule":             {edit("a/authz.rego", "==", "!="), ErrSignature},
		"a space in a rule":        {edit("a/authz.rego", "==", " =="), ErrSignature},
		"other data":               {edit("data.json", "bob", "eve"), ErrSignature},
		"a number that is equal and not the same": {edit("data.json", "1.50", "1.5"), ErrSignature},
		"another schema":   {edit("data.schema.json", "object", "array"), ErrSignature},
		"another test":     {edit("a/authz_test.rego", "true", "false"), ErrSignature},
		"another manifest": {edit(".manifest", `"roots":[""]`, `"roots":["a"]`), ErrSignature},
		"a file more": {func(f []BundleFile) []BundleFile {
			return append(f, BundleFile{Name: "more.rego", Text: []byte("package more\n")})
		}, ErrSignature},
		"a file that is not read": {func(f []BundleFile) []BundleFile { return append(f, BundleFile{Name: "README.md"}) }, ErrSignature},
		"a file less": {func(f []BundleFile) []BundleFile {
			return slices.DeleteFunc(f, func(f BundleFile) bool { return f.Name == "data.schema.json" })
		}, ErrSignature},
		"a file renamed": {func(f []BundleFile) []BundleFile { f[len(f)-1].Name += "x"; return f }, ErrSignature},
		"no signature": {func(f []BundleFile) []BundleFile {
			return slices.DeleteFunc(f, func(f BundleFile) bool { return f.Name == bundleSignaturesName })
		}, ErrSignature},
		"no signature in its file": {edit(bundleSignaturesName, "signatures", "none"), ErrSignature},
		"a plugin":                 {edit(bundleSignaturesName, "{", `{"plugin":"_default",`), ErrSignature},
		"a broken token":           {edit(bundleSignaturesName, ".", "x."), ErrSignature},
		"an algorithm none":        {edit(bundleSignaturesName, `["`, `["eyJhbGciOiJub25lIn0.e30.","`), ErrSignature},
	} {
		_, err := ReadBundle(bytes.NewReader(rewrite(t, out.Bytes(), tt.change)), v)
		if tt.kind == nil && err != nil || tt.kind != nil && !errors.Is(err, tt.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSigningSaysNothingOfTheKey: an error must not hold what it was given.
func TestSigningSaysNothingOfTheKey(t *testing.T) {
	for _, key := range []string{"", "no PEM: hunter2", "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----\n", strings.Repeat("hunter2", 1000)} {
		_, err := ownBundle(t).WriteSigned(io.Discard, Signer{KeyID: "k", Algorithm: "ES256", Key: credential.New(key)})
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v", err)
		}
	}
}

func rawTar(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	w := tar.NewWriter(zip)
	for _, h := range headers {
		text := []byte(h.Uname) // the content, in a field that fits
		h.Uname, h.Size = "", int64(len(text))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(text); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), zip.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestBundlesThatAreRefused say what is wrong with them.
func TestBundlesThatAreRefused(t *testing.T) {
	rule := tar.Header{Name: "authz.rego", Typeflag: tar.TypeReg, Uname: ownRules}
	file := func(name, text string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg, Uname: text} }
	good := packed(t, ownBundle(t))
	truncated := good[:len(good)-1]
	flipped := slices.Clone(good)
	flipped[len(flipped)-6] ^= 1 // the checksum of the gzip
	var bomb bytes.Buffer
	zip := gzip.NewWriter(&bomb)
	w := tar.NewWriter(zip)
	if err := w.WriteHeader(&tar.Header{Name: "data.json", Typeflag: tar.TypeReg, Size: maxUnpacked * 2}); err != nil {
		t.Fatal(err)
	}
	for range 2 * maxUnpacked >> 20 {
		if _, err := w.Write(make([]byte, 1<<20)); err != nil {
			break
		}
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		b    []byte
		text string
	}{
		"nothing":                       {nil, "EOF"},
		"no gzip":                       {[]byte("package sluice.authz"), "gzip"},
		"cut off":                       {truncated, "EOF"},
		"a wrong checksum":              {flipped, "checksum"},
		"an endless file":               {bomb.Bytes(), "too large"},
		"a file twice":                  {rawTar(t, rule, rule), "twice"},
		"a file twice, spelt otherwise": {rawTar(t, rule, file("/authz.rego", "")), "twice"},
		"a path upwards":                {rawTar(t, rule, file("../x.rego", "")), "clean path"},
		"a path with dots":              {rawTar(t, rule, file("a/../x.rego", "")), "clean path"},
		"a link":                        {rawTar(t, tar.Header{Name: "authz.rego", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}), "regular"},
		"a delta of OPA":                {rawTar(t, rule, file("patch.json", "{}")), "OPA would decide"},
		"WebAssembly":                   {rawTar(t, rule, file("policy.wasm", "")), "OPA would decide"},
		"WebAssembly in the manifest":   {rawTar(t, rule, file(".manifest", `{"wasm":[{"module":"x"}]}`)), "WebAssembly"},
		"Rego v0":                       {rawTar(t, rule, file(".manifest", `{"rego_version":0}`)), "Rego v0"},
		"a file of Rego v0":             {rawTar(t, rule, file(".manifest", `{"file_rego_versions":{"/authz.rego":0}}`)), "Rego v0"},
		"no manifest JSON":              {rawTar(t, rule, file(".manifest", `{`)), ".manifest"},
		"a hidden file":                 {rawTar(t, rule, file(".hidden.rego", "")), "hidden"},
		"no rules":                      {rawTar(t, file("data.json", "{}")), "no rules"},
		"broken data":                   {rawTar(t, rule, file("data.json", `{"a":1,"a":2}`)), "duplicate key"},
		"data in conflict":              {rawTar(t, rule, file("data.json", `{"a":{"b":1}}`), file("a/data.json", `{"b":2}`)), "another file"},
		"another revision than it says": {rewrite(t, good, func(f []BundleFile) []BundleFile {
			for i := range f {
				f[i].Text = bytes.Replace(f[i].Text, []byte(`"bob"`), []byte(`"eve"`), 1)
			}
			return f
		}), "says it is revision"},
	} {
		if _, err := ReadBundle(bytes.NewReader(tt.b), Verify{}); err == nil || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestBundlesOfOPA are read: as `opa build` writes them, with data in folders.
func TestBundlesOfOPA(t *testing.T) {
	var out bytes.Buffer
	b := bundle.Bundle{
		Manifest: bundle.Manifest{Revision: "whatever", Roots: &[]string{"sluice", "friend"}},
		Data:     map[string]any{"friend": "bob"},
		Modules:  []bundle.ModuleFile{{Path: "/x/authz.rego", URL: "/x/authz.rego", Raw: []byte(ownRules)}},
	}
	if err := bundle.NewWriter(&out).DisableFormat(true).Write(b); err != nil {
		t.Fatal(err)
	}
	got, err := ReadBundle(&out, Verify{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := Prepare(t.Context(), got, PrepareOptions{})
	if err != nil {
		t.Fatal(err)
	}
	in := begin("bob")
	if d, err := c.Decide(t.Context(), in); err != nil || !d.Allow || d.Rule != "friend" {
		t.Errorf("%+v, %v", d, err)
	}
}

// FuzzReadBundle: whatever the bytes, reading ends in a bundle that comes back as
// itself, or in an error.
func FuzzReadBundle(f *testing.F) {
	good := packed(f, ownBundle(f))
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add([]byte{})
	f.Add(rawTar(f, tar.Header{Name: "authz.rego", Typeflag: tar.TypeReg, Uname: ownRules}, tar.Header{Name: "a/data.yaml", Typeflag: tar.TypeReg, Uname: "x: {y: 1}"}))
	f.Add(rawTar(f, tar.Header{Name: "policy.yaml", Typeflag: tar.TypeReg, Uname: "rules: shipped"}))
	keys := map[string]VerifyKey{"k": {"HS256", credential.New("a shared secret of some length ....")}}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := ReadBundle(bytes.NewReader(b), Verify{})
		if err == nil {
			again, err := ReadBundle(bytes.NewReader(packed(t, got)), Verify{})
			if err != nil || again.Revision() != got.Revision() {
				t.Errorf("it does not come back: %v", err)
			}
		}
		if _, err := ReadBundle(bytes.NewReader(b), Verify{Keys: keys}); err == nil {
			t.Error("a bundle nobody signed is trusted")
		}
	})
}

// FuzzReadFiles is FuzzReadBundle behind the gzip and the tar, which stop most bytes.
func FuzzReadFiles(f *testing.F) {
	f.Add("authz.rego", ownRules, `{"a":1}`, `{"revision":"x","roots":[""]}`, `{"signatures":["a.b.c"]}`)
	f.Add("a/b_test.rego", "package x", `{"a":{"b":[1e9]}}`, `{"metadata":{"sluice":{"format":1}}}`, `{}`)
	f.Add("policy.yaml", "rules: shipped", `{"roles":{}}`, `{}`, `{"signatures":[]}`)
	keys := map[string]VerifyKey{"k": {"HS256", credential.New("a shared secret of some length ....")}}
	f.Fuzz(func(t *testing.T, name, text, data, manifest, signatures string) {
		var out bytes.Buffer
		_, err := writeTar(&out, []BundleFile{{Name: name, Text: []byte(text)}, {Name: "data.json", Text: []byte(data)},
			{Name: bundleManifestName, Text: []byte(manifest)}, {Name: bundleSignaturesName, Text: []byte(signatures)}})
		if err != nil {
			return
		}
		if got, err := ReadBundle(bytes.NewReader(out.Bytes()), Verify{}); err == nil {
			again, err := ReadBundle(bytes.NewReader(packed(t, got)), Verify{})
			if err != nil || again.Revision() != got.Revision() {
				t.Errorf("it does not come back: %v", err)
			}
		}
		if _, err := ReadBundle(bytes.NewReader(out.Bytes()), Verify{Keys: keys}); err == nil {
			t.Error("a bundle nobody signed is trusted")
		}
	})
}
