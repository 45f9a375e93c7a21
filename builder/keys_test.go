package builder_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/session/scope"
)

// staged makes the fake's plan that of hand-over copy.
func (f *fake) staged() {
	p := &f.context.Plan
	p.UploadRoot, p.HandOver = p.FinalRoot+"/_bulkload/"+loadID+"/data", "copy"
}

// credentials vends a set of keys for each location of a token's scope.
func (f *fake) credentials(w http.ResponseWriter, r *http.Request) {
	tok, ok := f.tokens[bearer(r)]
	switch {
	case !ok || time.Now().After(tok.expires):
		problem(w, 401, v1.CodeUnauthenticated, "token is not known or has expired")
		return
	case f.noKeys:
		problem(w, 409, v1.CodeCredentialsNotOffered, "no keys are vended for hand-over same")
		return
	}
	set, err := scope.Parse(tok.scope)
	must(f.t, err)
	now := time.Now()
	c := v1.Credentials{Mode: "sts", Scope: tok.scope, Region: "r", ExpiresAt: now.Add(f.keyTTL), RefreshAt: now.Add(f.keyTTL / 2), LiveUntil: now.Add(f.keyTTL), Bound: "policy"}
	for _, l := range f.locations(set) {
		id := fmt.Sprintf("AK%d", len(f.vended))
		v := vendedSet{f.newSecret("keysecret").Reveal(), f.newSecret("keysession").Reveal(), l, now.Add(f.keyTTL)}
		f.vended[id] = v
		c.Credentials = append(c.Credentials, v1.Keys{
			Locations: []v1.KeyLocation{l}, AccessKeyID: id, SecretAccessKey: v.secret, SessionToken: v.session, ExpiresAt: v.expires,
		})
	}
	answer(w, c)
}

func (f *fake) locations(set scope.Set) (list []v1.KeyLocation) {
	p := f.context.Plan
	for b, id := range f.context.SnapshotIDs {
		if set.AllowsBucket(scope.Write, b) {
			list = append(list, v1.KeyLocation{URI: layout.SnapshotDir(p.UploadRoot, b, id), Access: v1.AccessWrite})
		}
		if set.Allows(scope.SnapshotRead) {
			list = append(list, v1.KeyLocation{URI: layout.SnapshotDir(p.FinalRoot, b, id), Access: v1.AccessRead})
		}
	}
	if set.Allows(scope.ManifestWrite) {
		list = append(list, v1.KeyLocation{URI: p.ManifestPath, Access: v1.AccessWrite, Object: true})
	}
	return list
}

// keyedObjects is the fake's store for who comes with keys; no request goes through
// the broker.
type keyedObjects struct {
	f    *fake
	keys builder.Keys
	root string
}

func (f *fake) openKeyed(keys builder.Keys, root string) (builder.KeyStore, error) {
	return &keyedObjects{f, keys, strings.TrimRight(root, "/") + "/"}, nil
}

// withKeys connects with Credentials STS.
func (f *fake) withKeys(change ...func(*builder.Config)) *builder.Client {
	return f.connect(append([]func(*builder.Config){func(c *builder.Config) { c.Credentials, c.KeyStore = builder.STS, f.openKeyed }}, change...)...)
}

func (k *keyedObjects) Key(uri string) (string, error) {
	key, ok := strings.CutPrefix(uri, k.root)
	if !ok {
		return "", objstore.ErrInvalidKey
	}
	return key, objstore.CheckKey(key)
}

func (k *keyedObjects) Close() error { return nil }

// opened presents the keys for a location to the store.
func (k *keyedObjects) opened(ctx context.Context, key, access string) error {
	c, err := k.keys.Current(ctx) // asks the fake: not under its lock
	if err != nil {
		return err
	}
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	if k.f.storeFault != nil {
		return k.f.storeFault
	}
	for _, set := range c.Keys {
		l := set.Locations[0]
		if !(l.Object && l.URI == k.root+key || !l.Object && strings.HasPrefix(k.root+key, l.URI+"/")) || access == v1.AccessWrite && l.Access != access {
			continue
		}
		v, ok := k.f.vended[set.AccessKeyID]
		if !ok || v.secret != set.SecretAccessKey.Reveal() || v.session != set.SessionToken.Reveal() || time.Now().After(v.expires) {
			return errors.New("403 InvalidAccessKeyId")
		}
		return nil
	}
	return fmt.Errorf("403 AccessDenied: %s %s", access, key)
}

