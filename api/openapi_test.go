package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/goccy/go-yaml"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/fluss-sluice/sluice/api/authn"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/broker/vend/remotesign"
)

// document is openapi.yaml as JSON values.
func document(t *testing.T) map[string]any {
	t.Helper()
	raw, err := yaml.YAMLToJSON(openAPI)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	return doc.(map[string]any)
}

// compiler compiles schemas of the document by JSON pointer.
func compiler(t *testing.T, doc map[string]any) func(pointer string) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	if err := c.AddResource("openapi.json", doc); err != nil {
		t.Fatal(err)
	}
	return func(pointer string) *jsonschema.Schema {
		t.Helper()
		s, err := c.Compile("openapi.json" + pointer)
		if err != nil {
			t.Fatalf("%s: %v", pointer, err)
		}
		return s
	}
}

func routeTable(t *testing.T) *chi.Mux {
	t.Helper()
	dev, err := authn.NewDevIssuer(nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{dev: dev, signer: new(remotesign.Signer), metrics: &metrics{registry: prometheus.NewRegistry()}}
	return s.routes(Config{Gateway: func(Authorize, Fail) http.Handler { return http.NotFoundHandler() }})
}

func TestTheDocumentHasExactlyTheRoutes(t *testing.T) {
	served := map[string]bool{}
	err := chi.Walk(routeTable(t), func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		served[method+" "+strings.Replace(route, "/v1/objects/*", "/v1/objects/{key}", 1)] = true
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for path, item := range document(t)["paths"].(map[string]any) {
		for method := range item.(map[string]any) {
			if method != "parameters" {
				documented[strings.ToUpper(method)+" "+path] = true
			}
		}
	}
	for r := range served {
		if !documented[r] {
			t.Errorf("%s is served and not documented", r)
		}
	}
	for r := range documented {
		if !served[r] {
			t.Errorf("%s is documented and not served", r)
		}
	}
	if len(served) < 25 {
		t.Errorf("only %d routes: the walk saw nothing", len(served))
	}
}

// wireTypes pairs schemas with Go types.
var wireTypes = map[string]any{
	"Target": v1.Target{}, "ObjectRef": v1.ObjectRef{}, "BeginRequest": v1.BeginRequest{}, "LoadOptions": v1.LoadOptions{}, "BeginResponse": v1.BeginResponse{},
	"Handle": v1.Handle{}, "Plan": v1.Plan{}, "BuildContext": v1.BuildContext{}, "Stats": v1.Stats{}, "Session": v1.Session{},
	"SessionList": v1.SessionList{}, "HeartbeatRequest": v1.HeartbeatRequest{}, "CommitRequest": v1.CommitRequest{},
	"AbortRequest": v1.AbortRequest{}, "TokenResponse": v1.TokenResponse{}, "TokenError": v1.TokenError{},
	"DevTokenRequest": v1.DevTokenRequest{}, "Introspection": v1.Introspection{}, "Table": v1.Table{}, "TableList": v1.TableList{},
	"CreateTableRequest": v1.CreateTableRequest{}, "Partition": v1.Partition{}, "PartitionList": v1.PartitionList{},
	"CreatePartitionRequest": v1.CreatePartitionRequest{}, "SchemaVersion": v1.SchemaVersion{}, "KVSnapshots": v1.KVSnapshots{},
	"KVSnapshot": v1.KVSnapshot{}, "KVSnapshotMetadata": v1.KVSnapshotMetadata{}, "KVFile": v1.KVFile{}, "Health": v1.Health{},
	"Verification": v1.Verification{}, "Credentials": v1.Credentials{}, "Keys": v1.Keys{}, "KeyLocation": v1.KeyLocation{},
	"StorageCredentials": v1.StorageCredentials{}, "StorageCredential": v1.StorageCredential{},
	"AWSCredentials": v1.AWSCredentials{}, "AWSError": v1.AWSError{},
	"LogEvent": v1.LogEvent{}, "Decisions": v1.Decisions{}, "Decision": v1.Decision{},
	"SnapshotRef": v1.SnapshotRef{}, "LeaseRequest": v1.LeaseRequest{}, "Lease": v1.Lease{}, "LakeSnapshot": v1.LakeSnapshot{},
	"LakeOffset": v1.LakeOffset{}, "LookupRequest": v1.LookupRequest{}, "Values": v1.Values{}, "Offsets": v1.Offsets{},
	"BucketOffset": v1.BucketOffset{}, "TableStats": v1.TableStats{}, "BucketStats": v1.BucketStats{}, "SchemaList": v1.SchemaList{},
	"PolicyRevision":     v1.PolicyRevision{},
	"PolicySource":       v1.PolicySource{},
	"PolicySummary":      v1.PolicySummary{},
	"PolicyState":        v1.PolicyState{},
	"PolicyCandidate":    v1.PolicyCandidate{},
	"PolicyApproval":     v1.PolicyApproval{},
	"PolicyShadow":       v1.PolicyShadow{},
	"PolicyBand":         v1.PolicyBand{},
	"PolicyChange":       v1.PolicyChange{},
	"PolicyList":         v1.PolicyList{},
	"PolicyProposal":     v1.PolicyProposal{},
	"PolicyProposed":     v1.PolicyProposed{},
	"PolicyProblem":      v1.PolicyProblem{},
	"PolicyActivation":   v1.PolicyActivation{},
	"PolicyReason":       v1.PolicyReason{},
	"PolicyEdit":         v1.PolicyEdit{},
	"PolicyDataOp":       v1.PolicyDataOp{},
	"PolicyEdited":       v1.PolicyEdited{},
	"PolicyShadowReport": v1.PolicyShadowReport{},
	"Problem":            v1.Problem{}, "SignRequest": v1.SignRequest{}, "SignResponse": v1.SignResponse{},
}

// TestGoTypesFitTheirSchemas marshals every wire type twice, with each field set
// and with none, and validates both: a field that one side lacks is an error.
func TestGoTypesFitTheirSchemas(t *testing.T) {
	doc := document(t)
	compile := compiler(t, doc)
	schemas := doc["components"].(map[string]any)["schemas"].(map[string]any)
	for name, zero := range wireTypes {
		schema := compile("#/components/schemas/" + name)
		full := reflect.New(reflect.TypeOf(zero)).Elem()
		fill(full, name)
		got := roundTrip(t, full.Interface())
		if err := schema.Validate(got); err != nil {
			t.Errorf("%s with every field: %v\n%v", name, err, got)
		}
		properties := schemas[name].(map[string]any)["properties"].(map[string]any)
		for p := range properties {
			if _, ok := got.(map[string]any)[p]; !ok {
				t.Errorf("%s: property %q has no field", name, p)
			}
		}
		empty, required := roundTrip(t, reflect.Zero(reflect.TypeOf(zero)).Interface()).(map[string]any), schemas[name].(map[string]any)["required"]
		for _, r := range required.([]any) {
			if _, ok := empty[r.(string)]; !ok {
				t.Errorf("%s: %q is required and left out when empty", name, r)
			}
		}
	}
	for name, s := range schemas {
		if _, ok := wireTypes[name]; !ok && s.(map[string]any)["additionalProperties"] == false {
			t.Errorf("schema %s has no Go type in this test", name)
		}
	}
}

func roundTrip(t *testing.T, v any) any {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	out, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// fill sets every field to something its schema accepts.
func fill(v reflect.Value, at string) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), at)
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[json.RawMessage]() {
			v.Set(reflect.ValueOf(json.RawMessage("{}")))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), at)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(1_800_000_000, 0).UTC()))
			return
		}
		for i := range v.NumField() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			fill(v.Field(i), name)
		}
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, at)
		fill(value, at)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString(sample(at))
	case reflect.Bool:
		v.SetBool(true)
	default:
		v.Set(reflect.ValueOf(1).Convert(v.Type()))
	}
}

