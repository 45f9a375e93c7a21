package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"

	v1 "github.com/fluss-sluice/sluice/api/v1"
)

// thief has worker-a's keys for bucket 0 and does with them what a worker should not.
type thief struct {
	client *s3.Client
	own    string // s3://bucket/prefix that the keys are for
}

// steal gets the keys as any program would.
func (d *demo) steal(ctx context.Context, buildContext string) (*thief, error) {
	out, err := d.broker.CLI(ctx, "worker-a", "creds", "--context", buildContext, "--bucket", "0", "--write", "--format", "json")
	if err != nil {
		return nil, err
	}
	var answer v1.Credentials
	if err := json.Unmarshal(out, &answer); err != nil {
		return nil, err
	}
	if len(answer.Credentials) != 1 || len(answer.Credentials[0].Locations) != 1 {
		return nil, fmt.Errorf("one set of keys for one place was expected, there are %v", answer)
	}
	k := answer.Credentials[0]
	return &thief{
		client: d.server.S3(credentials.NewStaticCredentialsProvider(k.AccessKeyID, k.SecretAccessKey, k.SessionToken)),
		own:    k.Locations[0].URI,
	}, nil
}

func (t *thief) put(ctx context.Context, uri string) error {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(uri, "s3://"), "/")
	_, err := t.client.PutObject(ctx, &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: strings.NewReader("forged")})
	return err
}

// refused wants the store to refuse an object.
func (t *thief) refused(ctx context.Context, what, uri string) error {
	err := t.put(ctx, uri)
	var api smithy.APIError
	if !errors.As(err, &api) || api.ErrorCode() != "AccessDenied" {
		return fmt.Errorf("worker-a's keys for bucket 0 were not refused %s %s: %v", what, uri, err)
	}
	say("worker-a's keys for bucket 0: the store refuses %s", what)
	return nil
}

// before tries the other worker's upload, while the load runs.
func (t *thief) before(ctx context.Context, result string) error {
	var theirs struct {
		Buckets []v1.BucketFiles `json:"buckets"`
	}
	if err := readJSON(result, &theirs); err != nil {
		return err
	}
	if len(theirs.Buckets) == 0 {
		return fmt.Errorf("%s names no bucket", result)
	}
	if err := t.refused(ctx, "the other worker's files", theirs.Buckets[0].Metadata.Path); err != nil {
		return err
	}
	bucket, _, _ := strings.Cut(strings.TrimPrefix(t.own, "s3://"), "/")
	_, err := t.client.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: &bucket, Prefix: aws.String("")})
	if err == nil {
		return errors.New("worker-a's keys list the bucket")
	}
	return nil
}

// after tries worker-a's own files once they are published: the keys are alive still.
func (t *thief) after(ctx context.Context, buildContext string) error {
	var bc v1.BuildContext
	if err := readJSON(buildContext, &bc); err != nil {
		return err
	}
	rest, ok := strings.CutPrefix(t.own, strings.TrimSuffix(bc.Plan.UploadRoot, "/"))
	if !ok {
		return fmt.Errorf("the keys are for %s, which is not below the upload root %s", t.own, bc.Plan.UploadRoot)
	}
	if err := t.put(ctx, t.own+"/late"); err != nil {
		return fmt.Errorf("the keys ended with the commit, which no store does by itself: %w", err)
	}
	return t.refused(ctx, "its own published files, although the keys live on", strings.TrimSuffix(bc.Plan.FinalRoot, "/")+rest+"/_METADATA")
}

func readJSON(name string, into any) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, into)
}
