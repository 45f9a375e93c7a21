package awssts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"

	"github.com/fluss-sluice/sluice/broker/vend"
	"github.com/fluss-sluice/sluice/session"
	"github.com/fluss-sluice/sluice/test/env"
)

var servers env.Servers

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

// realVendor is a vendor at a real STS.
func realVendor(t *testing.T, s *env.Server, edit func(*Config)) *Vendor {
	t.Helper()
	c := Config{
		STS:     sts.New(sts.Options{Region: s.Region, BaseEndpoint: &s.Endpoint, Credentials: s.Vendor.Provider()}),
		RoleARN: s.RoleARN, Identity: AnyIdentity, Store: vend.Store{Region: s.Region, Endpoint: s.Endpoint, PathStyle: true},
		PlainPolicies: s.Kind == env.SeaweedFS,
	}
	if edit != nil {
		edit(&c)
	}
	v, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = v.Close() })
	return v
}

func realRequest(locs ...vend.Location) vend.Request {
	return vend.Request{
		Principal: session.Principal{Issuer: "https://idp", Subject: "worker"}, Session: "0190b1c2-7d3e-7abc-8def-001122334455", Epoch: 1,
		PolicyRevision: "r1", DecisionID: "0190b1c2-aaaa-7abc-8def-001122334455", MaxTTL: 20 * time.Minute, Deadline: time.Now().Add(time.Hour), Locations: locs,
	}
}

func clientOf(s *env.Server, c vend.Credential) *s3.Client {
	return s.S3(credentials.NewStaticCredentialsProvider(c.AccessKeyID, c.SecretAccessKey.Reveal(), c.SessionToken.Reveal()))
}

func put(ctx context.Context, c *s3.Client, bucket, key string) error {
	_, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: strings.NewReader("content")})
	return err
}

func denied(err error) bool {
	var api smithy.APIError
	return errors.As(err, &api) && (api.ErrorCode() == "AccessDenied" || api.ErrorCode() == "Forbidden")
}

// TestVendedKeysOpenThePrefixAndNothingElse runs the matrix of out-of-scope attempts
// against real servers.
func TestVendedKeysOpenThePrefixAndNothingElse(t *testing.T) {
	for _, kind := range env.Kinds {
		t.Run(string(kind), func(t *testing.T) { matrix(t, servers.Get(t, kind)) })
	}
}

