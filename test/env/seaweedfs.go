package env

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sts"
)

// launchSeaweedFS starts master, volume server, filer and S3 gateway (with STS) in
// one process.
func launchSeaweedFS(ctx context.Context, install string, o Options) (*Server, error) {
	ports, err := freePorts(8)
	if err != nil {
		return nil, err
	}
	s := newServer(SeaweedFS, ports[0])
	if o.WebIdentity.Issuer != "" {
		s.WebRoleARN = roleARN("WebWriter")
	}
	dir, err := tempDir(SeaweedFS)
	if err != nil {
		return nil, err
	}
	if err := writeSeaweedFSConfig(dir, s, o); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s.process, err = run(dir, nil, filepath.Join(install, "bin", "weed"), "-logtostderr=true", "server",
		"-dir="+filepath.Join(dir, "data"), "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
		"-filer", "-s3", "-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=false",
		"-volume.max=200", "-master.volumeSizeLimitMB=256", "-volume.minFreeSpace=0",
		fmt.Sprintf("-s3.port=%d", ports[0]), fmt.Sprintf("-s3.port.grpc=%d", ports[1]),
		fmt.Sprintf("-master.port=%d", ports[2]), fmt.Sprintf("-master.port.grpc=%d", ports[3]),
		fmt.Sprintf("-volume.port=%d", ports[4]), fmt.Sprintf("-volume.port.grpc=%d", ports[5]),
		fmt.Sprintf("-filer.port=%d", ports[6]), fmt.Sprintf("-filer.port.grpc=%d", ports[7]),
		"-s3.config="+filepath.Join(dir, "s3.json"), "-s3.iam.config="+filepath.Join(dir, "iam.json"))
	if err != nil {
		return nil, err
	}
	if err := s.process.await(ctx, s.ready); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// ready makes the buckets and proves that both halves answer.
func (s *Server) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	client, key := s.S3(s.Admin.Provider()), "ready"
	for _, bucket := range []string{s.Bucket, s.OtherBucket} {
		if _, err := client.HeadBucket(ctx, &s3.HeadBucketInput{Bucket: &bucket}, once); err != nil {
			if _, err := client.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: &bucket}, once); err != nil {
				return err
			}
		}
		if _, err := client.PutObject(ctx, &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: strings.NewReader("x")}, once); err != nil {
			return err
		}
		if _, err := client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &bucket, Key: &key}, once); err != nil {
			return err
		}
	}
	vendor := sts.New(sts.Options{Region: s.Region, BaseEndpoint: &s.Endpoint, Credentials: s.Vendor.Provider(), RetryMaxAttempts: 1})
	_, err := vendor.AssumeRole(ctx, &sts.AssumeRoleInput{RoleArn: &s.RoleARN, RoleSessionName: aws.String("ready")})
	return err
}

func once(o *s3.Options) { o.RetryMaxAttempts = 1 }

// doc is a JSON object of a configuration file.
type doc = map[string]any

// writeSeaweedFSConfig writes s3.json (users with long-lived keys) and iam.json (STS,
// policies and roles).
func writeSeaweedFSConfig(dir string, s *Server, o Options) error {
	user := func(name string, k Keys, actions ...string) doc {
		return doc{"name": name, "actions": actions, "credentials": []doc{{"accessKey": k.AccessKeyID, "secretKey": k.SecretAccessKey.Reveal()}}}
	}
	users := doc{"identities": []doc{
		user("admin", s.Admin, "Admin", "Read", "Write", "List", "Tagging"),
		user("vendor", s.Vendor, "Read:none"), // an identity needs some action; there is no such bucket
	}}
	role := func(arn string, trust doc) doc {
		return doc{
			"roleName": arn[strings.LastIndexByte(arn, '/')+1:], "roleArn": arn, "maxSessionDuration": 3600,
			"attachedPolicies": []string{"BulkWriterPolicy"}, "trustPolicy": policy(trust),
		}
	}
	const userARN = "arn:aws:iam::" + Account + ":user/"
	trusted := doc{"Effect": "Allow", "Action": []string{"sts:AssumeRole"}, "Principal": doc{"AWS": []string{userARN + "vendor", userARN + "admin"}}}
	roles := []doc{role(s.RoleARN, trusted)}
	providers := []doc{}
	if w := o.WebIdentity; w.Issuer != "" {
		providers = append(providers, doc{"name": "idp", "type": "oidc", "enabled": true,
			"config": doc{"issuer": w.Issuer, "clientId": w.ClientID, "jwksUri": w.JWKS}})
		roles = append(roles, role(s.WebRoleARN, doc{
			"Effect": "Allow", "Action": []string{"sts:AssumeRoleWithWebIdentity"}, "Principal": doc{"Federated": "idp"},
			"Condition": doc{"StringEquals": doc{"oidc:sub": w.Subject}}}))
	}
	duration := o.DefaultDuration
	if duration == 0 {
		duration = time.Hour
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	iam := doc{
		"sts": doc{
			"tokenDuration": duration.String(), "maxSessionLength": "12h", "issuer": "seaweedfs-sts",
			"accountId": Account, "signingKey": key, "providers": providers,
		},
		"policy":   doc{"defaultEffect": "Deny", "storeType": "memory"},
		"policies": []doc{{"name": "BulkWriterPolicy", "document": policy(s.roleStatement())}},
		"roles":    roles,
	}
	if err := os.Mkdir(filepath.Join(dir, "data"), 0o700); err != nil {
		return err
	}
	for name, d := range map[string]doc{"s3.json": users, "iam.json": iam, "security.toml": nil} {
		b, err := json.Marshal(d)
		if d == nil {
			b = nil
		}
		if err := errors.Join(err, os.WriteFile(filepath.Join(dir, name), b, 0o600)); err != nil {
			return err
		}
	}
	return nil
}

func policy(statements ...doc) doc { return doc{"Version": "2012-10-17", "Statement": statements} }

// roleStatement is what the roles may do: more than any worker should, so that a
// test sees the session policy and not the role refuse.
func (s *Server) roleStatement() doc {
	return doc{
		"Effect": "Allow",
		"Action": []string{"s3:PutObject", "s3:GetObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts",
			"s3:ListBucket", "s3:ListBucketMultipartUploads", "s3:PutObjectAcl", "s3:PutObjectTagging"},
		"Resource": []string{"arn:aws:s3:::" + s.Bucket, "arn:aws:s3:::" + s.Bucket + "/*"},
	}
}
