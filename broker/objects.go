package broker

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fluss-sluice/sluice/broker/target"
	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/policy"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/session/scope"
)

// ObjectRequest asks to open one object through the gateway.
type ObjectRequest struct {
	Method string // GET, HEAD or PUT
	Key    string // canonical, see objstore.CheckKey
	Size   int64  // of a PUT; negative = not known
}

// ObjectGrant allows one request on one object.
type ObjectGrant struct {
	Key       string
	SessionID string
	MaxSize   int64 // of a PUT, bytes; 0 = no limit of its own
	// SHA256 is the lower-case hex digest that the content of a PUT must have, because
	// the object's name says so; "" = the name says nothing.
	SHA256 string
	// Seal must be called after the last byte of a PUT was read and before the
	// object becomes visible; an error means that session or token have ended
	// meanwhile and the object must not be stored. Nil for reads.
	Seal func() error
	// Done must be called when the request is over, once. Never nil.
	Done func()
}

// claim is what a key means within a session or target.
type claim struct {
	op      scope.Op
	bucket  int    // -1 unless op is Read or Write
	maxSize int64  // 0 = no limit of its own
	content string // SHA-256 that the name says the content has; "" = says nothing
	session *session.Session
}

// AuthorizeObject decides a request on one object. Only Sluice tokens open objects,
// and the key must lie within what the token grants: its own buckets' upload
// directories and the manifest of its session, taken from the frozen plan, or the
// visible files of its target.
func (b *Broker) AuthorizeObject(ctx context.Context, c Caller, r ObjectRequest) (ObjectGrant, error) {
	leave, err := b.enter()
	if err != nil {
		return ObjectGrant{}, err
	}
	defer leave()
	if r.Method != "PUT" && r.Method != "GET" && r.Method != "HEAD" {
		return ObjectGrant{}, fmt.Errorf("%w: method %.32q on an object", ErrScope, r.Method)
	}
	cl, err := b.claimOf(ctx, c, r.Key, r.Method == "PUT")
	if err != nil {
		return ObjectGrant{}, err
	}
	if cl.maxSize > 0 && r.Size > cl.maxSize {
		return ObjectGrant{}, fmt.Errorf("%w: %d bytes, at most %d", objstore.ErrTooLarge, r.Size, cl.maxSize)
	}
	a := cl.ask(c, policy.ActionObject, r.Method, r.Key)
	if cl.op == scope.SnapshotRead {
		a.action = policy.ActionRead
	}
	if _, err := b.decide(ctx, c, a); err != nil {
		return ObjectGrant{}, err
	}
	return b.grantObject(ctx, c, cl, r), nil
}

// ask is the question whether the caller may use a claim.
func (cl claim) ask(c Caller, action policy.Action, method, key string) ask {
	a := ask{
		action: action, session: cl.session, target: c.Token.Target,
		request: policy.Request{Ops: []string{string(cl.op)}, Path: key, Method: method, Epoch: c.Token.Epoch},
	}
	if cl.bucket >= 0 {
		a.request.Buckets = []int{cl.bucket}
	}
	return a
}

func (b *Broker) grantObject(ctx context.Context, c Caller, cl claim, r ObjectRequest) ObjectGrant {
	g := ObjectGrant{Key: r.Key, MaxSize: cl.maxSize, Done: func() {}}
	if cl.session == nil {
		return g
	}
	g.SessionID = cl.session.ID
	if r.Method != "PUT" {
		return g
	}
	g.SHA256 = cl.content
	var held bool
	g.Seal = sync.OnceValue(func() error { // the gateway calls it from one goroutine
		b.uploads.enter(g.SessionID)
		held = true
		// In this order: a freeze that this read misses waits for us in drain.
		return b.stillWritable(context.WithoutCancel(ctx), c.Token.ID, g.SessionID)
	})
	g.Done = func() {
		if held {
			b.uploads.leave(g.SessionID)
		}
	}
	return g
}

// uploadGrace is how long an upload may outlast the token it began with: a large
// object takes its time. Grants are kept as long.
const uploadGrace = time.Hour

// stillWritable says whether an upload that was allowed may become visible: neither
// its session nor its token may have ended meanwhile.
func (b *Broker) stillWritable(ctx context.Context, grantID, sessionID string) error {
	s, err := b.c.Store.Get(ctx, sessionID)
	if err != nil {
		return hidden(sessionID, err)
	}
	if err := writable(s, b.c.Now()); err != nil {
		return err
	}
	return b.stillGranted(ctx, grantID)
}

// stillGranted says whether what a token allowed may still be handed out.
func (b *Broker) stillGranted(ctx context.Context, grantID string) error {
	switch g, err := b.c.Store.Grant(ctx, grantID); {
	case errors.Is(err, session.ErrGrantNotFound), err == nil && !b.c.Now().Before(g.ExpiresAt.Add(uploadGrace)):
		return fmt.Errorf("%w: it expired more than %v before the request ended", ErrTokenInvalid, uploadGrace)
	case err != nil:
		return err
	case g.Revoked != nil:
		return fmt.Errorf("%w: revoked during the request", ErrTokenInvalid)
	}
	return nil
}