func (k *keyedObjects) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	if err := k.opened(ctx, key, v1.AccessRead); err != nil {
		return nil, objstore.Info{}, err
	}
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	b, ok := k.f.objects[key]
	if !ok {
		return nil, objstore.Info{}, objstore.ErrNotFound
	}
	end := int64(len(b))
	if length >= 0 {
		end = min(end, off+length)
	}
	return io.NopCloser(bytes.NewReader(b[off:end])), objstore.Info{Key: key, Size: int64(len(b))}, nil
}

// Head tells no digest, as of an object of several parts.
func (k *keyedObjects) Head(ctx context.Context, key string) (objstore.Info, error) {
	_, info, err := k.Get(ctx, key, 0, 0)
	return info, err
}

func (k *keyedObjects) Put(ctx context.Context, key string, body io.Reader, o objstore.PutOptions) (objstore.Info, error) {
	b, err := io.ReadAll(body)
	if err != nil {
		return objstore.Info{}, err
	}
	if err := k.opened(ctx, key, v1.AccessWrite); err != nil {
		return objstore.Info{}, err
	}
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	if _, ok := k.f.objects[key]; ok {
		return objstore.Info{}, objstore.ErrExists
	}
	k.f.objects[key] = b
	k.f.puts = append(k.f.puts, key)
	return objstore.Info{Key: key, Size: int64(len(b)), SHA256: o.SHA256}, nil
}

// noGateway fails requests for objects.
func (f *fake) noGateway() {
	f.hook(func(w http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
		if strings.HasPrefix(r.URL.Path, "/v1/objects/") {
			problem(w, 403, v1.CodeDenied, "there is no gateway")
			return
		}
		next(w, r)
	})
}

// TestALoadWithKeys goes past the broker's gateway in both directions, and under both
// kinds of plan.
func TestALoadWithKeys(t *testing.T) {
	for name, plan := range map[string]func(*fake){"in place": func(*fake) {}, "staged": (*fake).staged} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, fakeTable(t, 3, nil), "")
			plan(f)
			f.noGateway()
			c := f.withKeys()
			bc := f.begin(c)
			dir := t.TempDir()
			s, err := c.Open(t.Context(), bc, builder.OpenOptions{WorkDir: dir})
			must(t, err)
			rows := inputRows(600)
			writeAll(t, s, rows[:300])
			cp, err := s.Checkpoint(t.Context(), json.RawMessage(`1`))
			must(t, err)
			must(t, s.Close())
			s, err = c.Open(t.Context(), bc, builder.OpenOptions{WorkDir: dir, Resume: reopened(t, cp)})
			must(t, err)
			writeAll(t, s, rows[300:])
			files, err := s.Finish(t.Context())
			must(t, err)
			must(t, s.Close())
			for _, key := range f.putKeys() {
				if !strings.HasPrefix(key, f.keyOf(bc.Plan.UploadRoot)+"/") {
					t.Errorf("stored outside of the upload root: %s", key)
				}
			}
			_, err = c.Commit(t.Context(), bc, files)
			must(t, err)
			got, err := c.SnapshotScanRows(t.Context(), builder.ScanRequest{Target: bc.Handle.Target})
			must(t, err)
			distinct := map[string]bool{}
			for _, r := range rows {
				distinct[fmt.Sprint(r[0].Int())] = true
			}
			if len(got) != len(distinct) {
				t.Errorf("%d rows read, %d keys loaded", len(got), len(distinct))
			}
		})
	}
}

