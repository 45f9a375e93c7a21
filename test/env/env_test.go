package env

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"
)

func TestServersEnforceSessionPolicies(t *testing.T) {
	for _, kind := range Kinds {
		t.Run(string(kind), func(t *testing.T) {
			begun := time.Now()
			s := Need(t, kind, Options{})
			t.Logf("ready after %v", time.Since(begun).Round(time.Millisecond))
			vendor := sts.New(sts.Options{Region: s.Region, BaseEndpoint: &s.Endpoint, Credentials: s.Vendor.Provider()})
			out, err := vendor.AssumeRole(t.Context(), &sts.AssumeRoleInput{
				RoleArn: &s.RoleARN, RoleSessionName: aws.String("worker"), DurationSeconds: aws.Int32(900),
				Policy: aws.String(`{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"s3:PutObject","Resource":"arn:aws:s3:::` + s.Bucket + `/in/*"}]}`),
			})
			if err != nil {
				t.Fatal(err)
			}
			c := out.Credentials
			worker := s.S3(credentials.NewStaticCredentialsProvider(*c.AccessKeyId, *c.SecretAccessKey, *c.SessionToken))
			put := func(client *s3.Client, bucket, key string) error {
				_, err := client.PutObject(t.Context(), &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: strings.NewReader("x")})
				return err
			}
			if err := put(worker, s.Bucket, "in/a"); err != nil {
				t.Errorf("inside the policy: %v", err)
			}
			for _, outside := range [][2]string{{s.Bucket, "out/a"}, {s.Bucket, "in2/a"}, {s.OtherBucket, "in/a"}} {
				wantDenied(t, put(worker, outside[0], outside[1]))
			}
			wantDenied(t, put(s.S3(s.Vendor.Provider()), s.Bucket, "in/b"))
			if err := put(s.S3(s.Admin.Provider()), s.OtherBucket, "a"); err != nil {
				t.Errorf("admin: %v", err)
			}
		})
	}
}

func wantDenied(t *testing.T, err error) {
	t.Helper()
	var api smithy.APIError
	if !errors.As(err, &api) || api.ErrorCode() != "AccessDenied" {
		t.Errorf("got %v, want AccessDenied", err)
	}
}

func TestStopLeavesNothing(t *testing.T) {
	s, err := Start(t.Context(), SeaweedFS, Options{})
	if err != nil {
		Missing(t, err)
	}
	for range 2 { // a second Stop is nothing
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(s.process.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its directory: %v", err)
	}
	if c, err := net.Dial("tcp", strings.TrimPrefix(s.Endpoint, "http://")); err == nil {
		_ = c.Close()
		t.Error("its port is open")
	}
}

func TestAServerThatEndsByItselfIsAnError(t *testing.T) {
	dir, err := tempDir("broken")
	if err != nil {
		t.Fatal(err)
	}
	p, err := run(dir, nil, os.Args[0], "-no-such-flag")
	if err != nil {
		t.Fatal(err)
	}
	err = p.await(t.Context(), func(context.Context) error { return errors.New("never") })
	if !errors.Is(err, errExited) || !strings.Contains(err.Error(), "no-such-flag") {
		t.Errorf("got %v", err)
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}
}

func TestCephThatIsNotInstalledSaysHowToInstallIt(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := Start(t.Context(), CephRGW, Options{})
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "apt-get install") {
		t.Error(err)
	}
}
