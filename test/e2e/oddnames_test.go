package e2e

import (
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
)

// TestNamesThatNoGatewayTakesBlockNothing has a worker use its keys to store objects
// whose names are no keys of ours. They lie in its own directory, so the store takes
// them; commit, abort, the next load and a drop must go on as if they were not there,
// and take them away.
func TestNamesThatNoGatewayTakesBlockNothing(t *testing.T) {
	const rows = 100
	w, server := newVendingWorld(t)
	admin := server.S3(server.Admin.Provider())
	odd := func(bc *builder.BuildContext) {
		t.Helper()
		c, err := w.api("worker-a").Credentials(t.Context(), client.StaticToken(w.mustToken("worker-a", bc, "bucket:0:write")),
			client.CredentialsRequest{SessionID: bc.Handle.BulkLoadID})
		if err != nil {
			t.Fatal(err)
		}
		k := c.Keys[0]
		keys := server.S3(credentials.NewStaticCredentialsProvider(k.AccessKeyID, k.SecretAccessKey.Reveal(), k.SessionToken.Reveal()))
		stored := 0
		for _, name := range []string{"a%b", `a\b`, "a\tb", "a%2fb", "\u0001", "x/y%"} {
			if _, err := keys.PutObject(t.Context(), &s3.PutObjectInput{
				Bucket: &server.Bucket, Key: aws.String("wh/" + snapDir(bc, 0) + "/" + name), Body: strings.NewReader("x"),
			}); err == nil {
				stored++
			} else {
				t.Logf("%q: %v", name, err)
			}
		}
		if stored < 3 {
			t.Fatal("the store takes none of these names, so this test shows nothing")
		}
	}
	left := func(prefix string) (list []string) {
		t.Helper()
		pages := s3.NewListObjectsV2Paginator(admin, &s3.ListObjectsV2Input{Bucket: &server.Bucket, Prefix: aws.String("wh/" + prefix)})
		for pages.HasMorePages() {
			page, err := pages.NextPage(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range page.Contents {
				list = append(list, *o.Key)
			}
		}
		return list
	}
	begin := func(target v1.Target, submission, handOver string) *builder.BuildContext {
		t.Helper()
		bc, err := w.as("loader").Begin(t.Context(), builder.BeginRequest{Target: target, SubmissionID: submission, HandOver: handOver})
		if err != nil {
			t.Fatalf("begin %s: %v", submission, err)
		}
		return bc
	}

	for _, handOver := range []string{"copy", "verify"} {
		t.Run(handOver, func(t *testing.T) {
			target := w.table("odd_" + handOver)
			bc := begin(target, "aborted", handOver)
			odd(bc)
			if _, err := w.as("loader").Abort(t.Context(), bc); err != nil {
				t.Fatal(err)
			}
			bc = begin(target, "committed", handOver)
			odd(bc)
			if _, err := w.as("loader").Commit(t.Context(), bc, w.build(bc, rows)); err != nil {
				t.Fatalf("commit: %v\n%s", err, w.Log())
			}
			w.rowsEqual(target, rows)
			if handOver == "copy" {
				waitFor(t, "staging to be deleted", func() bool { return len(left(keyOf(bc, bc.Plan.UploadRoot)+"/")) == 0 })
			}
			if err := w.api("loader").DropTable(t.Context(), target.Database, target.Table); err != nil {
				t.Errorf("drop: %v", err)
			}
			for _, key := range left(keyOf(bc, bc.Plan.FinalRoot) + "/") {
				if !strings.HasSuffix(key, "/_bulkload/fence") {
					t.Errorf("left after the drop: %q", key)
				}
			}
		})
	}
}