// TestASecondBuildOfAStagedBucketFindsTheFirst: what lies at the upload root is
// compared, also when it says the same in other files.
func TestASecondBuildOfAStagedBucketFindsTheFirst(t *testing.T) {
	for name, second := range map[string]builder.Compression{"equal files": builder.Snappy, "other files of the same rows": builder.Zstd} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, fakeTable(t, 2, nil), "")
			f.staged()
			c := f.withKeys()
			bc := f.begin(c)
			var files []builder.BucketFiles
			rows := inputRows(200)
			for _, codec := range []builder.Compression{builder.Snappy, second} {
				s, err := c.Open(t.Context(), bc, builder.OpenOptions{WorkDir: t.TempDir(), Compression: codec})
				must(t, err)
				writeAll(t, s, rows)
				again, err := s.Finish(t.Context())
				must(t, err)
				must(t, s.Close())
				if files != nil && !slices.EqualFunc(files, again, func(a, b builder.BucketFiles) bool { return a.Metadata == b.Metadata }) {
					t.Errorf("the second build has metadata of its own")
				}
				files = again
			}
			_, err := c.Commit(t.Context(), bc, files)
			must(t, err)
		})
	}
}

func TestKeysAreReplacedWhileALoadRuns(t *testing.T) {
	f := newFake(t, fakeTable(t, 1, nil), "")
	f.keyTTL = 4 * time.Second
	c := f.withKeys()
	bc := f.begin(c)
	s, err := c.Open(t.Context(), bc, builder.OpenOptions{WorkDir: t.TempDir()})
	must(t, err)
	defer s.Close()
	writeAll(t, s, inputRows(50))
	for t.Context().Err() == nil {
		var first vendedSet
		f.locked(func() { first = f.vended["AK0"] })
		if time.Now().After(first.expires) {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	_, err = s.Finish(t.Context())
	must(t, err)
	f.locked(func() {
		if len(f.vended) < 2 {
			t.Errorf("%d sets were vended", len(f.vended))
		}
	})
}

func TestARefusalOfKeysShowsAtOpen(t *testing.T) {
	f := newFake(t, fakeTable(t, 1, nil), "")
	f.noKeys = true
	c := f.withKeys()
	bc := f.begin(c)
	_, err := c.Open(t.Context(), bc, builder.OpenOptions{WorkDir: t.TempDir()})
	var e *client.Error
	if !errors.As(err, &e) || e.Problem.Code != v1.CodeCredentialsNotOffered {
		t.Errorf("open: %v", err)
	}
	if _, err := builder.Connect(builder.Config{URL: "http://127.0.0.1:1", Credentials: builder.STS}); err == nil || !strings.Contains(err.Error(), "s3keys.Open") {
		t.Errorf("without a key store: %v", err)
	}
}

// TestACommitThatWaitsForKeysSaysUntilWhen, and its own budget counts from then.
func TestACommitThatWaitsForKeysSaysUntilWhen(t *testing.T) {
	f := newFake(t, fakeTable(t, 1, nil), "")
	f.context.Plan.HandOver = "wait"
	var waits []builder.Waiting
	c := f.withKeys(func(c *builder.Config) {
		c.Events.CommitWaiting = func(w builder.Waiting) { waits = append(waits, w) }
	})
	bc := f.begin(c)
	s, err := c.Open(t.Context(), bc, builder.OpenOptions{WorkDir: t.TempDir()})
	must(t, err)
	writeAll(t, s, inputRows(50))
	files, err := s.Finish(t.Context())
	must(t, err)
	must(t, s.Close())
	until := time.Now().Add(700 * time.Millisecond).UTC()
	f.hook(func(w http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
		if strings.HasSuffix(r.URL.Path, "/commit") && time.Now().Before(until) {
			f.locked(func() { f.session.Phase, f.session.KeysLiveUntil = "frozen", &until })
			w.Header().Set("Retry-After", "1")
			problem(w, 503, v1.CodeBusy, "keys live")
			return
		}
		next(w, r)
	})
	done, err := c.Commit(t.Context(), bc, files)
	must(t, err)
	if done.State != "COMMITTED" || time.Now().Before(until) {
		t.Errorf("%s before %s", done.State, until)
	}
	if len(waits) == 0 || !waits[0].KeysLiveUntil.Equal(until) || !strings.Contains(waits[0].String(), until.Format(time.RFC3339)) {
		t.Errorf("it said %v", waits)
	}
	// A caller's deadline is kept although the keys live longer.
	f.locked(func() { f.session.State = "BEGUN" })
	until = time.Now().Add(time.Hour)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := c.Commit(ctx, bc, files); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "do not abort") {
		t.Errorf("after the deadline: %v", err)
	}
}
