// Package s3keys is how a load or a scan reaches an S3 store itself, with keys that
// the broker vends (builder.STS). Give its Open to the library:
//
//	c, err := builder.Connect(builder.Config{URL: broker, Identity: id,
//		Credentials: builder.STS, KeyStore: s3keys.Open})
//
// It is a package of its own because it links the AWS SDK, which programs that go
// through the gateway or have their requests signed do without.
//
// Keys open a few places each, and one answer of the broker may hold several sets of
// them. A Store finds the set for every object by its path, segment by segment, and
// keeps one S3 client for each. Keys are refreshed by their source while an upload
// runs: each part is signed with those of the moment. When the store says that keys
// are over although they should not be, they are asked for anew, once a request.
//
// Files of several parts are sent with bounded memory: one part of 8 MiB for each file
// on its way, and four more for each set of keys.
package s3keys

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/internal/objstore/s3"
	"github.com/fluss-sluice/sluice/session/scope"
)

// Store is the part of an S3 store that vended keys open. It is safe for concurrent
// use.
type Store struct {
	keys   builder.Keys
	root   string // s3://bucket/dir/
	bucket string
	prefix string // of the root in the bucket, without slashes at its ends

	mu     sync.Mutex
	stores map[string]*opened // by what keys open
	closed bool
}

// opened is the client of one set of keys.
type opened struct {
	store *s3.Store
	ring  *ring
}

var _ builder.KeyStore = (*Store)(nil)

// Open is a builder.OpenKeyStore for S3. remoteDir is s3://bucket/dir. It sends
// nothing yet.
func Open(keys builder.Keys, remoteDir string) (builder.KeyStore, error) {
	bucket, prefix, err := split(strings.TrimRight(remoteDir, "/"))
	if err != nil {
		return nil, fmt.Errorf("remote directory: %w", err)
	}
	return &Store{
		keys: keys, root: strings.TrimRight(remoteDir, "/") + "/", bucket: bucket, prefix: prefix, stores: map[string]*opened{},
	}, nil
}

// split takes s3://bucket/key apart.
func split(uri string) (bucket, key string, err error) {
	rest, ok := strings.CutPrefix(uri, "s3://")
	bucket, key, _ = strings.Cut(rest, "/")
	if !ok || bucket == "" {
		return "", "", fmt.Errorf("%w: %q does not lie in an S3 store: use the gateway", builder.ErrRequest, uri)
	}
	return bucket, key, nil
}

// Key implements builder.KeyStore.
func (s *Store) Key(uri string) (string, error) {
	key, ok := strings.CutPrefix(uri, s.root)
	if !ok {
		return "", fmt.Errorf("%w: %q does not lie below %q", objstore.ErrInvalidKey, uri, s.root)
	}
	return key, objstore.CheckKey(key)
}

// Get implements objstore.Reader.
func (s *Store) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	o, err := s.open(ctx, key, v1.AccessRead)
	if err != nil {
		return nil, objstore.Info{}, err
	}
	body, info, err := o.store.Get(ctx, key, off, length)
	return body, info, o.explain(err)
}

// Head implements objstore.Reader. Without the right to list, a missing object is
// denied.
func (s *Store) Head(ctx context.Context, key string) (objstore.Info, error) {
	o, err := s.open(ctx, key, v1.AccessRead)
	if err != nil {
		return objstore.Info{}, err
	}
	info, err := o.store.Head(ctx, key)
	return info, o.explain(err)
}

// Put implements objstore.Writer.
func (s *Store) Put(ctx context.Context, key string, body io.Reader, opt objstore.PutOptions) (objstore.Info, error) {
	o, err := s.open(ctx, key, v1.AccessWrite)
	if err != nil {
		return objstore.Info{}, err
	}
	info, err := o.store.Put(ctx, key, body, opt)
	return info, o.explain(err)
}

// Close gives idle connections back. It does not close the source of the keys.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	var errs []error
	for _, o := range s.stores {
		errs = append(errs, o.store.Close())
	}
	clear(s.stores)
	return errors.Join(errs...)
}

// open returns the client of the keys that open an object.
func (s *Store) open(ctx context.Context, key, access string) (*opened, error) {
	if err := objstore.CheckKey(key); err != nil {
		return nil, err
	}
	c, err := s.keys.Current(ctx)
	if err != nil {
		return nil, fmt.Errorf("keys for %s%s: %w", s.root, key, err)
	}
	i := slices.IndexFunc(c.Keys, func(k client.Keys) bool {
		return slices.ContainsFunc(k.Locations, func(l v1.KeyLocation) bool { return s.opens(l, key, access) })
	})
	if i < 0 {
		return nil, fmt.Errorf("%w: %s%s is not among what the keys for %q may %s", client.ErrNoKeys, s.root, key, c.Scope, access)
	}
	return s.storeOf(c, c.Keys[i].Locations)
}

