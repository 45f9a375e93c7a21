package policy

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/bundle"

	"github.com/fluss-sluice/sluice/session/credential"
)

// The file of a bundle: a gzipped tar as OPA reads it, of
//
//	.manifest          {"revision": id, "roots": [""], "rego_version": 1, "metadata": {"sluice": {"format": 1}}}
//	.signatures.json   {"signatures": [JWT]}, if signed, as OPA signs bundles
//	*.rego             rules and tests
//	data.json          the whole data document, canonical
//	data.schema.json   the schema of the data, if any
//
// in that order, the rest by name, each name with a leading slash, without times and
// owners: equal bundles are equal bytes, but for signatures.
const (
	bundleManifestName   = ".manifest"
	bundleSignaturesName = ".signatures.json"
	bundleFormat         = 1

	hashName = "SHA-256" // as OPA calls it in signatures
)

// Bounds of a bundle that is read.
const (
	maxPacked   = maxSize + 1<<20          // bytes of the file
	maxUnpacked = maxSize + maxFiles*2<<10 // bytes of the tar
)

// foreign are files that would decide in OPA and not here.
var foreign = []string{"patch.json", "plan.json", ".manifest.pb"}

// bundleManifest is the .manifest of an OPA bundle.
type bundleManifest struct {
	Revision    string   `json:"revision"`
	Roots       []string `json:"roots"`
	RegoVersion *int     `json:"rego_version,omitempty"`
	// FileRegoVersions are versions of single files.
	FileRegoVersions map[string]int  `json:"file_rego_versions,omitempty"`
	Wasm             json.RawMessage `json:"wasm,omitempty"`
	Metadata         struct {
		Sluice struct {
			Format int `json:"format,omitempty"` // bundleFormat if Sluice wrote it
		} `json:"sluice,omitzero"`
	} `json:"metadata,omitzero"`
}

// WriteTo writes the bundle as an OPA bundle. Equal bundles are equal bytes.
func (b *Bundle) WriteTo(w io.Writer) (int64, error) {
	files, err := b.packed()
	if err != nil {
		return 0, err
	}
	return writeTar(w, files)
}

// Signer signs bundles.
type Signer struct {
	KeyID     string
	Algorithm string            // RS256, ES256, EdDSA …; not the HS ones
	Key       credential.Secret // PEM private key
}

// WriteSigned is WriteTo with a signature by which OPA too verifies every file.
func (b *Bundle) WriteSigned(w io.Writer, by Signer) (int64, error) {
	files, err := b.packed()
	if err != nil {
		return 0, err
	}
	signatures, err := by.sign(files)
	if err != nil {
		return 0, fmt.Errorf("sign policy bundle with key %q: %w", by.KeyID, err)
	}
	return writeTar(w, slices.Insert(files, 1, BundleFile{Name: bundleSignaturesName, Text: signatures}))
}

// packed are the files of the bundle and its manifest, which comes first.
func (b *Bundle) packed() ([]BundleFile, error) {
	one := 1
	m := bundleManifest{Revision: b.revision.ID, Roots: []string{""}, RegoVersion: &one}
	m.Metadata.Sluice.Format = bundleFormat
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	return append([]BundleFile{{Name: bundleManifestName, Text: text}}, b.Files()...), nil
}

func (s Signer) sign(files []BundleFile) ([]byte, error) {
	key := strings.TrimSpace(s.Key.Reveal())
	// OPA takes what is no PEM for the name of a file, or for a shared secret.
	if s.KeyID == "" || !strings.HasPrefix(key, "-----BEGIN") {
		return nil, errors.New("an id and a private key in PEM are needed")
	}
	infos := make([]bundle.FileInfo, 0, len(files))
	for _, f := range files {
		sum, err := signedHash(f)
		if err != nil {
			return nil, err
		}
		infos = append(infos, bundle.NewFile(f.Name, sum, hashName))
	}
	token, err := bundle.GenerateSignedToken(infos, bundle.NewSigningConfig(key, s.Algorithm, ""), s.KeyID)
	if err != nil {
		return nil, err
	}
	return json.Marshal(bundle.SignaturesConfig{Signatures: []string{token}})
}

