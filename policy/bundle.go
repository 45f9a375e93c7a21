package policy

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
)

// Bundle is an immutable policy: rules, the schema of their data, one data document,
// and tests. Its Revision identifies what decides; tests are carried along. Written
// out it is an ordinary OPA bundle.
type Bundle struct {
	src      *source        // its data files are those the document was read from, if any
	document map[string]any // never changed
	revision Revision
	signer   string
}

// BundleFile is one file of a bundle.
type BundleFile struct {
	Name string // slash-separated, without a leading slash
	Kind string // see KindRules
	Text []byte // must not be changed
}

// BundleOf reads a directory ("" = the shipped policy, which grants nothing). A
// policy that is no policy is a *LoadError.
func BundleOf(dir string) (*Bundle, error) {
	s, err := readSource(dir)
	if err != nil {
		return nil, err
	}
	return newBundle(s)
}

// ShippedBundle is the shipped rules with a data document (JSON); empty data grants
// nothing to anybody.
func ShippedBundle(data []byte) (*Bundle, error) {
	s, err := readShipped()
	if err != nil {
		return nil, err
	}
	if len(data) > 0 {
		s = s.withData(data)
	}
	return newBundle(s)
}

// NewBundle makes a bundle of files as a directory would hold them.
func NewBundle(name string, files []BundleFile) (*Bundle, error) {
	s := &source{name: name}
	size := 0
	for _, f := range files {
		if size += len(f.Text); len(s.rules)+len(s.tests)+len(s.data)+len(s.extra) >= maxFiles || size > maxSize {
			return nil, fmt.Errorf("policy %s: more than %d files or %d MiB", name, maxFiles, maxSize>>20)
		}
		kind := fileKind(f.Name)
		if kind == "" {
			s.unread = append(s.unread, f.Name)
			continue
		}
		s.add(rawFile{f.Name, kind, f.Text})
	}
	s, err := s.resolve()
	if err != nil {
		return nil, err
	}
	return newBundle(s)
}

func newBundle(s *source) (*Bundle, error) {
	document, problems := s.document()
	if err := loadError(s.name, problems); err != nil {
		return nil, err
	}
	return &Bundle{src: s, document: document, revision: s.digests(document)}, nil
}

// Name says where the bundle came from.
func (b *Bundle) Name() string { return b.src.name }

// Revision identifies what the bundle decides by.
func (b *Bundle) Revision() Revision { return b.revision }

// Shipped reports whether the rules are those of this program.
func (b *Bundle) Shipped() bool { return b.src.shipped }

// Signer is the id of the key whose signature was verified, empty if none was.
func (b *Bundle) Signer() string { return b.signer }

// Document is the data document. It must not be changed.
func (b *Bundle) Document() map[string]any { return b.document }

// TestsDigest is the SHA-256 in hex of the tests.
func (b *Bundle) TestsDigest() string {
	h := sha256.New()
	for _, f := range sortedFiles(b.src.tests) {
		writeChunk(h, []byte(f.name))
		writeChunk(h, f.text)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Files lists the files in order of name: rules, tests, data.schema.json, and one
// data.json with the whole document in canonical form.
func (b *Bundle) Files() []BundleFile {
	files := slices.Concat(b.src.rules, b.src.tests, b.src.schemaFiles(),
		[]rawFile{{"data.json", KindData, appendCanonical(nil, b.document)}})
	out := make([]BundleFile, 0, len(files))
	for _, f := range sortedFiles(files) {
		out = append(out, BundleFile{f.name, f.kind, f.text})
	}
	return out
}

func sortedFiles(files []rawFile) []rawFile {
	return slices.SortedFunc(slices.Values(files), func(a, b rawFile) int { return strings.Compare(a.name, b.name) })
}

// bundleManifest is the .manifest of an OPA bundle.
type bundleManifest struct {
	Revision    string   `json:"revision"`
	Roots       []string `json:"roots"`
	RegoVersion int      `json:"rego_version"`
}

// WriteTo writes the bundle as an OPA bundle. Equal bundles are equal bytes.
func (b *Bundle) WriteTo(w io.Writer) (int64, error) {
	return b.write(w, nil)
}

func (b *Bundle) write(w io.Writer, more []BundleFile) (int64, error) {
	manifest, err := json.Marshal(bundleManifest{Revision: b.revision.ID, Roots: []string{""}, RegoVersion: 1})
	if err != nil {
		return 0, err
	}
	count := &countWriter{w: w}
	zip := gzip.NewWriter(count)
	out := tar.NewWriter(zip)
	files := append([]BundleFile{{Name: ".manifest", Text: manifest}}, append(more, b.Files()...)...)
	for _, f := range files {
		if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "/" + f.Name, Mode: 0o600, Size: int64(len(f.Text)), Format: tar.FormatPAX}); err != nil {
			return count.n, err
		}
		if _, err := out.Write(f.Text); err != nil {
			return count.n, err
		}
	}
	return count.n, errors.Join(out.Close(), zip.Close())
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

// Verify says which signatures ReadBundle accepts.
type Verify struct {
	// Keys by id. With keys a bundle must be signed by one of them; without, a
	// signature is not looked at.
	Keys map[string]VerifyKey
	// Scope is the scope that the signature must name, if any.
	Scope string
}

// VerifyKey is a public key (PEM), or a shared one for the HS algorithms.
type VerifyKey struct {
	Algorithm string // as OPA calls it: RS256, ES256, EdDSA, HS256 …
	Key       string
}

// ReadBundle reads an OPA bundle (a gzipped tar). What it is made of need not
// compile; a document that is broken is a *LoadError.
func ReadBundle(r io.Reader, v Verify) (*Bundle, error) {
	if len(v.Keys) > 0 {
		return nil, errors.New("signed bundles: not yet")
	}
	zip, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("policy bundle: %w", err)
	}
	in := tar.NewReader(io.LimitReader(zip, maxSize+maxFiles*1024))
	var files []BundleFile
	for {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("policy bundle: %w", err)
		}
		if strings.HasPrefix(path.Base(h.Name), ".") {
			continue // .manifest and .signatures.json
		}
		var text bytes.Buffer
		if _, err := io.Copy(&text, in); err != nil {
			return nil, fmt.Errorf("policy bundle: %s: %w", h.Name, err)
		}
		files = append(files, BundleFile{Name: strings.TrimPrefix(h.Name, "/"), Text: text.Bytes()})
	}
	return NewBundle("(bundle)", files)
}

// Format, Check, Test … of a bundle are what the functions of those names do with a
// directory.

// CheckBundle is Check of a bundle.
func CheckBundle(ctx context.Context, b *Bundle) ([]Problem, error) { return check(ctx, b.src) }

// TestBundle is Test of a bundle.
func TestBundle(ctx context.Context, b *Bundle, o TestOptions) (TestReport, error) {
	return test(ctx, b.src, o)
}

// EvalBundle is Eval of a bundle.
func EvalBundle(ctx context.Context, b *Bundle, in Input) (Record, error) {
	return eval(ctx, b.src, in)
}

// ShowBundle is Show of a bundle.
func ShowBundle(b *Bundle) (Description, error) { return show(b.src, false) }

// FormatBundle is Format of a bundle, which it does not change.
func FormatBundle(ctx context.Context, b *Bundle) ([]Formatted, error) {
	return formatSource(ctx, b.src)
}