func sample(field string) string {
	switch field {
	case "id", "bulk_load_id", "sid", "session_id":
		return "0f8b3f0e-6f5a-4d6c-9d1b-2b0f8a3c7e11"
	case "sha256":
		return strings.Repeat("a", 64)
	case "state":
		return "BEGUN"
	case "phase":
		return "building"
	case "hand_over":
		return "copy"
	case "visibility":
		return v1.VisibilityAtomic
	case "missing":
		return v1.MissingBirth
	case "fence":
		return "proofs"
	case "access":
		return v1.AccessRead
	case "log_offset":
		return "zero"
	case "token_type":
		return "Bearer"
	case "error":
		return "invalid_request"
	case "code":
		return v1.CodeDenied
	case "status":
		return v1.HealthOK
	}
	return "text"
}

// TestExamplesFitTheirSchemas also looks for anything that could be a secret.
func TestExamplesFitTheirSchemas(t *testing.T) {
	doc := document(t)
	compile := compiler(t, doc)
	n := 0
	eachContent(doc, "#", func(pointer string, content map[string]any) {
		examples, ok := content["examples"].(map[string]any)
		if !ok {
			return
		}
		schema := compile(pointer + "/schema")
		for name, e := range examples {
			n++
			value, ok := resolve(doc, e.(map[string]any))["value"]
			if !ok {
				t.Errorf("%s: example %s has no value", pointer, name)
				continue
			}
			if err := schema.Validate(value); err != nil {
				t.Errorf("%s: example %s: %v", pointer, name, err)
			}
		}
	})
	if n < 10 {
		t.Errorf("only %d examples found", n)
	}
	for _, bad := range []string{"eyJ", "BEGIN ", "AKIA"} {
		if bytes.Contains(openAPI, []byte(bad)) {
			t.Errorf("the document holds %q", bad)
		}
	}
}

