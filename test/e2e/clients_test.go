package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"

	"github.com/fluss-sluice/sluice/api/client"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/test/env"
	"github.com/fluss-sluice/sluice/test/harness"
)

// newVendingWorld is a world with its warehouse on a real S3 server, whose workers may
// have keys of that server.
func newVendingWorld(t *testing.T) (*world, *env.Server) {
	t.Helper()
	server := env.Need(t, env.SeaweedFS, env.Options{})
	file, err := harness.WriteS3Config(t.TempDir(), server, "wh")
	if err == nil {
		err = harness.AddCredentials(file, server)
	}
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, "--config", file)
	w.way = builder.STS
	return w, server
}

// program is a client that knows nothing of Sluice: it copies a local file to an object
// or an object to a local file.
type program struct {
	put, get func(local, key string) error
}

// TestProgramsThatKnowNothingOfSluice upload and read inside a worker's prefix with
// keys of its token, and are refused outside.
func TestProgramsThatKnowNothingOfSluice(t *testing.T) {
	w, server := newVendingWorld(t)
	bc := w.begin(w.table("foreign"), "one")
	token := w.mustToken("worker-a", bc, "bucket:0:write")
	tokenFile := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(tokenFile, []byte("Bearer "+token.Reveal()), 0o600); err != nil {
		t.Fatal(err)
	}
	container := []string{
		"AWS_CONTAINER_CREDENTIALS_FULL_URI=" + w.URL + "/v1/aws/credentials?scope=bucket:0:write",
		"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=" + tokenFile, "AWS_REGION=" + server.Region, "AWS_DEFAULT_REGION=" + server.Region,
		"AWS_ENDPOINT_URL=" + server.Endpoint,
	}
	profile := w.profile(bc, server)
	clients := env.NeedAWSClients(t)
	rclone := env.NeedProgram(t, "rclone", "apt-get install rclone")

	for name, p := range map[string]program{
		"aws-sdk-go-v2":                   w.goSDK(server, container),
		"boto3":                           boto3(t, clients, server, container),
		"the AWS command line":            awsCLI(t, clients, server, container),
		"the AWS command line, a profile": awsCLI(t, clients, server, append(profile, "AWS_ENDPOINT_URL="+server.Endpoint)),
		"rclone":                          w.rclone(rclone, bc, server),
	} {
		t.Run(name, func(t *testing.T) { uses(t, p, bc) })
	}
}

// uses puts and gets a small file and one of several parts inside bucket 0's directory,
// and tries everything around it.
func uses(t *testing.T, p program, bc *builder.BuildContext) {
	dir := t.TempDir()
	const root = "wh/" // of the warehouse in its bucket
	own := root + snapDir(bc, 0) + "/"
	for i, size := range []int{100, 20 << 20} {
		content := bytes.Repeat([]byte{byte(i + 1), 7, 9, 11}, size/4)
		local, back, key := filepath.Join(dir, "local"), filepath.Join(dir, "back"), fmt.Sprintf("%sprivate-%064x-%064x", own, i, len(t.Name()))
		if err := os.WriteFile(local, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := p.put(local, key); err != nil {
			t.Fatalf("put %d bytes: %v", size, err)
		}
		if err := p.get(back, key); err != nil {
			t.Fatalf("get %d bytes: %v", size, err)
		}
		if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, content) {
			t.Fatalf("%d bytes came back as %d, %v", size, len(got), err)
		}
	}
	small := filepath.Join(dir, "small")
	if err := os.WriteFile(small, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for what, key := range map[string]string{
		"another bucket of the table":  root + snapDir(bc, 1) + "/f",
		"a bucket that begins alike":   root + strings.Replace(snapDir(bc, 0), "/0/", "/01/", 1) + "/f",
		"the directory above":          root + keyOf(bc, bc.Plan.UploadRoot) + "/0/f",
		"another snapshot":             strings.TrimSuffix(own, "/") + "0/f",
		"the published files":          root + keyOf(bc, bc.Plan.FinalRoot) + "/0/snap-0/f",
		"the fence":                    root + keyOf(bc, bc.Plan.FinalRoot) + "/_bulkload/fence",
		"the manifest":                 root + keyOf(bc, bc.Plan.ManifestPath),
		"the catalog of the warehouse": root + "_catalog/ids",
	} {
		if err := p.put(small, key); !refused(err) {
			t.Errorf("put to %s (%s): %v", what, key, err)
		}
	}
	if err := p.get(filepath.Join(dir, "stolen"), root+keyOf(bc, bc.Plan.FinalRoot)+"/_bulkload/fence"); !refused(err) {
		t.Errorf("get the fence: %v", err)
	}
}

// refused reports whether the store said no, in the words of whichever client.
func refused(err error) bool {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode() == "AccessDenied" || api.ErrorCode() == "Forbidden"
	}
	return err != nil && (strings.Contains(err.Error(), "AccessDenied") || strings.Contains(err.Error(), "Forbidden"))
}