// signedHash is what OPA signs of a file: of documents their content, not their form.
func signedHash(f BundleFile) (string, error) {
	h, err := bundle.NewSignatureHasher(bundle.HashingAlgorithm(hashName))
	if err != nil {
		return "", err
	}
	var v any = f.Text
	if bundle.IsStructuredDoc(f.Name) {
		if v, err = decodeJSON(f.Text); err != nil {
			return "", err
		}
	}
	sum, err := h.HashFile(v)
	return hex.EncodeToString(sum), err
}

func writeTar(w io.Writer, files []BundleFile) (int64, error) {
	count := &countWriter{w: w}
	zip := gzip.NewWriter(count)
	out := tar.NewWriter(zip)
	for _, f := range files {
		if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "/" + f.Name, Mode: 0o600, Size: int64(len(f.Text))}); err != nil {
			return count.n, err
		}
		if _, err := out.Write(f.Text); err != nil {
			return count.n, err
		}
	}
	err := errors.Join(out.Close(), zip.Close())
	return count.n, err
}

type countWriter struct {
	w io.Writer
	n int64
}

func (c *countWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

var (
	// ErrBundle: the bytes are no bundle that can be read.
	ErrBundle = errors.New("invalid policy bundle")
	// ErrSignature: a bundle is not signed by a key that is trusted.
	ErrSignature = errors.New("policy bundle not trusted")
)

// Verify says which signatures ReadBundle accepts.
type Verify struct {
	// Name stands for the bundle in errors; empty = "(bundle)".
	Name string
	// Keys by id. With keys a bundle must be signed by one of them; without, a
	// signature is not looked at.
	Keys map[string]VerifyKey
	// Scope is the scope that a signature must name; empty = none.
	Scope string
}

// VerifyKey is a public key (PEM), or a shared one for the HS algorithms.
type VerifyKey struct {
	Algorithm string // as OPA calls it: RS256, ES256, EdDSA, HS256 …; empty = RS256
	Key       credential.Secret
}

// ReadBundle reads an OPA bundle (a gzipped tar), of Sluice or of `opa build`. With
// keys every file must be covered by a valid signature (ErrSignature). The rules need
// not compile; data that cannot be read are a *LoadError. Bundles that would decide
// otherwise in OPA (deltas, WebAssembly, Rego v0) are refused.
func ReadBundle(r io.Reader, v Verify) (*Bundle, error) {
	v.Name = cmp.Or(v.Name, "(bundle)")
	fail := func(kind, err error) (*Bundle, error) {
		return nil, fmt.Errorf("%w: %s: %w", kind, v.Name, err)
	}
	files, err := readTar(r)
	if err != nil {
		return fail(ErrBundle, err)
	}
	signer, err := v.check(files)
	if err != nil {
		return fail(ErrSignature, err)
	}
	manifest, files, err := cutManifest(files)
	if err != nil {
		return fail(ErrBundle, err)
	}
	b, err := NewBundle(v.Name, files)
	if err != nil {
		return nil, err
	}
	b.signer = signer
	if manifest.Metadata.Sluice.Format != 0 && manifest.Revision != b.revision.ID {
		return fail(ErrBundle, fmt.Errorf("it says it is revision %.80q, but it holds %s", manifest.Revision, b.revision.ID))
	}
	return b, nil
}

// readTar reads the files that count, and those that say how to read them.
func readTar(r io.Reader) ([]BundleFile, error) {
	zip, err := gzip.NewReader(&boundedReader{r, maxPacked})
	if err != nil {
		return nil, err
	}
	unpacked := &boundedReader{zip, maxUnpacked}
	in := tar.NewReader(unpacked)
	var files []BundleFile
	seen := map[string]bool{}
	for {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeDir || h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		f, err := readEntry(in, h)
		if err != nil {
			return nil, fmt.Errorf("file %.200q: %w", h.Name, err)
		}
		if seen[f.Name] || len(seen) == maxFiles {
			return nil, fmt.Errorf("file %.200q is there twice, or there are more than %d files", h.Name, maxFiles)
		}
		seen[f.Name] = true
		files = append(files, f)
	}
	// What follows the end of the tar must be part of the gzip, or its checksum is
	// never looked at.
	_, err = io.Copy(io.Discard, unpacked)
	return files, err
}

func readEntry(in io.Reader, h *tar.Header) (BundleFile, error) {
	name := strings.TrimPrefix(strings.TrimPrefix(h.Name, "."), "/")
	if strings.HasPrefix(h.Name, ".") && !strings.HasPrefix(h.Name, "./") {
		name = h.Name // .manifest
	}
	base := path.Base(name)
	switch {
	case h.Typeflag != tar.TypeReg:
		return BundleFile{}, errors.New("not a regular file")
	case name == "" || path.Clean("/"+name) != "/"+name || strings.Contains(name, "\\"):
		return BundleFile{}, errors.New("not a clean path")
	case slices.Contains(foreign, base) || path.Ext(base) == ".wasm":
		return BundleFile{}, errors.New("OPA would decide by it, Sluice cannot")
	}
	var text bytes.Buffer
	if _, err := io.Copy(&text, in); err != nil {
		return BundleFile{}, err
	}
	return BundleFile{Name: name, Kind: fileKind(name), Text: text.Bytes()}, nil
}

// boundedReader fails where there is more than it may read.
type boundedReader struct {
	r    io.Reader
	left int64
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, errors.New("it is too large")
	}
	return n, err
}