// claimOf finds what of the caller's token a request on an object uses.
func (b *Broker) claimOf(ctx context.Context, c Caller, key string, write bool) (claim, error) {
	if err := c.check(); err != nil {
		return claim{}, err
	}
	if c.Via != ViaToken {
		return claim{}, fmt.Errorf("%w: objects need a Sluice token; exchange the identity for one", ErrScope)
	}
	if err := objstore.CheckKey(key); err != nil {
		return claim{}, err
	}
	set, err := scope.Parse(c.Token.Scope)
	if err != nil {
		return claim{}, fmt.Errorf("%w: %w", ErrTokenInvalid, err)
	}
	if c.Token.SessionID != "" {
		s, err := b.c.Store.Get(ctx, c.Token.SessionID)
		if err != nil {
			return claim{}, hidden(c.Token.SessionID, err)
		}
		if err := s.CheckEpoch(c.Token.Epoch); err != nil {
			return claim{}, err
		}
		cl, ok, err := b.sessionClaim(s, set, key, write)
		if err != nil {
			return claim{}, err
		}
		if ok && write {
			return cl, writable(s, b.c.Now())
		}
		if ok && s.AbortInfo == nil {
			return cl, nil
		}
	}
	if !write && set.Allows(scope.SnapshotRead) {
		visible, err := b.visible(ctx, c.Token.Target, key)
		if err != nil || visible {
			return claim{op: scope.SnapshotRead, bucket: -1}, err
		}
	}
	verb := "read"
	if write {
		verb = "write"
	}
	return claim{}, fmt.Errorf("%w: %s %.300q", ErrScope, verb, key)
}

// sessionClaim matches a key against the plan of a session. A right to write
// includes reading back: an upload whose answer was lost must be compared.
func (b *Broker) sessionClaim(s session.Session, set scope.Set, key string, write bool) (claim, bool, error) {
	cl := claim{session: &s, bucket: -1}
	if s.Plan.ManifestPath == "" {
		return cl, false, nil // not ready yet
	}
	manifest, err := b.c.Driver.Key(s.Plan.ManifestPath)
	if err != nil {
		return cl, false, err
	}
	if key == manifest {
		cl.op, cl.maxSize = scope.ManifestWrite, b.c.Limits.ManifestMaxSize
		return cl, set.Allows(scope.ManifestWrite), nil
	}
	root, err := b.c.Driver.Key(s.Plan.UploadRoot)
	if err != nil {
		return cl, false, err
	}
	bucket, name, ok := uploadName(root, key, s.SnapshotIDs)
	if !ok {
		return cl, false, nil
	}
	if name == metadataName {
		cl.maxSize = b.c.Limits.ManifestMaxSize
	}
	cl.content, _, _ = privateName(name)
	cl.bucket, cl.op = bucket, scope.Write
	if !write && set.AllowsBucket(scope.Read, bucket) {
		cl.op = scope.Read
	}
	return cl, set.AllowsBucket(cl.op, bucket), nil
}

const metadataName = "_METADATA"

// uploadName splits the key of a bucket file, {root}/{bucket}/snap-{id}/{name}, and
// accepts the names of the contract only.
func uploadName(root, key string, snapshotIDs []int64) (bucket int, name string, ok bool) {
	rest, ok := strings.CutPrefix(key, root+"/")
	if !ok {
		return 0, "", false
	}
	number, _, _ := strings.Cut(rest, "/")
	bucket, err := strconv.Atoi(number)
	if err != nil || bucket < 0 || bucket >= len(snapshotIDs) || strconv.Itoa(bucket) != number {
		return 0, "", false
	}
	dir, name := path.Split(key)
	if dir != layout.SnapshotDir(root, bucket, snapshotIDs[bucket])+"/" {
		return 0, "", false
	}
	_, _, private := privateName(name)
	return bucket, name, name == metadataName || private
}

// privateName splits private-{sha256 of content}-{sha256 of local path}.
func privateName(name string) (content, local string, ok bool) {
	rest, ok := strings.CutPrefix(name, "private-")
	if !ok || len(rest) != 64+1+64 || rest[64] != '-' {
		return "", "", false
	}
	content, local = rest[:64], rest[65:]
	return content, local, hex64(content) && hex64(local)
}

func hex64(s string) bool { return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == "" }

// visible reports whether a key is a file of a snapshot that readers may see.
func (b *Broker) visible(ctx context.Context, t session.Target, key string) (bool, error) {
	if v, ok := b.c.Driver.(target.Visible); ok {
		return v.VisibleKey(ctx, t, key)
	}
	snaps, ok := b.c.Driver.(target.Snapshots)
	if !ok {
		return false, nil
	}
	_, list, err := snaps.LatestKVSnapshots(ctx, t)
	if err != nil {
		return false, err
	}
	dir := path.Dir(key)
	for _, s := range list {
		k, err := b.c.Driver.Key(s.MetadataPath)
		if err != nil {
			return false, err
		}
		if path.Dir(k) == dir {
			return true, nil
		}
	}
	return false, nil
}