func matrix(t *testing.T, s *env.Server) {
	ctx := t.Context()
	v := realVendor(t, s, nil)
	vendOne := func(l vend.Location) *s3.Client {
		t.Helper()
		a, err := v.Vend(ctx, realRequest(l))
		if err != nil {
			t.Fatal(err)
		}
		return clientOf(s, a.Credentials[0])
	}
	const in, sibling, parent = "kv/db/t-7/1/snap-3/f", "kv/db/t-7/10/snap-3/f", "kv/db/t-7/f"
	admin := s.S3(s.Admin.Provider())
	for _, key := range []string{sibling, parent} {
		if err := put(ctx, admin, s.Bucket, key); err != nil {
			t.Fatal(err)
		}
	}
	if err := put(ctx, admin, s.OtherBucket, in); err != nil {
		t.Fatal(err)
	}
	writer := vendOne(at(t, vend.Write, s.Bucket, "kv/db/t-7/1/snap-3"))
	reader := vendOne(at(t, vend.Read, s.Bucket, "kv/db/t-7/1/snap-3"))
	get := func(c *s3.Client, bucket, key string) error {
		out, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: &bucket, Key: &key})
		if err == nil {
			_ = out.Body.Close()
		}
		return err
	}
	begin := func(c *s3.Client, key string) (*string, error) {
		out, err := c.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: &s.Bucket, Key: &key})
		if err != nil {
			return nil, err
		}
		return out.UploadId, nil
	}
	upload := func(c *s3.Client, key string, id *string, n int32) (s3types.CompletedPart, error) {
		out, err := c.UploadPart(ctx, &s3.UploadPartInput{Bucket: &s.Bucket, Key: &key, UploadId: id, PartNumber: &n, Body: bytes.NewReader(make([]byte, 5<<20))})
		if err != nil {
			return s3types.CompletedPart{}, err
		}
		return s3types.CompletedPart{ETag: out.ETag, PartNumber: &n, ChecksumCRC32: out.ChecksumCRC32}, nil
	}

	t.Run("allowed", func(t *testing.T) {
		if err := put(ctx, writer, s.Bucket, in); err != nil {
			t.Errorf("put: %v", err)
		}
		if err := errors.Join(get(writer, s.Bucket, in), get(reader, s.Bucket, in)); err != nil {
			t.Errorf("get: %v", err)
		}
		key := in + "-parts"
		id, err := begin(writer, key)
		if err != nil {
			t.Fatal(err)
		}
		var parts []s3types.CompletedPart
		for n := range int32(2) {
			p, err := upload(writer, key, id, n+1)
			if err != nil {
				t.Fatalf("part %d: %v", n+1, err)
			}
			parts = append(parts, p)
		}
		if out, err := writer.ListParts(ctx, &s3.ListPartsInput{Bucket: &s.Bucket, Key: &key, UploadId: id}); err != nil || len(out.Parts) != 2 {
			t.Errorf("list parts: %v", err)
		}
		if _, err := writer.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{Bucket: &s.Bucket, Key: &key, UploadId: id, MultipartUpload: &s3types.CompletedMultipartUpload{Parts: parts}}); err != nil {
			t.Errorf("complete: %v", err)
		}
		key = in + "-aborted"
		if id, err = begin(writer, key); err != nil {
			t.Fatal(err)
		}
		if _, err := writer.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &s.Bucket, Key: &key, UploadId: id}); err != nil {
			t.Errorf("abort: %v", err)
		}
	})

	foreign, err := begin(admin, sibling)
	if err != nil {
		t.Fatal(err)
	}
	for name, attempt := range map[string]func() error{
		"put a sibling":           func() error { return put(ctx, writer, s.Bucket, sibling) },
		"put another snapshot":    func() error { return put(ctx, writer, s.Bucket, "kv/db/t-7/1/snap-30/f") },
		"put beside the snapshot": func() error { return put(ctx, writer, s.Bucket, "kv/db/t-7/1/f") },
		"put the prefix itself":   func() error { return put(ctx, writer, s.Bucket, "kv/db/t-7/1/snap-3") },
		"put the parent":          func() error { return put(ctx, writer, s.Bucket, parent) },
		"put the root":            func() error { return put(ctx, writer, s.Bucket, "f") },
		"put another bucket":      func() error { return put(ctx, writer, s.OtherBucket, in) },
		"put with a reader's":     func() error { return put(ctx, reader, s.Bucket, in) },
		"get a sibling":           func() error { return get(writer, s.Bucket, sibling) },
		"get the parent":          func() error { return get(reader, s.Bucket, parent) },
		"get another bucket":      func() error { return get(writer, s.OtherBucket, in) },
		"list": func() error {
			_, err := writer.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: &s.Bucket, Prefix: aws.String("kv/db/t-7/1/snap-3/")})
			return err
		},
		"list uploads": func() error {
			_, err := writer.ListMultipartUploads(ctx, &s3.ListMultipartUploadsInput{Bucket: &s.Bucket})
			return err
		},
		"delete": func() error {
			_, err := writer.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &s.Bucket, Key: aws.String(in)})
			return err
		},
		"copy from outside": func() error {
			_, err := writer.CopyObject(ctx, &s3.CopyObjectInput{Bucket: &s.Bucket, Key: aws.String(in + "-copy"), CopySource: aws.String(s.Bucket + "/" + sibling)})
			return err
		},
		"copy from another bucket": func() error {
			_, err := writer.CopyObject(ctx, &s3.CopyObjectInput{Bucket: &s.Bucket, Key: aws.String(in + "-copy"), CopySource: aws.String(s.OtherBucket + "/" + in)})
			return err
		},
		"copy to outside": func() error {
			_, err := writer.CopyObject(ctx, &s3.CopyObjectInput{Bucket: &s.Bucket, Key: aws.String(sibling), CopySource: aws.String(s.Bucket + "/" + in)})
			return err
		},
		"begin parts outside":   func() error { _, err := begin(writer, sibling); return err },
		"begin parts, reading":  func() error { _, err := begin(reader, in); return err },
		"part of a foreign one": func() error { _, err := upload(writer, sibling, foreign, 1); return err },
		"abort a foreign upload": func() error {
			_, err := writer.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &s.Bucket, Key: aws.String(sibling), UploadId: foreign})
			return err
		},
		"parts of a foreign one": func() error {
			_, err := writer.ListParts(ctx, &s3.ListPartsInput{Bucket: &s.Bucket, Key: aws.String(sibling), UploadId: foreign})
			return err
		},
		"another's token with its own keys": func() error {
			a, err := v.Vend(ctx, realRequest(at(t, vend.Read, s.Bucket, "kv/db/t-7/1/snap-3")))
			b, err2 := v.Vend(ctx, realRequest(at(t, vend.Write, s.Bucket, "kv/db/t-7/1/snap-3")))
			if err := errors.Join(err, err2); err != nil {
				return err
			}
			mixed := a.Credentials[0]
			mixed.SessionToken = b.Credentials[0].SessionToken
			if err := put(ctx, clientOf(s, mixed), s.Bucket, in); err != nil {
				return &smithy.GenericAPIError{Code: "AccessDenied"} // each server has its own code for it
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := attempt(); !denied(err) {
				t.Errorf("not denied: %v", err)
			}
		})
	}
}

