package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
)

// Bundle is an immutable policy: rules, the schema of their data, one data document,
// and tests. Its Revision identifies what decides; tests are carried along. Written
// out it is an ordinary OPA bundle.
type Bundle struct {
	src      *source // its data files are those the document was read from, if any
	document *object
	revision Revision
	signer   string
	read     digest // of the data files that the document was read from
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
	size, seen := 0, map[string]bool{}
	for _, f := range files {
		if size += len(f.Text); len(seen) >= maxFiles || size > maxSize {
			return nil, fmt.Errorf("policy %s: more than %d files or %d MiB", name, maxFiles, maxSize>>20)
		}
		if !fs.ValidPath(f.Name) || seen[f.Name] {
			return nil, fmt.Errorf("policy %s: file %q: a name occurs twice, or is no path below the top folder", name, f.Name)
		}
		seen[f.Name] = true
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

func newBundle(s *source) (*Bundle, error) { return newBundleLike(s, nil) }

// newBundleLike decodes data files only if those of old were others.
func newBundleLike(s *source, old *Bundle) (*Bundle, error) {
	read := s.dataDigest()
	if old != nil && old.read == read {
		return ofSource(s, old.document, read), nil
	}
	merged, problems := s.document()
	if err := loadError(s.name, problems); err != nil {
		return nil, err
	}
	document := newDocument(merged)
	return ofSource(s, document, read), nil
}

func ofSource(s *source, document *object, read digest) *Bundle {
	b := &Bundle{src: s, document: document, revision: s.digests(document), read: read}
	// Rules that came in files and are the program's own are checked like those.
	if !s.shipped && b.revision.Rules == shippedRules() {
		src := *s
		src.shipped, b.src = true, &src
	}
	return b
}

// shippedRules is the digest of the shipped rules.
var shippedRules = sync.OnceValue(func() string {
	s, err := readShipped()
	if err != nil {
		panic(err) // embedded, and tested
	}
	return s.rulesDigest()
})

// Name says where the bundle came from.
func (b *Bundle) Name() string { return b.src.name }

// Revision identifies what the bundle decides by.
func (b *Bundle) Revision() Revision { return b.revision }

// Shipped reports whether the rules are those of this program.
func (b *Bundle) Shipped() bool { return b.src.shipped }

// Signer is the id of the key whose signature was verified, empty if none was.
func (b *Bundle) Signer() string { return b.signer }

// Document is the data document. It must not be changed.
func (b *Bundle) Document() map[string]any { return b.document.decoded() }

// canonicalData is the document as the one data file of a bundle.
func (b *Bundle) canonicalData() rawFile {
	return rawFile{"data.json", KindData, appendCanonical(nil, b.document.decoded())}
}

// dataFiles are the files that the document was read from, or one in their place.
func (b *Bundle) dataFiles() []rawFile {
	if b.src.textless {
		return []rawFile{b.canonicalData()}
	}
	return b.src.data
}

// slim is the bundle without the text of its data files, which the document holds.
func (b *Bundle) slim() *Bundle {
	if b.src.textless {
		return b
	}
	src := *b.src
	src.textless, src.data = true, make([]rawFile, len(b.src.data))
	for i, f := range b.src.data {
		src.data[i] = rawFile{name: f.name, kind: f.kind}
	}
	return &Bundle{src: &src, document: b.document, revision: b.revision, signer: b.signer, read: b.read}
}

// RuleFiles are the rules and data.schema.json, in order of name.
func (b *Bundle) RuleFiles() []BundleFile {
	return exported(slices.Concat(b.src.rules, b.src.schemaFiles()))
}

// TestFiles are the tests, in order of name.
func (b *Bundle) TestFiles() []BundleFile { return exported(b.src.tests) }

// Data is the document in canonical JSON.
func (b *Bundle) Data() []byte { return b.canonicalData().text }

// WithRules is the data of the bundle under other rules, schema and tests, which are
// all the files that are given.
func (b *Bundle) WithRules(name string, files []BundleFile) (*Bundle, error) {
	s := &source{name: name}
	for _, f := range files {
		kind := fileKind(f.Name)
		if kind != KindRules && kind != KindTest && kind != KindSchema {
			return nil, fmt.Errorf("policy %s: file %q is neither rules, nor a test, nor the schema of the data", name, f.Name)
		}
		s.add(rawFile{f.Name, kind, f.Text})
	}
	if _, err := s.resolve(); err != nil {
		return nil, err
	}
	s.textless, s.data = true, []rawFile{{name: "data.json", kind: KindData}}
	return ofSource(s, b.document, digest{}), nil
}

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
	return exported(slices.Concat(b.src.rules, b.src.tests, b.src.schemaFiles(), []rawFile{b.canonicalData()}))
}

func exported(files []rawFile) []BundleFile {
	out := make([]BundleFile, 0, len(files))
	for _, f := range sortedFiles(files) {
		out = append(out, BundleFile{f.name, f.kind, f.text})
	}
	return out
}

func sortedFiles(files []rawFile) []rawFile {
	return slices.SortedFunc(slices.Values(files), func(a, b rawFile) int { return strings.Compare(a.name, b.name) })
}
