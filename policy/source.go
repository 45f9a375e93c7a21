package policy

import (
	"crypto/sha256"
	"embed"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// Names in a policy directory. Everything else is left alone, hidden files too:
// Kubernetes keeps the real files of a ConfigMap behind ..data.
const (
	manifestName = "policy.yaml"      // optional, only in the top folder
	schemaName   = "data.schema.json" // optional, only in the top folder
	testSuffix   = "_test.rego"
	ruleSuffix   = ".rego"
)

var dataNames = []string{"data.json", "data.yaml", "data.yml"}

// Limits of a policy directory.
const (
	maxFiles    = 10_000
	maxSize     = 64 << 20 // bytes of all files together
	maxFolders  = 8        // folders within folders
	readRetries = 10       // a directory that changes while it is read is read again
)

// shippedFS is the default policy: the rules in package sluice.authz, their tests,
// the schema of their data, and data that grants nothing.
//
//go:embed rego
var shippedFS embed.FS

// ShippedName stands where a directory would for the policy inside the program.
const ShippedName = "(shipped)"

// source is a policy directory as it was read at one moment.
type source struct {
	name    string // the directory, or ShippedName
	shipped bool   // the rules are the shipped ones
	rules   []rawFile
	tests   []rawFile
	data    []rawFile
	// textless: data has the names of its files only, see Bundle.slim.
	textless bool
	schema   *rawFile // of the data
	extra    []rawFile
	unread   []string // files that look like data but are not read
}

// rawFile is one file with its slash-separated name below the directory.
type rawFile struct {
	name string
	kind string // see File.Kind
	text []byte
}

// LoadError says why a policy cannot be activated.
type LoadError struct {
	Dir      string
	Problems []Problem // at least one of severity "error", and it comes first
}

// Error implements error with the first problem.
func (e *LoadError) Error() string {
	s := fmt.Sprintf("policy %s: %s", e.Dir, e.Problems[0])
	if more := len(e.Problems) - 1; more > 0 {
		s += fmt.Sprintf(" (and %d more)", more)
	}
	return s
}

// loadError makes a LoadError of the problems, or nil if none is an error.
func loadError(dir string, problems []Problem) error {
	i := slices.IndexFunc(problems, func(p Problem) bool { return p.Severity == SeverityError })
	if i < 0 {
		return nil
	}
	sorted := slices.Clone(problems)
	sorted[0], sorted[i] = sorted[i], sorted[0]
	return &LoadError{Dir: dir, Problems: sorted}
}

// readSource reads a directory, or the shipped policy if dir is empty.
func readSource(dir string) (*source, error) {
	if dir == "" {
		return readShipped()
	}
	return readDir(dir, os.DirFS(dir))
}

func readShipped() (*source, error) {
	sub, err := fs.Sub(shippedFS, "rego")
	if err != nil {
		return nil, err
	}
	s, err := readFiles(ShippedName, sub)
	if err == nil {
		s.shipped = true
	}
	return s, err
}

// withData is the shipped policy with a data document of its own.
func (s *source) withData(b []byte) *source {
	with := *s
	with.name = ShippedName + " with configured data"
	with.data = []rawFile{{"data.json", KindData, b}}
	return &with
}

// readDir reads a directory until two looks at it agree, so that a revision never
// mixes files of before and after an update.
func readDir(dir string, fsys fs.FS) (*source, error) {
	before, err := fingerprint(fsys)
	if err != nil {
		return nil, fmt.Errorf("policy directory %s: %w", dir, err)
	}
	for range readRetries {
		s, readErr := readFiles(dir, fsys)
		after, err := fingerprint(fsys)
		if err != nil {
			return nil, fmt.Errorf("policy directory %s: %w", dir, err)
		}
		if before == after {
			if readErr != nil {
				return nil, readErr
			}
			return s.resolve()
		}
		before = after
	}
	return nil, fmt.Errorf("policy directory %s keeps changing while it is read", dir)
}

// fingerprint is a digest of the names, sizes and times of every file that counts.
func fingerprint(fsys fs.FS) (string, error) {
	h := sha256.New()
	err := eachFile(fsys, ".", 0, func(name, kind string, info fs.FileInfo) error {
		if kind != "" {
			fmt.Fprintf(h, "%s\x00%d\x00%d\x00", name, info.Size(), info.ModTime().UnixNano())
		}
		return nil
	})
	return hex.EncodeToString(h.Sum(nil)), err
}

// eachFile visits the files of a folder and the folders in it, in order of name.
// Symbolic links are followed; kind is empty for files that do not count.
func eachFile(fsys fs.FS, dir string, depth int, f func(name, kind string, info fs.FileInfo) error) error {
	if depth > maxFolders {
		return fmt.Errorf("%s: more than %d folders within each other", dir, maxFolders)
	}
	entries, err := fs.ReadDir(fsys, dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		name := path.Join(dir, e.Name())
		info, err := fs.Stat(fsys, name)
		if errors.Is(err, fs.ErrNotExist) && fileKind(name) == "" {
			continue // a dangling link to something that does not count
		}
		if err != nil {
			return err
		}
		if info.IsDir() {
			err = eachFile(fsys, name, depth+1, f)
		} else {
			err = f(name, fileKind(name), info)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Kinds of files in a policy directory.
const (
	KindRules    = "rules"
	KindTest     = "test"
	KindData     = "data"
	KindSchema   = "schema"
	KindManifest = "manifest"
)

func fileKind(name string) string {
	switch base := path.Base(name); {
	case strings.HasSuffix(base, testSuffix):
		return KindTest
	case strings.HasSuffix(base, ruleSuffix):
		return KindRules
	case slices.Contains(dataNames, base):
		return KindData
	case name == schemaName:
		return KindSchema
	case name == manifestName:
		return KindManifest
	}
	return ""
}

func readFiles(dir string, fsys fs.FS) (*source, error) {
	s := &source{name: dir}
	var files, size int64
	err := eachFile(fsys, ".", 0, func(name, kind string, info fs.FileInfo) error {
		if kind == "" {
			if ext := path.Ext(name); ext == ".json" || ext == ".yaml" || ext == ".yml" {
				s.unread = append(s.unread, name)
			}
			return nil
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is not a regular file", name)
		}
		files, size = files+1, size+info.Size()
		if files > maxFiles || size > maxSize {
			return fmt.Errorf("more than %d files or %d MiB", maxFiles, maxSize>>20)
		}
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		s.add(rawFile{name, kind, text})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("policy directory %s: %w", dir, err)
	}
	return s, nil
}

func (s *source) add(f rawFile) {
	switch f.kind {
	case KindRules:
		s.rules = append(s.rules, f)
	case KindTest:
		s.tests = append(s.tests, f)
	case KindData:
		s.data = append(s.data, f)
	case KindSchema:
		s.schema = &f
	default:
		s.extra = append(s.extra, f)
	}
}

// resolve applies the manifest: a directory either brings its own rules or says
// that it wants the shipped ones. It never falls back to them by itself, or losing
// a file would change who decides.
func (s *source) resolve() (*source, error) {
	fail := func(file, format string, args ...any) (*source, error) {
		return nil, loadError(s.name, []Problem{{File: file, Code: CodeManifest, Message: fmt.Sprintf(format, args...), Severity: SeverityError}})
	}
	var wants string
	for _, f := range s.extra {
		doc, err := decodeYAML(f.text)
		if err != nil {
			return nil, loadError(s.name, []Problem{problemAt(f, CodeManifest, err)})
		}
		m, ok := doc.(map[string]any)
		if wants, _ = m["rules"].(string); !ok || len(m) != 1 || wants != "shipped" && wants != "own" {
			return fail(f.name, "it may hold one line: rules: shipped, or rules: own")
		}
	}
	if wants != "shipped" {
		if len(s.rules) == 0 {
			return fail("", "no rules: add *.rego files, or a file %s with the line rules: shipped", manifestName)
		}
		return s, nil
	}
	if len(s.rules) > 0 {
		return fail(s.rules[0].name, "own rules beside rules: shipped in %s", manifestName)
	}
	if s.schema != nil {
		return fail(s.schema.name, "the shipped rules bring their own schema")
	}
	base, err := readShipped()
	if err != nil {
		return nil, err
	}
	s.shipped, s.rules, s.schema = true, base.rules, base.schema
	return s, nil
}

// digests returns the revision of the source, whose data document is given.
func (s *source) digests(document *object) Revision { return revisionOf(s.rulesDigest(), document) }

// rulesDigest is the digest of the rules and the schema of their data.
func (s *source) rulesDigest() string {
	rules := sha256.New()
	for _, f := range append(sortedFiles(s.rules), s.schemaFiles()...) {
		writeChunk(rules, []byte(f.name))
		writeChunk(rules, f.text)
	}
	return hex.EncodeToString(rules.Sum(nil))
}

// revisionOf is the identity of rules, by their digest, with data.
func revisionOf(rules string, document *object) Revision {
	data := document.digest()
	r := Revision{Rules: rules, Data: hex.EncodeToString(data[:])}
	id := sha256.Sum256([]byte("sluice policy v2\n" + r.Rules + "\n" + r.Data + "\n"))
	r.ID = hex.EncodeToString(id[:])
	return r
}

// dataDigest tells whether data files are the same as others.
func (s *source) dataDigest() (d digest) {
	h := sha256.New()
	fmt.Fprintln(h, s.shipped, s.name == ShippedName)
	for _, f := range s.data {
		writeChunk(h, []byte(f.name))
		writeChunk(h, f.text)
	}
	h.Sum(d[:0])
	return d
}

// dataFile is the file that problems of the data are in: "" for several, or none.
func (s *source) dataFile() string {
	if len(s.data) != 1 {
		return ""
	}
	return s.data[0].name
}

func (s *source) schemaFiles() []rawFile {
	if s.schema == nil {
		return nil
	}
	return []rawFile{*s.schema}
}

// writeChunk writes a length and the bytes, so that no two lists of files have the
// same digest.
func writeChunk(h hash.Hash, b []byte) {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(b)))
	h.Write(n[:])
	h.Write(b)
}

// document merges the data files: a/b/data.json stands at data.a.b, as in an OPA
// bundle. The shipped rules start from the shipped, empty documents.
func (s *source) document() (map[string]any, []Problem) {
	doc := map[string]any{}
	var problems []Problem
	for _, f := range s.data {
		v, err := decodeData(f)
		if err == nil {
			err = mergeAt(doc, path.Dir(f.name), v)
		}
		if err != nil {
			problems = append(problems, problemAt(f, CodeData, err))
		}
	}
	if s.shipped && s.name != ShippedName {
		base, err := readShipped()
		if err != nil {
			return nil, append(problems, Problem{Code: CodeData, Message: err.Error(), Severity: SeverityError})
		}
		defaults, more := base.document()
		problems = append(problems, more...)
		for k, v := range defaults {
			if _, ok := doc[k]; !ok {
				doc[k] = v
			}
		}
	}
	return doc, problems
}

func decodeData(f rawFile) (map[string]any, error) {
	decode := decodeYAML
	if path.Ext(f.name) == ".json" {
		decode = decodeJSON
	}
	v, err := decode(f.text)
	if err != nil {
		return nil, err
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("the document must be an object")
	}
	return m, nil
}

// mergeAt puts m into doc below a folder's path. Two files must not set one key.
func mergeAt(doc map[string]any, folder string, m map[string]any) error {
	if folder != "." {
		for _, seg := range strings.Split(folder, "/") {
			next, ok := doc[seg].(map[string]any)
			if _, taken := doc[seg]; taken && !ok {
				return fmt.Errorf("%s is set by another file and is not an object", folder)
			}
			if !ok {
				next = map[string]any{}
				doc[seg] = next
			}
			doc = next
		}
	}
	for k, v := range m {
		old, taken := doc[k]
		if !taken {
			doc[k] = v
			continue
		}
		into, ok1 := old.(map[string]any)
		from, ok2 := v.(map[string]any)
		if !ok1 || !ok2 {
			return fmt.Errorf("key %q is set by another file too", k)
		}
		if err := mergeAt(into, ".", from); err != nil {
			return err
		}
	}
	return nil
}