func TestNamesThatAreWildcardsOpenNoOthers(t *testing.T) {
	for _, kind := range env.Kinds {
		t.Run(string(kind), func(t *testing.T) {
			s := servers.Get(t, kind)
			v := realVendor(t, s, nil)
			for _, name := range []string{"*", "f*", "?", "${aws:username}", "é"} {
				a, err := v.Vend(t.Context(), realRequest(at(t, vend.Write, s.Bucket, "w/"+name+"/1")))
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				c := clientOf(s, a.Credentials[0])
				for _, key := range []string{"w/x/1/f", "w/fx/1/f", "w/f/1/f", "w/vendor/1/f", "w/f/x/1/f"} {
					if err := put(t.Context(), c, s.Bucket, key); !denied(err) {
						t.Errorf("keys for %q on %s: %v", name, key, err)
					}
				}
				if err := put(t.Context(), c, s.Bucket, "w/"+name+"/1/f"); err != nil {
					t.Logf("%s: keys for %q do not open it: %v (safe: it knows no escapes)", kind, name, err)
				}
			}
		})
	}
}

func TestManyBucketsOnRealServers(t *testing.T) {
	for _, kind := range env.Kinds {
		t.Run(string(kind), func(t *testing.T) {
			s := servers.Get(t, kind)
			v := realVendor(t, s, nil)
			var locs []vend.Location
			for n := range 90 {
				locs = append(locs, at(t, vend.Write, s.Bucket, fmt.Sprintf("kv/db/many-8/%d/snap-0", n)))
			}
			a, err := v.Vend(t.Context(), realRequest(locs...))
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d credentials", len(a.Credentials))
			for i, cred := range a.Credentials {
				c := clientOf(s, cred)
				for _, j := range []int{0, len(cred.Locations) - 1} {
					if err := put(t.Context(), c, s.Bucket, cred.Locations[j].Prefix.String()+"/f"); err != nil {
						t.Errorf("credential %d: %v", i, err)
					}
				}
				for _, n := range []string{"90", "100", "1x", "1/2", "x"} {
					if err := put(t.Context(), c, s.Bucket, "kv/db/many-8/"+n+"/snap-0/f"); !denied(err) {
						t.Errorf("credential %d on %s: %v", i, n, err)
					}
				}
			}
		})
	}
}

func TestAProviderThatRefusesTheGuardFailsClosed(t *testing.T) {
	s := servers.Get(t, env.SeaweedFS)
	v := realVendor(t, s, func(c *Config) { c.PlainPolicies = false })
	var locs []vend.Location
	for n := range 90 {
		locs = append(locs, at(t, vend.Write, s.Bucket, fmt.Sprintf("kv/db/many-8/%d/snap-0", n)))
	}
	if a, err := v.Vend(t.Context(), realRequest(locs...)); !errors.Is(err, vend.ErrRefused) {
		t.Errorf("%d credentials, %v", len(a.Credentials), err)
	}
}