// opens reports whether keys for a location may do that with an object.
func (s *Store) opens(l v1.KeyLocation, key, access string) bool {
	if l.Access != access && l.Access != v1.AccessWrite {
		return false
	}
	bucket, at, err := split(l.URI)
	if err != nil || bucket != s.bucket {
		return false
	}
	if s.prefix != "" {
		key = s.prefix + "/" + key
	}
	if l.Object {
		return at == key
	}
	p, err := scope.ParsePrefix(at)
	return err == nil && p.Contains(key)
}

// storeOf returns the client of a set of keys, which is known by what it opens: the
// keys themselves change.
func (s *Store) storeOf(c *client.Credentials, locations []v1.KeyLocation) (*opened, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, builder.ErrClosed
	}
	id := identity(c, locations)
	if o := s.stores[id]; o != nil {
		return o, nil
	}
	o := &opened{ring: &ring{keys: s.keys, id: id}}
	var err error
	o.store, err = s3.Open(s3.Config{
		Bucket: s.bucket, Prefix: s.prefix, Region: c.Region, Endpoint: c.Endpoint, PathStyle: c.PathStyle, Credentials: o.ring,
	})
	if err != nil {
		return nil, err
	}
	s.stores[id] = o
	return o, nil
}

// identity tells sets of keys apart that are not for the same places of one store.
func identity(c *client.Credentials, locations []v1.KeyLocation) string {
	var places []string
	for _, l := range locations {
		places = append(places, fmt.Sprintf("%q %s %v", l.URI, l.Access, l.Object))
	}
	slices.Sort(places)
	return fmt.Sprintf("%q %q %v %v", c.Region, c.Endpoint, c.PathStyle, places)
}

// explain adds why there were no keys, which the S3 client does not pass on.
func (o *opened) explain(err error) error {
	if err == nil {
		return nil
	}
	o.ring.mu.Lock()
	defer o.ring.mu.Unlock()
	if o.ring.err == nil {
		return err
	}
	return fmt.Errorf("%w: %w", err, o.ring.err)
}

// lookAgain is how long keys are used whose refresh is due and has not come.
const lookAgain = 15 * time.Second

// errSplit: the broker has divided the same places among other sets of keys.
var errSplit = errors.New("the keys are now divided otherwise; repeat what failed")

// ring hands the keys of the moment to the AWS SDK.
type ring struct {
	keys builder.Keys
	id   string

	mu   sync.Mutex
	last string // access key id handed out
	err  error  // why the last call had none
}

var _ aws.CredentialsProvider = (*ring)(nil)

// Retrieve implements aws.CredentialsProvider. Keys expire for the SDK when they
// should be refreshed: their source then has others, or says that it has none.
func (r *ring) Retrieve(ctx context.Context) (aws.Credentials, error) {
	c, err := r.keys.Current(ctx)
	var k client.Keys
	if err == nil {
		k, err = r.find(c)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err = err; err != nil {
		return aws.Credentials{}, err
	}
	r.last = k.AccessKeyID
	until := c.RefreshAt
	if now := time.Now(); !until.After(now) {
		until = now.Add(lookAgain)
	}
	for _, end := range []time.Time{k.ExpiresAt, c.ExpiresAt} {
		if end.Before(until) {
			until = end
		}
	}
	return aws.Credentials{
		AccessKeyID: k.AccessKeyID, SecretAccessKey: k.SecretAccessKey.Reveal(), SessionToken: k.SessionToken.Reveal(),
		CanExpire: true, Expires: until, Source: "sluice",
	}, nil
}

func (r *ring) find(c *client.Credentials) (client.Keys, error) {
	i := slices.IndexFunc(c.Keys, func(k client.Keys) bool { return identity(c, k.Locations) == r.id })
	if i < 0 {
		return client.Keys{}, errSplit
	}
	return c.Keys[i], nil
}

// Invalidate drops the keys handed out last; the S3 client calls it when the store
// says that they are over.
func (r *ring) Invalidate() {
	r.mu.Lock()
	last := r.last
	r.mu.Unlock()
	r.keys.Invalidate(last)
}