func (w *world) goSDK(server *env.Server, vars []string) program {
	for _, v := range append(vars, "AWS_EC2_METADATA_DISABLED=true", "AWS_CONFIG_FILE="+os.DevNull, "AWS_SHARED_CREDENTIALS_FILE="+os.DevNull) {
		name, value, _ := strings.Cut(v, "=")
		w.t.Setenv(name, value)
	}
	c, err := awsconfig.LoadDefaultConfig(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	client := s3.NewFromConfig(c, func(o *s3.Options) { o.UsePathStyle = true })
	return program{
		put: func(local, key string) error {
			f, err := os.Open(local)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = client.PutObject(context.Background(), &s3.PutObjectInput{Bucket: &server.Bucket, Key: &key, Body: f})
			return err
		},
		get: func(local, key string) error {
			out, err := client.GetObject(context.Background(), &s3.GetObjectInput{Bucket: &server.Bucket, Key: &key})
			if err != nil {
				return err
			}
			defer out.Body.Close()
			var b bytes.Buffer
			if _, err := b.ReadFrom(out.Body); err != nil {
				return err
			}
			return os.WriteFile(local, b.Bytes(), 0o600)
		},
	}
}

func boto3(t *testing.T, c env.AWSClients, server *env.Server, vars []string) program {
	run := func(call, local, key string) error {
		return output(c.Python(t.Context(), `
import boto3, os
from botocore.config import Config
s3 = boto3.client("s3", config=Config(s3={"addressing_style": "path"}))
s3.`+call, append(vars, "LOCAL="+local, "BUCKET="+server.Bucket, "KEY="+key)...))
	}
	return program{
		put: func(local, key string) error {
			return run(`upload_file(os.environ["LOCAL"], os.environ["BUCKET"], os.environ["KEY"])`, local, key)
		},
		get: func(local, key string) error {
			return run(`download_file(os.environ["BUCKET"], os.environ["KEY"], os.environ["LOCAL"])`, local, key)
		},
	}
}

func awsCLI(t *testing.T, c env.AWSClients, server *env.Server, vars []string) program {
	run := func(args ...string) error { return output(c.AWS(t.Context(), args, vars...)) }
	return program{
		put: func(local, key string) error {
			return run("s3", "cp", "--only-show-errors", local, "s3://"+server.Bucket+"/"+key)
		},
		get: func(local, key string) error {
			return run("s3", "cp", "--only-show-errors", "s3://"+server.Bucket+"/"+key, local)
		},
	}
}

// profile makes a profile that gets its keys through the sluice command.
func (w *world) profile(bc *builder.BuildContext, server *env.Server) []string {
	w.t.Helper()
	dir := w.t.TempDir()
	identity, file := filepath.Join(dir, "identity"), filepath.Join(dir, "config")
	process := strings.Join([]string{
		bins.Sluice, "--url", w.URL, "--identity-token-file", identity, "creds",
		"--session", bc.Handle.BulkLoadID, "--bucket", "0", "--write", "--format", "process",
	}, " ")
	text := fmt.Sprintf("[default]\nregion = %s\ncredential_process = %s\ns3 =\n  addressing_style = path\n", server.Region, process)
	if err := errors.Join(
		os.WriteFile(identity, []byte(w.identity("worker-a").Reveal()), 0o600), os.WriteFile(file, []byte(text), 0o600),
	); err != nil {
		w.t.Fatal(err)
	}
	return []string{"AWS_CONFIG_FILE=" + file}
}

// rclone gets its configuration from the sluice command.
func (w *world) rclone(path string, bc *builder.BuildContext, server *env.Server) program {
	w.t.Helper()
	conf, err := w.CLI(w.t.Context(), "worker-a", "creds", "--session", bc.Handle.BulkLoadID, "--bucket", "0", "--write", "--format", "rclone")
	if err != nil {
		w.t.Fatal(err)
	}
	file := filepath.Join(w.t.TempDir(), "rclone.conf")
	if err := os.WriteFile(file, conf, 0o600); err != nil {
		w.t.Fatal(err)
	}
	run := func(from, to string) error {
		cmd := exec.CommandContext(w.t.Context(), path, "--config", file, "--retries", "1", "--low-level-retries", "1",
			"--s3-upload-cutoff", "8Mi", "--s3-chunk-size", "8Mi", "copyto", from, to)
		cmd.Env = []string{"HOME=" + os.DevNull} // no AWS settings of whoever runs this
		return output(cmd)
	}
	remote := "sluice:" + server.Bucket + "/"
	return program{
		put: func(local, key string) error { return run(local, remote+key) },
		get: func(local, key string) error { return run(remote+key, local) },
	}
}

// output runs a program; what it printed is in the error.
func output(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, out)
	}
	return nil
}