// eachContent calls f for every media type object that has a schema.
func eachContent(v any, pointer string, f func(string, map[string]any)) {
	switch v := v.(type) {
	case map[string]any:
		if _, ok := v["schema"]; ok && strings.Contains(pointer, "/content/") {
			f(pointer, v)
		}
		for k, e := range v {
			eachContent(e, pointer+"/"+strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace(k), f)
		}
	case []any:
		for i, e := range v {
			eachContent(e, pointer+"/"+strconv.Itoa(i), f)
		}
	}
}

func resolve(doc, v map[string]any) map[string]any {
	ref, ok := v["$ref"].(string)
	if !ok {
		return v
	}
	var at any = doc
	for seg := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
		at = at.(map[string]any)[seg]
	}
	return at.(map[string]any)
}

func TestEveryCodeIsDocumented(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "v1/codes.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var codes []string
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(s.Names[0].Name, "Code") {
			code, _ := strconv.Unquote(s.Values[0].(*ast.BasicLit).Value)
			codes = append(codes, code)
		}
		return true
	})
	codes = append(codes, codeInvalidScope, codeInvalidTarget, codeUnsupportedGrant)
	text := document(t)["components"].(map[string]any)["schemas"].(map[string]any)["Code"].(map[string]any)["description"].(string)
	documented := strings.FieldsFunc(text, func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') })
	for _, c := range codes {
		if !slices.Contains(documented, c) {
			t.Errorf("code %q is not documented", c)
		}
	}
	for _, k := range kinds {
		if want := fmt.Sprintf("| %d |", k.status); k.status != statusClientClosed && !lineHas(text, want, k.code) {
			t.Errorf("%s is not documented with status %d", k.code, k.status)
		}
	}
}

func lineHas(text, prefix, word string) bool {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, prefix) && strings.Contains(line, word) {
			return true
		}
	}
	return false
}
