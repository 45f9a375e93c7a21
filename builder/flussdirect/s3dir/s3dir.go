// Package s3dir opens snapshots in S3 for package flussdirect. It is a package of its
// own because it links the AWS SDK.
package s3dir

import (
	"context"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/fluss-sluice/sluice/builder/flussdirect"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/internal/objstore/s3"
)

// Config says how to reach the store. Its keys need to read objects only.
type Config struct {
	Region      string // of the bucket; mandatory
	Endpoint    string // base URL of a service other than AWS
	PathStyle   bool   // the bucket stands in the path
	Credentials aws.CredentialsProvider
}

// Open returns an OpenStore for roots s3://bucket/prefix (also s3a and s3n, as Hadoop
// writes them).
func Open(c Config) flussdirect.OpenStore {
	return func(_ context.Context, root string) (flussdirect.Objects, error) {
		scheme, rest, ok := strings.Cut(root, "://")
		bucket, prefix, _ := strings.Cut(rest, "/")
		if !ok || bucket == "" || scheme != "s3" && scheme != "s3a" && scheme != "s3n" {
			return nil, fmt.Errorf("it does not lie in S3")
		}
		store, err := s3.Open(s3.Config{
			Bucket: bucket, Prefix: strings.Trim(prefix, "/"), Region: c.Region, Endpoint: c.Endpoint,
			PathStyle: c.PathStyle, Credentials: c.Credentials,
		})
		if err != nil {
			return nil, err
		}
		return objects{store, root + "/"}, nil
	}
}

// objects is an S3 store below a root.
type objects struct {
	*s3.Store
	root string
}

// Key implements flussdirect.Objects.
func (o objects) Key(uri string) (string, error) {
	key, ok := strings.CutPrefix(uri, o.root)
	if !ok {
		return "", fmt.Errorf("%w: %.300q does not lie below %s", objstore.ErrInvalidKey, uri, o.root)
	}
	return key, objstore.CheckKey(key)
}
