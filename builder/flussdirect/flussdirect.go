// Package flussdirect reads tables of a Fluss cluster without a Sluice server: snapshots
// and their rows, rows by key, lake snapshots, offsets and statistics. It needs what the
// server otherwise stands for: network access to the cluster, its user and password
// where it wants them, and access to the store where snapshots lie.
//
//	cluster, err := client.Dial(ctx, client.Config{Bootstrap: []string{"fluss.example:9123"}})
//	c := flussdirect.New(flussdirect.Config{Client: cluster, Open: flussdirect.Dir("")})
//	rows, err := c.SnapshotScanRows(ctx, flussdirect.ScanRequest{Target: flussdirect.Target{Database: "shop", Table: "orders"}})
//
// For snapshots in S3 give Open of package s3dir. Package builder has the same methods
// for readers that go through a Sluice server.
package flussdirect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder/scan"
	"github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/fluss/layout"
	"github.com/fluss-sluice/sluice/fluss/row"
	"github.com/fluss-sluice/sluice/internal/objstore"
)

// What is read; see packages v1 and scan.
type (
	Target      = v1.Target
	ScanRequest = scan.Request
	Scan        = scan.Scan
	Table       = scan.Table
	Objects     = scan.Objects
)

// OpenStore opens the store below a cluster's remote root, an absolute URI as the
// servers name it and without a slash at its end, for example file:///fluss/remote or
// s3://bucket/fluss.
type OpenStore func(ctx context.Context, root string) (Objects, error)

// Config says how to read.
type Config struct {
	Client *client.Client // the caller closes it, after the Client here
	// Open is asked once for each remote root; nil means Dir("").
	Open OpenStore
}

// Client reads one cluster. It is safe for concurrent use.
type Client struct {
	client *client.Client
	open   OpenStore

	mu       sync.Mutex
	stores   map[string]Objects // by remote root
	physical map[Target]client.Physical
	closed   bool
}

// New returns a Client; close it.
func New(c Config) *Client {
	if c.Open == nil {
		c.Open = Dir("")
	}
	return &Client{client: c.Client, open: c.Open, stores: map[string]Objects{}, physical: map[Target]client.Physical{}}
}

// Close closes the stores. Scans must be closed before.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	var errs []error
	for _, s := range c.stores {
		errs = append(errs, s.Close())
	}
	clear(c.stores)
	return errors.Join(errs...)
}

func (c *Client) reader() *scan.Reader { return &scan.Reader{Service: service{c}, Open: c.snapshots} }

// SnapshotScan opens a scan; close it. ctx covers the whole scan.
func (c *Client) SnapshotScan(ctx context.Context, req ScanRequest) (*Scan, error) {
	return c.reader().Scan(ctx, req)
}

// SnapshotScanRows reads a whole scan into memory.
func (c *Client) SnapshotScanRows(ctx context.Context, req ScanRequest) ([][]row.Value, error) {
	return c.reader().Rows(ctx, req)
}

// OpenTable prepares to read the rows of a table, or of one partition, by key or the
// first ones, as they are now. columns are those of its rows; none means all.
func (c *Client) OpenTable(ctx context.Context, t Target, columns ...string) (*Table, error) {
	return c.reader().OpenTable(ctx, t, columns...)
}

// remoteRoot finds the remote root in the URI of one of a table's files.
func remoteRoot(uri string, p client.Physical) (string, error) {
	dir := layout.TableDir("", p.Path.Database, p.Path.Table, p.TableID) + "/"
	i := strings.Index(uri, dir)
	if i <= 0 {
		return "", fmt.Errorf("a file of %s lies at %.300q, which is not where a cluster keeps its snapshots", p, uri)
	}
	return uri[:i], nil
}

// store returns the open store below a remote root.
func (c *Client) store(ctx context.Context, root string) (Objects, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errors.New("the client is closed")
	}
	if s := c.stores[root]; s != nil {
		return s, nil
	}
	s, err := c.open(ctx, root)
	if err != nil {
		return nil, fmt.Errorf("remote directory %s: %w", root, err)
	}
	c.stores[root] = s
	return s, nil
}

// snapshots is a scan.Reader's Open: the files of a table's snapshots, which may lie
// below more than one root.
func (c *Client) snapshots(ctx context.Context, t v1.Target, table *v1.Table, _ bool) (scan.Objects, error) {
	return &tableFiles{c: c, ctx: ctx, physical: client.Physical{
		Path: client.TablePath{Database: t.Database, Table: t.Table}, TableID: table.TableID}}, nil
}

// tableFiles are the files of one table. Keys are their URIs.
type tableFiles struct {
	c        *Client
	ctx      context.Context // of the scan
	physical client.Physical
}

// Key implements scan.Objects.
func (f *tableFiles) Key(uri string) (string, error) {
	uri = layout.CanonicalURI(uri)
	_, _, err := f.find(f.ctx, uri)
	return uri, err
}

func (f *tableFiles) find(ctx context.Context, uri string) (Objects, string, error) {
	root, err := remoteRoot(uri, f.physical)
	if err != nil {
		return nil, "", err
	}
	s, err := f.c.store(ctx, root)
	if err != nil {
		return nil, "", err
	}
	key, err := s.Key(uri)
	return s, key, err
}

// Get implements objstore.Reader.
func (f *tableFiles) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	s, key, err := f.find(ctx, key)
	if err != nil {
		return nil, objstore.Info{}, err
	}
	return s.Get(ctx, key, off, length)
}

// Head implements objstore.Reader.
func (f *tableFiles) Head(ctx context.Context, key string) (objstore.Info, error) {
	s, key, err := f.find(ctx, key)
	if err != nil {
		return objstore.Info{}, err
	}
	return s.Head(ctx, key)
}

// Close implements scan.Objects. The stores are the Client's.
func (*tableFiles) Close() error { return nil }

// maxMetadata bounds a _METADATA that is read, in bytes: upstream's limit.
const maxMetadata = 16 << 20

// read reads a small file of a table.
func (f *tableFiles) read(ctx context.Context, uri string) ([]byte, error) {
	body, info, err := f.Get(ctx, uri, 0, -1)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", uri, err)
	}
	defer body.Close()
	if info.Size > maxMetadata {
		return nil, fmt.Errorf("%s has %d bytes, at most %d are read", uri, info.Size, maxMetadata)
	}
	b, err := io.ReadAll(io.LimitReader(body, maxMetadata+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", uri, err)
	}
	return b, nil
}

// metadataURI is beside a snapshot's CURRENT, which is never shared: the cluster does
// not tell where _METADATA lies.
func metadataURI(m client.KVSnapshotMetadata) (string, error) {
	for _, f := range m.Files {
		if f.LocalName == "CURRENT" {
			dir, _ := path.Split(layout.CanonicalURI(f.RemotePath))
			return dir + layout.MetadataName, nil
		}
	}
	return "", errors.New("the snapshot has no file CURRENT")
}