// TestAWorkerThatKeepsItsKeys has keys that outlive the freeze, and uses them.
func TestAWorkerThatKeepsItsKeys(t *testing.T) {
	const rows = 400
	w, server := newVendingWorld(t)
	keysOf := func(bc *builder.BuildContext) *s3.Client {
		t.Helper()
		c, err := w.api("worker-a").Credentials(t.Context(), client.StaticToken(w.mustToken("worker-a", bc, "bucket:0-1:write")),
			client.CredentialsRequest{SessionID: bc.Handle.BulkLoadID})
		if err != nil || len(c.Keys) == 0 {
			t.Fatal(err)
		}
		k := c.Keys[0]
		return server.S3(credentials.NewStaticCredentialsProvider(k.AccessKeyID, k.SecretAccessKey.Reveal(), k.SessionToken.Reveal()))
	}
	overwrite := func(c *s3.Client, key string) error {
		_, err := c.PutObject(t.Context(), &s3.PutObjectInput{Bucket: &server.Bucket, Key: aws.String("wh/" + key), Body: strings.NewReader("{}")})
		return err
	}

	t.Run("copy: it reaches what it uploaded, and nothing that is published", func(t *testing.T) {
		target := w.table("copied")
		bc := w.begin(target, "one")
		kept, old := keysOf(bc), w.mustToken("worker-a", bc, "bucket:0-1:write")
		files := w.build(bc, rows)
		s, err := w.as("loader").Commit(t.Context(), bc, files)
		if err != nil || s.State != "COMMITTED" || s.HandOver != "copy" {
			t.Fatalf("%+v, %v\n%s", s, err, w.Log())
		}
		if s.KeysLiveUntil == nil || !s.KeysLiveUntil.After(time.Now()) {
			t.Errorf("the answer says keys live until %v", s.KeysLiveUntil)
		}
		if err := overwrite(kept, snapDir(bc, 0)+"/_METADATA"); err != nil {
			t.Errorf("the keys are dead already, so this test shows nothing: %v", err)
		}
		final := fmt.Sprintf("%s/0/snap-%d/", keyOf(bc, bc.Plan.FinalRoot), bc.SnapshotIDs[0])
		if err := overwrite(kept, final+"_METADATA"); !refused(err) {
			t.Errorf("published metadata were overwritten: %v", err)
		}
		if err := overwrite(kept, final+fileName); !refused(err) {
			t.Errorf("a published file was overwritten: %v", err)
		}
		w.rowsEqual(target, rows)
		_, err = w.api("worker-a").Credentials(t.Context(), client.StaticToken(old), client.CredentialsRequest{SessionID: bc.Handle.BulkLoadID})
		if err == nil {
			t.Error("keys were vended after the commit")
		}
	})
	t.Run("wait: nothing is published while it could write", func(t *testing.T) {
		target := w.table("waited")
		bc, err := w.as("loader").Begin(t.Context(), builder.BeginRequest{Target: target, SubmissionID: "one", HandOver: "wait"})
		if err != nil {
			t.Fatal(err)
		}
		kept := keysOf(bc)
		files := w.build(bc, rows)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if s, err := w.as("loader").Commit(ctx, bc, files); err == nil {
			t.Fatalf("committed while keys live: %+v", s)
		}
		s, err := w.api("loader").Session(t.Context(), bc.Handle.BulkLoadID)
		if err != nil || s.State != "BEGUN" || s.Phase != "frozen" {
			t.Fatalf("%+v, %v", s, err)
		}
		if err := overwrite(kept, snapDir(bc, 0)+"/_METADATA"); err != nil {
			t.Errorf("the keys are dead already, so this test shows nothing: %v", err)
		}
		if got, err := w.as("loader").SnapshotScanRows(t.Context(), builder.ScanRequest{Target: target}); err != nil || len(got) > 0 {
			t.Errorf("%d rows are visible before the commit, %v", len(got), err)
		}
	})
}
