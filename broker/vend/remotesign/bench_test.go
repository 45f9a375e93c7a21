package remotesign

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// BenchmarkSign signs each request once through a Signer, from text to headers, and
// once with the bare SDK signer, whose request stands ready. The two alternate, so
// that a busy machine slows both.
func BenchmarkSign(b *testing.B) {
	for _, op := range []Operation{GetObject, PutObject, UploadPart} {
		a := accepted[op]
		b.Run(string(op), func(b *testing.B) {
			s, l := open(b, nil)
			s.c.Authorize = func(context.Context, Request) (Grant, error) { return l.grant, nil }
			signer := v4.NewSigner()
			keys := aws.Credentials{AccessKeyID: testID, SecretAccessKey: testSecret, SessionToken: testToken}
			ctx := context.Background()
			var ours, bare time.Duration
			b.ReportAllocs()
			for b.Loop() {
				start := time.Now()
				signed, err := s.Sign(ctx, a.in)
				if err != nil {
					b.Fatal(err)
				}
				signed.Reveal()
				ours += time.Since(start)

				r := send(b, a.in, a.body, http.Header{headerSHA256: {a.in.PayloadSHA256}})
				start = time.Now()
				if err := signer.SignHTTP(ctx, keys, r, a.in.PayloadSHA256, "s3", testRegion, testNow, asS3); err != nil {
					b.Fatal(err)
				}
				bare += time.Since(start)
			}
			b.ReportMetric(float64(ours)/float64(b.N), "ns/signed")
			b.ReportMetric(float64(bare)/float64(b.N), "ns/bare")
			b.ReportMetric(float64(ours)/float64(bare), "x-bare")
		})
	}
}

func BenchmarkParseInput(b *testing.B) {
	b.ReportAllocs()
	b.SetBytes(int64(len(goodBody)))
	for b.Loop() {
		if _, err := parseInput([]byte(goodBody)); err != nil {
			b.Fatal(err)
		}
	}
}