// cutManifest takes the files that are no policy out, and reads the manifest.
func cutManifest(files []BundleFile) (m bundleManifest, rest []BundleFile, err error) {
	for _, f := range files {
		switch {
		case f.Name == bundleSignaturesName:
		case f.Name == bundleManifestName:
			if err := json.Unmarshal(f.Text, &m); err != nil {
				return m, nil, fmt.Errorf("%s: %w", f.Name, err)
			}
		case strings.HasPrefix(path.Base(f.Name), "."):
			return m, nil, fmt.Errorf("file %q: hidden files are not read", f.Name)
		default:
			rest = append(rest, f)
		}
	}
	if len(m.Wasm) > 0 && string(m.Wasm) != "null" && string(m.Wasm) != "[]" {
		return m, nil, errors.New(".manifest: WebAssembly rules are not read")
	}
	for _, version := range m.FileRegoVersions {
		if version != 1 {
			return m, nil, fmt.Errorf(".manifest: Rego v%d; rules must be Rego v1", version)
		}
	}
	if m.RegoVersion != nil && *m.RegoVersion != 1 {
		return m, nil, fmt.Errorf(".manifest: Rego v%d; rules must be Rego v1", *m.RegoVersion)
	}
	return m, rest, nil
}

// check verifies the signature of files and returns the id of its key.
func (v Verify) check(files []BundleFile) (signer string, err error) {
	if len(v.Keys) == 0 {
		return "", nil
	}
	i := slices.IndexFunc(files, func(f BundleFile) bool { return f.Name == bundleSignaturesName })
	if i < 0 {
		return "", errors.New("it is not signed, and keys are configured")
	}
	var sc bundle.SignaturesConfig
	if err := json.Unmarshal(files[i].Text, &sc); err != nil {
		return "", fmt.Errorf("%s: %w", bundleSignaturesName, err)
	}
	if sc.Plugin != "" {
		return "", fmt.Errorf("%s: plugin %.80q is not known", bundleSignaturesName, sc.Plugin)
	}
	covered, signer, err := v.covered(sc)
	if err != nil {
		return "", err
	}
	for _, f := range files {
		if f.Name == bundleSignaturesName {
			continue
		}
		if err := verifyFile(f, covered); err != nil {
			return "", err
		}
	}
	for name := range covered {
		return "", fmt.Errorf("file %.200q is signed and missing", name)
	}
	return signer, nil
}

// covered tries each key, as the one that the signature may be by: which it is must
// not be left to the signature's own word.
func (v Verify) covered(sc bundle.SignaturesConfig) (files map[string]bundle.FileInfo, signer string, err error) {
	var failures []error
	for id, key := range v.Keys {
		keys := map[string]*bundle.KeyConfig{id: {Key: key.Key.Reveal(), Algorithm: cmp.Or(key.Algorithm, "RS256")}}
		files, err := bundle.VerifyBundleSignature(sc, bundle.NewVerificationConfig(keys, id, v.Scope, nil))
		if err == nil {
			return files, id, nil
		}
		failures = append(failures, fmt.Errorf("key %q: %w", id, err))
	}
	return nil, "", errors.Join(failures...)
}

// verifyFile compares a file with its signature, by OPA's own reading of it.
func verifyFile(f BundleFile, covered map[string]bundle.FileInfo) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("file %q: hashing panicked: %v", f.Name, p)
		}
	}()
	return bundle.VerifyBundleFile(f.Name, *bytes.NewBuffer(f.Text), covered)
}
